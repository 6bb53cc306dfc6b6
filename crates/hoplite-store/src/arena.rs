//! The arena as its owner, the daemon, uses it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};

use crate::mapping::Mapping;
use crate::region::HugePages;
use crate::removals::Removals;
use crate::warm::Warmer;

/// One node's shared memory.
#[derive(Debug)]
pub struct Arena {
    // Dropped first: its thread works on the mapping.
    warmer: Warmer,
    fd: OwnedFd,
    mapping: Arc<Mapping>,
}

impl Arena {
    /// Makes an arena of `bytes` bytes, rounded up to whole pages. No page of it is used before
    /// something is written or [`Arena::warm_to`] is called.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes, and what `memfd_create`, `ftruncate` and `mmap` report.
    pub fn create(bytes: u64) -> io::Result<Arena> {
        Self::with_pages(bytes, HugePages::default())
    }

    /// As `create`, with a choice of page sizes (for measuring it).
    pub fn with_pages(bytes: u64, pages: HugePages) -> io::Result<Arena> {
        let page = rustix::param::page_size() as u64;
        let bytes = bytes.checked_next_multiple_of(page).ok_or(io::ErrorKind::InvalidInput)?;
        let fd = rustix::fs::memfd_create("hoplite", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let file = bytes.checked_add(Removals::bytes() as u64).ok_or(io::ErrorKind::InvalidInput)?;
        rustix::fs::ftruncate(&fd, file)?;
        // Nobody, a client with the descriptor least of all, can pull pages from under a mapping.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::of_owner(&fd, bytes, pages)?;
        let warmer = Warmer::start(mapping.clone())?;
        Ok(Arena { warmer, fd, mapping })
    }

    /// The descriptor to pass to clients.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Size in bytes, a whole number of pages.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes()
    }

    /// The daemon's own mapping.
    pub fn mapping(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }

    /// Has the [`crate::PREFAULT_AHEAD`] bytes behind `high_water` faulted in by a background
    /// thread, so that writers find memory and not page faults. What lies below the mark is for
    /// whoever writes there already. Returns at once; calling it again
    /// with the same or a smaller mark costs one atomic load.
    pub fn warm_to(&self, high_water: u64) {
        self.warmer.warm_to(high_water);
    }

    /// Waits until what `warm_to` asked for is done (or found impossible), and returns the address
    /// it has come to.
    pub fn wait_until_warm(&self) -> u64 {
        self.warmer.wait()
    }
}

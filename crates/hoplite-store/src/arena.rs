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
    /// Creates an arena of `bytes` bytes, rounded up to whole pages. No page of it is used before something is
    /// written, or [`Arena::warm_to`] is called.
    ///
    /// # Errors
    /// `InvalidInput` for 0 bytes, and the errors of `memfd_create`, `ftruncate` and `mmap`.
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
        // No process, in particular no client with the descriptor, can remove pages under a mapping.
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

    /// Has a background thread fault in the [`crate::PREFAULT_AHEAD`] bytes behind `high_water`, so that writers find
    /// memory and take no page faults. Below the mark, writers that are there already fault in the pages. Returns at
    /// once; calling it again with the same or a smaller mark costs one atomic load.
    pub fn warm_to(&self, high_water: u64) {
        self.warmer.warm_to(high_water);
    }

    /// Waits until the work that `warm_to` requested is done (or found impossible). Returns the address that it has
    /// reached.
    pub fn wait_until_warm(&self) -> u64 {
        self.warmer.wait()
    }
}

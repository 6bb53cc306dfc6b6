//! One mapping of the memfd into this process, aligned so that huge pages can back it.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size and alignment of a huge page. A file page and its address must agree modulo this size, so that the kernel can
/// map it with one entry.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes faulted in at once. The kernel holds the process's memory map for about a millisecond, and code that must
/// change the map (a growing heap) waits that long. One huge page at a time would cost a drain of every processor's
/// page lists each.
pub(crate) const FAULT_PIECE_BYTES: usize = 4 * HUGE_PAGE_BYTES;

/// Whether the arena asks for 2 MiB pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    Never,
    /// Advised before faulting, and collapsed (`MADV_COLLAPSE`) if the advice had no effect.
    #[default]
    WhereAllowed,
}

/// The access that this process has to the bytes of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// A mapped memfd; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Region` is only an address range. All code that dereferences it (progress blocks with atomics, object
// bytes behind the watermark rule) does so through types that keep to the rules of the crate's documentation, from
// any thread.
unsafe impl Send for Region {}
// SAFETY: as above; `Region` itself has no interior state.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn map(fd: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Region> {
        let padded = len.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a fresh reservation at an address of the kernel's choice touches nothing.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                padded,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let skip = reserved.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: `skip <= HUGE_PAGE_BYTES`, so the replaced range lies inside the reservation just made, which no
        // other code knows of.
        let mapped = unsafe {
            let aligned = reserved.cast::<u8>().add(skip).cast::<c_void>();
            rustix::mm::mmap(aligned, len, protection, MapFlags::SHARED | MapFlags::FIXED, fd, 0)
        };
        let start = match mapped {
            Ok(start) => start.cast::<u8>(),
            Err(error) => {
                // SAFETY: the reservation is ours and unused.
                unsafe { rustix::mm::munmap(reserved, padded)? };
                return Err(error.into());
            }
        };
        Self::trim(reserved, skip, len, padded)?;
        let region = Region { start: NonNull::new(start).expect("the kernel maps no page at 0"), len };
        // Objects of many gigabytes do not belong in a core dump. A refusal is harmless.
        let _ = region.advise(0, len, Advice::LinuxDontDump);
        Ok(region)
    }

    /// Unmaps the parts of the reservation before and behind the aligned mapping.
    fn trim(reserved: *mut c_void, skip: usize, len: usize, padded: usize) -> io::Result<()> {
        let tail = skip + len;
        // SAFETY: both ranges lie inside the reservation and outside the mapping; `len` is a
        // multiple of the page size (checked by `Mapping`), so they start and end on pages.
        unsafe {
            if skip > 0 {
                rustix::mm::munmap(reserved, skip)?;
            }
            if tail < padded {
                rustix::mm::munmap(reserved.cast::<u8>().add(tail).cast(), padded - tail)?;
            }
        }
        Ok(())
    }

    /// The address of `offset`, which must not exceed the length.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.len, "offset {offset} lies outside an arena of {} bytes", self.len);
        // SAFETY: within the mapping or one past its end.
        unsafe { self.start.add(offset) }
    }

    /// `madvise` with advice that changes no contents.
    pub(crate) fn advise(&self, from: usize, to: usize, advice: Advice) -> io::Result<()> {
        debug_assert!(matches!(
            advice,
            Advice::LinuxDontDump
                | Advice::LinuxHugepage
                | Advice::LinuxPopulateWrite
                | Advice::LinuxPopulateRead
        ));
        assert!(from <= to && to <= self.len);
        // SAFETY: the range is ours and none of these pieces of advice changes what it holds.
        unsafe { rustix::mm::madvise(self.at(from).as_ptr().cast(), to - from, advice)? };
        Ok(())
    }

    /// Makes every page of the range present and writable here. Where huge pages fit wholly inside the range, and the
    /// kernel allows them, they are huge pages.
    pub(crate) fn fault_in(&self, from: usize, to: usize, pages: HugePages) -> io::Result<()> {
        let first = from.next_multiple_of(HUGE_PAGE_BYTES);
        let last = to - to % HUGE_PAGE_BYTES;
        if pages == HugePages::WhereAllowed && first < last {
            // One page of each, not all. The kernel refuses to collapse a hole. Clearing the rest of a huge page is 3
            // times faster than making 511 small ones, and 5 times faster than making and then copying them.
            for huge in (first..last).step_by(HUGE_PAGE_BYTES) {
                self.advise(huge, huge + rustix::param::page_size(), Advice::LinuxPopulateWrite)?;
            }
            // If it fails (no free huge page, an old kernel), the pages are small.
            let _ = self.collapse(first, last);
        }
        self.advise(from, to, Advice::LinuxPopulateWrite)
    }

    /// Asks the kernel to turn the pages of the range into huge ones now. rustix has no name for this advice.
    fn collapse(&self, from: usize, to: usize) -> io::Result<()> {
        assert!(from <= to && to <= self.len);
        // SAFETY: the range is ours; collapsing moves contents between pages, transparently.
        let rc = unsafe { libc::madvise(self.at(from).as_ptr().cast(), to - from, libc::MADV_COLLAPSE) };
        match rc {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: any code that could still use the range holds the `Arc<Mapping>` that owns this.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

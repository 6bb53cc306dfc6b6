//! The progress block in memory that several processes map.

use std::ptr::NonNull;

use hoplite_types::limits::{ALIGNMENT, PROGRESS_BLOCK_BYTES};
use rustix::thread::futex;

use crate::block::ProgressBlock;

const _: () = assert!(size_of::<ProgressBlock>() as u64 == PROGRESS_BLOCK_BYTES);
const _: () = assert!(align_of::<ProgressBlock>() as u64 == ALIGNMENT);
// The layout is defined as little-endian; all processes on a host have the same endianness anyway.

impl ProgressBlock {
    /// # Safety
    /// `at` points to a progress block inside a mapping that outlives `'a`, aligned to 64. The
    /// mapping may be read-only if only the loading methods (and `sleep`) are used.
    pub(crate) unsafe fn from_ptr<'a>(at: NonNull<u8>) -> &'a ProgressBlock {
        debug_assert!(at.cast::<ProgressBlock>().is_aligned());
        // SAFETY: by contract; every field is an atomic, valid for any bit pattern.
        unsafe { at.cast::<ProgressBlock>().as_ref() }
    }

    /// Wakes all followers. Call it after any change, if a follower may sleep: a read-only follower cannot announce
    /// itself.
    pub(crate) fn wake(&self) {
        let woken = futex::wake(&self.tick, futex::Flags::empty(), i32::MAX as u32);
        debug_assert!(woken.is_ok(), "{woken:?}");
    }

    /// Sleeps until the tick is no longer `tick`; also returns early on a signal (`Err(INTR)`).
    pub(crate) fn sleep(&self, tick: u32, timeout: std::time::Duration) -> rustix::io::Result<()> {
        let timeout = futex::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        futex::wait(&self.tick, futex::Flags::empty(), tick, Some(&timeout))
    }
}

//! The progress block: how far a copy is, shared between processes.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use hoplite_words::limits::{ALIGNMENT, PROGRESS_BLOCK_BYTES};
use rustix::thread::futex;

/// Whether a copy may still grow.
///
/// ```text
/// Writing ──seal──▶ Sealed
///    └─────abort──▶ Aborted
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    Writing = 0,
    Sealed = 1,
    Aborted = 2,
}

/// The memory layout; see the crate's documentation.
#[repr(C, align(64))]
pub(crate) struct ProgressBlock {
    watermark: AtomicU64,
    tick: AtomicU32,
    state: AtomicU32,
    wanted: AtomicU32,
}

const _: () = assert!(size_of::<ProgressBlock>() as u64 == PROGRESS_BLOCK_BYTES);
const _: () = assert!(align_of::<ProgressBlock>() as u64 == ALIGNMENT);
// The layout is little-endian on paper; every process on a host shares one endianness anyway.

impl ProgressBlock {
    /// # Safety
    /// `at` points to a progress block inside a mapping that outlives `'a`, aligned to 64. The
    /// mapping may be read-only if only the loading methods (and `sleep`) are used.
    pub(crate) unsafe fn from_ptr<'a>(at: NonNull<u8>) -> &'a ProgressBlock {
        debug_assert!(at.cast::<ProgressBlock>().is_aligned());
        // SAFETY: by contract; every field is an atomic, valid for any bit pattern.
        unsafe { at.cast::<ProgressBlock>().as_ref() }
    }

    /// Back to nothing written. Nobody sleeps here, since an earlier life ended with a wake; the tick goes on
    /// for who is about to.
    pub(crate) fn reset(&self) {
        self.watermark.store(0, Ordering::Relaxed);
        self.wanted.store(0, Ordering::Relaxed);
        self.state.store(State::Writing as u32, Ordering::Release);
        self.tick.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn watermark(&self) -> u64 {
        self.watermark.load(Ordering::Acquire)
    }

    /// SeqCst pairs with `want`: of "publish, then look at wanted" and "set wanted, then look at
    /// the watermark", at least one side sees the other.
    pub(crate) fn publish(&self, watermark: u64) {
        self.watermark.store(watermark, Ordering::SeqCst);
        self.tick.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Writing,
            1 => State::Sealed,
            // Anything else than the three is a scribbled block: as good as abandoned.
            _ => State::Aborted,
        }
    }

    pub(crate) fn finish(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
        self.tick.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn want(&self) {
        self.wanted.store(1, Ordering::SeqCst);
    }

    pub(crate) fn take_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) != 0 && self.wanted.swap(0, Ordering::SeqCst) != 0
    }

    pub(crate) fn tick(&self) -> u32 {
        self.tick.load(Ordering::Acquire)
    }

    /// After a change, if anyone may be asleep: a read-only follower cannot announce itself.
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

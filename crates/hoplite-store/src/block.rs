//! The progress block: how far a copy is, shared between processes. Its layout in memory, and sleeping on it, are in
//! `mapped`.
//!
//! Its atomics come from `sync`, because `tests/interleavings.rs` runs this code with a model checker's.

use crate::sync::{fence, AtomicU32, AtomicU64, Ordering};

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
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct ProgressBlock {
    watermark: AtomicU64,
    pub(crate) tick: AtomicU32,
    state: AtomicU32,
    wanted: AtomicU32,
}

impl ProgressBlock {
    /// Resets the block to that of an empty copy. No follower sleeps on it, since its previous use ended with a wake.
    /// The tick continues, for followers that are about to sleep.
    pub(crate) fn reset(&self) {
        self.watermark.store(0, Ordering::Relaxed);
        self.wanted.store(0, Ordering::Relaxed);
        self.state.store(State::Writing as u32, Ordering::Release);
        self.tick.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn watermark(&self) -> u64 {
        self.watermark.load(Ordering::Acquire)
    }

    pub(crate) fn publish(&self, watermark: u64) {
        self.watermark.store(watermark, Ordering::Release);
        self.tick.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Writing,
            1 => State::Sealed,
            // Any other value means that the block was overwritten; the copy counts as aborted.
            _ => State::Aborted,
        }
    }

    pub(crate) fn finish(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
        self.tick.fetch_add(1, Ordering::Release);
    }

    /// Asks the writer to report its next advance. If the writer's check after a `publish` misses this request, the
    /// caller's later loads, of the watermark above all, see that `publish`. For of "publish, fence, look at wanted"
    /// and "set wanted, fence, look at the watermark", at least one side sees the other. (Sequentially consistent
    /// stores alone do not order the loads behind them.)
    pub(crate) fn want(&self) {
        self.wanted.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether a report was requested. Call it after `publish`.
    pub(crate) fn take_wanted(&self) -> bool {
        fence(Ordering::SeqCst);
        self.wanted.load(Ordering::Relaxed) != 0 && self.wanted.swap(0, Ordering::Relaxed) != 0
    }

    pub(crate) fn tick(&self) -> u32 {
        self.tick.load(Ordering::Acquire)
    }
}

//! Removal counters: how many complete copies have gone from the node. They are in the arena, so that clients read them
//! without a request.
//!
//! A client may cache an object's bytes, with the counter as it was *before* the client asked the node for the object.
//! While the counter is unchanged, no copy of the object has gone since, and the node would give the same answer.
//! Objects share counters; the cost of that is only an unnecessary request.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use hoplite_types::ObjectId;

/// A removal makes clients ask the node again for one in this many of their cached objects. The counters take two
/// pages of memory.
const COUNTERS: usize = 1024;

/// Located behind the last byte of the arena.
#[repr(C, align(64))]
pub(crate) struct Removals([AtomicU64; COUNTERS]);

impl Removals {
    /// Size of the counters, in whole pages.
    pub(crate) fn bytes() -> usize {
        size_of::<Removals>().next_multiple_of(rustix::param::page_size())
    }

    /// # Safety
    /// `at` points to [`Removals::bytes`] bytes inside a mapping that outlives `'a`, aligned to a page. The mapping
    /// may be read-only if nothing is counted.
    pub(crate) unsafe fn from_ptr<'a>(at: NonNull<u8>) -> &'a Removals {
        debug_assert!(at.cast::<Removals>().is_aligned());
        // SAFETY: by contract; atomics are valid for any bit pattern.
        unsafe { at.cast::<Removals>().as_ref() }
    }

    /// The daemon counts a removal before it reports it to any process. So a process that has learned of the removal,
    /// over whatever sockets, sees the count.
    pub(crate) fn add(&self, id: ObjectId) {
        self.of(id).fetch_add(1, Ordering::Release);
    }

    /// Acquire: later requests of the caller to the node are made after this load.
    pub(crate) fn count(&self, id: ObjectId) -> u64 {
        self.of(id).load(Ordering::Acquire)
    }

    fn of(&self, id: ObjectId) -> &AtomicU64 {
        // Ids need not be random: callers may choose their own 16 bytes.
        let (head, tail) = id.0.split_at(8);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 of 16 bytes"));
        let mixed = (half(head) ^ half(tail).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(mixed >> (u64::BITS - COUNTERS.ilog2())) as usize]
    }
}

//! Limits how many prefetches run at once. Concurrent streams share a link in small pieces. That costs every node of a
//! chain about twice the processor time, and costs the link its rate once processors are busy. So only as many run at
//! once as hide the time from one object's last byte to the next one's first.
//!
//! Objects that a client waits for are not limited: they are fetched at once, even if a prefetch of them still waits.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hoplite_types::ObjectId;

use super::{Fetcher, State};
use crate::keys::Want;
use crate::timers::Timer;

/// How long a prefetch waits for an object that nobody has put.
const PREFETCH_LIFETIME: Duration = Duration::from_secs(600);

/// So many run at once, however large they are.
const RUNNING_MIN: usize = 2;

/// Limits on running more than that: their number, and their bytes together.
const RUNNING_MAX: usize = 16;
const RUNNING_BYTES_MAX: u64 = 4 << 20;

/// How long a prefetch delays others at most: before it has a sender, since the object may not exist yet; and after
/// that, since its stream may stall for reasons of its own.
const ASK_TIME_MAX: Duration = Duration::from_millis(20);
const STREAM_TIME_MAX: Duration = Duration::from_secs(1);

/// The prefetches that run, and those that wait to run.
#[derive(Debug, Default)]
pub(crate) struct PrefetchLimiter {
    waiting: VecDeque<ObjectId>,
    /// The running prefetches, each with its size, or its expected size.
    running: BTreeMap<ObjectId, u64>,
    /// The size of the last object that an owner answered for, as a guess for the next; 0 if it did not answer in time.
    last_bytes: Option<u64>,
}

impl PrefetchLimiter {
    /// Takes the next prefetch that may run; it counts as running.
    fn admit(&mut self) -> Option<ObjectId> {
        let expected = self.last_bytes.unwrap_or(RUNNING_BYTES_MAX);
        let together = self.running.values().sum::<u64>() + expected;
        let more = self.running.len() < RUNNING_MAX && together <= RUNNING_BYTES_MAX;
        if self.running.len() >= RUNNING_MIN && !more {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.running.insert(next, expected);
        Some(next)
    }
}

impl Fetcher<'_> {
    /// Fetches `object` once the limiter admits it; it may be waiting for that already.
    pub(super) fn prefetch(&mut self, object: ObjectId, is_new: bool) {
        self.ctx.timers.set(self.ctx.now + PREFETCH_LIFETIME, Timer::Prefetch(object));
        if is_new {
            self.fetches.prefetch_limiter.waiting.push_back(object);
            self.start_prefetches();
        }
    }

    pub fn on_prefetch_timer(&mut self, object: ObjectId) {
        self.unwant(object, Want::Prefetch);
    }

    fn start_prefetches(&mut self) {
        while let Some(object) = self.fetches.prefetch_limiter.admit() {
            self.ensure_fetch(object);
            if self.fetches.running.contains_key(&object) {
                self.ctx.timers.set(self.ctx.now + ASK_TIME_MAX, Timer::PrefetchStalled(object));
            } else {
                // It is here by now, or no longer wanted.
                self.fetches.prefetch_limiter.running.remove(&object);
            }
        }
        if self.fetches.prefetch_limiter.running.is_empty() {
            self.fetches.prefetch_limiter.last_bytes = None;
        }
    }

    /// The size of `object` is known.
    pub(super) fn on_prefetch_size_known(&mut self, object: ObjectId, bytes: u64) {
        let limiter = &mut self.fetches.prefetch_limiter;
        if let Some(known) = limiter.running.get_mut(&object) {
            *known = bytes;
            limiter.last_bytes = Some(bytes);
            self.ctx.timers.set(self.ctx.now + STREAM_TIME_MAX, Timer::PrefetchStalled(object));
            self.start_prefetches();
        }
    }

    pub fn on_prefetch_stalled(&mut self, object: ObjectId) {
        if self.fetches.running.get(&object).is_some_and(|fetch| fetch.state == State::Asking) {
            self.fetches.prefetch_limiter.last_bytes = Some(0);
        }
        self.release_prefetch(object);
    }

    /// `object` is here, or its fetch no longer delays other prefetches.
    pub fn release_prefetch(&mut self, object: ObjectId) {
        if self.fetches.prefetch_limiter.running.remove(&object).is_some() {
            self.ctx.timers.clear(Timer::PrefetchStalled(object));
            self.start_prefetches();
        }
    }
}

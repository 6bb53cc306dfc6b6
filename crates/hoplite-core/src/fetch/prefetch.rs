//! Prefetches take turns. Side by side, streams share a link in small pieces, which costs every node of a
//! chain about twice the processor time, and the link its rate once processors are busy: only as many go
//! at once as hide the time from one object's last byte to the next one's first.
//!
//! What a client waits for has no turns: it is brought at once, also where a prefetch of it still waits.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hoplite_types::ObjectId;

use super::{State, Want};
use crate::timers::Timer;
use crate::Core;

/// How long a prefetch waits for an object that nobody has put.
const PREFETCH_PATIENCE: Duration = Duration::from_secs(600);

/// As many go at once, however large they are.
const TURNS_MIN: usize = 2;

/// More only up to so many, of so many bytes together.
const TURNS_MAX: usize = 16;
const TURNS_BYTES: u64 = 4 << 20;

/// How long a prefetch keeps others waiting: until it has a sender, since nobody may have the object yet, and
/// then, since its stream may stand still for reasons of its own.
const ASK_PATIENCE: Duration = Duration::from_millis(20);
const STREAM_PATIENCE: Duration = Duration::from_secs(1);

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    waiting: VecDeque<ObjectId>,
    /// Those that go, each with its bytes, or what they are expected to be.
    going: BTreeMap<ObjectId, u64>,
    /// The bytes of the last object that was answered for, none if it was not: the next is likely to have as
    /// many.
    last_bytes: Option<u64>,
}

impl Turns {
    /// The next whose turn has come.
    fn take(&mut self) -> Option<ObjectId> {
        let expected = self.last_bytes.unwrap_or(TURNS_BYTES);
        let together = self.going.values().sum::<u64>() + expected;
        let more = self.going.len() < TURNS_MAX && together <= TURNS_BYTES;
        if self.going.len() >= TURNS_MIN && !more {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.going.insert(next, expected);
        Some(next)
    }
}

impl Core {
    /// `object` is to be brought here when its turn comes, for which it may wait already.
    pub(super) fn prefetch(&mut self, object: ObjectId, is_new: bool) {
        self.ctx.timers.set(self.ctx.now + PREFETCH_PATIENCE, Timer::Prefetch(object));
        if is_new {
            self.fetches.turns.waiting.push_back(object);
            self.take_turns();
        }
    }

    pub(crate) fn on_prefetch_timer(&mut self, object: ObjectId) {
        self.unwant(object, Want::Prefetch);
    }

    fn take_turns(&mut self) {
        while let Some(object) = self.fetches.turns.take() {
            self.ensure_fetch(object);
            if self.fetches.running.contains_key(&object) {
                self.ctx.timers.set(self.ctx.now + ASK_PATIENCE, Timer::Turn(object));
            } else {
                // Here by now, or wanted no more.
                self.fetches.turns.going.remove(&object);
            }
        }
        if self.fetches.turns.going.is_empty() {
            self.fetches.turns.last_bytes = None;
        }
    }

    /// The size of `object` is known.
    pub(super) fn weigh_turn(&mut self, object: ObjectId, bytes: u64) {
        let turns = &mut self.fetches.turns;
        if let Some(known) = turns.going.get_mut(&object) {
            *known = bytes;
            turns.last_bytes = Some(bytes);
            self.ctx.timers.set(self.ctx.now + STREAM_PATIENCE, Timer::Turn(object));
            self.take_turns();
        }
    }

    pub(crate) fn on_turn_timer(&mut self, object: ObjectId) {
        if self.fetches.running.get(&object).is_some_and(|fetch| fetch.state == State::Asking) {
            self.fetches.turns.last_bytes = Some(0);
        }
        self.end_turn(object);
    }

    /// `object` is here, or will be brought without keeping others waiting.
    pub(crate) fn end_turn(&mut self, object: ObjectId) {
        if self.fetches.turns.going.remove(&object).is_some() {
            self.ctx.timers.clear(Timer::Turn(object));
            self.take_turns();
        }
    }
}

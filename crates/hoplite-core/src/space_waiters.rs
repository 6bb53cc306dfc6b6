//! Calls, fetches and slots that wait for space in a full store, in order of arrival. The first that fits goes first: a
//! large object at the head must not hold up a small one whose reader would free the space it waits for.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::{ObjectId, ReductionId};

use crate::calls::STEPS_PER_TURN;
use crate::io::ClientId;
use crate::Core;

/// A call, fetch or slot that waits for space, and for which object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum SpaceWaiter {
    Create { object: ObjectId, client: ClientId, call: u64 },
    Fetch { object: ObjectId },
    Slot { reduction: ReductionId, slot: u32 },
    SmallTarget { number: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Place {
    arrival: u64,
    size: u64,
}

/// A pass over the waiters, in turns: those that arrived from `next` on, and before `end`.
#[derive(Clone, Copy, Debug)]
struct Pass {
    next: u64,
    end: u64,
}

/// All waiters for space.
#[derive(Default, Debug)]
pub(crate) struct SpaceWaiters {
    places: BTreeMap<SpaceWaiter, Place>,
    by_arrival: BTreeMap<u64, SpaceWaiter>,
    by_size: BTreeSet<(u64, u64)>,
    pass: Option<Pass>,
    /// Space came back during the pass, or more will be made in the next turn.
    again: bool,
}

impl SpaceWaiters {
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether more waiters may fit than could be tried at once.
    pub fn has_more(&self) -> bool {
        self.pass.is_some() || self.again
    }

    pub fn has(&self, what: SpaceWaiter) -> bool {
        self.places.contains_key(&what)
    }

    /// Puts a waiter for so many bytes at the end of the queue.
    fn enter(&mut self, what: SpaceWaiter, size: u64, arrival: u64) {
        self.leave(what);
        self.places.insert(what, Place { arrival, size });
        self.by_arrival.insert(arrival, what);
        self.by_size.insert((size, arrival));
    }

    pub fn leave(&mut self, what: SpaceWaiter) {
        if let Some(Place { arrival, size }) = self.places.remove(&what) {
            self.by_arrival.remove(&arrival);
            self.by_size.remove(&(size, arrival));
        }
    }

    /// The first few calls that wait for space to put `object`.
    fn puts_of(&self, object: ObjectId, most: usize) -> Vec<(ClientId, u64)> {
        let first = SpaceWaiter::Create { object, client: ClientId(0), call: 0 };
        let last = SpaceWaiter::Create { object, client: ClientId(u64::MAX), call: u64::MAX };
        let puts = self.places.range(first..=last).map(|(&what, _)| what);
        puts.filter_map(|what| match what {
            SpaceWaiter::Create { client, call, .. } => Some((client, call)),
            _ => None,
        })
        .take(most)
        .collect()
    }

    fn smallest(&self) -> Option<u64> {
        self.by_size.first().map(|&(size, _)| size)
    }

    fn first_from(&self, arrival: u64) -> Option<(SpaceWaiter, Place)> {
        let (_, &what) = self.by_arrival.range(arrival..).next()?;
        Some((what, self.places[&what]))
    }
}

impl Core {
    pub(crate) fn wait_for_space(&mut self, what: SpaceWaiter, size: u64) {
        if !self.space_waiters.has(what) {
            let arrival = self.next_number();
            self.space_waiters.enter(what, size, arrival);
        }
    }

    /// A copy of `object` is here or arriving: puts of it wait for that copy, and need no space of their own.
    pub(crate) fn end_puts_wait_for_space(&mut self, object: ObjectId) {
        let puts = self.space_waiters.puts_of(object, STEPS_PER_TURN);
        for &(client, call) in &puts {
            self.space_waiters.leave(SpaceWaiter::Create { object, client, call });
            self.try_create(client, call);
        }
        if puts.len() == STEPS_PER_TURN {
            self.go_on_soon(object);
        }
    }

    /// Space came back: each waiter that may fit tries again, once. The cost depends on the waiters that fit, not on
    /// all that wait: if nothing is left for even the smallest, no other is looked at.
    pub(crate) fn retry_space_waiters(&mut self) {
        match self.space_waiters.pass {
            Some(_) => self.space_waiters.again = true,
            None => {
                let end = self.next_number();
                self.retry_some_space_waiters(Pass { next: 0, end });
            }
        }
    }

    /// Continues a pass over many waiters.
    pub(crate) fn continue_space_waiters(&mut self) {
        self.copies.begin_turn(true);
        if let Some(pass) = self.space_waiters.pass.take() {
            self.retry_some_space_waiters(pass);
        }
        if self.space_waiters.pass.is_none() {
            self.space_changed |= std::mem::take(&mut self.space_waiters.again);
        }
    }

    /// More space can be made, but not in this turn.
    pub(crate) fn continue_space_waiters_soon(&mut self) {
        self.space_waiters.again = true;
        self.work_on_calls_soon();
    }

    fn retry_some_space_waiters(&mut self, Pass { mut next, end }: Pass) {
        for _ in 0..STEPS_PER_TURN {
            if self.copies.has_evicted_enough() {
                break;
            }
            let first = self.space_waiters.first_from(next).filter(|(_, place)| place.arrival < end);
            let Some((what, place)) = first else { return };
            if !self.space_waiters.smallest().is_some_and(|size| self.may_fit(size)) {
                return;
            }
            next = place.arrival + 1;
            if self.may_fit(place.size) {
                self.retry_space_waiter(what, place);
            }
            if self.copies.has_evicted_enough() && self.space_waiters.has(what) {
                // It is the next to be tried when more copies may be evicted.
                next = place.arrival;
            }
        }
        self.space_waiters.pass = Some(Pass { next, end });
        self.work_on_calls_soon();
    }

    /// Tries a waiter again; one that does not fit after all keeps its place.
    fn retry_space_waiter(&mut self, what: SpaceWaiter, place: Place) {
        self.space_waiters.leave(what);
        match what {
            SpaceWaiter::Create { client, call, .. } => self.try_create(client, call),
            // It asks for a sender only once space has been made, however many turns that takes.
            SpaceWaiter::Fetch { .. }
                if !self.clear_space(place.size) && self.copies.has_evicted_enough() =>
            {
                self.wait_for_space(what, place.size);
            }
            SpaceWaiter::Fetch { object } => self.on_space_for_fetch(object),
            SpaceWaiter::Slot { reduction, slot } => self.try_start_slot((reduction, slot)),
            SpaceWaiter::SmallTarget { number } => self.fold_small(number),
        }
        if self.space_waiters.has(what) {
            self.space_waiters.enter(what, place.size, place.arrival);
        }
    }

    fn may_fit(&self, size: u64) -> bool {
        self.copies.could_make_space(size) || self.droppable_spare().is_some()
    }
}

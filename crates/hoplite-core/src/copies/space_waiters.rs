//! Calls, fetches and slots that wait for space in a full store, in order of arrival. The first that fits goes first: a
//! large object at the head must not hold up a small one whose reader would free the space it waits for.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::{ObjectId, ReductionId};

use super::Copies;
use crate::ctx::Ctx;
use crate::io::ClientId;

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

/// A waiter that is tried again, with its place in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    pub what: SpaceWaiter,
    place: Place,
}

/// All waiters for space.
#[derive(Default, Debug)]
pub(super) struct SpaceWaiters {
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

    /// More space can be made, but not in this turn.
    pub fn continue_in_next_turn(&mut self) {
        self.again = true;
    }

    fn has(&self, what: SpaceWaiter) -> bool {
        self.places.contains_key(&what)
    }

    /// Puts a waiter for so many bytes at the end of the queue.
    fn enter(&mut self, what: SpaceWaiter, size: u64, arrival: u64) {
        self.leave(what);
        self.places.insert(what, Place { arrival, size });
        self.by_arrival.insert(arrival, what);
        self.by_size.insert((size, arrival));
    }

    fn leave(&mut self, what: SpaceWaiter) {
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

impl Copies {
    pub fn wait_for_space(&mut self, ctx: &mut Ctx, what: SpaceWaiter, size: u64) {
        if !self.waiters.has(what) {
            self.waiters.enter(what, size, ctx.next_number());
        }
    }

    pub fn end_wait_for_space(&mut self, what: SpaceWaiter) {
        self.waiters.leave(what);
    }

    pub fn waits_for_space(&self, what: SpaceWaiter) -> bool {
        self.waiters.has(what)
    }

    /// Takes the first few calls that wait for space to put `object` out of the queue.
    pub fn take_puts(&mut self, object: ObjectId, most: usize) -> Vec<(ClientId, u64)> {
        let puts = self.waiters.puts_of(object, most);
        for &(client, call) in &puts {
            self.waiters.leave(SpaceWaiter::Create { object, client, call });
        }
        puts
    }

    /// Whether more waiters may fit than could be tried at once.
    pub fn has_more_waiters(&self) -> bool {
        self.waiters.has_more()
    }

    /// Whether those who wait for space are to be tried again; they are not until it changes once more.
    pub fn take_space_changed(&mut self) -> bool {
        std::mem::take(&mut self.space_changed) && !self.waiters.is_empty()
    }

    /// Space came back: each waiter that may fit is to be tried again, once. If the last pass over the waiters is not
    /// over, another one follows it. The cost depends on the waiters that fit, not on all that wait: if nothing is left
    /// for even the smallest, no other is looked at.
    pub fn begin_pass(&mut self, ctx: &mut Ctx) -> bool {
        let begins = self.waiters.pass.is_none();
        match begins {
            true => self.waiters.pass = Some(Pass { next: 0, end: ctx.next_number() }),
            false => self.waiters.again = true,
        }
        begins
    }

    /// Continues a pass over many waiters. More copies may be evicted for it.
    pub fn continue_pass(&mut self) {
        self.begin_waiters_turn();
    }

    /// Takes the next waiter that may fit out of the queue, to be tried again. `None` at the end of the pass, or of the
    /// steps that it may take in this turn.
    pub fn next_waiter(&mut self, ctx: &mut Ctx, steps: &mut usize) -> Option<Retry> {
        let Pass { mut next, end } = self.waiters.pass?;
        while *steps > 0 && !self.has_evicted_enough() {
            *steps -= 1;
            let first = self.waiters.first_from(next).filter(|(_, place)| place.arrival < end);
            let any_fits = self.waiters.smallest().is_some_and(|size| self.may_fit(size));
            let Some((what, place)) = first.filter(|_| any_fits) else {
                self.waiters.pass = None;
                return None;
            };
            next = place.arrival + 1;
            self.waiters.pass = Some(Pass { next, end });
            if self.may_fit(place.size) {
                self.waiters.leave(what);
                return Some(Retry { what, place });
            }
        }
        ctx.work_on_calls_soon();
        None
    }

    /// Makes space for a waiter that asks for a sender only once there is some, however many turns that takes. Returns
    /// whether it need not wait any longer.
    pub fn clear_space_for(&mut self, ctx: &mut Ctx, Retry { what, place }: Retry) -> bool {
        if !self.clear_space(ctx, place.size) && self.has_evicted_enough() {
            self.wait_for_space(ctx, what, place.size);
            return false;
        }
        true
    }

    /// The waiter was tried. One that did not fit after all keeps its place.
    pub fn end_retry(&mut self, Retry { what, place }: Retry) {
        if !self.waiters.has(what) {
            return;
        }
        self.waiters.enter(what, place.size, place.arrival);
        if self.has_evicted_enough() {
            if let Some(pass) = &mut self.waiters.pass {
                // It is the next to be tried when more copies may be evicted.
                pass.next = place.arrival;
            }
        }
    }

    /// A pass, or its turn, is over. If it was the last turn, space that came back meanwhile counts again.
    pub fn end_pass(&mut self) {
        if self.waiters.pass.is_none() {
            self.space_changed |= std::mem::take(&mut self.waiters.again);
        }
    }
}

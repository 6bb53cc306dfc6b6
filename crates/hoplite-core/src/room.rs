//! Who waits for room in a full store, in order of arrival. Whoever fits goes first: a large object
//! at the head must not hold up a small one whose reader would free the room it waits for.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::{ObjectId, ReductionId};

use crate::calls::STEPS_PER_TURN;
use crate::io::ClientId;
use crate::Core;

/// What the room is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum RoomFor {
    Create { object: ObjectId, client: ClientId, call: u64 },
    Fetch { object: ObjectId },
    Seat { reduction: ReductionId, slot: u32 },
    SmallTarget { number: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Place {
    arrival: u64,
    size: u64,
}

/// A look at all who wait, in turns: those who came from `next` on, and before `end`.
#[derive(Clone, Copy, Debug)]
struct Pass {
    next: u64,
    end: u64,
}

/// Everybody who waits for room.
#[derive(Default, Debug)]
pub(crate) struct RoomQueue {
    places: BTreeMap<RoomFor, Place>,
    by_arrival: BTreeMap<u64, RoomFor>,
    by_size: BTreeSet<(u64, u64)>,
    pass: Option<Pass>,
    /// Room came back while that was under way, or more is to be made in the next turn.
    again: bool,
}

impl RoomQueue {
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether more may fit than could be tried at once.
    pub fn has_more(&self) -> bool {
        self.pass.is_some() || self.again
    }

    pub fn has(&self, what: RoomFor) -> bool {
        self.places.contains_key(&what)
    }

    /// The end of the queue, for a waiter for so many bytes that is not in it yet.
    fn enter(&mut self, what: RoomFor, size: u64, arrival: u64) {
        self.leave(what);
        self.places.insert(what, Place { arrival, size });
        self.by_arrival.insert(arrival, what);
        self.by_size.insert((size, arrival));
    }

    pub fn leave(&mut self, what: RoomFor) {
        if let Some(Place { arrival, size }) = self.places.remove(&what) {
            self.by_arrival.remove(&arrival);
            self.by_size.remove(&(size, arrival));
        }
    }

    /// The first few calls that wait for room to put `object`.
    fn puts_of(&self, object: ObjectId, most: usize) -> Vec<(ClientId, u64)> {
        let first = RoomFor::Create { object, client: ClientId(0), call: 0 };
        let last = RoomFor::Create { object, client: ClientId(u64::MAX), call: u64::MAX };
        let puts = self.places.range(first..=last).map(|(&what, _)| what);
        puts.filter_map(|what| match what {
            RoomFor::Create { client, call, .. } => Some((client, call)),
            _ => None,
        })
        .take(most)
        .collect()
    }

    fn smallest(&self) -> Option<u64> {
        self.by_size.first().map(|&(size, _)| size)
    }

    fn first_from(&self, arrival: u64) -> Option<(RoomFor, Place)> {
        let (_, &what) = self.by_arrival.range(arrival..).next()?;
        Some((what, self.places[&what]))
    }
}

impl Core {
    pub(crate) fn wait_for_room(&mut self, what: RoomFor, size: u64) {
        if !self.room.has(what) {
            let arrival = self.next_number();
            self.room.enter(what, size, arrival);
        }
    }

    /// A copy of `object` is here, or on its way: puts of it wait for that, and need no room of their own.
    pub(crate) fn end_puts_wait_for_room(&mut self, object: ObjectId) {
        let puts = self.room.puts_of(object, STEPS_PER_TURN);
        for &(client, call) in &puts {
            self.room.leave(RoomFor::Create { object, client, call });
            self.try_create(client, call);
        }
        if puts.len() == STEPS_PER_TURN {
            self.go_on_soon(object);
        }
    }

    /// Room came back: everyone who waits and may fit tries again, once. It costs what fits, not what waits: where
    /// nothing is left for even the smallest, nobody else is looked at.
    pub(crate) fn retry_room(&mut self) {
        match self.room.pass {
            Some(_) => self.room.again = true,
            None => {
                let end = self.next_number();
                self.go_through_room(Pass { next: 0, end });
            }
        }
    }

    /// The next of many who wait for room that came back.
    pub(crate) fn go_on_with_room(&mut self) {
        self.copies.begin_turn(true);
        if let Some(pass) = self.room.pass.take() {
            self.go_through_room(pass);
        }
        if self.room.pass.is_none() {
            self.room_changed |= std::mem::take(&mut self.room.again);
        }
    }

    /// More room can be made than in this turn.
    pub(crate) fn go_on_with_room_soon(&mut self) {
        self.room.again = true;
        self.work_on_calls_soon();
    }

    fn go_through_room(&mut self, Pass { mut next, end }: Pass) {
        for _ in 0..STEPS_PER_TURN {
            if self.copies.has_evicted_enough() {
                break;
            }
            let first = self.room.first_from(next).filter(|(_, place)| place.arrival < end);
            let Some((what, place)) = first else { return };
            if !self.room.smallest().is_some_and(|size| self.may_fit(size)) {
                return;
            }
            next = place.arrival + 1;
            if self.may_fit(place.size) {
                self.try_room(what, place);
            }
            if self.copies.has_evicted_enough() && self.room.has(what) {
                // It is next when more may go.
                next = place.arrival;
            }
        }
        self.room.pass = Some(Pass { next, end });
        self.work_on_calls_soon();
    }

    /// Who does not fit after all keeps its place.
    fn try_room(&mut self, what: RoomFor, place: Place) {
        self.room.leave(what);
        match what {
            RoomFor::Create { client, call, .. } => self.try_create(client, call),
            // It asks for a sender only when room is made, however many turns that takes.
            RoomFor::Fetch { .. } if !self.clear_room(place.size) && self.copies.has_evicted_enough() => {
                self.wait_for_room(what, place.size);
            }
            RoomFor::Fetch { object } => self.on_room_for_fetch(object),
            RoomFor::Seat { reduction, slot } => self.try_seat((reduction, slot)),
            RoomFor::SmallTarget { number } => self.fold_small(number),
        }
        if self.room.has(what) {
            self.room.enter(what, place.size, place.arrival);
        }
    }

    fn may_fit(&self, size: u64) -> bool {
        self.copies.could_make_room(size) || self.droppable_spare().is_some()
    }
}

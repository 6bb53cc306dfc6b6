//! The outcome of a fetch: the object is here, will not come, or is lost; and whether the copy is pinned.

use std::collections::BTreeSet;
use std::ops::Bound;

use hoplite_types::{ErrorKind, ObjectId};

use super::{Fetches, State, Want};
use crate::calls::Pending;
use crate::timers::Timer;
use crate::Core;

/// Limit on the calls waiting for one object that are answered or failed in one turn: some milliseconds' work.
const WANTS_PER_TURN: usize = 1024;

/// Calls that waited for an object that will not come, and are not answered yet.
#[derive(Debug)]
pub(super) struct Failing {
    kind: ErrorKind,
    message: String,
    wants: BTreeSet<Want>,
}

impl Fetches {
    pub fn next_failing(&self) -> Option<ObjectId> {
        self.failing.first_key_value().map(|(&object, _)| object)
    }

    /// Returns whether it was still to be answered.
    pub(super) fn take_failing(&mut self, object: ObjectId, want: Want) -> bool {
        let Some(failing) = self.failing.get_mut(&object) else { return false };
        let waited = failing.wants.remove(&want);
        if failing.wants.is_empty() {
            self.failing.remove(&object);
        }
        self.forget_early(object, want);
        waited
    }
}

impl Core {
    /// A sealed copy is here: every waiting call gets it, the first of many at once. If the copy goes again while the
    /// others wait for their turn, it is fetched for them.
    pub(crate) fn satisfy_wants(&mut self, object: ObjectId) {
        if !self.fetches.wants.contains_key(&object) {
            return;
        }
        for _ in 0..WANTS_PER_TURN {
            if self.copies.sealed(object).is_none() {
                break;
            }
            let Some(want) = self.fetches.next_want(object) else { break };
            self.give(object, want);
        }
        match self.fetches.wants.contains_key(&object) {
            true if self.copies.sealed(object).is_some() => self.satisfy_later(object),
            true => {}
            false => self.ctx.timers.clear(Timer::Prefetch(object)),
        }
        self.drop_unwanted_fetch(object);
    }

    /// The object is here, and perhaps many calls wait for their turn to get it: this one gets it now. Returns false if
    /// this one does not wait for it.
    pub(crate) fn satisfy_at_once(&mut self, object: ObjectId, want: Want) -> bool {
        let is_due = self.copies.sealed(object).is_some() && self.fetches.take_want(object, want);
        if is_due {
            self.give(object, want);
        }
        is_due
    }

    fn give(&mut self, object: ObjectId, want: Want) {
        match want {
            Want::Call(client, call) => self.on_call_object_here(client, call, object),
            Want::Reduction(number) => self.on_reduction_object_here(number, object),
            Want::Prefetch => {}
        }
    }

    /// The object will not come: every waiting call fails, the first of many at once.
    pub(crate) fn fail_wants(&mut self, object: ObjectId, kind: ErrorKind, message: &str) {
        let Some(wants) = self.fetches.wants.remove(&object) else { return };
        self.ctx.timers.clear(Timer::Prefetch(object));
        let message = message.to_owned();
        match self.fetches.failing.get_mut(&object) {
            Some(earlier) => {
                (earlier.kind, earlier.message) = (kind, message);
                earlier.wants.extend(wants);
            }
            None => drop(self.fetches.failing.insert(object, Failing { kind, message, wants })),
        }
        self.fail_some(object);
    }

    /// Fails the next of the calls that waited for it.
    pub(crate) fn fail_some(&mut self, object: ObjectId) {
        let Some(Failing { kind, message, .. }) = self.fetches.failing.get(&object) else { return };
        let (kind, message) = (*kind, message.clone());
        for _ in 0..WANTS_PER_TURN {
            let failing = self.fetches.failing.get(&object);
            let Some(&want) = failing.and_then(|failing| failing.wants.first()) else { return };
            self.fetches.take_failing(object, want);
            self.fail_want(object, want, kind, &message);
        }
        if self.fetches.failing.contains_key(&object) {
            self.ctx.work_on_calls_soon();
        }
    }

    /// The object will not come, and perhaps many calls wait for their turn to fail: this one fails now. Returns false
    /// if this one is not to fail.
    pub(crate) fn fail_at_once(&mut self, object: ObjectId, want: Want) -> bool {
        let Some(Failing { kind, message, .. }) = self.fetches.failing.get(&object) else { return false };
        let (kind, message) = (*kind, message.clone());
        let is_due = self.fetches.take_failing(object, want);
        if is_due {
            self.fail_want(object, want, kind, &message);
        }
        is_due
    }

    fn fail_want(&mut self, object: ObjectId, want: Want, kind: ErrorKind, message: &str) {
        match want {
            Want::Call(client, call) => self.fail_call(client, call, kind, message),
            Want::Reduction(number) => self.on_reduction_object_failed(number, object, kind, message),
            Want::Prefetch => {}
        }
    }

    /// The last complete copy is gone: calls that asked to fail on a loss do.
    pub(crate) fn on_lost(&mut self, object: ObjectId) {
        self.subscriptions.on_lost(&mut self.ctx, object);
        if let Some(copy) = self.copies.sealed(object) {
            // The owner mistook a repeated ask, sent before its answer, for a new one.
            return self.announce_again(copy);
        }
        match self.fetches.running.get_mut(&object) {
            Some(fetch) if !matches!(fetch.state, State::Receiving(_)) => fetch.lost = true,
            // Out of date: a sender was lent since, or the object is being written here.
            _ => return,
        }
        self.tell_some_lost(object, None);
    }

    /// Notifies the next of the waiting calls that the object is lost, if it still is.
    pub(crate) fn tell_some_lost(&mut self, object: ObjectId, after: Option<Want>) {
        if self.fetches.running.get(&object).is_none_or(|fetch| !fetch.lost) {
            return;
        }
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let wants = self.fetches.wants.get(&object).into_iter().flat_map(|wants| wants.range(behind));
        let wants: Vec<_> = wants.take(WANTS_PER_TURN).copied().collect();
        for &want in &wants {
            self.tell_lost_to(object, want);
        }
        if let Some(&last) = wants.get(WANTS_PER_TURN - 1) {
            self.tell_lost_later(object, last);
        }
    }

    pub(super) fn tell_lost_to(&mut self, object: ObjectId, want: Want) {
        if let Want::Call(client, call) = want {
            if matches!(self.pending(client, call), Some(Pending::DuplicatePut { .. })) {
                self.offer_spare(client, call, object);
            } else if self.call_fails_if_lost(client, call) {
                self.fail_lost(client, call, object);
                self.unwant(object, want);
            }
        }
    }

    /// The owner pins the object to this node; if the object is not here yet, it is fetched.
    pub(crate) fn on_pin(&mut self, object: ObjectId) {
        match self.copies.sealed(object) {
            Some(copy) if self.copies[copy].pinned => {}
            Some(copy) => {
                self.copies.with(copy, |copy| copy.pinned = true);
                self.copies.announce(&mut self.ctx, copy, true, false);
                // If we are leaving, it is to be pinned elsewhere.
                self.hand_over(copy);
            }
            None => {
                self.copies.add_pin(object);
                self.want(object, Want::Prefetch);
                // The object has been wanted here for longer than there has been space for it.
                if self.fetches.running.get(&object).is_some_and(|fetch| fetch.state == State::NoSpace) {
                    self.refuse_pin(object);
                }
            }
        }
    }
}

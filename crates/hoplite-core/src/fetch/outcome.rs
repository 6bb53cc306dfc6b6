//! The outcome of a fetch: the object is here, will not come, or is lost; and whether the copy is pinned.

use std::collections::BTreeSet;
use std::ops::Bound;

use hoplite_types::{ErrorKind, ObjectId};

use super::{Fetcher, Fetches, State};
use crate::ctx::Ctx;
use crate::keys::Want;
use crate::notices::Notice;
use crate::timers::Timer;

/// Limit on the calls waiting for one object that are answered or failed in one turn: some milliseconds' work.
pub(crate) const WANTS_PER_TURN: usize = 1024;

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
    /// Why those who want this object fail, if they do.
    pub fn failure(&self, object: ObjectId) -> Option<(ErrorKind, String)> {
        self.failing.get(&object).map(|failing| (failing.kind, failing.message.clone()))
    }

    /// Takes the next of those that are to fail.
    pub fn take_next_failing(&mut self, object: ObjectId) -> Option<Want> {
        let want = *self.failing.get(&object)?.wants.first()?;
        self.take_failing(object, want).then_some(want)
    }

    pub fn take_failing(&mut self, object: ObjectId, want: Want) -> bool {
        let Some(failing) = self.failing.get_mut(&object) else { return false };
        let waited = failing.wants.remove(&want);
        if failing.wants.is_empty() {
            self.failing.remove(&object);
        }
        self.forget_early(object, want);
        waited
    }

    /// Whether more calls wait for this object, which is here, than could get it at once: they get it in turns.
    pub fn gives_in_turns(&self, object: ObjectId) -> bool {
        self.giving.contains(&object)
    }

    /// The next object that is to be given to more of the calls that wait for it.
    pub fn next_to_give(&mut self) -> Option<ObjectId> {
        self.giving.pop_first()
    }

    /// The next few after `last` that want the object, if it is still lost.
    pub fn lost_to(&self, object: ObjectId, last: Option<Want>) -> Vec<Want> {
        if self.running.get(&object).is_none_or(|fetch| !fetch.lost) {
            return Vec::new();
        }
        let behind = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let wants = self.wants.get(&object).into_iter().flat_map(|wants| wants.range(behind));
        wants.take(WANTS_PER_TURN).copied().collect()
    }

    /// More calls wait for this object than can be notified of its loss at once.
    pub fn tell_lost_later(&mut self, ctx: &mut Ctx, object: ObjectId, last: Want) {
        self.telling_lost.insert(object, last);
        ctx.work_on_calls_soon();
    }

    /// The next lost object, and the last of its waiting calls that was notified.
    pub fn next_to_tell_lost(&mut self) -> Option<(ObjectId, Want)> {
        self.telling_lost.pop_first()
    }

    /// Whether work is left for the next turn.
    pub fn has_work(&self) -> bool {
        !self.failing.is_empty() || !self.giving.is_empty() || !self.telling_lost.is_empty()
    }
}

impl Fetcher<'_> {
    /// As many as may at once got the object. If others wait, they get it in turns; if it went again meanwhile, it is
    /// fetched for them.
    pub fn end_giving(&mut self, object: ObjectId) {
        match self.fetches.wants.contains_key(&object) {
            true if self.copies.sealed(object).is_some() => {
                self.fetches.giving.insert(object);
                self.ctx.work_on_calls_soon();
            }
            true => {}
            false => self.ctx.timers.clear(Timer::Prefetch(object)),
        }
        self.drop_unwanted_fetch(object);
    }

    /// The object will not come: all who want it fail, the first of many at once.
    pub fn fail_wants(&mut self, object: ObjectId, kind: ErrorKind, message: &str) {
        let Some(wants) = self.fetches.wants.remove(&object) else {
            // Nobody wants it.
            return;
        };
        self.ctx.timers.clear(Timer::Prefetch(object));
        let message = message.to_owned();
        match self.fetches.failing.get_mut(&object) {
            Some(earlier) => {
                (earlier.kind, earlier.message) = (kind, message);
                earlier.wants.extend(wants);
            }
            None => drop(self.fetches.failing.insert(object, Failing { kind, message, wants })),
        }
        self.ctx.notices.push_back(Notice::Failing(object));
    }

    /// The last complete copy is gone: calls that asked to fail on a loss do.
    pub fn on_lost(&mut self, object: ObjectId) {
        self.subscriptions.on_lost(self.ctx, object);
        if let Some(copy) = self.copies.sealed(object) {
            // The owner mistook a repeated ask, sent before its answer, for a new one.
            return self.ctx.notices.push_back(Notice::ReportAgain(copy));
        }
        match self.fetches.running.get_mut(&object) {
            Some(fetch) if !matches!(fetch.state, State::Receiving(_)) => fetch.lost = true,
            // Out of date: a sender was lent since, or the object is being written here.
            _ => return,
        }
        self.ctx.notices.push_back(Notice::Lost(object));
    }

    /// The owner pins the object to this node; if the object is not here yet, it is fetched.
    pub fn on_pin(&mut self, object: ObjectId) {
        match self.copies.sealed(object) {
            Some(copy) if self.copies[copy].pinned => {}
            Some(copy) => {
                self.copies.with(copy, |copy| copy.pinned = true);
                self.copies.announce(self.ctx, copy, true, false);
                // If we are leaving, it is to be pinned elsewhere.
                self.ctx.notices.push_back(Notice::Pinned(copy));
            }
            None => {
                self.copies.add_pin(object);
                self.want(object, Want::Prefetch, None);
                // The object has been wanted here for longer than there has been space for it.
                if self.fetches.running.get(&object).is_some_and(|fetch| fetch.state == State::NoSpace) {
                    self.refuse_pin(object);
                }
            }
        }
    }
}

//! Gives objects that are here to the calls and reductions that want them, or fails those.

use hoplite_types::{ErrorKind, ObjectId};

use crate::fetch::WANTS_PER_TURN;
use crate::keys::Want;
use crate::Core;

impl Core {
    /// The object is wanted, and here: it is given to all that want it, unless those get it in turns already.
    pub(crate) fn on_wanted(&mut self, object: ObjectId, want: Want) {
        if !self.fetches.gives_in_turns(object) {
            self.satisfy_wants(object);
        } else if self.copies.sealed(object).is_some() && self.fetches.take_want(object, want) {
            self.give(object, want);
        }
    }

    /// A sealed copy is here: every waiting call gets it, the first of many at once. If the copy goes again while the
    /// others wait for their turn, it is fetched for them.
    pub(crate) fn satisfy_wants(&mut self, object: ObjectId) {
        if !self.fetches.is_wanted(object) {
            return;
        }
        for _ in 0..WANTS_PER_TURN {
            if self.copies.sealed(object).is_none() {
                break;
            }
            let Some(want) = self.fetches.next_want(object) else { break };
            self.give(object, want);
        }
        self.fetcher().end_giving(object);
    }

    fn give(&mut self, object: ObjectId, want: Want) {
        match want {
            Want::Call(client, call) => self.call_handler().on_call_object_here(client, call, object),
            Want::Reduction(number) => {
                self.with_reductions(|reductions, lent| reductions.on_object_here(lent, number, object));
            }
            Want::Prefetch => {}
        }
    }

    /// Gives the next object to more of the calls that wait for it.
    pub(crate) fn give_some(&mut self) {
        if let Some(object) = self.fetches.next_to_give() {
            // If it is gone again, it is being fetched, or the calls have failed.
            if self.copies.sealed(object).is_some() {
                self.satisfy_wants(object);
            }
        }
    }

    /// Fails the next of the calls that waited for an object that will not come.
    pub(crate) fn fail_some(&mut self, object: ObjectId) {
        let Some((kind, message)) = self.fetches.failure(object) else {
            // Its calls were cancelled, or failed one by one.
            return;
        };
        for _ in 0..WANTS_PER_TURN {
            let Some(want) = self.fetches.take_next_failing(object) else { break };
            self.fail_want(object, want, kind, &message);
        }
        if self.fetches.failure(object).is_some() {
            self.ctx.work_on_calls_soon();
        }
    }

    pub(crate) fn fail_next(&mut self) {
        if let Some(object) = self.fetches.next_failing() {
            self.fail_some(object);
        }
    }

    fn fail_want(&mut self, object: ObjectId, want: Want, kind: ErrorKind, message: &str) {
        match want {
            Want::Call(client, call) => self.call_handler().fail_call(client, call, kind, message),
            Want::Reduction(number) => self.with_reductions(|reductions, lent| {
                reductions.on_object_failed(lent, number, object, (kind, message));
            }),
            Want::Prefetch => {}
        }
    }

    /// Notifies the next of the waiting calls that the object is lost, if it still is.
    pub(crate) fn tell_some_lost(&mut self, object: ObjectId, after: Option<Want>) {
        let wants = self.fetches.lost_to(object, after);
        for &want in &wants {
            self.tell_lost_to(object, want);
        }
        if let Some(&last) = wants.get(WANTS_PER_TURN - 1) {
            self.fetches.tell_lost_later(&mut self.ctx, object, last);
        }
    }

    pub(crate) fn tell_next_lost(&mut self) {
        if let Some((object, last)) = self.fetches.next_to_tell_lost() {
            self.tell_some_lost(object, Some(last));
        }
    }

    pub(crate) fn tell_lost_to(&mut self, object: ObjectId, want: Want) {
        match want {
            Want::Call(client, call) => self.call_handler().tell_lost(client, call, object),
            // It may be put once more.
            Want::Reduction(_) | Want::Prefetch => {}
        }
    }
}

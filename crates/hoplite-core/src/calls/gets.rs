//! Calls that wait until an object is on this node.

use hoplite_types::client::Reply;
use hoplite_types::{Error, ErrorKind, ObjectId};

use super::{CallHandler, Pending};
use crate::ctx::STEPS_PER_TURN;
use crate::fetch::Early;
use crate::io::ClientId;
use crate::keys::Want;

impl CallHandler<'_> {
    /// An object that a call waits for is sealed here.
    pub fn on_call_object_here(&mut self, client: ClientId, call: u64, object: ObjectId) {
        match self.calls.pending(client, call) {
            Some(Pending::Get { .. }) => {
                let copy = self.copies.sealed(object).expect("told because it is sealed");
                let view = self.copies.view(self.ctx, client, copy);
                self.finish_call(client, call, view);
            }
            Some(Pending::Create(_)) => self.try_create(client, call),
            Some(&Pending::DuplicatePut { size, ref header, .. }) => {
                let copy = self.copies.sealed(object).expect("told because it is sealed");
                let header = header.clone();
                self.keep_first(client, call, copy, size, &header);
            }
            _ => {}
        }
    }

    /// The object is here, and perhaps many calls wait for their turn to get it: this one gets it now. Returns false if
    /// this one does not wait for it.
    pub fn satisfy_at_once(&mut self, client: ClientId, call: u64, object: ObjectId) -> bool {
        let want = Want::Call(client, call);
        let is_due = self.copies.sealed(object).is_some() && self.fetches.take_want(object, want);
        if is_due {
            self.on_call_object_here(client, call, object);
        }
        is_due
    }

    /// The object will not come, and perhaps many calls wait for their turn to fail: this one fails now. Returns false
    /// if this one is not to fail.
    pub fn fail_at_once(&mut self, client: ClientId, call: u64, object: ObjectId) -> bool {
        let Some((kind, message)) = self.fetches.failure(object) else { return false };
        let is_due = self.fetches.take_failing(object, Want::Call(client, call));
        if is_due {
            self.fail_call(client, call, kind, &message);
        }
        is_due
    }

    /// The object that a call waits for is lost.
    pub fn tell_lost(&mut self, client: ClientId, call: u64, object: ObjectId) {
        match self.calls.pending(client, call) {
            Some(Pending::DuplicatePut { .. }) => self.offer_spare(client, call, object),
            Some(Pending::Get { fail_if_lost: true, .. }) => {
                self.fail_lost(client, call, object);
                self.fetcher().unwant(object, Want::Call(client, call));
            }
            // It may be put once more.
            _ => {}
        }
    }

    /// Answers gets that accept a partial copy, the first of many at once. A sealed copy is given to all gets in their
    /// turn.
    pub fn serve_partial_gets(&mut self, object: ObjectId) {
        if self.copies.live(object).is_none() || self.copies.sealed(object).is_some() {
            return;
        }
        let gets = self.fetches.early(object, Early::Get, STEPS_PER_TURN);
        for &(client, call) in &gets {
            // It may be waiting only for the error that the object is deleted.
            if !self.fail_at_once(client, call, object) {
                self.serve_partial_get(client, call, object);
            }
        }
        if gets.len() == STEPS_PER_TURN {
            self.go_on_soon(object);
        }
    }

    pub fn serve_partial_get(&mut self, client: ClientId, call: u64, object: ObjectId) {
        let Some(copy) = self.copies.live(object) else {
            // Nothing of it is here yet.
            return;
        };
        if matches!(self.calls.pending(client, call), Some(Pending::Get { partial: true, .. })) {
            let view = self.copies.view(self.ctx, client, copy);
            self.finish_call(client, call, view);
        }
    }

    pub fn fail_lost(&mut self, client: ClientId, call: u64, object: ObjectId) {
        let message = format!(
            "{}: {object} is lost: the node with its last complete copy died; a put under the same id completes those who wait",
            self.ctx.me
        );
        let error = Error::new(ErrorKind::Lost, message).about(object);
        self.finish_call(client, call, Reply::Failed(error));
    }
}

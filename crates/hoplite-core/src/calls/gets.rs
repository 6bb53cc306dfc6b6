//! Calls that wait until an object is on this node.

use hoplite_types::client::Reply;
use hoplite_types::{Error, ErrorKind, ObjectId};

use super::Pending;
use crate::ctx::STEPS_PER_TURN;
use crate::fetch::Early;
use crate::io::ClientId;
use crate::keys::Want;
use crate::Core;

impl Core {
    /// An object that a call waits for is sealed here.
    pub(crate) fn on_call_object_here(&mut self, client: ClientId, call: u64, object: ObjectId) {
        match self.pending(client, call) {
            Some(Pending::Get { .. }) => {
                let copy = self.copies.sealed(object).expect("told because it is sealed");
                let view = self.copies.view(&mut self.ctx, client, copy);
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

    /// Answers gets that accept a partial copy, the first of many at once. A sealed copy is given to all gets in their
    /// turn.
    pub(crate) fn serve_partial_gets(&mut self, object: ObjectId) {
        if self.copies.live(object).is_none() || self.copies.sealed(object).is_some() {
            return;
        }
        let gets = self.fetches.early(object, Early::Get, STEPS_PER_TURN);
        for &(client, call) in &gets {
            // It may be waiting only for the error that the object is deleted.
            if !self.fail_at_once(object, Want::Call(client, call)) {
                self.serve_partial_get(client, call, object);
            }
        }
        if gets.len() == STEPS_PER_TURN {
            self.go_on_soon(object);
        }
    }

    pub(super) fn serve_partial_get(&mut self, client: ClientId, call: u64, object: ObjectId) {
        let Some(copy) = self.copies.live(object) else { return };
        if matches!(self.pending(client, call), Some(Pending::Get { partial: true, .. })) {
            let view = self.copies.view(&mut self.ctx, client, copy);
            self.finish_call(client, call, view);
        }
    }

    pub(crate) fn call_fails_if_lost(&self, client: ClientId, call: u64) -> bool {
        matches!(self.pending(client, call), Some(Pending::Get { fail_if_lost: true, .. }))
    }

    pub(crate) fn fail_lost(&mut self, client: ClientId, call: u64, object: ObjectId) {
        let message = format!(
            "{}: {object} is lost: the node with its last complete copy died; a put under the same id completes those who wait",
            self.ctx.me
        );
        let error = Error::new(ErrorKind::Lost, message).about(object);
        self.finish_call(client, call, Reply::Failed(error));
    }
}

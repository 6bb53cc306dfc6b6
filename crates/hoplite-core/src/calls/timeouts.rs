//! The answer to a call whose time is up: it describes the state of the call.

use hoplite_types::client::Reply;
use hoplite_types::ErrorKind;

use super::puts::Creation;
use super::{CallHandler, Pending};
use crate::copies::SpaceWaiter;
use crate::io::ClientId;
use crate::notices::Notice;

impl CallHandler<'_> {
    pub fn on_call_timer(&mut self, client: ClientId, call: u64) {
        let object = match self.calls.pending(client, call) {
            Some(Pending::Get { id, .. } | Pending::DuplicatePut { id, .. }) => Some(*id),
            Some(Pending::Create(Creation { id, .. })) => Some(*id),
            _ => None,
        };
        if object
            .is_some_and(|id| self.satisfy_at_once(client, call, id) || self.fail_at_once(client, call, id))
        {
            // The object is here, or will not come, and many calls wait for their turn.
            return;
        }
        let Some(state) = self.calls.table.get(&(client, call)) else {
            // The timer is cleared with the call.
            return;
        };
        let waited = format!("{:.3} s", (self.ctx.now - state.since).as_secs_f64());
        let me = self.ctx.me;
        let put_of = |object| SpaceWaiter::Create { object, client, call };
        let (kind, message) = match &state.pending {
            Pending::Create(Creation { id, .. }) if self.copies.live(*id).is_some() => (
                ErrorKind::TimedOut,
                format!("{me}: {id} was still on its way here after {waited}: {}", self.fetches.diagnostics(self.ctx, self.copies, *id)),
            ),
            Pending::Create(Creation { id, .. }) if !self.copies.waits_for_space(put_of(*id)) => (
                ErrorKind::TimedOut,
                format!("{me}: {id} was in the way of its own put for {waited}: {}", self.fetches.diagnostics(self.ctx, self.copies, *id)),
            ),
            Pending::Create(Creation { id, size, .. }) => (
                ErrorKind::StoreFull,
                format!(
                    "{me}: no room for {id} ({size} bytes) within {waited}: {} of {} bytes in use",
                    self.copies.used_bytes(),
                    self.copies.store_bytes()
                ),
            ),
            Pending::Seal => {
                let object = self.writes.sealed_by(client, call).map(|copy| self.copies[copy].object);
                let what = object.map_or("the object".to_owned(), |id| id.to_string());
                let owner = object.map_or(me, |id| self.ctx.shards.owner(id));
                let message = format!(
                    "{me}: put of {what}: all bytes are written, but its directory owner {owner} did not accept it within {waited}"
                );
                (ErrorKind::TimedOut, message)
            }
            Pending::DuplicatePut { id, .. } => (
                ErrorKind::TimedOut,
                format!(
                    "{me}: put of {id}: another node put it first, and that has not come here after {waited}: {}",
                    self.fetches.diagnostics(self.ctx, self.copies, *id)
                ),
            ),
            Pending::Get { id, .. } if state.since == self.ctx.now => {
                (ErrorKind::TimedOut, format!("{me}: {id} is not complete here: {}", self.fetches.diagnostics(self.ctx, self.copies, *id)))
            }
            Pending::Get { id, .. } => (
                ErrorKind::TimedOut,
                format!("{me}: get of {id} timed out after {waited}: {}", self.fetches.diagnostics(self.ctx, self.copies, *id)),
            ),
            Pending::Delete(deletion) => {
                let (id, left) = deletion.unconfirmed();
                let owner = id.map(|id| self.ctx.shards.owner(id).to_string()).unwrap_or_default();
                (
                    ErrorKind::TimedOut,
                    format!("{me}: {left} delete(s) not confirmed by {owner} within {waited}"),
                )
            }
            Pending::Locate { id, .. } => {
                let owner = self.ctx.shards.owner(*id);
                (ErrorKind::TimedOut, format!("{me}: {owner} did not locate {id} within {waited}"))
            }
            Pending::Wait { ids, ready, .. } => {
                // Not an error: the caller gets the ids that are ready.
                let ids = ready.among(ids);
                return self.finish_call(client, call, Reply::Ready { ids });
            }
            &Pending::Reduce { number } => {
                return self.ctx.notices.push_back(Notice::ReductionTimedOut { number, waited });
            }
        };
        self.fail_call(client, call, kind, &message);
    }
}

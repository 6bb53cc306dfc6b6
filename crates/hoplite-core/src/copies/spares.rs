//! Spares: the bytes of puts of objects that were put before. They are kept for the case that the first content is lost,
//! unless their space is needed (see `duplicate_puts`).

use std::collections::BTreeMap;

use hoplite_types::client::Gauge;
use hoplite_types::CopyId;

use super::Copies;
use crate::ctx::Ctx;
use crate::io::ClientId;

/// Doomed copies with all their bytes, by the call that wrote them. Each is held by one user.
#[derive(Debug, Default)]
pub(super) struct Spares {
    by_call: BTreeMap<(ClientId, u64), CopyId>,
    /// The same calls, in the order of their puts.
    by_copy: BTreeMap<CopyId, (ClientId, u64)>,
    /// Count of spares dropped for space.
    given_up: u64,
}

impl Spares {
    fn insert(&mut self, call: (ClientId, u64), copy: CopyId) {
        self.by_call.insert(call, copy);
        self.by_copy.insert(copy, call);
    }

    fn remove(&mut self, call: (ClientId, u64)) -> Option<CopyId> {
        let copy = self.by_call.remove(&call)?;
        self.by_copy.remove(&copy);
        Some(copy)
    }

    pub fn has(&self, copy: CopyId) -> bool {
        self.by_copy.contains_key(&copy)
    }

    pub fn gauge(&self) -> Gauge {
        let (name, value) = ("spare copies of puts".to_owned(), self.by_call.len() as u64);
        // No limit: as many as there is space for.
        Gauge { name, value, limit: 0, met: self.given_up }
    }
}

impl Copies {
    /// Keeps a doomed copy, which the call wrote, with its writer as the user.
    pub fn keep_spare(&mut self, client: ClientId, call: u64, copy: CopyId) {
        // Waiters for space may use that of the spare.
        self.space_changed |= self.table[&copy].views == 0;
        self.spares.insert((client, call), copy);
    }

    /// The spare of this call, if it is still here.
    pub fn spare_of(&self, client: ClientId, call: u64) -> Option<CopyId> {
        self.spares.by_call.get(&(client, call)).copied()
    }

    /// Takes the spare of this call, with its user.
    pub fn take_spare(&mut self, client: ClientId, call: u64) -> Option<CopyId> {
        self.spares.remove((client, call))
    }

    /// The call is over: its spare, if there is one, is not needed any more.
    pub fn drop_spare(&mut self, ctx: &mut Ctx, client: ClientId, call: u64) {
        if let Some(copy) = self.take_spare(client, call) {
            self.remove_user(ctx, copy);
        }
    }

    /// The oldest call whose spare can be dropped for space. A spare that a client views is left out, because its space
    /// would not be freed.
    pub(super) fn droppable_spare(&self) -> Option<(ClientId, u64)> {
        let unseen = |copy: &CopyId| self.table[copy].views == 0;
        self.spares.by_copy.iter().find(|(copy, _)| unseen(copy)).map(|(_, &call)| call)
    }

    /// Drops the spare of such a call.
    pub(super) fn drop_a_spare(&mut self, ctx: &mut Ctx) {
        if let Some((client, call)) = self.droppable_spare() {
            self.spares.given_up += 1;
            self.drop_spare(ctx, client, call);
        }
    }
}

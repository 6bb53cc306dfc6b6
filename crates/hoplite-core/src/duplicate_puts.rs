//! A put of an object that was put before: the first content stays, and this put succeeds once that is here.
//!
//! Until then the bytes of the second put are kept as a *spare*, unless their space is needed. If the first content is
//! lost before it has arrived, the spare is offered as the object's content.

use std::collections::BTreeMap;

use hoplite_types::client::{Gauge, Reply};
use hoplite_types::{CopyId, Error, ErrorKind, Header, ObjectId};

use crate::calls::Pending;
use crate::copies::Phase;
use crate::fetch::Want;
use crate::io::ClientId;
use crate::Core;

/// Doomed copies with all their bytes, by the call that wrote them. Each is held by one user.
#[derive(Debug, Default)]
pub(crate) struct Spares {
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

    pub fn gauge(&self, gauges: &mut Vec<Gauge>) {
        let (name, value) = ("spare copies of puts".to_owned(), self.by_call.len() as u64);
        // No limit: as many as there is space for.
        gauges.push(Gauge { name, value, limit: 0, met: self.given_up });
    }
}

impl Core {
    /// All bytes of `copy` are written, and another content was accepted before: the call waits until that is here.
    pub(crate) fn wait_for_first(&mut self, client: ClientId, call: u64, copy: CopyId) {
        let spare = &self.copies.table[&copy];
        let (id, size, header) = (spare.object, spare.extent.size, spare.header.clone());
        // Waiters for space may use that of the spare.
        self.space_changed |= spare.views == 0;
        self.spares.insert((client, call), copy);
        self.replace_pending(client, call, Pending::DuplicatePut { id, size, header });
        self.want(id, Want::Call(client, call));
    }

    /// A complete copy of the object is here: pins it, if it has the size and header that this call put.
    pub(crate) fn keep_first(
        &mut self,
        client: ClientId,
        call: u64,
        first: CopyId,
        size: u64,
        header: &Header,
    ) {
        let copy = &self.copies.table[&first];
        if copy.extent.size != size || copy.header != *header {
            let message = format!(
                "{}: {} exists with {} bytes ({:?}), not {size} bytes ({header:?})",
                self.ctx.me, copy.object, copy.extent.size, copy.header
            );
            let error = Error::new(ErrorKind::AlreadyExists, message);
            return self.finish_call(client, call, Reply::Failed(error));
        }
        if !copy.pinned {
            let object = copy.object;
            self.copies.with(first, |copy| copy.pinned = true);
            self.announce(first, true, false);
            // If we are leaving, it is to be pinned elsewhere.
            self.hand_over(first, object);
        }
        self.finish_call(client, call, Reply::Done);
    }

    /// The first content is lost: this call's spare replaces it, if it is still here.
    pub(crate) fn offer_spare(&mut self, client: ClientId, call: u64, id: ObjectId) {
        let Some(&spare) = self.spares.by_call.get(&(client, call)) else {
            let message = format!(
                "{}: {id} was put elsewhere first, and that is gone; the bytes of this put gave way to others in a full store",
                self.ctx.me
            );
            return self.fail_call(client, call, ErrorKind::StoreFull, &message);
        };
        let copy = &self.copies.table[&spare];
        // Only the writer may hold a view of it.
        let own = self.clients.get(&client).and_then(|client| client.views.get(&spare)).map_or(0, |_| 1);
        let read_by_others = copy.users > 1 || copy.views > own;
        let (size, header) = (copy.extent.size, copy.header.clone());
        let live = self.copies.live_copy(id).map(|copy| copy.phase);
        if read_by_others || !matches!(live, None | Some(Phase::Received(None))) {
            // The loss will be reported again; then the spare may be offered.
            return;
        }
        self.unwant(id, Want::Call(client, call));
        if let Some(partial) = self.copies.live(id) {
            self.withdraw(partial);
            self.doom(partial);
        }
        self.spares.remove((client, call));
        let new = self.new_writing(client, id, size, header);
        self.reopen(spare, new);
        self.replace_pending(client, call, Pending::Seal);
        self.begin_write(client, spare, Some(call));
    }

    /// The call is over: its spare is not needed any more.
    pub(crate) fn drop_spare(&mut self, client: ClientId, call: u64) {
        if let Some(copy) = self.spares.remove((client, call)) {
            self.remove_user(copy);
        }
    }

    /// The oldest call whose spare can be dropped for space. A spare that a client views is left out, because its space
    /// would not be freed.
    pub(crate) fn droppable_spare(&self) -> Option<(ClientId, u64)> {
        let unseen = |copy: &CopyId| self.copies.table[copy].views == 0;
        self.spares.by_copy.iter().find(|(copy, _)| unseen(copy)).map(|(_, &call)| call)
    }

    /// Drops the spare of such a call.
    pub(crate) fn drop_a_spare(&mut self) {
        if let Some((client, call)) = self.droppable_spare() {
            self.spares.given_up += 1;
            self.drop_spare(client, call);
        }
    }
}

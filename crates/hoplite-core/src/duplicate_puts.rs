//! A put of an object that somebody put before: the first content stays, and this put ends well once it is here.
//!
//! Until then the bytes of the second put are kept as a *spare*, as long as nobody else needs their space: if the
//! first content dies before it has come, they are offered as the object's.

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
    /// In the order in which they were put.
    by_copy: BTreeMap<CopyId, (ClientId, u64)>,
    /// Given up for space.
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
        // As many as there is space for.
        gauges.push(Gauge { name, value, limit: 0, met: self.given_up });
    }
}

impl Core {
    /// All bytes of `copy` are written, and somebody else's content was accepted before: waits until that is here.
    pub(crate) fn wait_for_first(&mut self, client: ClientId, call: u64, copy: CopyId) {
        let spare = &self.copies.table[&copy];
        let (id, size, header) = (spare.object, spare.extent.size, spare.header.clone());
        // Somebody who needs its space may wait for that already.
        self.space_changed |= spare.views == 0;
        self.spares.insert((client, call), copy);
        self.replace_pending(client, call, Pending::DuplicatePut { id, size, header });
        self.want(id, Want::Call(client, call));
    }

    /// A complete copy of the object is here: it stays, if it is what this call put.
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
            // If we are about to go, it is to stay elsewhere.
            self.hand_over(first, object);
        }
        self.finish_call(client, call, Reply::Done);
    }

    /// The first content cannot be had: what this call put takes its place, if it is still here.
    pub(crate) fn offer_spare(&mut self, client: ClientId, call: u64, id: ObjectId) {
        let Some(&spare) = self.spares.by_call.get(&(client, call)) else {
            let message = format!(
                "{}: {id} was put elsewhere first, and that is gone; the bytes of this put gave way to others in a full store",
                self.ctx.me
            );
            return self.fail_call(client, call, ErrorKind::StoreFull, &message);
        };
        let copy = &self.copies.table[&spare];
        // The one view that may stay is the writer's own.
        let own = self.clients.get(&client).and_then(|client| client.views.get(&spare)).map_or(0, |_| 1);
        let read_by_others = copy.users > 1 || copy.views > own;
        let (size, header) = (copy.extent.size, copy.header.clone());
        let live = self.copies.live_copy(id).map(|copy| copy.phase);
        if read_by_others || !matches!(live, None | Some(Phase::Received(None))) {
            // Whoever is told that the object is lost is told again.
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

    /// The call is over: its bytes are not needed any more.
    pub(crate) fn drop_spare(&mut self, client: ClientId, call: u64) {
        if let Some(copy) = self.spares.remove((client, call)) {
            self.remove_user(copy);
        }
    }

    /// The oldest call whose bytes can be given up for space. Not those that a client views: their space would not
    /// come back.
    pub(crate) fn droppable_spare(&self) -> Option<(ClientId, u64)> {
        let unseen = |copy: &CopyId| self.copies.table[copy].views == 0;
        self.spares.by_copy.iter().find(|(copy, _)| unseen(copy)).map(|(_, &call)| call)
    }

    /// Gives up the bytes of such a call.
    pub(crate) fn drop_a_spare(&mut self) {
        if let Some((client, call)) = self.droppable_spare() {
            self.spares.given_up += 1;
            self.drop_spare(client, call);
        }
    }
}

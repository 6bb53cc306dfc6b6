//! A put of an object that was put before: the first content stays, and this put succeeds once that is here.
//!
//! Until then the bytes of the second put are kept as a *spare*, unless their space is needed. If the first content is
//! lost before it has arrived, the spare is offered as the object's content.

use hoplite_types::client::Reply;
use hoplite_types::{CopyId, Error, ErrorKind, Header, ObjectId};

use super::{CallHandler, Pending};
use crate::copies::Phase;
use crate::fetch::Early;
use crate::io::ClientId;
use crate::keys::Want;
use crate::notices::Notice;

impl CallHandler<'_> {
    /// All bytes of `copy` are written, and another content was accepted before: the call waits until that is here.
    pub fn wait_for_first(&mut self, client: ClientId, call: u64, copy: CopyId) {
        let spare = &self.copies[copy];
        let (id, size, header) = (spare.object, spare.extent.size, spare.header.clone());
        self.copies.keep_spare(client, call, copy);
        self.replace_pending(client, call, Pending::DuplicatePut { id, size, header });
        self.fetcher().want(id, Want::Call(client, call), Some(Early::DuplicatePut));
    }

    /// A complete copy of the object is here: pins it, if it has the size and header that this call put.
    pub fn keep_first(&mut self, client: ClientId, call: u64, first: CopyId, size: u64, header: &Header) {
        let copy = &self.copies[first];
        if copy.extent.size != size || copy.header != *header {
            let message = format!(
                "{}: {} exists with {} bytes ({:?}), not {size} bytes ({header:?})",
                self.ctx.me, copy.object, copy.extent.size, copy.header
            );
            let error = Error::new(ErrorKind::AlreadyExists, message);
            return self.finish_call(client, call, Reply::Failed(error));
        }
        if !copy.pinned {
            self.copies.with(first, |copy| copy.pinned = true);
            self.copies.announce(self.ctx, first, true, false);
            // If we are leaving, it is to be pinned elsewhere.
            self.ctx.notices.push_back(Notice::Pinned(first));
        }
        self.finish_call(client, call, Reply::Done);
    }

    /// No copy of the first content is known: spares replace it, those that are still here.
    pub fn offer_spares(&mut self, id: ObjectId) {
        for (client, call) in self.fetches.early(id, Early::DuplicatePut, usize::MAX) {
            self.offer_spare(client, call, id);
        }
    }

    /// The first content is lost: this call's spare replaces it, if it is still here.
    pub fn offer_spare(&mut self, client: ClientId, call: u64, id: ObjectId) {
        let Some(spare) = self.copies.spare_of(client, call) else {
            let message = format!(
                "{}: {id} was put elsewhere first, and that is gone; the bytes of this put gave way to others in a full store",
                self.ctx.me
            );
            return self.fail_call(client, call, ErrorKind::StoreFull, &message);
        };
        let copy = &self.copies[spare];
        // Only the writer may hold a view of it.
        let own = u32::from(self.copies.is_viewed_by(client, spare));
        let read_by_others = copy.users > 1 || copy.views > own;
        let (size, header) = (copy.extent.size, copy.header.clone());
        let live = self.copies.live_copy(id).map(|copy| copy.phase);
        if read_by_others || !matches!(live, None | Some(Phase::Received(None))) {
            // The loss will be reported again; then the spare may be offered.
            return;
        }
        self.fetcher().unwant(id, Want::Call(client, call));
        if let Some(partial) = self.copies.live(id) {
            self.copies.withdraw(self.ctx, partial);
            self.copies.doom(self.ctx, partial);
        }
        self.copies.take_spare(client, call);
        let new = self.new_writing(client, id, size, header);
        self.copies.reopen(self.ctx, spare, new);
        self.replace_pending(client, call, Pending::Seal);
        self.begin_write(client, spare, Some(call));
    }
}

//! Objects being written by local clients [design §3 put, create].
//!
//! The object is announced before its bytes are copied, so that receivers stream behind the copy.
//! It is sealed when the client has sealed it **and** the directory has accepted it. See `writes` for the verdicts.

use hoplite_types::client::Reply;
use hoplite_types::peer::{Seal, Verdict};
use hoplite_types::{Blob, Claim, CopyId, Edition, Error, ErrorKind, Header, NodeId, ObjectId};

use super::{CallHandler, Pending};
use crate::copies::{NewCopy, Phase, SpaceWaiter};
use crate::ctx::STEPS_PER_TURN;
use crate::fetch::Early;
use crate::io::{ClientId, Output};
use crate::keys::Want;
use crate::writes::Acceptance;

/// The arguments of a client's create.
#[derive(Debug, Clone)]
pub(crate) struct Creation {
    pub id: ObjectId,
    pub size: u64,
    pub header: Header,
    /// The client has a view of it from the start.
    pub keep: bool,
    /// The bytes, for small objects that come in one frame.
    pub payload: Option<Blob>,
}

impl CallHandler<'_> {
    pub fn on_create(&mut self, client: ClientId, call: u64, creation: Creation, timeout_ms: Option<u64>) {
        let Creation { id, size, .. } = creation;
        if self.ctx.is_leaving {
            let message = format!("{}: this node is about to end and takes no more objects", self.ctx.me);
            return self.reply_error(client, call, ErrorKind::NodeUnreachable, message);
        }
        if !self.copies.could_hold(size) {
            let bytes = self.copies.store_bytes();
            let message = format!("{}: {id} has {size} bytes, the whole store {bytes}", self.ctx.me);
            return self.reply_error(client, call, ErrorKind::StoreFull, message);
        }
        self.calls.note_payload(creation.payload.as_ref());
        self.open_call(client, call, timeout_ms, Pending::Create(creation));
        self.try_create(client, call);
        self.refuse_payload_if_too_many(client, call);
    }

    /// Creates the copy that a pending call asks for, or lets the call wait for the obstacle.
    pub fn try_create(&mut self, client: ClientId, call: u64) {
        let Some(Pending::Create(creation)) = self.calls.pending(client, call) else {
            // The call is over, or has begun to write.
            return;
        };
        // The payload is not cloned: this may be tried as often as space comes back.
        let Creation { id, size, keep, .. } = *creation;
        let (header, inline) = (creation.header.clone(), creation.payload.is_some());
        if let Some(copy) = self.copies.live(id) {
            match self.copies[copy].phase {
                Phase::Sealed => return self.keep_first(client, call, copy, size, &header),
                // No sender brings the rest: the writer here is faster.
                Phase::Received(None) => self.copies.doom(self.ctx, copy),
                _ => return self.fetcher().want(id, Want::Call(client, call), Some(Early::Put)),
            }
        }
        let new = self.new_writing(client, id, size, header);
        let Some(copy) = self.copies.open(self.ctx, new) else {
            return self.copies.wait_for_space(
                self.ctx,
                SpaceWaiter::Create { object: id, client, call },
                size,
            );
        };
        let sealing = inline.then_some(call);
        match self.calls.take_payload(client, call) {
            Some(payload) => self.ctx.out.push_back(Output::Write { copy, bytes: payload.0 }),
            None => {
                if keep {
                    self.copies.add_view(self.ctx, client, copy);
                }
                let offset = self.copies[copy].extent.offset;
                self.finish_call(client, call, Reply::Created { copy, offset, kept: keep });
            }
        }
        self.begin_write(client, copy, sealing);
    }

    /// The properties of a copy that a client writes. The copy's number distinguishes this writing from any other.
    pub fn new_writing(&mut self, client: ClientId, object: ObjectId, size: u64, header: Header) -> NewCopy {
        let edition = Edition { writing: self.ctx.unique(), attempt: 0 };
        let claim = Some(Claim { number: edition.writing, by: self.ctx.me });
        let phase = Phase::Written(client);
        NewCopy { object, edition, size, header, phase, pinned: true, public: true, stamp: None, claim }
    }

    /// A copy that `client` writes is open: its owner is asked for a verdict.
    pub fn begin_write(&mut self, client: ClientId, copy: CopyId, sealing: Option<u64>) {
        self.copies.add_user(self.ctx, copy);
        let (object, edition) = (self.copies[copy].object, self.copies[copy].edition);
        self.writes.begin(copy, client, edition, sealing);
        self.fetcher().drop_fetch(object);
        self.ask_for_verdict(copy);
    }

    /// The copy in the way of puts is gone: they continue, the first of many at once, until one of them is in the way
    /// of the others.
    pub fn retry_puts(&mut self, object: ObjectId) {
        let puts = self.fetches.early(object, Early::Put, STEPS_PER_TURN);
        for &(client, call) in &puts {
            if self.is_in_the_way(object) {
                return;
            }
            let want = Want::Call(client, call);
            // It may be waiting only for the error that the object is deleted.
            if !self.fail_at_once(client, call, object) {
                self.fetcher().unwant(object, want);
                self.try_create(client, call);
            }
        }
        if puts.len() == STEPS_PER_TURN {
            self.go_on_soon(object);
        }
    }

    /// A copy of `object` is here or arriving: puts of it wait for that copy, and need no space of their own.
    pub fn end_puts_wait_for_space(&mut self, object: ObjectId) {
        let puts = self.copies.take_puts(object, STEPS_PER_TURN);
        for &(client, call) in &puts {
            self.try_create(client, call);
        }
        if puts.len() == STEPS_PER_TURN {
            self.go_on_soon(object);
        }
    }

    /// Whether puts must wait until the copy that is here is sealed or gone.
    fn is_in_the_way(&self, object: ObjectId) -> bool {
        let phase = self.copies.live_copy(object).map(|copy| copy.phase);
        !matches!(phase, None | Some(Phase::Sealed | Phase::Received(None)))
    }

    pub fn on_progress(&mut self, client: ClientId, id: CopyId, watermark: u64) {
        let Some(write) = self.writes.get(id).filter(|write| write.client == client) else {
            // The write is over, or is not by this client.
            return;
        };
        let copy = &self.copies[id];
        let grows = (copy.watermark + 1..=copy.extent.size).contains(&watermark);
        if !copy.doomed && write.sealing.is_none() && grows {
            self.copies.with(id, |copy| copy.watermark = watermark);
            self.ctx.out.push_back(Output::Advance { copy: id, watermark });
        }
    }

    pub fn on_seal(&mut self, client: ClientId, call: u64, copy: CopyId, timeout_ms: Option<u64>) {
        if self.writes.begin_seal(client, call, copy) {
            self.open_call(client, call, timeout_ms, Pending::Seal);
            self.finish_write(copy);
        } else {
            let message = format!("copy {} is not being written by this client", copy.0);
            self.reply_error(client, call, ErrorKind::BadArgument, message);
        }
    }

    pub fn on_abort(&mut self, client: ClientId, call: u64, copy: CopyId) {
        if self.writes.get(copy).is_some_and(|write| write.client == client) {
            self.abandon_write(copy);
        }
        self.reply(client, call, Reply::Done);
    }

    /// The writer aborted or died: the object is withdrawn everywhere.
    pub fn abandon_write(&mut self, copy: CopyId) {
        if let Some(write) = self.writes.remove(copy) {
            if let Some(call) = write.sealing {
                let message = format!("{}: the put was aborted", self.ctx.me);
                self.fail_call(write.client, call, ErrorKind::Aborted, &message);
            }
            if !self.copies[copy].doomed {
                self.copies.withdraw(self.ctx, copy);
                self.copies.doom(self.ctx, copy);
            }
            self.copies.remove_user(self.ctx, copy);
            self.ctx.work_ended = true;
        }
    }

    fn ask_for_verdict(&mut self, copy: CopyId) {
        self.writes.ask_for_verdict(self.ctx, self.copies, copy);
    }

    /// An owner's verdict on a put. Returns false if this is no put of ours, or not any more.
    pub fn on_put_verdict(&mut self, from: NodeId, edition: Edition, verdict: Verdict) -> bool {
        let Some(copy) = self.writes.of_edition(edition) else { return false };
        // Only from the owner asked last: an owner that took over decides anew, unless we have reported the former
        // owner's verdict to it.
        match verdict {
            _ if self.writes.asked(copy) == Some(from) => self.on_write_verdict(copy, verdict),
            Verdict::Accepted(stamp) => self.writes.note_accepted_before(copy, stamp),
            _ => {}
        }
        true
    }

    /// The verdict that counts.
    pub fn on_write_verdict(&mut self, copy: CopyId, verdict: Verdict) {
        let Some(write) = self.writes.get_mut(copy) else {
            // The write is over.
            return;
        };
        let acceptance = match verdict {
            Verdict::Accepted(_) => Acceptance::Accepted,
            Verdict::Exists(_) => Acceptance::Superseded,
            refused => Acceptance::Refused(refused),
        };
        if !matches!(write.acceptance, Acceptance::Pending | Acceptance::Accepted) {
            return;
        }
        if let Some(stamp) = write.accepted_before.take().filter(|_| verdict == Verdict::Deleted) {
            // It may have been accepted after the deletion; nodes that were notified of that are to confirm it.
            self.copies.with(copy, |copy| copy.stamp = Some(stamp));
            return self.ask_for_verdict(copy);
        }
        write.acceptance = acceptance;
        match verdict {
            Verdict::Accepted(stamp) => self.copies.with(copy, |copy| copy.stamp = Some(stamp)),
            // The client may still be writing: the space is kept until it lets go.
            _ => self.copies.doom(self.ctx, copy),
        }
        self.finish_write(copy);
    }

    /// Seals (or refuses) the copy, once both the client's seal and the directory's verdict are there.
    fn finish_write(&mut self, id: CopyId) {
        let Some(write) = self.writes.get(id) else {
            // The write is over.
            return;
        };
        let (Some(call), acceptance, client) = (write.sealing, write.acceptance, write.client) else {
            return;
        };
        if acceptance == Acceptance::Pending {
            return;
        }
        self.writes.remove(id);
        let copy = &self.copies[id];
        let (object, size) = (copy.object, copy.extent.size);
        match acceptance {
            Acceptance::Pending => unreachable!("seen above"),
            Acceptance::Accepted => {
                self.copies.seal(self.ctx, id, Seal::default());
                self.finish_call(client, call, Reply::Done);
            }
            Acceptance::Superseded => {
                self.wait_for_first(client, call, id);
                self.ctx.work_ended = true;
                return;
            }
            Acceptance::Refused(Verdict::OtherKind(other)) => {
                let message = format!(
                    "{}: {object} exists with {other} bytes, or of another kind, not {size} bytes of this",
                    self.ctx.me
                );
                self.finish_call(client, call, Reply::Failed(Error::new(ErrorKind::AlreadyExists, message)));
            }
            Acceptance::Refused(_) => {
                let message = format!("{}: {object} was deleted; ids are not used again", self.ctx.me);
                self.finish_call(client, call, Reply::Failed(Error::new(ErrorKind::Deleted, message)));
            }
        }
        self.copies.remove_user(self.ctx, id);
        self.ctx.work_ended = true;
    }
}

//! Objects being written by local clients [design §3 put, create].
//!
//! The object is announced before its bytes are copied, so that receivers stream behind the copy.
//! It is sealed when the client has sealed it **and** the directory has accepted it.
//!
//! ```text
//!   Pending ───Accepted──▶ Accepted ──client seals──▶ sealed
//!      │ └────Exists─────▶ Superseded ──client seals──▶ waits until the first content is here, and keeps that
//!      └──Deleted, OtherKind──▶ Refused ──client seals──▶ the error
//! ```

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::client::Reply;
use hoplite_types::peer::{Seal, Verdict};
use hoplite_types::{mix64, Blob, Claim, CopyId, Edition, Error, ErrorKind, Header, NodeId, ObjectId, Stamp};

use crate::calls::Pending;
use crate::copies::SpaceWaiter;
use crate::copies::{Copy, NewCopy, Phase};
use crate::ctx::STEPS_PER_TURN;
use crate::fetch::Early;
use crate::io::{ClientId, Output};
use crate::keys::Want;
use crate::notices::Notice;
use crate::Core;

/// The directory's verdict on a writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Acceptance {
    Pending,
    Accepted,
    /// Another content was accepted first, which is as good.
    Superseded,
    Refused(Verdict),
}

#[derive(Debug)]
struct Write {
    client: ClientId,
    acceptance: Acceptance,
    /// The owner whose verdict counts.
    asked: Option<NodeId>,
    /// The time at which a former owner accepted it, if its verdict came after another owner was asked.
    accepted_before: Option<Stamp>,
    /// The call that waits for the seal.
    sealing: Option<u64>,
    edition: Edition,
}

/// Copies that clients write, live or doomed.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    table: BTreeMap<CopyId, Write>,
    by_edition: BTreeMap<Edition, CopyId>,
    by_client: BTreeSet<(ClientId, CopyId)>,
    /// By the call that waits for the seal.
    by_call: BTreeMap<(ClientId, u64), CopyId>,
}

impl Writes {
    /// The first few copies that this client writes.
    pub fn of_client(&self, client: ClientId, most: usize) -> Vec<CopyId> {
        let of_client = self.by_client.range((client, CopyId(0))..=(client, CopyId(u64::MAX)));
        of_client.map(|&(_, copy)| copy).take(most).collect()
    }

    pub fn of_edition(&self, edition: Edition) -> Option<CopyId> {
        self.by_edition.get(&edition).copied()
    }

    /// The copy whose seal this call waits for.
    pub fn sealed_by(&self, client: ClientId, call: u64) -> Option<CopyId> {
        self.by_call.get(&(client, call)).copied()
    }

    /// Copies whose verdict is still missing.
    pub fn awaiting_verdict(&self) -> Vec<CopyId> {
        let awaiting_verdict = |(_, write): &(&CopyId, &Write)| write.acceptance == Acceptance::Pending;
        self.table.iter().filter(awaiting_verdict).map(|(&copy, _)| copy).collect()
    }

    pub fn awaits_verdict(&self) -> bool {
        self.table.values().any(|write| write.acceptance == Acceptance::Pending)
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether no owner has accepted it so far.
    pub fn may_give_way(&self, copy: CopyId) -> bool {
        let unaccepted =
            |write: &Write| write.acceptance == Acceptance::Pending && write.accepted_before.is_none();
        self.table.get(&copy).is_some_and(unaccepted)
    }

    /// Whether all bytes of the copy are written.
    pub fn is_written(&self, copy: CopyId) -> bool {
        self.table.get(&copy).is_some_and(|write| write.sealing.is_some())
    }

    /// A former owner has accepted it, and may have notified others of that.
    pub fn note_accepted_before(&mut self, copy: CopyId, stamp: Stamp) {
        if let Some(write) = self.table.get_mut(&copy).filter(|write| write.acceptance == Acceptance::Pending)
        {
            write.accepted_before = write.accepted_before.max(Some(stamp));
        }
    }

    pub fn asked(&self, copy: CopyId) -> Option<NodeId> {
        self.table.get(&copy)?.asked
    }

    pub fn expect_verdict_from(&mut self, copy: CopyId, owner: NodeId) {
        if let Some(write) = self.table.get_mut(&copy).filter(|write| write.acceptance == Acceptance::Pending)
        {
            write.asked = Some(owner);
        }
    }

    /// Verdicts on copies that were accepted and are not sealed yet are void.
    pub fn forget_verdicts(&mut self) -> Vec<CopyId> {
        let accepted = self.table.iter_mut().filter(|(_, write)| write.acceptance == Acceptance::Accepted);
        let forget = |(&copy, write): (&CopyId, &mut Write)| {
            write.acceptance = Acceptance::Pending;
            copy
        };
        accepted.map(forget).collect()
    }

    fn remove(&mut self, copy: CopyId) -> Option<Write> {
        let write = self.table.remove(&copy)?;
        self.by_edition.remove(&write.edition);
        self.by_client.remove(&(write.client, copy));
        if let Some(call) = write.sealing {
            self.by_call.remove(&(write.client, call));
        }
        Some(write)
    }
}

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

impl Core {
    pub(crate) fn on_create(
        &mut self,
        client: ClientId,
        call: u64,
        creation: Creation,
        timeout_ms: Option<u64>,
    ) {
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
    pub(crate) fn try_create(&mut self, client: ClientId, call: u64) {
        let Some(Pending::Create(creation)) = self.pending(client, call) else { return };
        // The payload is not cloned: this may be tried as often as space comes back.
        let Creation { id, size, keep, .. } = *creation;
        let (header, inline) = (creation.header.clone(), creation.payload.is_some());
        if let Some(copy) = self.copies.live(id) {
            match self.copies[copy].phase {
                Phase::Sealed => return self.keep_first(client, call, copy, size, &header),
                // No sender brings the rest: the writer here is faster.
                Phase::Received(None) => self.copies.doom(&mut self.ctx, copy),
                _ => return self.fetcher().want(id, Want::Call(client, call), Some(Early::Put)),
            }
        }
        let new = self.new_writing(client, id, size, header);
        let Some(copy) = self.copies.open(&mut self.ctx, new) else {
            return self.copies.wait_for_space(
                &mut self.ctx,
                SpaceWaiter::Create { object: id, client, call },
                size,
            );
        };
        let sealing = inline.then_some(call);
        match self.calls.take_payload(client, call) {
            Some(payload) => self.ctx.out.push_back(Output::Write { copy, bytes: payload.0 }),
            None => {
                if keep {
                    self.copies.add_view(&mut self.ctx, client, copy);
                }
                let offset = self.copies[copy].extent.offset;
                self.finish_call(client, call, Reply::Created { copy, offset, kept: keep });
            }
        }
        self.begin_write(client, copy, sealing);
    }

    /// The properties of a copy that a client writes. The copy's number distinguishes this writing from any other.
    pub(crate) fn new_writing(
        &mut self,
        client: ClientId,
        object: ObjectId,
        size: u64,
        header: Header,
    ) -> NewCopy {
        let edition = Edition { writing: self.unique(), attempt: 0 };
        let claim = Some(Claim { number: edition.writing, by: self.ctx.me });
        let phase = Phase::Written(client);
        NewCopy { object, edition, size, header, phase, pinned: true, public: true, stamp: None, claim }
    }

    /// A copy that `client` writes is open: its owner is asked for a verdict.
    pub(crate) fn begin_write(&mut self, client: ClientId, copy: CopyId, sealing: Option<u64>) {
        self.copies.add_user(&mut self.ctx, copy);
        let Copy { object, edition, .. } = self.copies[copy];
        let write = Write {
            client,
            acceptance: Acceptance::Pending,
            asked: None,
            accepted_before: None,
            sealing,
            edition,
        };
        self.writes.table.insert(copy, write);
        self.writes.by_edition.insert(edition, copy);
        self.writes.by_client.insert((client, copy));
        self.writes.by_call.extend(sealing.map(|call| ((client, call), copy)));
        self.fetcher().drop_fetch(object);
        self.ask_for_verdict(copy);
    }

    /// The copy in the way of puts is gone: they continue, the first of many at once, until one of them is in the way
    /// of the others.
    pub(crate) fn retry_puts(&mut self, object: ObjectId) {
        let puts = self.fetches.early(object, Early::Put, STEPS_PER_TURN);
        for &(client, call) in &puts {
            if self.is_in_the_way(object) {
                return;
            }
            let want = Want::Call(client, call);
            // It may be waiting only for the error that the object is deleted.
            if !self.fail_at_once(object, want) {
                self.fetcher().unwant(object, want);
                self.try_create(client, call);
            }
        }
        if puts.len() == STEPS_PER_TURN {
            self.go_on_soon(object);
        }
    }

    /// A copy of `object` is here or arriving: puts of it wait for that copy, and need no space of their own.
    pub(crate) fn end_puts_wait_for_space(&mut self, object: ObjectId) {
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

    pub(crate) fn on_progress(&mut self, client: ClientId, id: CopyId, watermark: u64) {
        let Some(write) = self.writes.table.get(&id).filter(|write| write.client == client) else { return };
        let copy = &self.copies[id];
        let grows = (copy.watermark + 1..=copy.extent.size).contains(&watermark);
        if !copy.doomed && write.sealing.is_none() && grows {
            self.copies.with(id, |copy| copy.watermark = watermark);
            self.ctx.out.push_back(Output::Advance { copy: id, watermark });
        }
    }

    pub(crate) fn on_seal(&mut self, client: ClientId, call: u64, copy: CopyId, timeout_ms: Option<u64>) {
        match self.writes.table.get_mut(&copy) {
            Some(write) if write.client == client && write.sealing.is_none() => {
                write.sealing = Some(call);
                self.writes.by_call.insert((client, call), copy);
                self.open_call(client, call, timeout_ms, Pending::Seal);
                self.finish_write(copy);
            }
            _ => {
                let message = format!("copy {} is not being written by this client", copy.0);
                self.reply_error(client, call, ErrorKind::BadArgument, message);
            }
        }
    }

    pub(crate) fn on_abort(&mut self, client: ClientId, call: u64, copy: CopyId) {
        if self.writes.table.get(&copy).is_some_and(|write| write.client == client) {
            self.abandon_write(copy);
        }
        self.reply(client, call, Reply::Done);
    }

    /// The writer aborted or died: the object is withdrawn everywhere.
    pub(crate) fn abandon_write(&mut self, copy: CopyId) {
        if let Some(write) = self.writes.remove(copy) {
            if let Some(call) = write.sealing {
                let message = format!("{}: the put was aborted", self.ctx.me);
                self.fail_call(write.client, call, ErrorKind::Aborted, &message);
            }
            if !self.copies[copy].doomed {
                self.copies.withdraw(&mut self.ctx, copy);
                self.copies.doom(&mut self.ctx, copy);
            }
            self.copies.remove_user(&mut self.ctx, copy);
            self.ctx.notices.push_back(Notice::WorkEnded);
        }
    }

    /// The directory's verdict on a put.
    pub(crate) fn on_write_verdict(&mut self, copy: CopyId, verdict: Verdict) {
        let Some(write) = self.writes.table.get_mut(&copy) else { return };
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
            _ => self.copies.doom(&mut self.ctx, copy),
        }
        self.finish_write(copy);
    }

    /// The live copy of `object`, if a client writes it.
    pub(crate) fn write_of(&self, object: ObjectId) -> Option<CopyId> {
        self.copies.live(object).filter(|copy| self.writes.table.contains_key(copy))
    }

    /// Seals (or refuses) the copy, once both the client's seal and the directory's verdict are there.
    fn finish_write(&mut self, id: CopyId) {
        let Some(write) = self.writes.table.get(&id) else { return };
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
                self.copies.seal(&mut self.ctx, id, Seal::default());
                self.finish_call(client, call, Reply::Done);
            }
            Acceptance::Superseded => {
                self.wait_for_first(client, call, id);
                return self.ctx.notices.push_back(Notice::WorkEnded);
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
        self.copies.remove_user(&mut self.ctx, id);
        self.ctx.notices.push_back(Notice::WorkEnded);
    }

    /// 64 bits that no other writing anywhere uses.
    pub(crate) fn unique(&mut self) -> u64 {
        let number = self.ctx.next_number();
        mix64(self.ctx.me.hash64() ^ mix64(number))
    }
}

//! Objects being written by local clients [design §3 put, create].
//!
//! The object is announced before its bytes are copied, so that receivers stream behind the copy;
//! it is sealed when the client has said so **and** the directory has accepted it.

use std::collections::BTreeMap;

use hoplite_words::client::Reply;
use hoplite_words::peer::{Seal, Verdict};
use hoplite_words::{limits, Blob, CopyId, Edition, Error, ErrorKind, Header, ObjectId};

use crate::calls::Pending;
use crate::copies::{NewCopy, Phase};
use crate::fetch::Want;
use crate::io::{ClientId, Output};
use crate::room::RoomFor;
use crate::shards::mix;
use crate::Core;

#[derive(Debug)]
struct Write {
    client: ClientId,
    verdict: Option<Verdict>,
    /// The call that waits for the seal.
    sealing: Option<u64>,
    edition: Edition,
}

/// Copies that clients write, whether live or doomed.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    table: BTreeMap<CopyId, Write>,
    by_edition: BTreeMap<Edition, CopyId>,
}

impl Writes {
    pub fn of_client(&self, client: ClientId) -> Vec<CopyId> {
        self.table.iter().filter(|(_, write)| write.client == client).map(|(&copy, _)| copy).collect()
    }

    /// The copy whose seal this call waits for.
    pub fn sealed_by(&self, client: ClientId, call: u64) -> Option<CopyId> {
        let sealed = |write: &Write| write.client == client && write.sealing == Some(call);
        self.table.iter().find(|(_, write)| sealed(write)).map(|(&copy, _)| copy)
    }

    /// Copies whose acceptance the directory still owes us.
    pub fn unjudged(&self) -> Vec<CopyId> {
        self.table.iter().filter(|(_, write)| write.verdict.is_none()).map(|(&copy, _)| copy).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether all bytes of the copy are written.
    pub fn is_written(&self, copy: CopyId) -> bool {
        self.table.get(&copy).is_some_and(|write| write.sealing.is_some())
    }

    fn remove(&mut self, copy: CopyId) -> Option<Write> {
        let write = self.table.remove(&copy)?;
        self.by_edition.remove(&write.edition);
        Some(write)
    }
}

/// What a client wants to create.
#[derive(Debug, Clone)]
pub(crate) struct Creation {
    pub id: ObjectId,
    pub size: u64,
    pub header: Header,
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
        let Creation { id, size, ref header, ref payload } = creation;
        if let Err(error) = header.validate(size) {
            return self.reply(client, call, Reply::Failed(error));
        }
        if payload.is_some() && size > limits::INLINE_BYTES_MAX {
            let message = format!("{size} bytes do not fit into one frame");
            return self.reply_error(client, call, ErrorKind::BadArgument, message);
        }
        if self.leaving.is_some() {
            let message = format!("{}: this node is about to end and takes no more objects", self.me);
            return self.reply_error(client, call, ErrorKind::NodeUnreachable, message);
        }
        if !self.copies.arena.could_hold(size) {
            let bytes = self.copies.arena.bytes();
            let message = format!("{}: {id} has {size} bytes, the whole store {bytes}", self.me);
            return self.reply_error(client, call, ErrorKind::StoreFull, message);
        }
        self.open_call(client, call, timeout_ms, Pending::Create(creation));
        self.try_create(client, call);
    }

    /// Creates the copy a pending call asks for, or leaves the call waiting for what is in the way.
    pub(crate) fn try_create(&mut self, client: ClientId, call: u64) {
        let Some(Pending::Create(creation)) = self.pending(client, call) else { return };
        let creation = creation.clone();
        if let Some(copy) = self.copies.live(creation.id) {
            match self.copies.table[&copy].phase {
                Phase::Sealed => return self.put_again(client, call, copy, &creation),
                // Nobody sends us the rest: the writer here is faster.
                Phase::Received(None) => self.doom(copy),
                _ => return self.want(creation.id, Want::Call(client, call)),
            }
        }
        let id = creation.id;
        let edition = Edition { writing: self.unique(), attempt: 0 };
        let (size, header) = (creation.size, creation.header);
        let phase = Phase::Written(client);
        let new = NewCopy { object: id, edition, size, header, phase, pinned: true, public: true };
        let Some(copy) = self.open_copy(new) else {
            return self.wait_for_room(RoomFor::Create { client, call });
        };
        self.add_user(copy);
        let sealing = creation.payload.is_some().then_some(call);
        self.writes.table.insert(copy, Write { client, verdict: None, sealing, edition });
        self.writes.by_edition.insert(edition, copy);
        match creation.payload {
            Some(payload) => {
                self.replace_pending(client, call, Pending::Seal);
                self.out.push_back(Output::Write { copy, bytes: payload.0 });
            }
            None => {
                let offset = self.copies.table[&copy].extent.offset;
                self.finish_call(client, call, Reply::Created { copy, offset });
            }
        }
        self.on_opened(id);
        self.drop_fetch(id);
        // Our own directory answers with our sealed copy; another owner needs the bytes right away.
        let complete = sealing.is_some() && self.shards.owner(id) != self.me;
        self.announce(copy, complete, true);
        self.arm_refresh();
    }

    /// The same object once more (re-executed tasks do this): accepted if it is the same.
    fn put_again(&mut self, client: ClientId, call: u64, id: CopyId, creation: &Creation) {
        let copy = &self.copies.table[&id];
        if copy.extent.size != creation.size || copy.header != creation.header {
            let message = format!(
                "{}: {} exists with {} bytes ({:?}), not {} bytes ({:?})",
                self.me, creation.id, copy.extent.size, copy.header, creation.size, creation.header
            );
            let error = Error::new(ErrorKind::AlreadyExists, message);
            return self.finish_call(client, call, Reply::Failed(error));
        }
        if !copy.pinned {
            self.copies.with(id, |copy| copy.pinned = true);
            self.announce(id, true, false);
        }
        self.finish_call(client, call, Reply::Done);
    }

    /// The copy that was in the way of puts is gone.
    pub(crate) fn retry_puts(&mut self, object: ObjectId) {
        for (client, call) in self.waiting_calls(object) {
            if matches!(self.pending(client, call), Some(Pending::Create(_))) {
                self.unwant(object, Want::Call(client, call));
                self.try_create(client, call);
            }
        }
    }

    pub(crate) fn on_progress(&mut self, client: ClientId, id: CopyId, watermark: u64) {
        let Some(write) = self.writes.table.get(&id).filter(|write| write.client == client) else { return };
        let copy = &self.copies.table[&id];
        let grows = (copy.watermark + 1..=copy.extent.size).contains(&watermark);
        if !copy.doomed && write.sealing.is_none() && grows {
            self.copies.with(id, |copy| copy.watermark = watermark);
            self.out.push_back(Output::Advance { copy: id, watermark });
        }
    }

    pub(crate) fn on_seal(&mut self, client: ClientId, call: u64, copy: CopyId, timeout_ms: Option<u64>) {
        match self.writes.table.get_mut(&copy) {
            Some(write) if write.client == client && write.sealing.is_none() => {
                write.sealing = Some(call);
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

    /// The writer gave up or died: the object is withdrawn everywhere.
    pub(crate) fn abandon_write(&mut self, copy: CopyId) {
        if let Some(write) = self.writes.remove(copy) {
            if let Some(call) = write.sealing {
                let message = format!("{}: the put was aborted", self.me);
                self.fail_call(write.client, call, ErrorKind::Aborted, &message);
            }
            if !self.copies.table[&copy].doomed {
                self.withdraw(copy);
                self.doom(copy);
            }
            self.remove_user(copy);
        }
    }

    /// The directory's word on a put.
    pub(crate) fn on_verdict(&mut self, edition: Edition, verdict: Verdict) {
        if let Some(&copy) = self.writes.by_edition.get(&edition) {
            self.judge_write(copy, verdict);
        } else if verdict != Verdict::Accepted {
            self.on_target_rejected(edition);
            self.drop_rejected(edition, verdict);
        }
    }

    /// A copy that cannot stand: of a writing that was given up, or of another size than one that
    /// an owner accepted who did not know of ours. What is complete is never given up for the first.
    fn drop_rejected(&mut self, edition: Edition, verdict: Verdict) {
        let rejected = |copy: &crate::copies::Copy| {
            let holds = verdict == Verdict::Deleted && copy.is_sealed();
            copy.public && !copy.doomed && copy.edition == edition && !holds
        };
        let found = self.copies.table.iter().find(|(_, copy)| rejected(copy));
        let found = found.map(|(&id, copy)| (id, copy.object));
        if let Some((copy, object)) = found {
            // Whoever wants the object asks anew, for any edition.
            self.drop_fetch(object);
            self.withdraw(copy);
            self.doom(copy);
        }
    }

    pub(crate) fn judge_write(&mut self, copy: CopyId, verdict: Verdict) {
        let Some(write) = self.writes.table.get_mut(&copy) else { return };
        if matches!(write.verdict, Some(known) if known != Verdict::Accepted) {
            return;
        }
        write.verdict = Some(verdict);
        if verdict != Verdict::Accepted {
            // The client may still be writing: its room is kept until it lets go.
            self.doom(copy);
        }
        self.finish_write(copy);
    }

    /// The live write of `object`, if a client is at it.
    pub(crate) fn write_of(&self, object: ObjectId) -> Option<CopyId> {
        self.copies.live(object).filter(|copy| self.writes.table.contains_key(copy))
    }

    /// Seals (or refuses) once both the client and the directory have spoken.
    fn finish_write(&mut self, id: CopyId) {
        let Some(write) = self.writes.table.get(&id) else { return };
        let (Some(call), Some(verdict), client) = (write.sealing, write.verdict, write.client) else {
            return;
        };
        self.writes.remove(id);
        let copy = &self.copies.table[&id];
        let (object, size) = (copy.object, copy.extent.size);
        match verdict {
            Verdict::Accepted => {
                self.seal_copy(id, Seal::default());
                self.finish_call(client, call, Reply::Done);
            }
            Verdict::Deleted => {
                let message = format!("{}: {object} was deleted; ids are not used again", self.me);
                self.finish_call(client, call, Reply::Failed(Error::new(ErrorKind::Deleted, message)));
            }
            Verdict::OtherSize(other) => {
                let message = format!("{}: {object} exists with {other} bytes, not {size}", self.me);
                self.finish_call(client, call, Reply::Failed(Error::new(ErrorKind::AlreadyExists, message)));
            }
        }
        self.remove_user(id);
    }

    /// 64 bits no other writing anywhere uses.
    pub(crate) fn unique(&mut self) -> u64 {
        let number = self.next_number();
        mix(self.me.hash64() ^ mix(number))
    }
}

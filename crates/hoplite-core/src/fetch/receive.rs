//! The answer to an ask for a sender: inline bytes, or a stream and its end.

use hoplite_types::peer::{DirectoryRequest, PeerMessage, Seal};
use hoplite_types::{Blob, CopyId, Edition, ErrorKind, Header, NodeId, ObjectId, Stamp, TransferId};

use super::stalls::Check;
use super::{Fetcher, State};
use crate::copies::{Copy, Incoming, NewCopy, Phase};
use crate::io::{Broken, Event, FoldId, Output};
use crate::notices::Notice;

/// Limit on broken senders that a fetch remembers.
const BROKEN_MAX: usize = 4;

/// The target of an incoming stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Feeds {
    Copy(CopyId),
    Fold(FoldId),
}

/// The owner's description of the object that it answers about.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub edition: Edition,
    pub size: u64,
    pub header: Header,
    pub stamp: Option<Stamp>,
}

/// An incoming stream.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub from: NodeId,
    pub feeds: Feeds,
    /// How often the slot that it feeds was started over.
    attempt: u32,
    /// Set while it stalls: its sender has been asked how much it has.
    pub(super) check: Option<Check>,
}

impl Transfer {
    /// A stream into a copy of its own.
    fn to_copy(from: NodeId, copy: CopyId) -> Self {
        Transfer { from, feeds: Feeds::Copy(copy), attempt: 0, check: None }
    }

    /// A stream into a fold, which is run for this attempt of a slot.
    pub fn to_fold(from: NodeId, fold: FoldId, attempt: u32) -> Self {
        Transfer { from, feeds: Feeds::Fold(fold), attempt, check: None }
    }

    pub(super) fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl Fetcher<'_> {
    /// The owner lends us a sender.
    pub fn on_lend(&mut self, object: ObjectId, ask: u64, sender: NodeId, content: Content) {
        let Content { edition, size, .. } = content;
        if !self.is_answer(object, ask, edition) {
            return;
        }
        self.on_prefetch_size_known(object, size);
        match self.copy_to_receive(object, content) {
            Some(copy) => self.receive(object, copy, sender),
            None if !self.copies.could_hold(size) => {
                self.copies.withdraw_edition(self.ctx, object, edition);
                self.refuse_pin(object);
                let kind = ErrorKind::StoreFull;
                let message =
                    format!("{object} has {size} bytes, more than the whole store of {}", self.ctx.me);
                self.drop_fetch(object);
                self.fail_wants(object, kind, &message);
            }
            None => self.put_off_for_space(object, edition, size),
        }
    }

    /// There is no space for the object now: the fetch waits for space, then asks again.
    fn put_off_for_space(&mut self, object: ObjectId, edition: Edition, size: u64) {
        self.copies.withdraw_edition(self.ctx, object, edition);
        self.ctx.notices.push_back(Notice::NotComing(object));
        self.refuse_pin(object);
        self.wait_for_space_to_fetch(object, size);
    }

    /// The object was to be pinned here, and will not be: its owner must choose another node.
    pub(super) fn refuse_pin(&mut self, object: ObjectId) {
        if self.copies.take_pin(object) {
            self.ctx.ask_owner(object, DirectoryRequest::PinRefused, None);
        }
    }

    /// Whether this answers the open ask. If not, the ask was cancelled meanwhile, or sent twice. The owner counts us
    /// as a holder, because it lent a sender or sent the bytes: that is corrected here.
    fn is_answer(&mut self, object: ObjectId, ask: u64, edition: Edition) -> bool {
        let current = self.fetches.running.get(&object);
        let asking = current.filter(|fetch| fetch.state == State::Asking).map(|fetch| fetch.ask);
        if asking == Some(ask) {
            return true;
        }
        match self.copies.live(object) {
            // Our newer ask corrects it.
            _ if asking.is_some() => {}
            Some(copy) if self.is_public(copy, edition) => {
                self.ctx.notices.push_back(Notice::ReportAgain(copy))
            }
            _ => self.copies.withdraw_edition(self.ctx, object, edition),
        }
        false
    }

    fn is_public(&self, copy: CopyId, edition: Edition) -> bool {
        let known = &self.copies[copy];
        known.public && known.edition == edition
    }

    /// Our partial copy, if it is of this edition; otherwise a new one.
    fn copy_to_receive(&mut self, object: ObjectId, content: Content) -> Option<CopyId> {
        let Content { edition, size, header, stamp } = content;
        if let Some(copy) = self.copies.live(object) {
            let known = &self.copies[copy];
            if known.edition == edition && known.extent.size == size {
                return Some(copy);
            }
            // Another edition: bytes never mix. The fetch itself stays.
            self.copies.doom(self.ctx, copy);
        }
        let phase = Phase::Received(None);
        let (pinned, public, claim) = (false, true, None);
        self.copies
            .open(self.ctx, NewCopy { object, edition, size, header, phase, pinned, public, stamp, claim })
    }

    fn receive(&mut self, object: ObjectId, copy: CopyId, sender: NodeId) {
        let owner = self.ctx.shards.owner(object);
        self.copies.with(copy, |copy| {
            copy.upstream = Some(sender);
            copy.told = Some(owner);
        });
        let transfer = self.pull_into(copy, sender, object, false);
        if let Some(fetch) = self.fetches.running.get_mut(&object) {
            fetch.state = State::Receiving(transfer);
            fetch.tried += 1;
            fetch.lost = false;
        }
    }

    /// Starts a transfer into `copy` from `from`, where the object is named `id`, from the copy's watermark on.
    pub fn pull_into(&mut self, copy: CopyId, from: NodeId, id: ObjectId, patient: bool) -> TransferId {
        let transfer = TransferId(self.ctx.next_number());
        let (edition, offset) = self.copies.with(copy, |copy| {
            copy.phase = Phase::Received(Some(Incoming { transfer, from }));
            copy.users += 1;
            (copy.edition, copy.watermark)
        });
        self.fetches.begin_transfer(transfer, Transfer::to_copy(from, copy));
        self.ctx.out.push_back(Output::Receive { transfer, from, copy, offset });
        self.ctx.send(from, PeerMessage::Pull { transfer, id, edition, offset, patient }, None);
        transfer
    }

    /// The bytes came with the answer.
    pub fn on_inline(&mut self, from: NodeId, object: ObjectId, ask: u64, content: Content, payload: Blob) {
        let Content { edition, size, .. } = content;
        if !self.is_answer(object, ask, edition) {
            return;
        }
        let counted = self.counts_as_holder(from, object, ask);
        self.on_prefetch_size_known(object, size);
        if let Some(partial) = self.copies.live(object) {
            // The new copy is written in one piece. The partial one stays for those who view it.
            self.copies.doom(self.ctx, partial);
        }
        match self.copy_to_receive(object, content) {
            Some(copy) => {
                self.ctx.out.push_back(Output::Write { copy, bytes: payload.0 });
                if counted {
                    self.copies.note_told(copy, from);
                }
                // The ask is answered; there is nothing to cancel.
                self.fetches.running.remove(&object);
                self.copies.seal(self.ctx, copy, Seal::default());
            }
            None => self.put_off_for_space(object, edition, size),
        }
    }

    /// Whether `from`, which sends us the object in answer to `ask`, counts us as a holder. True if it is the owner, we
    /// have reported nothing else since the ask, and we have nothing to add.
    fn counts_as_holder(&self, from: NodeId, object: ObjectId, ask: u64) -> bool {
        let withdrew = self.fetches.running.get(&object).map_or(0, |fetch| fetch.withdrew);
        from == self.ctx.shards.owner(object)
            && ask > self.ctx.last_inventory.max(withdrew)
            && self.copies.live(object).is_none()
            && !self.copies.has_pin(object)
            && !self.ctx.is_leaving
    }

    pub fn on_receive_ended(&mut self, transfer: TransferId, watermark: u64, outcome: Result<Seal, Broken>) {
        let Some(Transfer { from, feeds: Feeds::Copy(id), .. }) = self.fetches.end_transfer(transfer) else {
            return;
        };
        let before = self.copies[id].watermark;
        let (object, doomed, within) = self.copies.with(id, |copy| {
            copy.watermark = watermark;
            copy.upstream = None;
            if !copy.doomed {
                copy.phase = Phase::Received(None);
            }
            (copy.object, copy.doomed, copy.within)
        });
        match outcome {
            _ if doomed => self.fetch_anew(object, transfer),
            Ok(seal) => self.copies.seal(self.ctx, id, seal),
            Err(Broken) => {
                let size = self.copies[id].extent.size;
                let event = Event::TransferBroken { transfer, from, bytes: watermark, size };
                self.ctx.out.push_back(Output::Event(event));
                if let Some(fetch) = self.fetches.running.get_mut(&object) {
                    fetch.failed = Some(from);
                    fetch.in_vain = if watermark > before { 0 } else { fetch.in_vain + 1 };
                    fetch.broken.push_back((from, watermark));
                    if fetch.broken.len() > BROKEN_MAX {
                        fetch.broken.pop_front();
                    }
                }
                self.ask_after_break(object);
                // A put here need not wait for bytes that no sender brings.
                self.ctx.notices.push_back(Notice::BrokenOff(object));
            }
        }
        if let Some(whole) = within.filter(|_| !doomed) {
            self.ctx.notices.push_back(Notice::PartEnded(whole));
        }
        self.copies.remove_user(self.ctx, id);
        self.drop_unwanted_fetch(object);
    }

    /// The copy that a transfer filled was given up here: if the object is still wanted, it is fetched anew.
    fn fetch_anew(&mut self, object: ObjectId, transfer: TransferId) {
        let fed = |fetch: &&super::Fetch| fetch.state == State::Receiving(transfer);
        if self.fetches.running.get(&object).filter(fed).is_some() {
            self.fetches.running.remove(&object);
            self.ensure_fetch(object);
        }
    }

    /// The sender has no such copy. Its bulk connection will bring nothing, so the receive is stopped.
    pub fn on_pull_refused(&mut self, transfer: TransferId) {
        match self.fetches.transfers.get(&transfer).map(|transfer| transfer.feeds) {
            Some(Feeds::Copy(_)) => self.ctx.out.push_back(Output::StopReceive { transfer }),
            Some(Feeds::Fold(fold)) => {
                self.ctx.notices.push_back(Notice::FoldStreamBroken { fold, transfer });
            }
            None => {}
        }
    }

    /// The owner reports that `sender` is not to be received from. By now we may receive from another.
    pub fn on_ask_again(&mut self, object: ObjectId, edition: Edition, sender: NodeId) {
        let meant = |copy: &&Copy| copy.edition == edition && copy.upstream == Some(sender);
        let copy = self.copies.live_copy(object).filter(meant);
        if let Some(Phase::Received(Some(Incoming { transfer, .. }))) = copy.map(|copy| copy.phase) {
            self.on_pull_refused(transfer);
        }
    }
}

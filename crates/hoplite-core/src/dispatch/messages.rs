//! Messages from other nodes, and of this node to itself.

use hoplite_types::peer::{CopyReport, Deletion, DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{Blob, Edition, Error, ErrorKind, NodeId, ObjectId};

use crate::copies::{NewCopy, Phase};
use crate::directory::{Answer, Effect};
use crate::fetch::Content;
use crate::io::{Event, Output};
use crate::keys::PullKey;
use crate::keys::Want;
use crate::reductions::SlotReport;
use crate::sends::Pull;
use crate::Core;

impl Core {
    /// Handles a message from outside. An invalid one is dropped.
    pub(crate) fn on_peer_said(&mut self, from: NodeId, message: PeerMessage) {
        match message.validate() {
            Ok(()) => self.on_message(from, message),
            Err(error) => self.on_bad_message(from, error),
        }
    }

    pub(crate) fn on_bad_message(&mut self, from: NodeId, error: Error) {
        self.bad_messages += 1;
        self.ctx.out.push_back(Output::Event(Event::BadMessage { from, error }));
    }

    pub(crate) fn on_message(&mut self, from: NodeId, message: PeerMessage) {
        if self.ctx.departed.has(from) {
            // Either the report of its death was faster, or it lives and will be asked to resync.
            return;
        }
        match message {
            PeerMessage::Directory { origin, hops, id, request } => {
                if hops > 0 && self.ctx.shards.has_claimed() {
                    // A node that forwards here no longer owns the shard, if it claimed that before. And if a request
                    // goes round among several nodes, none of those that claimed the shard owns it.
                    let by = (hops < 2).then_some(from);
                    let moved = self.ctx.shards.forget_claim(id.shard(), by);
                    self.on_owners_moved(&moved);
                }
                self.on_directory(origin, hops, id, request)
            }
            PeerMessage::Answer { id, answer } => self.on_answer(from, id, answer),
            PeerMessage::DeletionAck { id } => self.directory.on_deletion_ack(&mut self.ctx, from, id),
            PeerMessage::InventoryRequest { round, scope, shards, from: cursor, fresh, clock } => {
                self.on_inventory_request(from, round, scope, shards, cursor, fresh, clock);
            }
            PeerMessage::Inventory { round, since, page, unchanged, next, clock } => {
                self.on_inventory(from, Answer { round, since, page, unchanged, next }, clock);
            }
            PeerMessage::MembersRequest => {
                self.note_member(from);
                self.joining.on_members_request(&mut self.ctx, &self.members, from);
            }
            PeerMessage::Members { members, partial } => {
                self.joining.on_members(from, members, partial);
                self.take_in_members();
            }
            PeerMessage::Pull { transfer, id, edition, offset, patient } => {
                let pull = Pull::new(id, edition, offset, patient);
                let (key, is_expected) = (PullKey { to: from, transfer }, self.fetches.is_expected(id));
                self.sends.on_pull(&mut self.ctx, &mut self.copies, key, pull, is_expected);
            }
            PeerMessage::CancelPull { transfer } => {
                self.sends.on_cancel_pull(&mut self.ctx, PullKey { to: from, transfer });
            }
            PeerMessage::PullRefused { transfer } => self.fetcher().on_pull_refused(transfer),
            PeerMessage::AssignSlot { reduction, assignment } => {
                self.with_slots(|slots, lent| slots.on_assign(lent, from, reduction, assignment));
            }
            PeerMessage::SlotFailed { reduction, slot, attempt, failure } => {
                let report = SlotReport { from, slot, attempt };
                self.with_reductions(|reductions, lent| {
                    reductions.on_slot_failed(lent, reduction.number, report, failure);
                });
            }
            PeerMessage::SlotHeld { reduction, slot, attempt } => {
                self.reductions.on_slot_held(&mut self.ctx, reduction, SlotReport { from, slot, attempt });
            }
            PeerMessage::SlotNeedsSpace { reduction, slot, attempt } => {
                let report = SlotReport { from, slot, attempt };
                self.with_reductions(|reductions, lent| {
                    reductions.on_slot_needs_space(lent, reduction, report);
                });
            }
            PeerMessage::Preempt { reduction, slot, attempt } => {
                self.with_slots(|slots, lent| slots.on_preempt(lent, (reduction, slot), attempt));
            }
            PeerMessage::ReleaseSlot { reduction, slot, attempt } => {
                let key = (reduction, slot);
                self.with_slots(|slots, lent| slots.on_release_slot(lent, from, key, attempt));
            }
            PeerMessage::RootDone { reduction, slot, attempt } => {
                let report = SlotReport { from, slot, attempt };
                self.with_reductions(|reductions, lent| {
                    reductions.on_root_done(lent, reduction.number, report);
                });
            }
            PeerMessage::Commit { reduction, id, edition, sources, .. } => {
                self.with_slots(|slots, lent| slots.on_commit(lent, reduction, (id, edition), sources));
            }
            PeerMessage::Committed { reduction, sealed } => self.with_reductions(|reductions, lent| {
                reductions.on_committed(lent, from, reduction.number, sealed);
            }),
            PeerMessage::ReleaseSlots { reduction } => {
                self.with_slots(|slots, lent| slots.on_release_slots(lent, reduction));
            }
            PeerMessage::Prefetch { id } => self.fetcher().want(id, Want::Prefetch, None),
            PeerMessage::Ping { sent_ns } => self.ctx.send(from, PeerMessage::Pong { sent_ns }, None),
            // It concerns the connection, not the node.
            PeerMessage::Goodbye => {}
            // A node that is not a member is resynced when it becomes one.
            PeerMessage::ResyncRequest { .. } if !self.ctx.shards.contains(from) => {}
            PeerMessage::ResyncRequest { epoch } => {
                self.with_reductions(|reductions, lent| reductions.on_epoch(lent, from, epoch));
                self.resync.add_pull(from);
                self.resync.soon(&mut self.ctx, from);
            }
            PeerMessage::BackupIds { ids } => self.directory.on_backup_ids(&mut self.ctx, from, ids),
            PeerMessage::Check { transfer } => {
                self.sends.on_check(&mut self.ctx, &self.copies, PullKey { to: from, transfer });
            }
            PeerMessage::Checked { transfer, watermark } => self.fetcher().on_checked(transfer, watermark),
            PeerMessage::Pong { sent_ns } => self.on_pong(from, sent_ns),
        }
    }

    fn on_answer(&mut self, from: NodeId, id: ObjectId, answer: DirectoryAnswer) {
        match answer {
            DirectoryAnswer::Verdict { edition, verdict } => self.on_verdict(from, id, edition, verdict),
            DirectoryAnswer::ClaimVerdict { claim, verdict } => {
                self.with_reductions(|reductions, lent| {
                    reductions.on_claim_verdict(lent, from, (id, claim), verdict);
                });
            }
            DirectoryAnswer::Lend { sender, .. } if sender == self.ctx.me => {
                let message = format!("{id} is to be received from who asks for it");
                self.on_bad_message(from, Error::new(ErrorKind::BadArgument, message));
            }
            DirectoryAnswer::Lend { ask, sender, edition, size, header, stamp } => {
                self.fetcher().on_lend(id, ask, sender, Content { edition, size, header, stamp });
            }
            DirectoryAnswer::Inline { ask, edition, header, payload, stamp } => {
                let size = payload.0.len() as u64;
                self.fetcher().on_inline(from, id, ask, Content { edition, size, header, stamp }, payload);
            }
            DirectoryAnswer::Deleted { deletion } => self.on_deleted(from, id, deletion),
            DirectoryAnswer::Lost => self.fetcher().on_lost(id),
            DirectoryAnswer::Copy { node, report, payload } => {
                self.subscriptions.on_copy_reported(&mut self.ctx, id, node, report, payload);
            }
            DirectoryAnswer::CopyGone { node } => self.subscriptions.on_copy_gone(&mut self.ctx, id, node),
            DirectoryAnswer::Holders { nodes } => self.subscriptions.on_holders(&mut self.ctx, id, &nodes),
            DirectoryAnswer::NotYet { ask, copies } => self.fetcher().on_not_yet(id, ask, copies),
            DirectoryAnswer::Pin => self.fetcher().on_pin(id),
            DirectoryAnswer::AskAgain { edition, sender } => self.fetcher().on_ask_again(id, edition, sender),
            DirectoryAnswer::DeleteDone { token, deletion } => {
                if let Some(deletion) = deletion {
                    self.directory.on_heard_deleted(&mut self.ctx, id, deletion);
                }
                self.call_handler().on_delete_done(token);
            }
            DirectoryAnswer::Located { token, size, copies, deleted } => {
                if !self.with_reductions(|reductions, lent| reductions.on_barrier_reached(lent, token)) {
                    self.call_handler().on_located(token, size, copies, deleted);
                }
            }
        }
    }

    /// A directory request arrived: serves it if we own the id, and forwards it otherwise.
    pub(crate) fn on_directory(&mut self, origin: NodeId, hops: u8, id: ObjectId, request: DirectoryRequest) {
        if self.ctx.departed.has(origin) || self.ctx.shards.is_replaced(origin) {
            // The request was forwarded, and the report of the death was faster.
            return;
        }
        let owner = self.ctx.shards.owner(id);
        if owner != self.ctx.me {
            return self.directory.forward(&mut self.ctx, owner, origin, hops, id, request);
        }
        if origin == self.ctx.me && self.is_out_of_date(id, &request) {
            return;
        }
        if let Some(edition) = self.directory.is_taken_back(origin, id, &request) {
            self.drop_kept(id, edition);
        }
        let effect = self.directory.on_request(&mut self.ctx, &self.copies, origin, id, request);
        if let Some(Effect::Keep { id, origin, report, payload }) = effect {
            self.keep(id, &report, payload);
            self.directory.on_kept(&mut self.ctx, &self.copies, id, origin, &report);
        }
        if hops > 0 && origin != self.ctx.me {
            // The origin takes another node for the owner, and may wait for its answer. Our pull corrects that.
            self.directory.pull_shard(&mut self.ctx, origin, id.shard());
        }
    }

    /// Whether it is our own report, which came back through nodes that took each other for the owner, about a copy
    /// that is gone.
    fn is_out_of_date(&self, id: ObjectId, request: &DirectoryRequest) -> bool {
        let DirectoryRequest::Announce { report, .. } = request else { return false };
        self.copies.live_copy(id).is_none_or(|copy| copy.edition != report.edition)
    }

    /// Keeps an evictable copy of a small object beside its entry, so that asks are answered with
    /// the bytes at once. Without space there is no such copy: asks then lead to its holder.
    fn keep(&mut self, id: ObjectId, report: &CopyReport, payload: Blob) {
        let new = NewCopy {
            object: id,
            edition: report.edition,
            size: report.size,
            header: report.header.clone(),
            phase: Phase::Received(None),
            pinned: false,
            public: true,
            stamp: report.stamp,
            claim: None,
        };
        if let Some(copy) = self.copies.open(&mut self.ctx, new) {
            self.ctx.out.push_back(Output::Write { copy, bytes: payload.0 });
            self.copies.seal(&mut self.ctx, copy, Default::default());
        }
    }

    /// A put was withdrawn after its bytes had come with its announcement: they are dropped at once.
    pub(crate) fn drop_kept(&mut self, id: ObjectId, edition: Edition) {
        let Some(copy) = self.copies.live(id) else {
            // It was not kept, or is gone.
            return;
        };
        let known = &self.copies[copy];
        if known.edition == edition && known.is_sealed() && !known.pinned {
            let seq = self.ctx.next_number();
            self.copies.doom(&mut self.ctx, copy);
            let me = self.ctx.me;
            let request = DirectoryRequest::Withdraw { seq, edition };
            self.directory.on_request(&mut self.ctx, &self.copies, me, id, request);
        }
    }

    /// The object was deleted at that time: its copy here is dropped, and calls that wait for it fail. A content that
    /// was accepted later is another object.
    fn on_deleted(&mut self, owner: NodeId, id: ObjectId, deletion: Deletion) {
        let accepted = self.copies.live_copy(id).and_then(|copy| copy.stamp);
        let later = accepted.is_some_and(|accepted| accepted > deletion.stamp);
        if !later {
            self.directory.on_heard_deleted(&mut self.ctx, id, deletion);
            self.copies.take_pin(id);
            self.fetcher().drop_fetch(id);
            let message = format!("{}: {id} was deleted", self.ctx.me);
            self.fetcher().fail_wants(id, ErrorKind::Deleted, &message);
            self.subscriptions.on_deleted(&mut self.ctx, id);
            self.with_reductions(|reductions, lent| reductions.on_target_deleted(lent, id));
            match (self.writes.of_object(&self.copies, id), self.copies.live(id)) {
                (Some(writing), _) => self.call_handler().on_write_verdict(writing, Verdict::Deleted),
                (None, Some(copy)) => self.copies.doom(&mut self.ctx, copy),
                (None, None) => {}
            }
        }
        // All here hear of it before the owner knows that they have.
        self.hand_on_notices();
        self.ctx.send(owner, PeerMessage::DeletionAck { id }, None);
    }
}

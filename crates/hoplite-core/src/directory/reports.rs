//! Reports of holders about their copies: new, changed and withdrawn ones.

use hoplite_types::peer::{CopyReport, DirectoryAnswer, PeerMessage, Verdict};
use hoplite_types::{Blob, Claim, CopyId, Edition, NodeId, ObjectId, Stamp};

use super::claims::Decision;
use super::entry::{Content, Entry};
use super::holders::Held;
use super::loss::LOST_TTL;
use super::{Directory, Effect};
use crate::copies::Copies;
use crate::ctx::Ctx;

impl Directory {
    /// A copy exists, or changed. Returns an effect if the bytes of a small object are to be kept beside its entry.
    #[expect(clippy::too_many_arguments, reason = "what a report consists of")]
    pub(super) fn on_announce(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        origin: NodeId,
        id: ObjectId,
        mut report: CopyReport,
        payload: Option<Blob>,
        wants_verdict: bool,
    ) -> Option<Effect> {
        if self.refuse_deleted(ctx, origin, id, &report, wants_verdict) {
            return None;
        }
        let edition = report.edition;
        let decision = match (report.stamp, report.claim) {
            (Some(stamp), _) => self.absorb(ctx, origin, id, &report, stamp),
            (None, Some(claim)) => self.decide_writing(ctx, origin, id, &report, claim),
            // A copy without a claim must come from a node whose content was accepted.
            (None, None) => Decision::Refused(Verdict::Abandoned),
        };
        let stamp = match decision {
            Decision::Accepted(stamp) => stamp,
            Decision::Waits => return None,
            Decision::Refused(verdict) => {
                self.answer(ctx, origin, id, DirectoryAnswer::Verdict { edition, verdict });
                self.drop_if_empty(id);
                return None;
            }
        };
        if wants_verdict {
            let verdict = Verdict::Accepted(stamp);
            self.answer(ctx, origin, id, DirectoryAnswer::Verdict { edition, verdict });
        }
        let decided_now = report.stamp.is_none();
        let by = report.claim.filter(|_| report.complete && decided_now);
        report.stamp = Some(stamp);
        if by.is_some() {
            self.set_content(id, Content::Complete { stamp, by });
        }
        if !self.entry_mut(id).take_report(origin, report.clone()) {
            return None;
        }
        self.reindex(id, origin);
        if report.complete && origin != ctx.me && by.is_none() {
            // A node besides the writer has all bytes.
            self.note_shown(id, edition);
        }
        if decided_now {
            // Parts of a writing that was abandoned before must not be mixed with it.
            self.drop_orphans(ctx, id);
        }
        let payload = payload.filter(|payload| {
            payload.0.len() as u64 == report.size && local.live(id).is_none() && origin != ctx.me
        });
        match payload {
            Some(payload) => Some(Effect::Keep { id, origin, report, payload }),
            None => {
                self.after_report(ctx, local, id, origin, &report);
                None
            }
        }
    }

    /// Its bytes are kept here, or there was no space for them.
    pub fn on_kept(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        id: ObjectId,
        origin: NodeId,
        report: &CopyReport,
    ) {
        self.after_report(ctx, local, id, origin, report);
    }

    fn after_report(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        id: ObjectId,
        origin: NodeId,
        report: &CopyReport,
    ) {
        let may_be_taken_back = self.entry(id).is_some_and(Entry::may_be_taken_back);
        if report.complete && !may_be_taken_back {
            self.lost.remove(id);
        }
        if report.pinned {
            self.on_pinned(origin, id);
        }
        if !self.is_active(id.shard()) {
            return;
        }
        self.tell_subscribers(ctx, local, id, origin, report);
        self.break_cycle(ctx, id, origin);
        if report.complete {
            self.forget_refusal(origin, id);
        }
        let keeps = |held: &Held| held.pinned && !held.leaving;
        let unkept = |entry: &Entry| !entry.holders.iter().any(|(_, held)| keeps(held));
        if report.leaving || (report.complete && self.entry(id).is_some_and(unkept)) {
            self.secure(ctx, id);
        }
        if report.complete {
            self.settle_contenders(ctx, local, id);
        } else if !report.pinned {
            self.drop_orphans(ctx, id);
        }
        self.tell_backup(ctx, id);
        self.serve_asks(ctx, local, id);
    }

    /// Notifies all subscribers of the object of the copy of `node`.
    pub(super) fn tell_subscribers(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        id: ObjectId,
        node: NodeId,
        report: &CopyReport,
    ) {
        let subscribers = self.entry(id).map(|entry| entry.subscribers.clone());
        for (subscriber, bytes_max) in subscribers.into_iter().flatten() {
            if self.tell_copy(ctx, local, subscriber, id, node, report.clone(), bytes_max) {
                self.note_shown(id, report.edition);
                self.end_subscription(id, subscriber);
            }
        }
    }

    /// Notifies a subscriber of the copy of `node`; with the bytes, if it wants so many and they are here. Returns
    /// whether the bytes were sent with it.
    #[expect(clippy::too_many_arguments, reason = "what an answer consists of")]
    pub(super) fn tell_copy(
        &self,
        ctx: &mut Ctx,
        local: &Copies,
        subscriber: NodeId,
        id: ObjectId,
        node: NodeId,
        report: CopyReport,
        bytes_max: Option<u64>,
    ) -> bool {
        // Only with one of the reports: that of the copy that was put. That copy's node has the bytes itself.
        let wanted = bytes_max.is_some_and(|most| report.size <= most);
        let carries = wanted && report.complete && report.pinned && ![node, ctx.me].contains(&subscriber);
        let is_it = |copy: &CopyId| local[*copy].edition == report.edition;
        let attach = self.small_to_send(local, id).filter(|copy| carries && is_it(copy));
        let answer = DirectoryAnswer::Copy { node, report, payload: None };
        ctx.send(subscriber, PeerMessage::Answer { id, answer }, attach);
        attach.is_some()
    }

    pub(super) fn tell_subscribers_gone(&self, ctx: &mut Ctx, id: ObjectId, node: NodeId) {
        let subscribers = self.entry(id).map(|entry| entry.subscribers.clone());
        for (subscriber, _) in subscribers.into_iter().flatten() {
            self.answer(ctx, subscriber, id, DirectoryAnswer::CopyGone { node });
        }
    }

    pub(super) fn on_withdraw(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        origin: NodeId,
        id: ObjectId,
        seq: u64,
        edition: Edition,
    ) {
        let Some(entry) = self.known_entry_mut(id) else { return };
        entry.contenders.retain(|contender| !contender.is_copy(origin, edition));
        if let Some(held) = entry.withdraw(origin, seq, edition) {
            let accepted = entry.stamp();
            entry.take_back(origin, edition, held.claim);
            if let Some((claim, stamp)) =
                entry.stands_for(origin).filter(|(claim, _)| held.claim == Some(*claim))
            {
                // A coordinator that released its claim before this copy was judged releases it again.
                self.tell_claim_verdict(ctx, id, claim, Verdict::Accepted(stamp));
            }
            if self.entry(id).is_some_and(|entry| entry.content == Content::None) {
                self.tell_if_deleted(ctx, id, accepted);
            }
            self.after_removal(ctx, local, id, origin);
        }
        self.reindex(id, origin);
        self.drop_if_empty(id);
    }

    /// Follows up after the copy of `node` has been removed from the entry.
    pub(super) fn after_removal(&mut self, ctx: &mut Ctx, local: &Copies, id: ObjectId, node: NodeId) {
        self.reindex(id, node);
        if !self.is_active(id.shard()) {
            let lost = |entry: &Entry| {
                matches!(entry.content, Content::Complete { .. }) && !entry.holders.any_alive()
            };
            if self.entry(id).is_some_and(lost) {
                // For now: another copy may still be reported.
                self.lost.insert(ctx, id, LOST_TTL);
            }
            return self.drop_if_empty(id);
        }
        self.tell_subscribers_gone(ctx, id, node);
        self.end_released_claim(ctx, local, id);
        self.drop_orphans(ctx, id);
        self.note_if_lost(ctx, id);
        self.secure(ctx, id);
        self.tell_backup(ctx, id);
        self.serve_asks(ctx, local, id);
        self.drop_if_empty(id);
    }

    /// A node that asks, or cancels its ask, had no complete copy at that time. So it has not kept an object that it
    /// was sent inline, and for which it counts as a holder.
    pub(super) fn on_not_taken(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        origin: NodeId,
        id: ObjectId,
        ask: u64,
    ) {
        let held = self.entry(id).and_then(|entry| entry.holders.get(origin));
        let Some(held) = held else { return };
        if held.complete && held.seq <= ask {
            let edition = held.edition;
            self.on_withdraw(ctx, local, origin, id, ask, edition);
        }
    }

    /// Whether this ask was answered with the object itself, which is still under way, and no other node has it any
    /// more. When the ask is repeated once more, that answer was lost.
    pub(super) fn may_be_taken(&mut self, local: &Copies, origin: NodeId, id: ObjectId, ask: u64) -> bool {
        let is_here = self.small_to_send(local, id).is_some();
        let Some(entry) = self.known_entry_mut(id).filter(|_| !is_here) else { return false };
        let answered = |held: &Held| held.complete && held.seq == ask && !held.doubted;
        if !entry.holders.get(origin).is_some_and(answered)
            || entry.holders.iter().any(|(node, held)| node != origin && held.complete)
        {
            return false;
        }
        entry.holders.change(origin, |held| held.doubted = true);
        true
    }

    /// Removes all that a node which is gone holds, asks, watches and writes.
    pub(super) fn forget_node(&mut self, ctx: &mut Ctx, local: &Copies, id: ObjectId, node: NodeId) {
        let Some(entry) = self.known_entry_mut(id) else { return };
        entry.asks.remove(node);
        entry.unsubscribe(node);
        entry.contenders.retain(|contender| contender.node() != node);
        entry.release(|claim| claim.by == node);
        entry.holders.return_senders_of(node);
        entry.remove_holder(node);
        self.after_removal(ctx, local, id, node);
    }
}

impl super::entry::Contender {
    fn is_copy(&self, origin: NodeId, other: Edition) -> bool {
        matches!(self, super::entry::Contender::Copy { node, report }
            if *node == origin && report.edition == other)
    }
}

impl Entry {
    /// The claim that stands, if it is this node's.
    fn stands_for(&self, node: NodeId) -> Option<(Claim, Stamp)> {
        match self.content {
            Content::Claimed { claim, stamp, released: false, .. } if claim.by == node => {
                Some((claim, stamp))
            }
            _ => None,
        }
    }

    /// The writer of `edition` gave it up. If only that writer reported the object complete, it never was.
    fn take_back(&mut self, origin: NodeId, edition: Edition, claim: Option<Claim>) {
        let is_its = |claim: Claim| claim.by == origin && claim.number == edition.writing;
        let has_others = self.holders.iter().any(|(_, held)| held.complete);
        match self.content {
            Content::Complete { by: Some(by), .. } if is_its(by) && !has_others && !self.was_shown => {
                self.content = Content::None;
            }
            Content::Claimed { .. } if claim.is_some_and(is_its) => self.release(is_its),
            _ => {}
        }
    }
}

//! Decides which writing becomes an object's content: the first whose claim is accepted here.
//!
//! | asked by | nothing is written | another claim stands | the object is complete |
//! |---|---|---|---|
//! | a put of the same size and kind | `Accepted` | waits | `Exists`: its node serves the first content |
//! | a put of another size or kind | `Accepted` | `OtherKind` | `OtherKind` |
//! | a reduction's coordinator | `Accepted` | waits | `Exists` |
//! | a reduction's root | waits for its coordinator's claim, then as that | the same | the same |
//!
//! A claim ends when the object is complete under it, or when its claimant gives it up or dies. In the second case it
//! stands until no node works under it any more, because such a node may be sealing.

use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, Verdict};
use hoplite_types::{Claim, Edition, NodeId, ObjectId, Stamp};

use super::entry::{Contender, Content, Entry, Kind};
use super::holders::Held;
use super::Directory;
use crate::copies::Copies;
use crate::ctx::Ctx;

/// Limit of contenders that wait for one object. More point to a loop somewhere: they are dropped, and ask again.
const CONTENDERS_MAX: usize = 1024;

/// The decision about a report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is the object's content, or will be; it may have been accepted before.
    Accepted(Stamp),
    /// Another claim stands: the outcome of that decides.
    Waits,
    Refused(Verdict),
}

impl Directory {
    /// Decides about a copy that is being written, under a claim that no owner has accepted yet.
    pub(super) fn decide_writing(
        &mut self,
        ctx: &mut Ctx,
        origin: NodeId,
        id: ObjectId,
        report: &CopyReport,
        claim: Claim,
    ) -> Decision {
        let is_claimant = claim.by == origin;
        let entry = self.entry_mut(id);
        // Another owner may have accepted it, and a report of a receiver of it may have come first.
        let accepted = entry.accepted_under(claim).or_else(|| entry.stamp_of_bytes(report.edition));
        if let Some(stamp) = accepted {
            return Decision::Accepted(stamp);
        }
        let kind = Kind { size: report.size, header: report.header.clone() };
        let other_kind = entry.kind.as_deref().filter(|known| **known != kind).map(|known| known.size);
        match entry.content {
            Content::Complete { .. } | Content::Claimed { .. } if entry.is_alive() => {
                match (other_kind, entry.content) {
                    (Some(size), _) => return Decision::Refused(Verdict::OtherKind(size)),
                    (None, Content::Complete { stamp, .. }) => {
                        return Decision::Refused(Verdict::Exists(stamp));
                    }
                    (None, _) => {}
                }
            }
            _ if is_claimant => return Decision::Accepted(self.accept_claim(ctx, id, claim, report.seq)),
            _ => {}
        }
        self.let_wait(origin, id, report)
    }

    /// From now on the writing under this claim is the object's content.
    fn accept_claim(&mut self, ctx: &mut Ctx, id: ObjectId, claim: Claim, seq: u64) -> Stamp {
        let stamp = ctx.clock.tick(ctx.now);
        let entry = self.entry_mut(id);
        if !entry.holders.any_alive() {
            // The kind of an earlier, abandoned writing says nothing about the next one.
            entry.kind = None;
        }
        self.set_content(id, Content::Claimed { claim, stamp, seq, released: false });
        stamp
    }

    fn add_contender(&mut self, id: ObjectId, contender: Contender) {
        let node = contender.node();
        let entry = self.entry_mut(id);
        let same = |known: &Contender| known.node() == node && known.claim() == contender.claim();
        match entry.contenders.iter().position(same) {
            Some(at) => entry.contenders[at] = contender,
            None if entry.contenders.len() < CONTENDERS_MAX => entry.contenders.push(contender),
            None => return,
        }
        self.reindex(id, node);
    }

    /// A coordinator claims the object as its target.
    pub(super) fn on_claim(&mut self, ctx: &mut Ctx, local: &Copies, id: ObjectId, seq: u64, claim: Claim) {
        if self.deleted_at(id).is_some() {
            return self.tell_claim_verdict(ctx, id, claim, Verdict::Deleted);
        }
        let entry = self.entry_mut(id);
        entry.repeat(claim, seq);
        match (entry.accepted_under(claim), entry.content) {
            (Some(stamp), _) => self.tell_claim_verdict(ctx, id, claim, Verdict::Accepted(stamp)),
            (None, Content::Complete { stamp, .. }) if entry.holders.any_alive() => {
                self.tell_claim_verdict(ctx, id, claim, Verdict::Exists(stamp));
            }
            (None, Content::Claimed { .. }) => self.add_contender(id, Contender::Claim { seq, claim }),
            (None, _) => {
                let stamp = self.accept_claim(ctx, id, claim, seq);
                self.drop_orphans(ctx, id);
                self.tell_claim_verdict(ctx, id, claim, Verdict::Accepted(stamp));
                self.settle_contenders(ctx, local, id);
            }
        }
        self.drop_if_empty(id);
    }

    pub(super) fn on_release_claim(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        id: ObjectId,
        claim: Claim,
        made: bool,
    ) {
        let Some(entry) = self.known_entry_mut(id) else { return };
        let is_it = |contender: &Contender| matches!(contender, Contender::Claim { claim: known, .. } if *known == claim);
        entry.contenders.retain(|contender| !is_it(contender));
        let stands = match entry.content {
            Content::Claimed { claim: known, stamp, .. } if known == claim => Some(stamp),
            _ => None,
        };
        match stands.filter(|_| made && entry.is_worked_on(claim)) {
            // A node that sealed it may die before it reports that: then the object is lost, not given up.
            Some(stamp) => {
                self.set_content(id, Content::Complete { stamp, by: None });
                self.settle_contenders(ctx, local, id);
            }
            None => {
                entry.release(|known| known == claim);
                self.reindex(id, claim.by);
                self.end_released_claim(ctx, local, id);
            }
        }
        self.drop_if_empty(id);
    }

    /// Ends a claim whose claimant is gone, when no node works under it any more; then the next one is accepted.
    pub(super) fn end_released_claim(&mut self, ctx: &mut Ctx, local: &Copies, id: ObjectId) {
        let Some(entry) = self.known_entry_mut(id) else { return };
        let Content::Claimed { claim, stamp, released: true, .. } = entry.content else { return };
        if entry.is_worked_on(claim) {
            return;
        }
        entry.content = Content::None;
        self.tell_if_deleted(ctx, id, Some(stamp));
        self.drop_orphans(ctx, id);
        self.settle_contenders(ctx, local, id);
    }

    /// Notifies contenders of the outcome of the claim that was in their way, and accepts the next one.
    pub(super) fn settle_contenders(&mut self, ctx: &mut Ctx, local: &Copies, id: ObjectId) {
        if !self.is_active(id.shard()) {
            return;
        }
        let Some(entry) = self.known_entry_mut(id) else { return };
        if entry.contenders.is_empty() {
            return;
        }
        let contenders = std::mem::take(&mut entry.contenders);
        for contender in &contenders {
            self.reindex(id, contender.node());
        }
        // Claimants first: a copy written for a coordinator is judged by the decision on that coordinator's claim.
        let (first, rest): (Vec<_>, Vec<_>) = contenders.into_iter().partition(Contender::is_claimant);
        for contender in first.into_iter().chain(rest) {
            match contender {
                Contender::Claim { seq, claim } => self.on_claim(ctx, local, id, seq, claim),
                Contender::Copy { node, report } => {
                    let kept = self.on_announce(ctx, local, node, id, *report, None, true);
                    debug_assert!(kept.is_none(), "it came without its bytes");
                }
            }
        }
    }

    pub(super) fn tell_claim_verdict(&self, ctx: &mut Ctx, id: ObjectId, claim: Claim, verdict: Verdict) {
        self.answer(ctx, claim.by, id, DirectoryAnswer::ClaimVerdict { claim, verdict });
    }

    /// A coordinator reports that its target was complete, and is gone.
    pub(super) fn on_mark_lost(&mut self, ctx: &mut Ctx, local: &Copies, id: ObjectId, claim: Claim) {
        if self.deleted_at(id).is_some() {
            return;
        }
        let entry = self.entry_mut(id);
        entry.release(|known| known == claim);
        let is_made_again = matches!(entry.content, Content::Claimed { claim: other, .. } if other != claim);
        if !entry.holders.any_alive() {
            if !is_made_again {
                self.set_content(id, Content::None);
            }
            self.remember_lost(ctx, id);
        }
        self.reindex(id, claim.by);
        self.end_released_claim(ctx, local, id);
        self.tell_if_lost(ctx, id, None);
        self.settle_contenders(ctx, local, id);
        self.drop_if_empty(id);
    }

    /// Applies a report of content that some owner has accepted.
    pub(super) fn absorb(
        &mut self,
        ctx: &mut Ctx,
        origin: NodeId,
        id: ObjectId,
        report: &CopyReport,
        stamp: Stamp,
    ) -> Decision {
        ctx.clock.observe(ctx.now, stamp);
        if let Some(latest) = self.entry_mut(id).latest_stamp_of(report.edition, stamp) {
            if latest > stamp {
                let verdict = Verdict::Accepted(latest);
                self.answer(ctx, origin, id, DirectoryAnswer::Verdict { edition: report.edition, verdict });
            }
            if report.complete && matches!(self.entry_mut(id).content, Content::Claimed { .. }) {
                self.set_content(id, Content::Complete { stamp: latest, by: None });
                self.refuse_others(ctx, id, report.edition, latest);
            }
            return Decision::Accepted(latest);
        }
        let entry = self.entry_mut(id);
        let claimed = report.claim.map(|claim| {
            let released = !ctx.shards.contains(claim.by);
            // Sequence numbers of other nodes mean nothing in the claimant's next inventory.
            let seq = if claim.by == origin { report.seq } else { 0 };
            Content::Claimed { claim, stamp, seq, released }
        });
        let complete = Content::Complete { stamp, by: None };
        let mut is_new = false;
        let content = match (entry.content, report.complete) {
            // Two owners may have accepted the same claim, one after the other.
            (Content::Claimed { claim, stamp: then, seq, released }, false)
                if then == stamp || report.claim == Some(claim) =>
            {
                Content::Claimed { claim, stamp: then.max(stamp), seq, released }
            }
            (known @ Content::Complete { stamp: then, .. }, false) if then == stamp => known,
            (Content::Complete { stamp: then, by }, true) if then == stamp => {
                Content::Complete { stamp, by: by.filter(|claim| claim.by != origin) }
            }
            // The owner that accepted the later one knew that the other was gone for good, or was cut off from it.
            (Content::Complete { stamp: known, .. }, _) if entry.holders.any_alive() && known > stamp => {
                return self.refuse_for(origin, id, report, known);
            }
            // Complete content wins over incomplete, and later accepted over earlier.
            (_, true) => {
                is_new = true;
                complete
            }
            (standing, false) if entry.is_alive() && standing != Content::None => {
                return match (report.claim, standing) {
                    (None, _) => Decision::Refused(Verdict::Abandoned),
                    (_, Content::Complete { stamp, .. }) => self.refuse_for(origin, id, report, stamp),
                    _ => self.let_wait(origin, id, report),
                };
            }
            (_, false) => {
                if let Some(claim) = report.claim.filter(|claim| claim.by != origin) {
                    // The claimant may have released the claim meanwhile; then it releases it again.
                    self.tell_claim_verdict(ctx, id, claim, Verdict::Accepted(stamp));
                }
                claimed.unwrap_or_default()
            }
        };
        self.set_content(id, content);
        if is_new {
            self.refuse_others(ctx, id, report.edition, stamp);
        }
        Decision::Accepted(stamp)
    }

    /// There is content that was accepted later. While the shard recovers that is not certain: the node that had it may
    /// have given it up because of another owner's verdict, and this copy may be the last.
    fn refuse_for(&mut self, origin: NodeId, id: ObjectId, report: &CopyReport, known: Stamp) -> Decision {
        match self.is_active(id.shard()) {
            true => Decision::Refused(Verdict::Exists(known)),
            false => self.let_wait(origin, id, report),
        }
    }

    fn let_wait(&mut self, origin: NodeId, id: ObjectId, report: &CopyReport) -> Decision {
        self.add_contender(id, Contender::Copy { node: origin, report: Box::new(report.clone()) });
        Decision::Waits
    }

    /// Owners that knew nothing of each other accepted two contents, or one content and a claim. One content stays.
    fn refuse_others(&mut self, ctx: &mut Ctx, id: ObjectId, stays: Edition, stamp: Stamp) {
        let Some(entry) = self.known_entry_mut(id) else { return };
        let others = entry.holders.iter().filter(|(_, held)| held.edition != stays);
        let others: Vec<_> = others.map(|(node, held)| (node, held.edition, held.is_alive())).collect();
        for (node, edition, is_alive) in others {
            entry_of(self, id).remove_holder(node);
            self.reindex(id, node);
            self.tell_subscribers_gone(ctx, id, node);
            let verdict = if is_alive { Verdict::Exists(stamp) } else { Verdict::Abandoned };
            self.answer(ctx, node, id, DirectoryAnswer::Verdict { edition, verdict });
        }
    }

    /// A request whose verdict has to wait, without its bytes: they can still be fetched from its node.
    pub(super) fn without_payload(request: DirectoryRequest) -> DirectoryRequest {
        match request {
            DirectoryRequest::Announce { report, wants_verdict, .. } => {
                DirectoryRequest::Announce { report, payload: None, wants_verdict }
            }
            other => other,
        }
    }
}

fn entry_of(directory: &mut Directory, id: ObjectId) -> &mut Entry {
    directory.known_entry_mut(id).expect("it has holders")
}

impl Entry {
    /// The time at which this very claim was accepted.
    pub(super) fn accepted_under(&self, claim: Claim) -> Option<Stamp> {
        match self.content {
            Content::Claimed { claim: known, stamp, .. } if known == claim => Some(stamp),
            Content::Complete { stamp, by: Some(known) } if known == claim => Some(stamp),
            _ => None,
        }
    }

    /// The time at which this very edition was accepted, if it is the object's content and some node has or seals it.
    fn stamp_of_bytes(&self, edition: Edition) -> Option<Stamp> {
        let is_content =
            |(_, held): (NodeId, &Held)| (held.complete || held.is_sealer()) && held.edition == edition;
        self.stamp().filter(|_| self.holders.iter().any(is_content))
    }

    /// If this very edition is the object's content, by an earlier or later verdict of another owner: the later of both
    /// times, which counts from now on.
    fn latest_stamp_of(&mut self, edition: Edition, then: Stamp) -> Option<Stamp> {
        let known = self.stamp_of_bytes(edition)?;
        match &mut self.content {
            Content::Complete { stamp, .. } | Content::Claimed { stamp, .. } if known != then => {
                *stamp = then.max(*stamp);
                Some(*stamp)
            }
            _ => None,
        }
    }

    /// Whether some node may yet seal the object under this claim.
    fn is_worked_on(&self, claim: Claim) -> bool {
        self.holders.iter().any(|(_, held)| held.is_sealer() && held.claim == Some(claim))
    }

    /// The claimant repeats that it holds this claim. So the claimant is not gone, and an inventory that it began
    /// before need not list the claim.
    fn repeat(&mut self, repeated: Claim, now: u64) {
        if let Content::Claimed { claim, seq, released, .. } = &mut self.content {
            if *claim == repeated {
                (*seq, *released) = (now.max(*seq), false);
            }
        }
    }

    /// The claimant is gone, or has released its claim.
    pub(super) fn release(&mut self, is_it: impl Fn(Claim) -> bool) {
        if let Content::Claimed { claim, released, .. } = &mut self.content {
            *released |= is_it(*claim);
        }
    }
}

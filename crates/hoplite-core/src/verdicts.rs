//! Verdicts of owners on objects written and reduced here: whether our content is accepted as the object's.

use hoplite_types::peer::{DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{Claim, CopyId, Edition, NodeId, ObjectId, Stamp};

use crate::copies::Copy;
use crate::reduce::Reduction;
use crate::Core;

impl Core {
    /// The directory's verdict on a copy of ours.
    pub(crate) fn on_verdict(&mut self, from: NodeId, id: ObjectId, edition: Edition, verdict: Verdict) {
        if !self.desk().on_put_verdict(from, edition, verdict)
            && !self.with_slots(|slots, lent| slots.on_verdict(lent, from, edition, verdict))
        {
            match verdict {
                Verdict::Accepted(stamp) => self.on_late_acceptance(from, id, edition, stamp),
                // A former owner may know less than we do, even one that does not know that it is no owner any more.
                _ if from == self.ctx.shards.owner(id) => self.drop_rejected(id, edition, verdict),
                _ => {}
            }
        }
    }

    /// An owner has accepted a copy that is complete here already, or that was given up before the verdict arrived.
    fn on_late_acceptance(&mut self, from: NodeId, id: ObjectId, edition: Edition, stamp: Stamp) {
        match self.copies.live(id).filter(|copy| self.copies[*copy].edition == edition) {
            Some(copy) if self.copies[copy].is_sealed() => {
                self.copies.with(copy, |copy| copy.stamp = copy.stamp.max(Some(stamp)));
            }
            Some(_) => {}
            None => {
                let seq = self.ctx.next_number();
                self.fetches.note_withdrawn(id, seq);
                let request = DirectoryRequest::Withdraw { seq, edition };
                let message = PeerMessage::Directory { origin: self.ctx.me, hops: 0, id, request };
                self.ctx.send(from, message, None);
            }
        }
    }

    /// Drops a copy that cannot stand: part of a writing that was abandoned, or a content other than the one that its
    /// owner counts as the object's. A complete copy is never dropped for the first reason.
    fn drop_rejected(&mut self, id: ObjectId, edition: Edition, verdict: Verdict) {
        let stands = |copy: &Copy| match verdict {
            Verdict::Accepted(_) => true,
            Verdict::Abandoned | Verdict::Deleted => copy.is_sealed(),
            Verdict::Exists(stamp) => copy.stamp.is_some_and(|own| own >= stamp),
            Verdict::OtherKind(_) => false,
        };
        let Some(copy) = self.copies.live(id) else { return };
        let known = &self.copies[copy];
        if known.public && known.edition == edition && !stands(known) {
            // The client that put it here was promised that the object stays here, whichever content it has in the end.
            let stays = known.is_sealed() && known.pinned && matches!(verdict, Verdict::Exists(_));
            // If the object is still wanted here, it is asked for anew, in any edition.
            self.fetcher().drop_fetch(id);
            self.copies.withdraw(&mut self.ctx, copy);
            self.copies.doom(&mut self.ctx, copy);
            if stays {
                self.fetcher().on_pin(id);
            }
        }
    }

    /// This copy was reported to `node` for a decision: it is the owner by now.
    pub(crate) fn expect_verdict_from(&mut self, copy: CopyId, node: NodeId) {
        self.writes.expect_verdict_from(copy, node);
        self.slots.expect_verdict_from(copy, node);
    }

    pub(crate) fn awaits_verdict(&self) -> bool {
        self.writes.awaits_verdict()
            || self.slots.awaits_verdict()
            || self.reductions.values().any(|reduction| reduction.stamp().is_none())
    }

    /// Asks again for every missing verdict on these objects.
    pub(crate) fn repeat_verdict_requests(&mut self, of: impl Fn(ObjectId) -> bool) {
        for copy in self.writes.awaiting_verdict() {
            let known = &self.copies[copy];
            if !known.doomed && of(known.object) {
                self.ask_for_verdict(copy);
            }
        }
        self.with_slots(|slots, lent| slots.repeat_verdict_requests(lent, &of));
        self.claim_targets(|reduction| reduction.stamp().is_none() && of(reduction.target()));
    }

    /// Asks again for the verdict on every running reduction onto these targets, even where there is one: a deletion of
    /// the target may have been reported while there was no connection.
    pub(crate) fn repeat_claims(&mut self, of: impl Fn(ObjectId) -> bool) {
        self.claim_targets(|reduction| reduction.stamp().is_some() && of(reduction.target()));
    }

    fn claim_targets(&mut self, which: impl Fn(&Reduction) -> bool) {
        let chosen = self.reductions.iter().filter(|(_, reduction)| which(reduction));
        for number in chosen.map(|(&number, _)| number).collect::<Vec<_>>() {
            self.claim_target(number);
        }
    }

    /// Others believed us dead: owners may have given away what they had accepted of ours and is not sealed yet.
    pub(crate) fn ask_for_all_verdicts_again(&mut self) {
        for copy in self.writes.forget_verdicts() {
            self.copies.with(copy, |copy| copy.stamp = None);
        }
        self.reductions.values_mut().for_each(|reduction| reduction.forget_verdict());
        self.repeat_verdict_requests(|_| true);
    }

    /// Reports a copy again, because the owner seems to have a different view of it.
    pub(crate) fn announce_again(&mut self, copy: CopyId) {
        if !self.copies.stands(copy) {
            // Its end was reported meanwhile.
            return;
        }
        let complete = self.is_whole(copy);
        match self.copies[copy].stamp {
            Some(_) => self.copies.announce(&mut self.ctx, copy, complete, false),
            None => self.ask_for_verdict(copy),
        }
    }

    /// Announces a copy whose content no owner has accepted yet, and asks for a verdict.
    pub(crate) fn ask_for_verdict(&mut self, copy: CopyId) {
        let owner = self.writes.ask_for_verdict(&mut self.ctx, &mut self.copies, copy);
        self.slots.expect_verdict_from(copy, owner);
    }

    /// Asks the target's owner for the right to make it.
    pub(crate) fn claim_target(&mut self, number: u64) {
        self.ctx.is_fresh = false;
        let seq = self.ctx.next_number();
        let claim = self.claim_of(number);
        let Some(target) = self.reductions.get(&number).map(|reduction| reduction.target()) else { return };
        let owner = self.ctx.shards.owner(target);
        self.ctx.ask_owner(target, DirectoryRequest::Claim { seq, claim }, None);
        if let Some(reduction) = self.reductions.get_mut(&number) {
            reduction.expect_verdict_from(owner);
        }
        self.ctx.arm_refresh();
    }

    /// Our claims to this target were reported to `node`: it is the owner by now.
    pub(crate) fn ask_for_verdict_of(&mut self, target: ObjectId, node: NodeId) {
        for number in self.reductions_onto(target).collect::<Vec<_>>() {
            if let Some(reduction) = self.reductions.get_mut(&number) {
                reduction.expect_verdict_from(node);
            }
        }
    }

    /// The owner's verdict on a reduction's claim to its target.
    pub(crate) fn on_claim_verdict(&mut self, from: NodeId, id: ObjectId, claim: Claim, verdict: Verdict) {
        let found = self.reductions_onto(id).find(|&number| self.claim_of(number) == claim);
        let Some(number) = found else {
            // The reduction is over; the owner need not reserve the target for it.
            if matches!(verdict, Verdict::Accepted(_)) {
                self.ctx.ask_owner(id, DirectoryRequest::ReleaseClaim { claim, made: false }, None);
            }
            return;
        };
        if self.reductions[&number].asked() == Some(from) {
            self.on_reduction_verdict(number, verdict);
        }
    }
}

//! Verdicts of owners on objects written and reduced here: whether our content is accepted as the object's.

use hoplite_types::peer::{DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{CopyId, Edition, NodeId, ObjectId, Stamp};

use crate::copies::Copy;
use crate::Core;

impl Core {
    /// The directory's verdict on a copy of ours.
    pub(crate) fn on_verdict(&mut self, from: NodeId, id: ObjectId, edition: Edition, verdict: Verdict) {
        if !self.call_handler().on_put_verdict(from, edition, verdict)
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
        self.writes.awaits_verdict() || self.slots.awaits_verdict() || self.reductions.awaits_verdict()
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
        self.reductions.repeat_missing_claims(&mut self.ctx, of);
    }

    /// Others believed us dead: owners may have given away what they had accepted of ours and is not sealed yet.
    pub(crate) fn ask_for_all_verdicts_again(&mut self) {
        for copy in self.writes.forget_verdicts() {
            self.copies.with(copy, |copy| copy.stamp = None);
        }
        self.reductions.forget_verdicts();
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
}

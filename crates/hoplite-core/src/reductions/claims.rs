//! The right to make the target: the coordinator claims it, and the target's owner gives it to one reduction, or put, at
//! a time.

use hoplite_types::peer::{DirectoryRequest, Verdict};
use hoplite_types::{Claim, ErrorKind, NodeId, ObjectId, ReductionId, Shard, Stamp};

use super::reduction::{Reduction, Right};
use super::{fail, Lent, Next, Reductions, Step, ADVANCE, WAIT};
use crate::ctx::Ctx;

impl Reductions {
    /// The reductions called here whose target this is.
    fn onto(&self, target: ObjectId) -> impl Iterator<Item = u64> + '_ {
        let shard = target.shard();
        let onto = self.targets.range((shard, target, 0)..=(shard, target, u64::MAX));
        onto.map(|&(_, _, number)| number)
    }

    /// Whether some reduction waits for the right to its target.
    pub fn awaits_verdict(&self) -> bool {
        self.table.values().any(|reduction| reduction.right.stamp().is_none())
    }

    /// Asks again for every missing verdict on these targets.
    pub fn repeat_missing_claims(&mut self, ctx: &mut Ctx, of: impl Fn(ObjectId) -> bool) {
        self.claim_again(ctx, |reduction| reduction.right.stamp().is_none() && of(reduction.target()));
    }

    /// Asks again for the verdict on every running reduction onto these targets that has one: a deletion of the target
    /// may have been reported while there was no connection.
    pub fn repeat_accepted_claims(&mut self, ctx: &mut Ctx, of: impl Fn(ObjectId) -> bool) {
        self.claim_again(ctx, |reduction| reduction.right.stamp().is_some() && of(reduction.target()));
    }

    fn claim_again(&mut self, ctx: &mut Ctx, which: impl Fn(&Reduction) -> bool) {
        self.table
            .values_mut()
            .filter(|reduction| which(reduction))
            .for_each(|known| known.claim_target(ctx));
    }

    /// Others believed us dead, and the owners may have given our rights to others.
    pub fn forget_verdicts(&mut self) {
        self.table.values_mut().for_each(Reduction::forget_verdict);
    }

    /// Our claims to this target were reported to `node`: it is the owner by now.
    pub fn expect_verdict_from(&mut self, target: ObjectId, node: NodeId) {
        for number in self.onto(target).collect::<Vec<_>>() {
            self.table.get_mut(&number).expect("it is listed").right.expect_from(node);
        }
    }

    /// Targets of reductions called here, with the times at which their claims were accepted.
    pub fn claims_in(&self, me: NodeId, shard: Shard) -> Vec<(ObjectId, Claim, Option<Stamp>)> {
        let (first, last) = (ObjectId([0; ObjectId::LEN]), ObjectId([u8::MAX; ObjectId::LEN]));
        let of_shard = self.targets.range((shard, first, 0)..=(shard, last, u64::MAX));
        let claim = |&(_, target, number): &(Shard, ObjectId, u64)| {
            let claim = ReductionId { coordinator: me, number }.claim();
            (target, claim, self.table[&number].right.stamp())
        };
        let mut claims: Vec<_> = of_shard.map(claim).collect();
        // For each id, the accepted claim comes first.
        claims.sort_by_key(|&(id, claim, stamp)| (id, stamp.is_none(), claim));
        claims
    }

    /// The owner's verdict on a reduction's claim to its target.
    pub fn on_claim_verdict(
        &mut self,
        lent: &mut Lent<'_>,
        from: NodeId,
        (id, claim): (ObjectId, Claim),
        verdict: Verdict,
    ) {
        let found = self.onto(id).find(|number| self.table[number].id.claim() == claim);
        let Some(number) = found else {
            // The reduction is over; the owner need not reserve the target for it.
            if matches!(verdict, Verdict::Accepted(_)) {
                lent.ctx.ask_owner(id, DirectoryRequest::ReleaseClaim { claim, made: false }, None);
            }
            return;
        };
        self.step(lent, number, |reduction, lent| match reduction.right.owner() == from {
            true => reduction.on_verdict(lent, verdict),
            // Another owner was asked since.
            false => WAIT,
        });
    }

    /// The target of some reductions is deleted.
    pub fn on_target_deleted(&mut self, lent: &mut Lent<'_>, target: ObjectId) {
        for number in self.onto(target).collect::<Vec<_>>() {
            self.step(lent, number, |reduction, _| reduction.fail_for_deletion());
        }
    }
}

impl Reduction {
    /// Asks the target's owner for the right to make it.
    pub(super) fn claim_target(&mut self, ctx: &mut Ctx) {
        ctx.is_fresh = false;
        let seq = ctx.next_number();
        let (target, claim) = (self.target(), self.id.claim());
        ctx.ask_owner(target, DirectoryRequest::Claim { seq, claim }, None);
        self.right.expect_from(ctx.shards.owner(target));
        ctx.arm_refresh();
    }

    /// Others believed us dead, and the owner may have given the right to another. What is committed stays.
    fn forget_verdict(&mut self) {
        if self.commitment().is_none() {
            if let Right::Given { owner, .. } = self.right {
                self.right = Right::Asked { owner, done_root: None };
            }
        }
    }

    /// The verdict of the target's owner on whether we may make it.
    fn on_verdict(&mut self, lent: &mut Lent<'_>, verdict: Verdict) -> Step {
        match (verdict, &mut self.right) {
            (Verdict::Accepted(stamp), &mut Right::Asked { owner, done_root }) => {
                self.right = Right::Given { owner, stamp };
                // A root that died since has nothing to commit any more.
                if let Some(done) = done_root.filter(|done| lent.ctx.shards.contains(done.from)) {
                    self.on_root_done(lent, done)?;
                }
                self.seal_small(lent)?;
                ADVANCE
            }
            (Verdict::Accepted(stamp), Right::Given { stamp: known, .. }) => {
                // A repetition: slots that failed are assigned again in their own time.
                match std::mem::replace(known, stamp) == stamp {
                    true => WAIT,
                    false => self.seal_small(lent).map_continue(|()| Next::Advance),
                }
            }
            // Asked again after it was accepted: either our own target exists by now, or our root is refused as well.
            (Verdict::Exists(_), Right::Given { .. }) => WAIT,
            (Verdict::Deleted, _) => self.fail_for_deletion(),
            (Verdict::Exists(_) | Verdict::OtherKind(_) | Verdict::Abandoned, _) => {
                let message = format!("{}: the target {} exists already", self.id.coordinator, self.target());
                fail(ErrorKind::AlreadyExists, &message)
            }
        }
    }

    pub(super) fn fail_for_deletion<T>(&self) -> Step<T> {
        let message = format!("{}: the target {} was deleted", self.id.coordinator, self.target());
        fail(ErrorKind::Deleted, &message)
    }
}

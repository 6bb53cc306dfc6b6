//! Verdicts of owners on targets that are made here. A target is sealed only once its owner knows that it is made here,
//! so that a deletion reaches this node.

use hoplite_types::peer::{SlotFailure, Verdict};
use hoplite_types::{CopyId, Edition, NodeId, ObjectId};

use super::table::{Makes, Running, SlotKey, State};
use super::Slots;
use crate::lent::Lent;

impl Slots {
    /// Announces the target, and asks its owner for a verdict.
    pub(super) fn ask_for_verdict(&mut self, lent: &mut Lent<'_>, key: SlotKey, copy: CopyId) {
        let owner = lent.ctx.shards.owner(lent.copies[copy].object);
        lent.copies.announce(lent.ctx, copy, false, true);
        self.table.expect_verdict_from(key, owner);
        lent.ctx.arm_refresh();
    }

    /// The targets being made here that no owner has accepted yet.
    fn awaiting_verdict(&self) -> impl Iterator<Item = (SlotKey, CopyId)> + '_ {
        let unaccepted =
            |running: &Running| running.acceptance().is_some_and(|acceptance| !acceptance.is_accepted());
        let targets = self.table.iter().filter(move |(_, running)| unaccepted(running));
        targets.filter_map(|(key, running)| Some((key, running.state.copy()?)))
    }

    pub fn awaits_verdict(&self) -> bool {
        self.awaiting_verdict().next().is_some()
    }

    /// Asks again for every missing verdict on these objects.
    pub fn repeat_verdict_requests(&mut self, lent: &mut Lent<'_>, of: impl Fn(ObjectId) -> bool) {
        for (key, copy) in self.awaiting_verdict().collect::<Vec<_>>() {
            let known = &lent.copies[copy];
            if !known.doomed && of(known.object) {
                self.ask_for_verdict(lent, key, copy);
            }
        }
    }

    /// Sets the owner whose verdict on this copy counts, if it is a target that is made here.
    pub fn expect_verdict_from(&mut self, copy: CopyId, owner: NodeId) {
        if let Some(key) = self.table.key_of(copy) {
            self.table.expect_verdict_from(key, owner);
        }
    }

    /// The directory's verdict on a target that is made here. Returns false if there is no such target.
    pub fn on_verdict(
        &mut self,
        lent: &mut Lent<'_>,
        from: NodeId,
        edition: Edition,
        verdict: Verdict,
    ) -> bool {
        let Some(key) = self.table.target_of(edition) else { return false };
        let running = self.table.get(key).expect("it is listed");
        if running.acceptance().and_then(|acceptance| acceptance.owner()) != Some(from) {
            // Another owner was asked since.
            return true;
        }
        if matches!(verdict, Verdict::Accepted(_)) {
            self.table.accept(key, from);
            self.on_accepted(lent, key);
        } else if !running.needs_coordinator() {
            self.drop_slot(lent, key);
        } else {
            let copy = running.state.copy();
            self.fail(lent.ctx, key, SlotFailure::Refused(verdict));
            if let Some(copy) = copy {
                lent.copies.withdraw(lent.ctx, copy);
                lent.copies.doom(lent.ctx, copy);
            }
        }
        true
    }

    /// The owner knows that the target is made here: a seal that waited only for that continues.
    fn on_accepted(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        let running = self.table.get(key).expect("the caller's");
        match (running.state, &running.makes) {
            (State::Folded { .. }, Makes::Whole(_, Some(_))) => self.seal_allgather(lent, key),
            (State::Folded { .. }, _) => self.say_root_done(lent.ctx, key),
            // Not every byte is there yet, or the slot has failed.
            _ => {}
        }
    }
}

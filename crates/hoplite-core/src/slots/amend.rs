//! Amends a slot's assignment within an attempt: further inputs, no more to come, or the slot becomes the root.

use hoplite_types::peer::{Child, SlotAssignment, SlotFailure};
use hoplite_types::CopyId;

use super::assign::local_inputs;
use super::folds::rule;
use super::table::{SlotKey, State};
use super::Slots;
use crate::io::FoldId;
use crate::lent::Lent;

impl Slots {
    /// A newer assignment continues the slot's attempt.
    pub(super) fn amend(&mut self, lent: &mut Lent<'_>, key: SlotKey, assignment: SlotAssignment) {
        let previous = self.table.replace_assignment(key, assignment);
        let running = self.table.get(key).expect("just replaced");
        // Before the fold starts, and once it is not open any more, there is nothing to amend.
        let State::Folding { copy, fold } = running.state else { return };
        let SlotAssignment { lacking, version, .. } = running.assignment;
        if running.assignment != (SlotAssignment { lacking, version, ..previous.clone() }) {
            self.amend_fold(lent, key, &previous, (copy, fold));
        }
    }

    fn amend_fold(
        &mut self,
        lent: &mut Lent<'_>,
        key: SlotKey,
        previous: &SlotAssignment,
        (copy, fold): (CopyId, FoldId),
    ) {
        let assignment = self.table.get(key).expect("the caller's").assignment.clone();
        let becomes_root = assignment.root && !previous.root;
        if becomes_root && !lent.make_way(assignment.out, Some(assignment.stamp)) {
            return self.fail(lent.ctx, key, SlotFailure::Taken);
        }
        let children: Vec<_> =
            Child::all_but(&assignment.children, &previous.children).into_iter().cloned().collect();
        let added = match local_inputs(lent, &assignment.sources[previous.sources.len()..], &children) {
            Ok(Some(added)) => added,
            // A child here is not ready yet, or a source is gone: the coordinator restarts the slot, which then waits
            // for all of its inputs.
            Ok(None) => {
                let child = children.iter().find(|child| child.node == lent.ctx.me).expect("one was missing");
                return self.fail(lent.ctx, key, SlotFailure::Child(child.slot));
            }
            Err(missing) => return self.fail(lent.ctx, key, SlotFailure::Source(missing)),
        };
        added.iter().for_each(|&source| lent.copies.add_user(lent.ctx, source));
        let (inputs, streams) = self.folds.add_inputs(lent, fold, added, &children);
        if becomes_root {
            self.become_root(lent, key, copy);
        }
        self.folds.say_amended(lent.ctx, fold, rule(&assignment), inputs);
        super::folds::send_pulls(lent.ctx, &streams, &children);
    }

    /// A partial sum turns out to be the target.
    fn become_root(&mut self, lent: &mut Lent<'_>, key: SlotKey, copy: CopyId) {
        let SlotAssignment { out, stamp, claim, .. } = self.table.get(key).expect("the caller's").assignment;
        if let Some(stale) = lent.copies.live(out) {
            lent.copies.doom(lent.ctx, stale);
        }
        lent.copies.rename(lent.ctx, copy, out);
        lent.copies.with(copy, |copy| {
            copy.pinned = true;
            copy.public = true;
            copy.stamp = Some(stamp);
            copy.claim = Some(claim);
        });
        self.ask_for_verdict(lent, key, copy);
        lent.fetcher().drop_fetch(out);
    }
}

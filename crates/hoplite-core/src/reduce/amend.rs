//! Amends a slot's assignment within an attempt: further inputs, no more to come, or the slot becomes the root.

use hoplite_types::peer::{Child, SlotAssignment, SlotFailure};
use hoplite_types::CopyId;

use super::folds::rule;
use super::slot_table::SlotKey;
use crate::io::{FoldId, FoldInputs, Output};
use crate::Core;

impl Core {
    /// Amends the same attempt: more inputs, the slot is closed, or it has become the root.
    pub(super) fn amend_slot(&mut self, key: SlotKey, previous: &SlotAssignment, copy: CopyId, fold: FoldId) {
        let assignment = self.slots.running[&key].assignment.clone();
        if assignment.root && !previous.root && !self.free_id(assignment.out, Some(assignment.stamp)) {
            return self.fail_slot(key, SlotFailure::Taken);
        }
        let children: Vec<_> =
            Child::all_but(&assignment.children, &previous.children).into_iter().cloned().collect();
        let added = match self.local_inputs(&assignment.sources[previous.sources.len()..], &children) {
            Ok(Some(added)) => added,
            // A child here is not ready yet, or a source is gone: the coordinator restarts the slot, which then waits
            // for all of its inputs.
            Ok(None) => {
                let child = children.iter().find(|child| child.node == self.ctx.me).expect("one was missing");
                return self.fail_slot(key, SlotFailure::Child(child.slot));
            }
            Err(missing) => return self.fail_slot(key, SlotFailure::Source(missing)),
        };
        added.iter().for_each(|&source| self.copies.add_user(&mut self.ctx, source));
        let streams = self.pull_children(fold, assignment.attempt, &children);
        let inputs =
            FoldInputs { sources: added.clone(), streams: streams.iter().map(|&(t, n, _)| (t, n)).collect() };
        if let Some(running) = self.slots.folds.get_mut(&fold) {
            running.sources.extend(added);
            running.streams.extend(streams.iter().map(|&(transfer, _, child)| (transfer, child)));
        }
        if assignment.root && !previous.root {
            self.become_root(copy, &assignment);
        }
        self.ctx.out.push_back(Output::AmendFold { fold, rule: rule(&assignment), added: inputs });
        self.send_pulls(&streams, &children);
    }

    /// A partial sum turns out to be the target.
    fn become_root(&mut self, copy: CopyId, assignment: &SlotAssignment) {
        if let Some(stale) = self.copies.live(assignment.out) {
            self.copies.doom(&mut self.ctx, stale);
        }
        self.copies.rename(&mut self.ctx, copy, assignment.out);
        self.copies.with(copy, |copy| {
            copy.pinned = true;
            copy.public = true;
            copy.stamp = Some(assignment.stamp);
            copy.claim = Some(assignment.claim);
        });
        self.ask_for_verdict(copy);
        self.fetcher().drop_fetch(assignment.out);
    }
}

//! A slot is assigned, starts once its inputs and its space are here, and ends.

use hoplite_types::peer::{Child, SlotAssignment, SlotFailure, Source};
use hoplite_types::{CopyId, Edition, Error, ErrorKind, NodeId, ObjectId, ReductionId};

use super::folds::{rule, FoldFor, Inputs};
use super::table::{Running, SlotKey, State};
use super::Slots;
use crate::copies::{Copies, NewCopy, Phase};
use crate::lent::Lent;
use crate::notices::Notice;

impl Slots {
    /// The coordinator assigns the slot, or changes its assignment.
    pub fn on_assign(
        &mut self,
        lent: &mut Lent<'_>,
        from: NodeId,
        reduction: ReductionId,
        assignment: SlotAssignment,
    ) {
        let key = (reduction, assignment.slot);
        match self.table.get(key).map(|running| &running.assignment) {
            Some(known) if known.version >= assignment.version => {
                // A repetition: perhaps our report of the failure was lost.
                return self.report_failure(lent.ctx, key);
            }
            Some(known) if known.attempt == assignment.attempt && !assignment.continues(known) => {
                let message =
                    format!("slot {} of {reduction} as another one in one attempt", assignment.slot);
                let error = Error::new(ErrorKind::BadArgument, message);
                return lent.ctx.notices.push_back(Notice::BadMessage { from, error });
            }
            Some(known) if known.attempt == assignment.attempt => self.amend(lent, key, assignment),
            known => {
                if known.is_some() {
                    self.drop_slot(lent, key);
                }
                if self.declines(lent.ctx, key, assignment.attempt, assignment.epoch) {
                    return;
                }
                self.table.insert(key, Running::new(assignment));
            }
        }
        lent.ctx.arm_refresh();
        self.try_start(lent, key);
    }

    /// Starts the slot if all of its local inputs are here, and there is space.
    pub fn try_start(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        // Otherwise it runs already, or has failed, or is over.
        let Some(assignment) = self.table.waiting(key) else { return };
        let assignment = assignment.clone();
        // The parts of a target arrive one by one, the local ones as well.
        let children = if assignment.part_bytes.is_some() { &[] } else { &assignment.children[..] };
        let sources = match local_inputs(lent, &assignment.sources, children) {
            Ok(Some(sources)) => sources,
            // It starts when that child's copy is opened.
            Ok(None) => return,
            Err(missing) => return self.fail(lent.ctx, key, SlotFailure::Source(missing)),
        };
        if !lent.copies.could_hold(assignment.size) {
            return self.fail(lent.ctx, key, SlotFailure::NoSpace);
        }
        let right = assignment.root.then_some(assignment.stamp);
        if !lent.make_way(assignment.out, right) {
            return self.fail(lent.ctx, key, SlotFailure::Taken);
        }
        if self.is_preempted_here(key, &assignment) {
            return self.wait_for_space(lent, key);
        }
        let Some(copy) = open(lent, key, &assignment, &sources) else {
            return self.wait_for_space(lent, key);
        };
        self.end_wait_for_space(lent, key);
        match assignment.part_bytes {
            Some(_) => self.start_allgather(lent, key, copy),
            None => self.start_fold_of_slot(lent, key, copy, sources),
        }
    }

    /// The copy is open, and the sources are counted as used.
    fn start_fold_of_slot(&mut self, lent: &mut Lent<'_>, key: SlotKey, copy: CopyId, sources: Vec<CopyId>) {
        let assignment = self.table.waiting(key).expect("it is about to start").clone();
        let source = assignment.sources.first().and_then(|source| lent.copies.live_copy(source.id));
        if source.is_some_and(|source| assignment.size < source.extent.size) {
            // A stripe of the target.
            let (reduction, _) = key;
            lent.copies.set_group(copy, reduction);
        }
        let inputs = Inputs { attempt: assignment.attempt, sources, children: &assignment.children };
        let fold = self.folds.start(lent, FoldFor::Slot(key), copy, rule(&assignment), inputs);
        self.table.set_state(key, State::Folding { copy, fold });
        if assignment.root {
            self.ask_for_verdict(lent, key, copy);
            lent.fetcher().drop_fetch(assignment.out);
        }
    }

    /// A copy of `object` was opened here: slots that waited for a child of that name may start.
    pub fn on_opened(&mut self, lent: &mut Lent<'_>, object: ObjectId) {
        for key in self.table.awaiting(object) {
            self.try_start(lent, key);
            self.begin_local_parts(lent, key);
        }
    }

    pub fn on_release_slots(&mut self, lent: &mut Lent<'_>, reduction: ReductionId) {
        for key in self.table.keys_of(reduction) {
            if self.table.get(key).is_some_and(Running::needs_coordinator) {
                self.drop_slot(lent, key);
            }
        }
    }

    /// The coordinator releases this slot.
    pub fn on_release_slot(&mut self, lent: &mut Lent<'_>, from: NodeId, key: SlotKey, attempt: u32) {
        let current = self.table.get(key).filter(|running| running.assignment.attempt == attempt);
        if key.0.coordinator == from && current.is_some_and(Running::needs_coordinator) {
            self.drop_slot(lent, key);
        }
    }

    /// A coordinator is believed dead: its slots are released. If it lives after all, it is notified of that.
    pub fn on_coordinator_down(&mut self, lent: &mut Lent<'_>, coordinator: NodeId) {
        self.epochs.on_down(coordinator);
        for key in self.table.of_coordinator(coordinator) {
            self.drop_slot(lent, key);
        }
    }

    /// Ends a slot; its partial sum is abandoned.
    pub(super) fn drop_slot(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        self.end_wait_for_space(lent, key);
        let running = self.table.remove(key).expect("the caller's");
        if let Some(copy) = running.state.copy() {
            // A finished partial sum may have been evicted meanwhile.
            if lent.copies.stands(copy) {
                lent.copies.withdraw(lent.ctx, copy);
                lent.copies.doom(lent.ctx, copy);
            }
        }
        if running.assignment.part_bytes.is_some() {
            // If the target is wanted here, it is fetched like any object, once some node has it.
            lent.copies.vacate(running.assignment.out);
        }
        lent.ctx.work_ended = true;
    }

    /// A copy was doomed (its target was deleted, say): a slot that writes into it must not use it again.
    pub fn on_copy_doomed(&mut self, gone: CopyId) {
        // Most copies are not written by slots.
        let Some(key) = self.table.key_of(gone) else { return };
        match self.table.get(key).is_some_and(Running::needs_coordinator) {
            true => self.table.set_state(key, State::Failed),
            // The coordinator of a committed slot sends nothing more about it.
            false => drop(self.table.remove(key)),
        }
    }
}

/// Opens the copy that the slot writes into, and counts its sources as used. Nothing is opened if there is no space.
fn open(
    lent: &mut Lent<'_>,
    key: SlotKey,
    assignment: &SlotAssignment,
    sources: &[CopyId],
) -> Option<CopyId> {
    if let Some(stale) = lent.copies.live(assignment.out) {
        // A cached part of an attempt that is over.
        if assignment.part_bytes.is_some() {
            lent.copies.withdraw(lent.ctx, stale);
        }
        lent.copies.doom(lent.ctx, stale);
    }
    // The sources must not be evicted while space is made for the sum.
    sources.iter().for_each(|&source| lent.copies.add_user(lent.ctx, source));
    // Copies that are opened and closed again because there is too little space, and sources that become evictable
    // again, must not count as new space: the waiters would be retried for ever.
    let space_changed = lent.copies.has_space_changed();
    let opened = match assignment.part_bytes {
        Some(part_bytes) => super::allgather::open_target(lent, key, assignment, part_bytes),
        None => lent.copies.open(lent.ctx, new_sum(assignment)),
    };
    if opened.is_none() {
        sources.iter().for_each(|&source| lent.copies.remove_user(lent.ctx, source));
        lent.copies.set_space_changed(space_changed);
    }
    opened
}

fn new_sum(assignment: &SlotAssignment) -> NewCopy {
    NewCopy {
        object: assignment.out,
        edition: assignment.edition,
        size: assignment.size,
        header: assignment.header.clone(),
        phase: Phase::Folded(None),
        // Parents may have to stream it again: partial sums are kept until the reduction is over.
        pinned: true,
        public: assignment.root,
        stamp: assignment.root.then_some(assignment.stamp),
        claim: assignment.root.then_some(assignment.claim),
    }
}

/// The copies on this node that go into a fold: children here first (they hold the part before our own sources), then
/// the sources. `Ok(None)`: a child here has not started yet.
pub(super) fn local_inputs(
    lent: &Lent<'_>,
    sources: &[Source],
    children: &[Child],
) -> Result<Option<Vec<CopyId>>, ObjectId> {
    let mut inputs = Vec::new();
    for child in children.iter().filter(|child| child.node == lent.ctx.me) {
        match here(lent.copies, child.id, child.edition) {
            Some(copy) => inputs.push(copy),
            None => return Ok(None),
        }
    }
    for source in sources {
        inputs.push(here(lent.copies, source.id, source.edition).ok_or(source.id)?);
    }
    Ok(Some(inputs))
}

/// The live copy of this edition.
pub(super) fn here(copies: &Copies, id: ObjectId, edition: Edition) -> Option<CopyId> {
    copies.live(id).filter(|copy| copies[*copy].edition == edition)
}

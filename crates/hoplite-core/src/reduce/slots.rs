//! A slot on its node: it folds its sources and its children's streams into one copy. Its parent (or, at the root,
//! any receiver) streams from that copy.
//!
//! ```text
//!  Slot ─▶ Waiting ──(space, local inputs here)──▶ Folding ──ended──▶ Folded
//!             ▲                                      │                 │ root: RootDone ─ Commit ─▶ sealed target
//!             └────── AssignSlot with a newer attempt ─────┘                 │ else: sealed partial sum
//!                                                                      ▼
//!                                                                   ReleaseSlots
//! ```

use hoplite_types::peer::{Child, SlotAssignment, SlotFailure, Verdict};
use hoplite_types::{CopyId, Edition, Error, ErrorKind, NodeId, ObjectId, ReductionId, Stamp};

use super::folds::{rule, FoldFor};
use super::slot_table::{MaySeal, Running, SlotKey, State};
use crate::copies::{NewCopy, Phase};
use crate::notices::Notice;
use crate::Core;

impl Core {
    pub(crate) fn on_assign_slot(
        &mut self,
        from: NodeId,
        reduction: ReductionId,
        assignment: SlotAssignment,
    ) {
        let key = (reduction, assignment.slot);
        match self.slots.running.get_mut(&key) {
            Some(running) if running.assignment.version >= assignment.version => {
                // A repetition: perhaps our report of the failure was lost.
                return self.report_failure(key);
            }
            Some(running)
                if running.assignment.attempt == assignment.attempt
                    && !assignment.continues(&running.assignment) =>
            {
                let message =
                    format!("slot {} of {reduction} as another one in one attempt", assignment.slot);
                return self.on_bad_message(from, Error::new(ErrorKind::BadArgument, message));
            }
            Some(running) if running.assignment.attempt == assignment.attempt => {
                let state = running.state;
                let previous = self.slots.replace_assignment(key, assignment);
                if let (Some(previous), State::Folding { copy, fold }) = (previous, state) {
                    let assignment = &self.slots.running[&key].assignment;
                    let (lacking, version) = (assignment.lacking, assignment.version);
                    // A fold that is not open any more is not amended.
                    if *assignment != (SlotAssignment { lacking, version, ..previous.clone() }) {
                        self.amend_slot(key, &previous, copy, fold);
                    }
                }
            }
            running => {
                if running.is_some() {
                    self.drop_slot(key);
                }
                if self.declines_slot(key, assignment.attempt, assignment.epoch) {
                    return;
                }
                self.slots.insert(key, Running::new(assignment));
            }
        }
        self.ctx.arm_refresh();
        self.try_start_slot(key);
    }

    /// Starts the fold if all of its local inputs are here.
    pub(crate) fn try_start_slot(&mut self, key: SlotKey) {
        let Some(Running { assignment, state: State::Waiting, .. }) = self.slots.running.get(&key) else {
            return;
        };
        let assignment = assignment.clone();
        let gathers = assignment.part_bytes.is_some();
        // The parts of a target arrive one by one, the local ones as well.
        let children = if gathers { &[] } else { &assignment.children[..] };
        let sources = match self.local_inputs(&assignment.sources, children) {
            Ok(Some(sources)) => sources,
            Ok(None) => return,
            Err(missing) => return self.fail_slot(key, SlotFailure::Source(missing)),
        };
        if !self.copies.could_hold(assignment.size) {
            return self.fail_slot(key, SlotFailure::NoSpace);
        }
        if !self.free_id(assignment.out, assignment.root.then_some(assignment.stamp)) {
            return self.fail_slot(key, SlotFailure::Taken);
        }
        if self.is_preempted_here(key, &assignment) {
            return self.wait_for_slot_space(key);
        }
        if let Some(stale) = self.copies.live(assignment.out) {
            // A cached part of an attempt that is over.
            if gathers {
                self.copies.withdraw(&mut self.ctx, stale);
            }
            self.copies.doom(&mut self.ctx, stale);
        }
        // The sources must not be evicted while space is made for the sum.
        sources.iter().for_each(|&source| self.copies.add_user(&mut self.ctx, source));
        let new = NewCopy {
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
        };
        // Copies that are opened and closed again because there is too little space, and sources that become evictable
        // again, must not count as new space: the waiters would be retried for ever.
        let space_changed = self.copies.has_space_changed();
        let opened =
            if gathers { self.open_target(key, &assignment) } else { self.copies.open(&mut self.ctx, new) };
        let Some(copy) = opened else {
            sources.iter().for_each(|&source| self.copies.remove_user(&mut self.ctx, source));
            self.copies.set_space_changed(space_changed);
            return self.wait_for_slot_space(key);
        };
        self.end_wait_for_space(key);
        if gathers {
            return self.start_allgather(key, copy);
        }
        let source = assignment.sources.first().and_then(|source| self.copies.live_copy(source.id));
        if source.is_some_and(|source| assignment.size < source.extent.size) {
            // A stripe of the target.
            let (reduction, _) = key;
            self.copies.set_group(copy, reduction);
        }
        let rule = rule(&assignment);
        let fold = self.start_fold(FoldFor::Slot(key), copy, rule, sources, &assignment.children);
        self.slots.set_state(key, State::Folding { copy, fold });
        if assignment.root {
            self.ask_for_verdict(copy);
            self.fetcher().drop_fetch(assignment.out);
        }
    }

    /// Frees the id for a sum of a reduction; `right` is the time at which the reduction's claim to it was accepted. A
    /// put that no owner has accepted gives way. Returns false if a copy is in the way that no reduction may replace: a
    /// sealed one, or one that a client writes.
    pub(super) fn free_id(&mut self, id: ObjectId, right: Option<Stamp>) -> bool {
        if self.copies.sealed(id).is_some() {
            return false;
        }
        let Some(copy) = self.writes.of_object(&self.copies, id) else { return true };
        let Some(stamp) = right.filter(|_| self.writes.may_give_way(copy)) else { return false };
        let edition = self.copies[copy].edition;
        self.copies.withdraw_edition(&mut self.ctx, id, edition);
        self.desk().on_write_verdict(copy, Verdict::Exists(stamp));
        true
    }

    /// The copies on this node that go into a fold: children here first (they hold the part before our own sources),
    /// then the sources. `Ok(None)`: a child here has not started yet.
    pub(super) fn local_inputs(
        &self,
        sources: &[hoplite_types::peer::Source],
        children: &[Child],
    ) -> Result<Option<Vec<CopyId>>, ObjectId> {
        let here = |id: ObjectId, edition: Edition| {
            self.copies.live(id).filter(|copy| self.copies[*copy].edition == edition)
        };
        let mut inputs = Vec::new();
        for child in children.iter().filter(|child| child.node == self.ctx.me) {
            match here(child.id, child.edition) {
                Some(copy) => inputs.push(copy),
                None => return Ok(None),
            }
        }
        for source in sources {
            inputs.push(here(source.id, source.edition).ok_or(source.id)?);
        }
        Ok(Some(inputs))
    }

    /// A copy of `object` was opened here: slots that waited for a child of that name may start.
    pub(crate) fn retry_slots(&mut self, object: ObjectId) {
        for key in self.slots.awaiting(object) {
            self.try_start_slot(key);
            self.begin_local_parts(key);
        }
    }

    pub(crate) fn on_release_slots(&mut self, reduction: ReductionId) {
        for key in self.slots.keys_of(reduction) {
            if self.slots.running[&key].needs_coordinator() {
                self.drop_slot(key);
            }
        }
    }

    /// Ends a slot; its partial sum is abandoned.
    pub(super) fn drop_slot(&mut self, key: SlotKey) {
        self.end_wait_for_space(key);
        let Some(running) = self.slots.remove(key) else { return };
        if let Some(copy) = running.copy() {
            // A finished partial sum may have been evicted meanwhile.
            if self.copies.stands(copy) {
                self.copies.withdraw(&mut self.ctx, copy);
                self.copies.doom(&mut self.ctx, copy);
            }
        }
        if running.assignment.part_bytes.is_some() {
            // If the target is wanted here, it is fetched like any object, once some node has it.
            self.copies.vacate(running.assignment.out);
        }
        self.ctx.notices.push_back(Notice::WorkEnded);
    }

    /// The copy that a slot writes into was doomed (its target was deleted): the slot must not use it again.
    pub(crate) fn slot_copy_gone(&mut self, gone: CopyId) {
        let Some(key) = self.slots.key_of(gone) else { return };
        match self.slots.running[&key].needs_coordinator() {
            true => self.slots.set_state(key, State::Failed),
            // The coordinator of a committed slot sends nothing more about it.
            false => drop(self.slots.remove(key)),
        }
    }

    /// The directory's verdict on a target that is made here. Returns false if there is no such target.
    pub(crate) fn on_target_verdict(&mut self, from: NodeId, edition: Edition, verdict: Verdict) -> bool {
        let Some(key) = self.slots.target_of(edition) else { return false };
        let running = self.slots.running.get_mut(&key).expect("it is listed");
        if running.asked != Some(from) {
            return true;
        }
        if matches!(verdict, Verdict::Accepted(_)) {
            running.may_seal = MaySeal::Yes;
            self.on_may_seal(key);
        } else if running.committed.is_some() {
            self.drop_slot(key);
        } else {
            self.fail_slot(key, SlotFailure::Refused(verdict));
            if let Some(copy) = self.slots.running.get(&key).and_then(Running::copy) {
                self.copies.withdraw(&mut self.ctx, copy);
                self.copies.doom(&mut self.ctx, copy);
            }
        }
        true
    }

    /// The owner knows that the target is made here: a seal that waited only for that continues.
    fn on_may_seal(&mut self, key: SlotKey) {
        let running = &self.slots.running[&key];
        if !matches!(running.state, State::Folded { .. }) {
            return;
        }
        match running.committed {
            Some(_) => self.seal_allgather(key),
            None => self.say_root_done(key),
        }
    }
}

//! A slot's own side: this node folds its sources and its children's streams into one copy that
//! its parent (or, at the root, everyone) streams from.
//!
//! ```text
//!  Seat ─▶ Waiting ──(space, local inputs here)──▶ Folding ──ended──▶ Folded
//!             ▲                                      │                 │ root: RootDone ─ Commit ─▶ sealed target
//!             └────── Seat with a newer attempt ─────┘                 │ else: sealed partial sum
//!                                                                      ▼
//!                                                                   Disband
//! ```

use hoplite_types::peer::{Child, Seat, SlotFailure, Verdict};
use hoplite_types::{CopyId, Edition, Error, ErrorKind, NodeId, ObjectId, ReductionId, Stamp};

use super::folds::{rule, FoldFor};
use super::seat_table::{Key, MaySeal, Running, State};
use crate::copies::{NewCopy, Phase};
use crate::Core;

impl Core {
    pub(crate) fn on_seat(&mut self, from: NodeId, reduction: ReductionId, seat: Seat) {
        let key = (reduction, seat.slot);
        match self.seats.running.get_mut(&key) {
            Some(running) if running.seat.version >= seat.version => {
                // Repeated: perhaps our word about it was lost.
                return self.report_failure(key);
            }
            Some(running) if running.seat.attempt == seat.attempt && !seat.continues(&running.seat) => {
                let message = format!("slot {} of {reduction} as another one in one attempt", seat.slot);
                return self.on_bad_message(from, Error::new(ErrorKind::BadArgument, message));
            }
            Some(running) if running.seat.attempt == seat.attempt => {
                let state = running.state;
                let told = self.seats.replace_seat(key, seat);
                if let (Some(told), State::Folding { copy, fold }) = (told, state) {
                    let seat = &self.seats.running[&key].seat;
                    let (lacking, version) = (seat.lacking, seat.version);
                    // Of a fold that is not open any more nothing is amended.
                    if *seat != (Seat { lacking, version, ..told.clone() }) {
                        self.amend_seat(key, &told, copy, fold);
                    }
                }
            }
            running => {
                if running.is_some() {
                    self.drop_seat(key);
                }
                if self.declines_seat(key, seat.attempt, seat.epoch) {
                    return;
                }
                self.seats.insert(key, Running::new(seat));
            }
        }
        self.arm_refresh();
        self.try_seat(key);
    }

    /// Starts the fold if everything it needs from this node is here.
    pub(crate) fn try_seat(&mut self, key: Key) {
        let Some(Running { seat, state: State::Waiting, .. }) = self.seats.running.get(&key) else { return };
        let seat = seat.clone();
        let gathers = seat.part_bytes.is_some();
        // The parts of a target come one by one, those from here as well.
        let children = if gathers { &[] } else { &seat.children[..] };
        let sources = match self.local_inputs(&seat.sources, children) {
            Ok(Some(sources)) => sources,
            Ok(None) => return,
            Err(missing) => return self.fail_slot(key, SlotFailure::Source(missing)),
        };
        if !self.copies.arena.could_hold(seat.size) {
            return self.fail_slot(key, SlotFailure::NoSpace);
        }
        if !self.free_id(seat.out, seat.root.then_some(seat.stamp)) {
            return self.fail_slot(key, SlotFailure::Taken);
        }
        if self.is_preempted_here(key, &seat) {
            return self.wait_for_slot_space(key);
        }
        if let Some(stale) = self.copies.live(seat.out) {
            // A cached part of an attempt that is over.
            if gathers {
                self.withdraw(stale);
            }
            self.doom(stale);
        }
        // No one may throw the sources out while space is made for the sum.
        sources.iter().for_each(|&source| self.add_user(source));
        let new = NewCopy {
            object: seat.out,
            edition: seat.edition,
            size: seat.size,
            header: seat.header.clone(),
            phase: Phase::Folded(None),
            // Parents may have to stream it again: partial sums are kept until the reduction is over.
            pinned: true,
            public: seat.root,
            stamp: seat.root.then_some(seat.stamp),
            claim: seat.root.then_some(seat.claim),
        };
        // What is opened and closed again for want of more, and sources that may be thrown out again, are no news of
        // space: looking once more for it would end here, for ever.
        let space_changed = self.space_changed;
        let opened = if gathers { self.open_target(key, &seat) } else { self.open_copy(new) };
        let Some(copy) = opened else {
            sources.iter().for_each(|&source| self.remove_user(source));
            self.space_changed = space_changed;
            return self.wait_for_slot_space(key);
        };
        self.end_wait_for_space(key);
        if gathers {
            return self.start_allgather(key, copy);
        }
        let rule = rule(&seat);
        let fold = self.start_fold(FoldFor::Seat(key), copy, rule, sources, &seat.children);
        self.seats.set_state(key, State::Folding { copy, fold });
        if seat.root {
            self.ask_for_verdict(copy);
            self.drop_fetch(seat.out);
        }
        self.on_opened(seat.out);
    }

    /// Makes the id free for what a reduction sums up here; `right` is when the reduction's claim to it was accepted.
    /// A put that no owner has accepted gives way to that. False if there is an object that no reduction may push
    /// out: a finished one, or one that a client writes.
    pub(super) fn free_id(&mut self, id: ObjectId, right: Option<Stamp>) -> bool {
        if self.copies.sealed(id).is_some() {
            return false;
        }
        let Some(copy) = self.write_of(id) else { return true };
        let Some(stamp) = right.filter(|_| self.writes.may_give_way(copy)) else { return false };
        let edition = self.copies.table[&copy].edition;
        self.withdraw_edition(id, edition);
        self.judge_write(copy, Verdict::Exists(stamp));
        true
    }

    /// The copies on this node that go into a fold: children here first (they hold what comes before
    /// our own sources), then the sources. `Ok(None)`: a child here has not started yet.
    pub(super) fn local_inputs(
        &self,
        sources: &[hoplite_types::peer::Source],
        children: &[Child],
    ) -> Result<Option<Vec<CopyId>>, ObjectId> {
        let here = |id: ObjectId, edition: Edition| {
            self.copies.live(id).filter(|copy| self.copies.table[copy].edition == edition)
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

    /// A copy of `object` was opened here: seats that waited for a child of that name may start.
    pub(crate) fn retry_seats(&mut self, object: ObjectId) {
        for key in self.seats.awaiting(object) {
            self.try_seat(key);
            self.begin_local_parts(key);
        }
    }

    pub(crate) fn on_disband(&mut self, reduction: ReductionId) {
        for key in self.seats.keys_of(reduction) {
            if self.seats.running[&key].needs_coordinator() {
                self.drop_seat(key);
            }
        }
    }

    /// Ends a seat; what it folded so far is abandoned.
    pub(super) fn drop_seat(&mut self, key: Key) {
        self.end_wait_for_space(key);
        let Some(running) = self.seats.remove(key) else { return };
        if let Some(copy) = running.copy() {
            // A finished partial sum may have been evicted meanwhile.
            if self.copies.table.get(&copy).is_some_and(|copy| !copy.doomed) {
                self.withdraw(copy);
                self.doom(copy);
            }
        }
        if running.seat.part_bytes.is_some() {
            // Whoever wants the target gets it like anyone else, once somebody has it.
            self.vacated.insert(running.seat.out);
        }
        self.leave_if_nothing_is_left();
    }

    /// What a seat folds into was doomed (its target was deleted): the seat must not touch it again.
    pub(crate) fn seat_copy_gone(&mut self, gone: CopyId) {
        let Some(key) = self.seats.key_of(gone) else { return };
        match self.seats.running[&key].needs_coordinator() {
            true => self.seats.set_state(key, State::Failed),
            // Of one that is committed nothing more is heard from its coordinator.
            false => drop(self.seats.remove(key)),
        }
    }

    /// The directory's word on a target that is made here. False if no such target is.
    pub(crate) fn judge_seat(&mut self, from: NodeId, edition: Edition, verdict: Verdict) -> bool {
        let Some(key) = self.seats.target_of(edition) else { return false };
        let running = self.seats.running.get_mut(&key).expect("it is listed");
        if running.asked != Some(from) {
            return true;
        }
        if matches!(verdict, Verdict::Accepted(_)) {
            running.may_seal = MaySeal::Yes;
            self.on_may_seal(key);
        } else if running.committed.is_some() {
            self.drop_seat(key);
        } else {
            self.fail_slot(key, SlotFailure::Refused(verdict));
            if let Some(copy) = self.seats.running.get(&key).and_then(Running::copy) {
                self.withdraw(copy);
                self.doom(copy);
            }
        }
        true
    }

    /// The owner knows that the target is made here: what waited only for that goes on.
    fn on_may_seal(&mut self, key: Key) {
        let running = &self.seats.running[&key];
        if !matches!(running.state, State::Folded { .. }) {
            return;
        }
        match running.committed {
            Some(_) => self.seal_allgather(key),
            None => self.say_root_done(key),
        }
    }
}

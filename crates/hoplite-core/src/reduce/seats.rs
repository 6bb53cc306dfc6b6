//! A slot's own side: this node folds its sources and its children's streams into one copy that
//! its parent (or, at the root, everyone) streams from.
//!
//! ```text
//!  Seat ─▶ Waiting ──(room, local inputs here)──▶ Folding ──ended──▶ Folded
//!             ▲                                      │                 │ root: RootDone ─ Commit ─▶ sealed target
//!             └────── Seat with a newer attempt ─────┘                 │ else: sealed partial sum
//!                                                                      ▼
//!                                                                   Disband
//! ```

use std::collections::BTreeMap;

use hoplite_words::peer::{Child, PeerMessage, Seat, SeatTrouble, Verdict};
use hoplite_words::{CopyId, Edition, Error, ErrorKind, NodeId, ObjectId, ReductionId};

use super::epochs::Epochs;
use super::folds::{rule, Fold, FoldFor};
use crate::copies::{NewCopy, Phase};
use crate::io::FoldId;
use crate::Core;

pub(super) type Key = (ReductionId, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Folding {
        copy: CopyId,
        fold: FoldId,
    },
    /// Parts of the target come, each by itself (see `assembly`).
    Assembling {
        copy: CopyId,
    },
    Folded {
        copy: CopyId,
    },
    /// An input broke, or the target was deleted; the coordinator will seat anew or disband.
    Failed,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) seat: Seat,
    pub(super) state: State,
    /// What the coordinator was told, and is told again until it does something about it.
    pub(super) trouble: Option<SeatTrouble>,
    /// While it waits: others have given up room for it, which goes to nobody behind it.
    pub(super) is_next: bool,
    /// The target may be sealed, over these sources, as soon as all of its parts are here.
    pub(super) committed: Option<Vec<ObjectId>>,
    /// Where the target is made: whether its owner knows that it is, so that a deletion waits for us.
    pub(super) may_seal: MaySeal,
    /// Whose word on that counts.
    asked: Option<NodeId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MaySeal {
    NotYet,
    Yes,
}

impl Running {
    /// What it writes into.
    pub(super) fn copy(&self) -> Option<CopyId> {
        match self.state {
            State::Folding { copy, .. } | State::Assembling { copy } | State::Folded { copy } => Some(copy),
            State::Waiting | State::Failed => None,
        }
    }

    /// Once the target is final its parts come from neighbours. The coordinator may be done before all are here, and
    /// answers a report that crossed its commit as if it had never known of us; or it is dead.
    pub(super) fn needs_coordinator(&self) -> bool {
        self.committed.is_none()
    }

    /// Whether what it writes into goes by the target's id.
    pub(super) fn makes_target(&self) -> bool {
        self.seat.root || self.seat.part_bytes.is_some()
    }

    /// A root that has everything, and may seal.
    pub(super) fn is_done_root(&self) -> bool {
        let folded = matches!(self.state, State::Folded { .. });
        folded && self.seat.root && self.may_seal == MaySeal::Yes
    }

    fn new(seat: Seat) -> Self {
        Running {
            seat,
            state: State::Waiting,
            trouble: None,
            is_next: false,
            committed: None,
            may_seal: MaySeal::NotYet,
            asked: None,
        }
    }
}

/// Slots seated here, and all folds.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    pub(super) running: BTreeMap<Key, Running>,
    pub(super) folds: BTreeMap<FoldId, Fold>,
    epochs: Epochs,
}

impl Seats {
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// What is remembered of slots, in words; epochs are remembered for good.
    pub fn leftovers(&self) -> Vec<String> {
        let running = (!self.running.is_empty()).then(|| format!("seats: {:?}", self.running));
        let folds = (!self.folds.is_empty()).then(|| format!("folds: {:?}", self.folds));
        running.into_iter().chain(folds).collect()
    }

    /// Whether coordinators are to be told now and then how things stand.
    pub fn has_reports(&self) -> bool {
        !self.running.is_empty()
    }

    pub(super) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    pub(super) fn epochs_mut(&mut self) -> &mut Epochs {
        &mut self.epochs
    }

    /// The epoch that assignments of this coordinator must know of.
    pub fn fence_of(&self, coordinator: NodeId) -> u64 {
        self.epochs.fence_of(coordinator)
    }

    /// Targets in the making here of which no owner has said that they may be.
    pub fn unjudged(&self) -> Vec<CopyId> {
        let unjudged = |running: &Running| running.copy().filter(|_| running.may_seal == MaySeal::NotYet);
        let targets = self.running.values().filter(|running| running.makes_target());
        targets.filter_map(unjudged).collect()
    }

    pub fn has_unjudged(&self) -> bool {
        !self.unjudged().is_empty()
    }

    /// The owner whose word on this target counts.
    pub fn expect_verdict_from(&mut self, copy: CopyId, owner: NodeId) {
        let is_it = |running: &&mut Running| running.copy() == Some(copy);
        if let Some(running) = self.running.values_mut().find(is_it) {
            running.asked = Some(owner);
        }
    }

    pub(super) fn keys_of(&self, reduction: ReductionId) -> Vec<Key> {
        self.running.range((reduction, 0)..=(reduction, u32::MAX)).map(|(&key, _)| key).collect()
    }

    /// The slots seated for `coordinator` that still need it.
    pub(super) fn of(&self, coordinator: NodeId) -> Vec<Key> {
        let is_of = |((id, _), running): &(&Key, &Running)| {
            id.coordinator == coordinator && running.needs_coordinator()
        };
        self.running.iter().filter(is_of).map(|(&key, _)| key).collect()
    }

    /// How each slot stands, as its coordinator is to hear it.
    pub(super) fn reports(&self) -> Vec<(Key, PeerMessage)> {
        let open = self.running.iter().filter(|(_, running)| running.needs_coordinator());
        let running = open.map(|(&(reduction, slot), running)| {
            let attempt = running.seat.attempt;
            let message = match (running.trouble, running.state) {
                (Some(trouble), _) => PeerMessage::SeatFailed { reduction, slot, attempt, trouble },
                (None, State::Folded { .. }) if running.is_done_root() => {
                    PeerMessage::RootDone { reduction, slot, attempt }
                }
                _ => PeerMessage::SeatHeld { reduction, slot, attempt },
            };
            ((reduction, slot), message)
        });
        running.collect()
    }

    /// Ends the root's seat, if it has summed up all of this edition. A slot that failed here before may
    /// still be a root of the same attempt: the coordinator gave its place to another slot.
    pub(super) fn take_finished_root(&mut self, reduction: ReductionId, edition: Edition) -> Option<CopyId> {
        let mut of_reduction = self.running.range((reduction, 0)..=(reduction, u32::MAX));
        let root = of_reduction.find(|(_, running)| running.seat.root && running.seat.edition == edition);
        let (&key, &Running { state: State::Folded { copy }, .. }) = root? else { return None };
        self.running.remove(&key);
        Some(copy)
    }
}

impl Core {
    pub(crate) fn on_seat(&mut self, from: NodeId, reduction: ReductionId, seat: Seat) {
        let key = (reduction, seat.slot);
        match self.seats.running.get_mut(&key) {
            Some(running) if running.seat.version >= seat.version => {
                // Repeated: perhaps our word about it was lost.
                return self.say_trouble(key);
            }
            Some(running) if running.seat.attempt == seat.attempt && !seat.continues(&running.seat) => {
                let message = format!("slot {} of {reduction} as another one in one attempt", seat.slot);
                return self.on_bad_message(from, Error::new(ErrorKind::BadArgument, message));
            }
            Some(running) if running.seat.attempt == seat.attempt => {
                let told = std::mem::replace(&mut running.seat, seat);
                if let State::Folding { copy, fold } = running.state {
                    self.amend_seat(key, &told, copy, fold);
                }
            }
            running => {
                if running.is_some() {
                    self.drop_seat(key);
                }
                if self.declines_seat(key, seat.attempt, seat.epoch) {
                    return;
                }
                self.seats.running.insert(key, Running::new(seat));
            }
        }
        self.arm_refresh();
        self.try_seat(key);
    }

    /// Starts the fold if everything it needs from this node is here.
    pub(crate) fn try_seat(&mut self, key: Key) {
        let Some(Running { seat, state: State::Waiting, .. }) = self.seats.running.get(&key) else { return };
        let seat = seat.clone();
        let assembles = seat.part_bytes.is_some();
        // The parts of a target come one by one, those from here as well.
        let children = if assembles { &[] } else { &seat.children[..] };
        let sources = match self.local_inputs(&seat.sources, children) {
            Ok(Some(sources)) => sources,
            Ok(None) => return,
            Err(missing) => return self.seat_failed(key, SeatTrouble::Source(missing)),
        };
        if !self.copies.arena.could_hold(seat.size) {
            return self.seat_failed(key, SeatTrouble::NoRoom);
        }
        if self.is_taken(seat.out) {
            return self.seat_failed(key, SeatTrouble::Taken);
        }
        if self.must_make_way(key, &seat) {
            return self.wait_for_seat_room(key);
        }
        if let Some(stale) = self.copies.live(seat.out) {
            // A cached part of an attempt that is over.
            if assembles {
                self.withdraw(stale);
            }
            self.doom(stale);
        }
        // No one may throw the sources out while room is made for the sum.
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
        // room: looking once more for it would end here, for ever.
        let room_changed = self.room_changed;
        let opened = if assembles { self.open_target(key, &seat) } else { self.open_copy(new) };
        let Some(copy) = opened else {
            sources.iter().for_each(|&source| self.remove_user(source));
            self.room_changed = room_changed;
            return self.wait_for_seat_room(key);
        };
        self.end_wait_for_room(key);
        if assembles {
            return self.assemble(key, copy);
        }
        let rule = rule(&seat);
        let fold = self.start_fold(FoldFor::Seat(key), copy, rule, sources, &seat.children);
        self.set_seat_state(key, State::Folding { copy, fold });
        if seat.root {
            self.ask_for_verdict(copy);
            self.drop_fetch(seat.out);
        }
        self.on_opened(seat.out);
    }

    /// Whether the id has an object here that no reduction may push out: finished, or being written
    /// by a client.
    pub(super) fn is_taken(&self, id: ObjectId) -> bool {
        self.copies.sealed(id).is_some() || self.write_of(id).is_some()
    }

    /// The copies on this node that go into a fold: children here first (they hold what comes before
    /// our own sources), then the sources. `Ok(None)`: a child here has not started yet.
    pub(super) fn local_inputs(
        &self,
        sources: &[hoplite_words::peer::Source],
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

    pub(super) fn set_seat_state(&mut self, key: Key, state: State) {
        if let Some(running) = self.seats.running.get_mut(&key) {
            running.state = state;
        }
    }

    /// A copy was opened here: seats that waited for a child on this node may start.
    pub(crate) fn retry_seats(&mut self) {
        let waits = |running: &Running| matches!(running.state, State::Waiting | State::Assembling { .. });
        let waiting = self.seats.running.iter().filter(|(_, running)| waits(running));
        let keys: Vec<_> = waiting.map(|(&key, _)| key).collect();
        for key in keys {
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
        self.end_wait_for_room(key);
        let Some(running) = self.seats.running.remove(&key) else { return };
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
    }

    /// What a seat folds into was doomed (its target was deleted): the seat must not touch it again.
    pub(crate) fn seat_copy_gone(&mut self, gone: CopyId) {
        // Of one that is committed nothing more is heard from its coordinator.
        self.seats.running.retain(|_, running| running.needs_coordinator() || running.copy() != Some(gone));
        for running in self.seats.running.values_mut() {
            if running.copy() == Some(gone) {
                running.state = State::Failed;
            }
        }
    }

    /// The directory's word on a target that is made here. False if no such target is.
    pub(crate) fn judge_seat(&mut self, from: NodeId, edition: Edition, verdict: Verdict) -> bool {
        let is_it = |running: &Running| running.makes_target() && running.seat.edition == edition;
        let Some((&key, running)) = self.seats.running.iter_mut().find(|(_, running)| is_it(running)) else {
            return false;
        };
        if running.asked != Some(from) {
            return true;
        }
        if matches!(verdict, Verdict::Accepted(_)) {
            running.may_seal = MaySeal::Yes;
            self.on_may_seal(key);
        } else if running.committed.is_some() {
            self.drop_seat(key);
        } else {
            self.seat_failed(key, SeatTrouble::Refused(verdict));
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
            Some(_) => self.seal_assembly(key),
            None => self.say_root_done(key),
        }
    }
}

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
use std::time::Duration;

use hoplite_words::peer::{Child, PeerMessage, Seal, Seat, SeatTrouble};
use hoplite_words::{CopyId, Edition, NodeId, ObjectId, ReductionId, TransferId};

use crate::copies::{NewCopy, Phase};
use crate::fetch::{Feeds, Transfer};
use crate::io::{Broken, FoldId, FoldInputs, FoldRule, Output};
use crate::room::RoomFor;
use crate::Core;

pub(super) type Key = (ReductionId, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Folding {
        copy: CopyId,
        fold: FoldId,
    },
    Folded {
        copy: CopyId,
    },
    /// An input broke, or the target was deleted; the coordinator will seat anew or disband.
    Failed,
}

#[derive(Debug)]
struct Running {
    seat: Seat,
    state: State,
    /// What the coordinator was told, and is told again until it does something about it.
    trouble: Option<SeatTrouble>,
}

impl Running {
    fn new(seat: Seat) -> Self {
        Running { seat, state: State::Waiting, trouble: None }
    }
}

/// Why a fold runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FoldFor {
    Seat(Key),
    Small(u64),
}

#[derive(Debug)]
struct Fold {
    purpose: FoldFor,
    out: CopyId,
    sources: Vec<CopyId>,
    /// Which child slot each stream is.
    streams: BTreeMap<TransferId, u32>,
}

/// What is remembered of a slot whose coordinator seemed dead.
#[derive(Debug)]
pub(super) struct LetGo {
    /// The last one.
    pub attempt: u32,
    pub until: Duration,
    /// What was summed up: the directory may have been told of it.
    pub out: ObjectId,
    pub edition: Edition,
}

/// Slots seated here, and all folds.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    running: BTreeMap<Key, Running>,
    folds: BTreeMap<FoldId, Fold>,
    /// Slots dropped because their coordinator seemed dead.
    pub(super) let_go: BTreeMap<Key, LetGo>,
}

impl Seats {
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Whether coordinators are to be told now and then how things stand.
    pub fn has_reports(&self) -> bool {
        !self.running.is_empty() || !self.let_go.is_empty()
    }

    /// The slots seated for `coordinator`.
    pub(super) fn of(&self, coordinator: NodeId) -> impl Iterator<Item = (Key, &Seat)> + '_ {
        let of_node = self.running.iter().filter(move |((id, _), _)| id.coordinator == coordinator);
        of_node.map(|(&key, running)| (key, &running.seat))
    }

    /// How each slot stands, as its coordinator is to hear it.
    pub(super) fn reports(&self) -> Vec<(Key, PeerMessage)> {
        let running = self.running.iter().map(|(&(reduction, slot), running)| {
            let attempt = running.seat.attempt;
            let message = match (running.trouble, running.state) {
                (Some(trouble), _) => PeerMessage::SeatFailed { reduction, slot, attempt, trouble },
                (None, State::Folded { .. }) if running.seat.root => {
                    PeerMessage::RootDone { reduction, attempt }
                }
                _ => PeerMessage::SeatHeld { reduction, slot, attempt },
            };
            ((reduction, slot), message)
        });
        let let_go = self.let_go.iter().map(|(&(reduction, slot), &LetGo { attempt, .. })| {
            let trouble = SeatTrouble::LetGo;
            ((reduction, slot), PeerMessage::SeatFailed { reduction, slot, attempt, trouble })
        });
        running.chain(let_go).collect()
    }

    /// Ends the root's seat, if it has summed up all of this attempt.
    pub(super) fn take_finished_root(&mut self, reduction: ReductionId, attempt: u32) -> Option<CopyId> {
        let mut of_reduction = self.running.range((reduction, 0)..=(reduction, u32::MAX));
        let root = of_reduction.find(|(_, running)| running.seat.root && running.seat.attempt == attempt);
        let (&key, &Running { state: State::Folded { copy }, .. }) = root? else { return None };
        self.running.remove(&key);
        Some(copy)
    }
}

impl Core {
    pub(crate) fn on_seat(&mut self, reduction: ReductionId, seat: Seat) {
        let key = (reduction, seat.slot);
        match self.seats.running.get_mut(&key) {
            Some(running) if running.seat.version >= seat.version => {
                // Repeated: perhaps our word about it was lost.
                return self.say_trouble(key);
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
                } else if self.declines_seat(key, seat.attempt) {
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
        let sources = match self.local_inputs(&seat.sources, &seat.children) {
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
        if let Some(stale) = self.copies.live(seat.out) {
            // A cached part of an attempt that is over.
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
        };
        let Some(copy) = self.open_copy(new) else {
            // That they may be thrown out again is no news: looking for room once more would end here.
            let room_changed = self.room_changed;
            sources.iter().for_each(|&source| self.remove_user(source));
            self.room_changed = room_changed;
            return self.wait_for_room(RoomFor::Seat { reduction: key.0, slot: key.1 });
        };
        let rule = rule(&seat);
        let fold = self.start_fold(FoldFor::Seat(key), copy, rule, sources, &seat.children);
        self.set_seat_state(key, State::Folding { copy, fold });
        if seat.root {
            self.announce(copy, false, true);
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
    fn local_inputs(
        &self,
        sources: &[hoplite_words::peer::Source],
        children: &[Child],
    ) -> Result<Option<Vec<CopyId>>, ObjectId> {
        let here = |id: ObjectId, edition: Edition| {
            self.copies.live(id).filter(|copy| self.copies.table[copy].edition == edition)
        };
        let mut inputs = Vec::new();
        for child in children.iter().filter(|child| child.node == self.me) {
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

    /// How often the slot that is folded here was started over.
    pub(crate) fn attempt_of_fold(&self, fold: FoldId) -> u32 {
        match self.seats.folds.get(&fold).map(|fold| fold.purpose) {
            Some(FoldFor::Seat(key)) => self.seats.running.get(&key).map_or(0, |seat| seat.seat.attempt),
            _ => 0,
        }
    }

    /// Starts a fold whose sources are already counted as used.
    pub(super) fn start_fold(
        &mut self,
        purpose: FoldFor,
        out: CopyId,
        rule: FoldRule,
        sources: Vec<CopyId>,
        children: &[Child],
    ) -> FoldId {
        let fold = FoldId(self.next_number());
        self.copies.with(out, |copy| {
            copy.phase = Phase::Folded(Some(fold));
            copy.users += 1;
        });
        let streams = self.pull_children(fold, children);
        let inputs = FoldInputs {
            sources: sources.clone(),
            streams: streams.iter().map(|&(t, n, _)| (t, n)).collect(),
        };
        let by_transfer = streams.iter().map(|&(transfer, _, child)| (transfer, child)).collect();
        self.seats.folds.insert(fold, Fold { purpose, out, sources, streams: by_transfer });
        // The fold must expect its streams before anyone is asked to send them.
        self.out.push_back(Output::Fold { fold, out, rule, inputs });
        self.send_pulls(&streams, children);
        fold
    }

    fn pull_children(&mut self, fold: FoldId, children: &[Child]) -> Vec<(TransferId, NodeId, u32)> {
        let mut streams = Vec::new();
        let me = self.me;
        for child in children.iter().filter(|child| child.node != me) {
            let transfer = TransferId(self.next_number());
            self.fetches.transfers.insert(transfer, Transfer::new(child.node, Feeds::Fold(fold)));
            streams.push((transfer, child.node, child.slot));
        }
        streams
    }

    fn send_pulls(&mut self, streams: &[(TransferId, NodeId, u32)], children: &[Child]) {
        for &(transfer, node, slot) in streams {
            let child = children.iter().find(|child| child.slot == slot).expect("made from the children");
            let (id, edition) = (child.id, child.edition);
            self.send(node, PeerMessage::Pull { transfer, id, edition, offset: 0, patient: true }, None);
        }
    }

    /// The same attempt with more inputs, closed, or become the root.
    fn amend_seat(&mut self, key: Key, told: &Seat, copy: CopyId, fold: FoldId) {
        let seat = self.seats.running[&key].seat.clone();
        if seat.root && !told.root && self.is_taken(seat.out) {
            return self.seat_failed(key, SeatTrouble::Taken);
        }
        let children: Vec<_> =
            seat.children.iter().filter(|child| !told.children.contains(child)).cloned().collect();
        let added = match self.local_inputs(&seat.sources[told.sources.len()..], &children) {
            Ok(Some(added)) => added,
            // A child here that is not ready yet, or a source that is gone: the coordinator restarts
            // the slot, which then waits for its inputs as a whole.
            Ok(None) => {
                let child = children.iter().find(|child| child.node == self.me).expect("one was missing");
                return self.seat_failed(key, SeatTrouble::Child(child.slot));
            }
            Err(missing) => return self.seat_failed(key, SeatTrouble::Source(missing)),
        };
        added.iter().for_each(|&source| self.add_user(source));
        let streams = self.pull_children(fold, &children);
        let inputs =
            FoldInputs { sources: added.clone(), streams: streams.iter().map(|&(t, n, _)| (t, n)).collect() };
        if let Some(running) = self.seats.folds.get_mut(&fold) {
            running.sources.extend(added);
            running.streams.extend(streams.iter().map(|&(transfer, _, child)| (transfer, child)));
        }
        if seat.root && !told.root {
            self.become_root(copy, &seat);
        }
        self.out.push_back(Output::AmendFold { fold, rule: rule(&seat), added: inputs });
        self.send_pulls(&streams, &children);
        if seat.root && !told.root {
            self.on_opened(seat.out);
        }
    }

    /// What was a partial sum turns out to be the target.
    fn become_root(&mut self, copy: CopyId, seat: &Seat) {
        if let Some(stale) = self.copies.live(seat.out) {
            self.doom(stale);
        }
        self.copies.rename(copy, seat.out);
        self.copies.with(copy, |copy| {
            copy.pinned = true;
            copy.public = true;
        });
        self.announce(copy, false, true);
        self.drop_fetch(seat.out);
    }

    fn set_seat_state(&mut self, key: Key, state: State) {
        if let Some(running) = self.seats.running.get_mut(&key) {
            running.state = state;
        }
    }

    /// The slot cannot go on by itself.
    fn seat_failed(&mut self, key: Key, trouble: SeatTrouble) {
        let Some(running) = self.seats.running.get_mut(&key) else { return };
        running.trouble = Some(trouble);
        if running.state == State::Waiting {
            running.state = State::Failed;
        }
        self.say_trouble(key);
    }

    fn say_trouble(&mut self, key: Key) {
        let (reduction, slot) = key;
        let Some(Running { seat, trouble: Some(trouble), .. }) = self.seats.running.get(&key) else { return };
        let failed = PeerMessage::SeatFailed { reduction, slot, attempt: seat.attempt, trouble: *trouble };
        self.send(reduction.coordinator, failed, None);
    }

    /// A copy was opened here: seats that waited for a child on this node may start.
    pub(crate) fn retry_seats(&mut self) {
        let waiting = self.seats.running.iter().filter(|(_, running)| running.state == State::Waiting);
        let keys: Vec<_> = waiting.map(|(&key, _)| key).collect();
        for key in keys {
            self.try_seat(key);
        }
    }

    pub(crate) fn on_fold_stream_broken(&mut self, fold: FoldId, transfer: TransferId) {
        let Some(running) = self.seats.folds.get(&fold) else { return };
        if let (FoldFor::Seat(key), Some(&child)) = (running.purpose, running.streams.get(&transfer)) {
            let current = self.seats.running.get(&key).map(|running| running.state);
            if matches!(current, Some(State::Folding { fold: now, .. }) if now == fold) {
                self.seat_failed(key, SeatTrouble::Child(child));
            }
        }
    }

    pub(crate) fn on_fold_ended(&mut self, id: FoldId, outcome: Result<(), Broken>) {
        let Some(fold) = self.seats.folds.remove(&id) else { return };
        for transfer in fold.streams.keys() {
            if let Some(Transfer { from, .. }) = self.fetches.transfers.remove(transfer) {
                if outcome.is_err() {
                    // It may still be waiting there for a copy that opens late.
                    self.send(from, PeerMessage::Unpull { transfer: *transfer }, None);
                }
            }
        }
        let out = &mut self.copies.table.get_mut(&fold.out).expect("used by the fold");
        let doomed = out.doomed;
        if !doomed {
            out.phase = Phase::Folded(None);
        }
        match fold.purpose {
            _ if doomed => {}
            FoldFor::Seat(key) => self.on_seat_folded(key, &fold, outcome),
            FoldFor::Small(number) => self.on_small_folded(number, fold.out, outcome),
        }
        fold.sources.iter().for_each(|&source| self.remove_user(source));
        self.remove_user(fold.out);
    }

    fn on_seat_folded(&mut self, key: Key, fold: &Fold, outcome: Result<(), Broken>) {
        let Some(running) = self.seats.running.get_mut(&key) else { return };
        let (root, attempt) = (running.seat.root, running.seat.attempt);
        match outcome {
            Ok(()) => {
                running.state = State::Folded { copy: fold.out };
                if root {
                    let (reduction, _) = key;
                    self.send(reduction.coordinator, PeerMessage::RootDone { reduction, attempt }, None);
                } else {
                    self.seal_copy(fold.out, Seal::default());
                }
            }
            Err(Broken) => {
                // An input was abandoned under us: a put was aborted, or another attempt.
                let seat = &running.seat;
                let gone = |id: ObjectId, edition: Edition| {
                    self.copies.live_copy(id).map(|copy| copy.edition) != Some(edition)
                };
                let source = seat.sources.iter().find(|source| gone(source.id, source.edition));
                let mut children = seat.children.iter().filter(|child| child.node == self.me);
                let child = children.find(|child| gone(child.id, child.edition));
                let trouble = match (source, child) {
                    (Some(source), _) => SeatTrouble::Source(source.id),
                    (None, Some(child)) => SeatTrouble::Child(child.slot),
                    (None, None) => SeatTrouble::LetGo,
                };
                self.seat_failed(key, trouble);
                self.withdraw(fold.out);
                self.doom(fold.out);
            }
        }
    }

    pub(crate) fn on_disband(&mut self, reduction: ReductionId) {
        let keys: Vec<_> =
            self.seats.running.range((reduction, 0)..=(reduction, u32::MAX)).map(|(&key, _)| key).collect();
        for key in keys {
            self.drop_seat(key);
        }
        self.seats.let_go.retain(|(id, _), _| *id != reduction);
    }

    /// Ends a seat; what it folded so far is abandoned.
    pub(super) fn drop_seat(&mut self, key: Key) {
        let Some(running) = self.seats.running.remove(&key) else { return };
        self.room.retain(|what| *what != RoomFor::Seat { reduction: key.0, slot: key.1 });
        if let State::Folding { copy, .. } | State::Folded { copy } = running.state {
            // A finished partial sum may have been evicted meanwhile.
            if self.copies.table.get(&copy).is_some_and(|copy| !copy.doomed) {
                self.withdraw(copy);
                self.doom(copy);
            }
        }
    }

    /// What a seat folds into was doomed (its target was deleted): the seat must not touch it again.
    pub(crate) fn seat_copy_gone(&mut self, gone: CopyId) {
        for running in self.seats.running.values_mut() {
            if let State::Folding { copy, .. } | State::Folded { copy } = running.state {
                if copy == gone {
                    running.state = State::Failed;
                }
            }
        }
    }

    /// The directory refuses the target (deleted, or there with another size).
    pub(crate) fn on_target_rejected(&mut self, edition: Edition) {
        let found = self.seats.running.iter().find(|(_, running)| running.seat.edition == edition);
        if let Some((&key, _)) = found {
            self.drop_seat(key);
        }
    }

    /// The control connection to `node` broke: a pull may be lost, so streams from it are suspect.
    pub(crate) fn seats_peer_broken(&mut self, node: NodeId) {
        let suspect = self.fetches.transfers.iter().filter(|(_, transfer)| transfer.from == node);
        let suspect: Vec<_> = suspect
            .filter_map(
                |(&id, transfer)| {
                    if let Feeds::Fold(fold) = transfer.feeds {
                        Some((fold, id))
                    } else {
                        None
                    }
                },
            )
            .collect();
        for (fold, transfer) in suspect {
            self.on_fold_stream_broken(fold, transfer);
        }
    }
}

fn rule(seat: &Seat) -> FoldRule {
    FoldRule { op: seat.op, dtype: seat.dtype, divide_by: seat.divide_by, open: seat.open }
}

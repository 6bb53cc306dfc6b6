//! The slots of reduction trees on this node, and all folds.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::peer::{PeerMessage, SlotAssignment, SlotFailure};
use hoplite_types::{CopyId, Edition, NodeId, ObjectId, ReductionId};

use super::epochs::Epochs;
use super::folds::Fold;

use crate::io::FoldId;

/// A slot of a reduction.
pub(super) type SlotKey = (ReductionId, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Folding {
        copy: CopyId,
        fold: FoldId,
    },
    /// The parts of the target arrive separately (see `allgather`).
    Gathering {
        copy: CopyId,
    },
    Folded {
        copy: CopyId,
    },
    /// An input broke, or the target was deleted. The coordinator will assign the slot anew or release it.
    Failed,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) assignment: SlotAssignment,
    pub(super) state: State,
    /// The failure that is reported to the coordinator, again and again until it reacts.
    pub(super) failure: Option<SlotFailure>,
    /// The target may be sealed, over these sources, as soon as all of its parts are here.
    pub(super) committed: Option<Vec<ObjectId>>,
    /// Where the target is made: whether its owner knows that, so that a deletion waits for us.
    pub(super) may_seal: MaySeal,
    /// The owner whose verdict counts.
    pub(super) asked: Option<NodeId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MaySeal {
    NotYet,
    Yes,
}

impl Running {
    /// The copy that it writes into.
    pub(super) fn copy(&self) -> Option<CopyId> {
        match self.state {
            State::Folding { copy, .. } | State::Gathering { copy } | State::Folded { copy } => Some(copy),
            State::Waiting | State::Failed => None,
        }
    }

    /// Once the target is final, its parts come from neighbours. The coordinator may be done before all are here, and
    /// then answers a report that crossed its commit as if it did not know us; or it may be dead.
    pub(super) fn needs_coordinator(&self) -> bool {
        self.committed.is_none()
    }

    /// Whether it is a root with the complete sum, which may be sealed.
    pub(super) fn is_done_root(&self) -> bool {
        let folded = matches!(self.state, State::Folded { .. });
        folded && self.assignment.root && self.may_seal == MaySeal::Yes
    }

    pub(super) fn new(assignment: SlotAssignment) -> Self {
        Running {
            assignment,
            state: State::Waiting,
            failure: None,
            committed: None,
            may_seal: MaySeal::NotYet,
            asked: None,
        }
    }
}

/// Whether the slot writes into a copy under the target's id.
fn makes_target(assignment: &SlotAssignment) -> bool {
    assignment.root || assignment.part_bytes.is_some()
}

/// The slots here, and all folds.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Changed only by the functions here, which keep the indexes below in step.
    pub(super) running: BTreeMap<SlotKey, Running>,
    by_copy: BTreeMap<CopyId, SlotKey>,
    by_child: BTreeMap<ObjectId, BTreeSet<SlotKey>>,
    /// The slots that make targets.
    by_edition: BTreeMap<Edition, BTreeSet<SlotKey>>,
    /// Slots for which others have been preempted. The space goes to no slot behind them while they wait.
    preempting: BTreeSet<SlotKey>,
    pub(super) folds: BTreeMap<FoldId, Fold>,
    epochs: Epochs,
}

impl Slots {
    pub(super) fn insert(&mut self, key: SlotKey, running: Running) {
        self.list(key, &running.assignment);
        self.running.insert(key, running);
    }

    /// Whether a root here has the complete sum, and waits for the commit.
    pub fn await_commits(&self) -> bool {
        self.running
            .values()
            .any(|running| running.assignment.root && matches!(running.state, State::Folded { .. }))
    }

    pub(super) fn remove(&mut self, key: SlotKey) -> Option<Running> {
        let running = self.running.remove(&key)?;
        self.unlist(key, &running.assignment);
        self.preempting.remove(&key);
        if let Some(copy) = running.copy() {
            self.by_copy.remove(&copy);
        }
        Some(running)
    }

    fn list(&mut self, key: SlotKey, assignment: &SlotAssignment) {
        for child in &assignment.children {
            self.by_child.entry(child.id).or_default().insert(key);
        }
        if makes_target(assignment) {
            self.by_edition.entry(assignment.edition).or_default().insert(key);
        }
    }

    fn unlist(&mut self, key: SlotKey, assignment: &SlotAssignment) {
        for child in &assignment.children {
            let Some(parents) = self.by_child.get_mut(&child.id) else { continue };
            parents.remove(&key);
            if parents.is_empty() {
                self.by_child.remove(&child.id);
            }
        }
        if let Some(makers) = self.by_edition.get_mut(&assignment.edition) {
            makers.remove(&key);
            if makers.is_empty() {
                self.by_edition.remove(&assignment.edition);
            }
        }
    }

    /// Returns the previous assignment.
    pub(super) fn replace_assignment(
        &mut self,
        key: SlotKey,
        assignment: SlotAssignment,
    ) -> Option<SlotAssignment> {
        let previous = self.running.get(&key)?.assignment.clone();
        self.unlist(key, &previous);
        self.list(key, &assignment);
        self.running.get_mut(&key)?.assignment = assignment;
        Some(previous)
    }

    pub(super) fn set_state(&mut self, key: SlotKey, state: State) {
        let Some(running) = self.running.get_mut(&key) else { return };
        if let Some(copy) = running.copy() {
            self.by_copy.remove(&copy);
        }
        running.state = state;
        if let Some(copy) = running.copy() {
            self.by_copy.insert(copy, key);
        }
    }

    /// The slot that writes into this copy.
    pub(super) fn key_of(&self, copy: CopyId) -> Option<SlotKey> {
        self.by_copy.get(&copy).copied()
    }

    /// The slot that makes this edition of a target, even if it failed and its copy is gone.
    pub(super) fn target_of(&self, edition: Edition) -> Option<SlotKey> {
        self.by_edition.get(&edition)?.first().copied()
    }

    /// Other slots were preempted for this one.
    pub(super) fn begin_preemption(&mut self, key: SlotKey) {
        self.preempting.insert(key);
    }

    /// The preemption is over. Returns whether there was one.
    pub(super) fn end_preemption(&mut self, key: SlotKey) -> bool {
        self.preempting.remove(&key)
    }

    /// The slots that wait for space for which others were preempted.
    pub(super) fn preempting(&self) -> impl Iterator<Item = SlotKey> + '_ {
        self.preempting.iter().copied().filter(|key| self.running[key].state == State::Waiting)
    }

    /// The slots that may start when a copy of this child is opened here.
    pub(super) fn awaiting(&self, child: ObjectId) -> Vec<SlotKey> {
        let parents = self.by_child.get(&child).into_iter().flatten().copied();
        parents
            .filter(|key| matches!(self.running[key].state, State::Waiting | State::Gathering { .. }))
            .collect()
    }

    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// Describes the slots that are left, in words. Epochs are not included: they are remembered for good.
    pub fn leftovers(&self) -> Vec<String> {
        let running = (!self.running.is_empty()).then(|| format!("slots: {:?}", self.running));
        let folds = (!self.folds.is_empty()).then(|| format!("folds: {:?}", self.folds));
        running.into_iter().chain(folds).collect()
    }

    /// Whether there are slots to report to their coordinators.
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

    /// Targets being made here that no owner has accepted yet.
    pub fn awaiting_verdict(&self) -> Vec<CopyId> {
        let awaiting_verdict =
            |running: &Running| running.copy().filter(|_| running.may_seal == MaySeal::NotYet);
        let targets = self.running.values().filter(|running| makes_target(&running.assignment));
        targets.filter_map(awaiting_verdict).collect()
    }

    pub fn awaits_verdict(&self) -> bool {
        !self.awaiting_verdict().is_empty()
    }

    /// Sets the owner whose verdict on this target counts.
    pub fn expect_verdict_from(&mut self, copy: CopyId, owner: NodeId) {
        if let Some(running) = self.key_of(copy).and_then(|key| self.running.get_mut(&key)) {
            running.asked = Some(owner);
        }
    }

    pub(super) fn keys_of(&self, reduction: ReductionId) -> Vec<SlotKey> {
        self.running.range((reduction, 0)..=(reduction, u32::MAX)).map(|(&key, _)| key).collect()
    }

    /// The slots here of `coordinator` that still need it.
    pub(super) fn of(&self, coordinator: NodeId) -> Vec<SlotKey> {
        let is_of = |((id, _), running): &(&SlotKey, &Running)| {
            id.coordinator == coordinator && running.needs_coordinator()
        };
        self.running.iter().filter(is_of).map(|(&key, _)| key).collect()
    }

    /// The report of each slot to its coordinator.
    pub(super) fn reports(&self) -> Vec<(SlotKey, PeerMessage)> {
        let open = self.running.iter().filter(|(_, running)| running.needs_coordinator());
        let running = open.map(|(&(reduction, slot), running)| {
            let attempt = running.assignment.attempt;
            let message = match (running.failure, running.state) {
                (Some(failure), _) => PeerMessage::SlotFailed { reduction, slot, attempt, failure },
                (None, State::Folded { .. }) if running.is_done_root() => {
                    PeerMessage::RootDone { reduction, slot, attempt }
                }
                _ => PeerMessage::SlotHeld { reduction, slot, attempt },
            };
            ((reduction, slot), message)
        });
        running.collect()
    }

    /// Ends the root's slot, if it has the complete sum of this edition. A slot that failed here before may still be
    /// marked as a root of the same attempt: the coordinator gave its place to another slot.
    pub(super) fn take_finished_root(&mut self, reduction: ReductionId, edition: Edition) -> Option<CopyId> {
        let mut of_reduction = self.running.range((reduction, 0)..=(reduction, u32::MAX));
        let root = of_reduction
            .find(|(_, running)| running.assignment.root && running.assignment.edition == edition);
        let (&key, &Running { state: State::Folded { copy }, .. }) = root? else { return None };
        self.remove(key);
        Some(copy)
    }
}

//! The state of each slot here, and how slots are found.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::peer::{SlotAssignment, SlotFailure};
use hoplite_types::{CopyId, Edition, NodeId, ObjectId, ReductionId};

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
    /// Every byte is there.
    Folded {
        copy: CopyId,
    },
    /// An input broke, or the target was deleted. The coordinator will assign the slot anew or release it.
    Failed,
}

impl State {
    /// The copy that is written into.
    pub fn copy(self) -> Option<CopyId> {
        match self {
            State::Folding { copy, .. } | State::Gathering { copy } | State::Folded { copy } => Some(copy),
            State::Waiting | State::Failed => None,
        }
    }
}

/// Whether the target's owner knows that this node makes it, so that a deletion waits for us. Only then it may be
/// sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acceptance {
    Unasked,
    /// This owner's verdict counts.
    Asked(NodeId),
    Accepted(NodeId),
}

impl Acceptance {
    pub fn is_accepted(self) -> bool {
        matches!(self, Acceptance::Accepted(_))
    }

    /// The owner whose verdict counts.
    pub fn owner(self) -> Option<NodeId> {
        match self {
            Acceptance::Unasked => None,
            Acceptance::Asked(owner) | Acceptance::Accepted(owner) => Some(owner),
        }
    }

    fn expect_from(&mut self, owner: NodeId) {
        *self = match self {
            Acceptance::Accepted(_) => Acceptance::Accepted(owner),
            Acceptance::Unasked | Acceptance::Asked(_) => Acceptance::Asked(owner),
        }
    }
}

/// The copy that a slot makes.
#[derive(Debug)]
pub(super) enum Makes {
    /// A partial sum, for the slot's parent.
    Sum,
    /// The target, from the slot's inputs.
    Root(Acceptance),
    /// The target, from its parts. Once the coordinator has committed: the sources that took part. Then it is sealed as
    /// soon as all parts are here.
    Whole(Acceptance, Option<Vec<ObjectId>>),
}

#[derive(Debug)]
pub(super) struct Running {
    pub assignment: SlotAssignment,
    pub state: State,
    pub makes: Makes,
    /// The failure that is reported to the coordinator, again and again until it reacts.
    pub failure: Option<SlotFailure>,
}

impl Running {
    pub fn new(assignment: SlotAssignment) -> Self {
        let makes = match (assignment.part_bytes, assignment.root) {
            (Some(_), _) => Makes::Whole(Acceptance::Unasked, None),
            (None, true) => Makes::Root(Acceptance::Unasked),
            (None, false) => Makes::Sum,
        };
        Running { assignment, state: State::Waiting, makes, failure: None }
    }

    /// Once the target is final, its parts come from neighbours. The coordinator may be done before all are here, and
    /// then answers a report that crossed its commit as if it did not know us; or it may be dead.
    pub fn needs_coordinator(&self) -> bool {
        !matches!(self.makes, Makes::Whole(_, Some(_)))
    }

    pub fn acceptance(&self) -> Option<Acceptance> {
        match self.makes {
            Makes::Sum => None,
            Makes::Root(acceptance) | Makes::Whole(acceptance, _) => Some(acceptance),
        }
    }

    fn acceptance_mut(&mut self) -> Option<&mut Acceptance> {
        match &mut self.makes {
            Makes::Sum => None,
            Makes::Root(acceptance) | Makes::Whole(acceptance, _) => Some(acceptance),
        }
    }

    /// Whether it is a root with the complete sum.
    pub fn is_complete_root(&self) -> bool {
        self.assignment.root && matches!(self.state, State::Folded { .. })
    }

    /// Whether it is a root with the complete sum, which may be sealed.
    pub fn is_done_root(&self) -> bool {
        self.is_complete_root() && self.acceptance().is_some_and(Acceptance::is_accepted)
    }
}

/// Whether the slot writes into a copy under the target's id.
fn makes_target(assignment: &SlotAssignment) -> bool {
    assignment.root || assignment.part_bytes.is_some()
}

/// All slots here. Every change goes through the functions below, which keep the indexes in step.
#[derive(Debug, Default)]
pub(super) struct Table {
    running: BTreeMap<SlotKey, Running>,
    by_copy: BTreeMap<CopyId, SlotKey>,
    by_child: BTreeMap<ObjectId, BTreeSet<SlotKey>>,
    /// The slots that make targets.
    by_edition: BTreeMap<Edition, BTreeSet<SlotKey>>,
    /// Slots for which others have been preempted. The space goes to no slot behind them while they wait.
    preempting: BTreeSet<SlotKey>,
}

impl Table {
    pub fn get(&self, key: SlotKey) -> Option<&Running> {
        self.running.get(&key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (SlotKey, &Running)> {
        self.running.iter().map(|(&key, running)| (key, running))
    }

    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// The assignment of a slot that has not started.
    pub fn waiting(&self, key: SlotKey) -> Option<&SlotAssignment> {
        self.running.get(&key).filter(|running| running.state == State::Waiting).map(|r| &r.assignment)
    }

    pub fn insert(&mut self, key: SlotKey, running: Running) {
        self.list(key, &running.assignment);
        self.running.insert(key, running);
    }

    pub fn remove(&mut self, key: SlotKey) -> Option<Running> {
        let running = self.running.remove(&key)?;
        self.unlist(key, &running.assignment);
        self.preempting.remove(&key);
        if let Some(copy) = running.state.copy() {
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
            // It may be named by two children of the assignment.
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

    /// Replaces the assignment of a slot by one that continues the same attempt, and returns the previous one.
    pub fn replace_assignment(&mut self, key: SlotKey, assignment: SlotAssignment) -> SlotAssignment {
        let previous = self.running[&key].assignment.clone();
        self.unlist(key, &previous);
        self.list(key, &assignment);
        let running = self.running.get_mut(&key).expect("just seen");
        if assignment.root && matches!(running.makes, Makes::Sum) {
            running.makes = Makes::Root(Acceptance::Unasked);
        }
        std::mem::replace(&mut running.assignment, assignment)
    }

    /// The slot's reduction lacks nothing but space.
    pub fn note_not_lacking(&mut self, key: SlotKey) {
        self.running.get_mut(&key).expect("the caller's").assignment.lacking = false;
    }

    pub fn set_state(&mut self, key: SlotKey, state: State) {
        let running = self.running.get_mut(&key).expect("the caller's");
        let previous = std::mem::replace(&mut running.state, state);
        if let Some(copy) = previous.copy() {
            self.by_copy.remove(&copy);
        }
        if let Some(copy) = state.copy() {
            self.by_copy.insert(copy, key);
        }
    }

    pub fn set_failure(&mut self, key: SlotKey, failure: SlotFailure) {
        self.running.get_mut(&key).expect("the caller's").failure = Some(failure);
    }

    /// The slot puts a target together that is final now, over these sources.
    pub fn set_committed(&mut self, key: SlotKey, sources: Vec<ObjectId>) {
        match &mut self.running.get_mut(&key).expect("the caller's").makes {
            Makes::Whole(_, committed) => *committed = Some(sources),
            other => unreachable!("parts of {other:?}"),
        }
    }

    /// Sets the owner whose verdict on the target counts.
    pub fn expect_verdict_from(&mut self, key: SlotKey, owner: NodeId) {
        if let Some(acceptance) = self.running.get_mut(&key).expect("the caller's").acceptance_mut() {
            acceptance.expect_from(owner);
        }
    }

    /// The owner whose verdict counts has accepted the target.
    pub fn accept(&mut self, key: SlotKey, owner: NodeId) {
        let acceptance = self.running.get_mut(&key).expect("the caller's").acceptance_mut();
        *acceptance.expect("it makes a target") = Acceptance::Accepted(owner);
    }

    /// The slot that writes into this copy.
    pub fn key_of(&self, copy: CopyId) -> Option<SlotKey> {
        self.by_copy.get(&copy).copied()
    }

    /// The slot that makes this edition of a target, even if it failed and its copy is gone.
    pub fn target_of(&self, edition: Edition) -> Option<SlotKey> {
        self.by_edition.get(&edition)?.first().copied()
    }

    /// Other slots were preempted for this one.
    pub fn begin_preemption(&mut self, key: SlotKey) {
        self.preempting.insert(key);
    }

    /// The preemption is over. Returns whether there was one.
    pub fn end_preemption(&mut self, key: SlotKey) -> bool {
        self.preempting.remove(&key)
    }

    /// The slots that wait for space for which others were preempted.
    pub fn preempting(&self) -> impl Iterator<Item = SlotKey> + '_ {
        self.preempting.iter().copied().filter(|key| self.running[key].state == State::Waiting)
    }

    /// The slots that may start when a copy of this child is opened here.
    pub fn awaiting(&self, child: ObjectId) -> Vec<SlotKey> {
        let parents = self.by_child.get(&child).into_iter().flatten().copied();
        parents
            .filter(|key| matches!(self.running[key].state, State::Waiting | State::Gathering { .. }))
            .collect()
    }

    pub fn keys_of(&self, reduction: ReductionId) -> Vec<SlotKey> {
        self.running.range((reduction, 0)..=(reduction, u32::MAX)).map(|(&key, _)| key).collect()
    }

    /// The slots here of `coordinator` that still need it.
    pub fn of_coordinator(&self, coordinator: NodeId) -> Vec<SlotKey> {
        let is_of = |((id, _), running): &(&SlotKey, &Running)| {
            id.coordinator == coordinator && running.needs_coordinator()
        };
        self.running.iter().filter(is_of).map(|(&key, _)| key).collect()
    }

    /// Ends the root's slot, if it has the complete sum of this edition. A slot that failed here before may still be
    /// marked as a root of the same attempt: the coordinator gave its place to another slot.
    pub fn take_finished_root(&mut self, reduction: ReductionId, edition: Edition) -> Option<CopyId> {
        let mut of_reduction = self.running.range((reduction, 0)..=(reduction, u32::MAX));
        let root = of_reduction
            .find(|(_, running)| running.assignment.root && running.assignment.edition == edition);
        let (&key, &Running { state: State::Folded { copy }, .. }) = root? else { return None };
        self.remove(key);
        Some(copy)
    }

    pub fn leftovers(&self) -> Option<String> {
        (!self.running.is_empty()).then(|| format!("slots: {:?}", self.running))
    }
}

//! The state of one reduction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::peer::SlotAssignment;
use hoplite_types::{CopyId, Dtype, Edition, Header, NodeId, ObjectId, ReductionId, Stamp};

use super::commit::Commitment;
use super::reduce_scatter::STRIPINGS_MAX;
use super::request::Request;
use super::small::Small;
use super::{Policy, SlotReport};
use crate::cost::Degree;
use crate::io::ClientId;

/// Properties that all sources share; taken from the first one.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub size: u64,
    pub header: Header,
    pub dtype: Dtype,
}

/// A source that takes part, by its index in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chosen {
    pub index: usize,
    pub edition: Edition,
}

/// A place in the tree, and the last assignment for it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// `None`: vacant, its node died.
    pub node: Option<NodeId>,
    pub sources: Vec<Chosen>,
    pub attempt: u32,
    /// The version of the last assignment.
    pub version: u32,
    pub assigned: Option<(NodeId, SlotAssignment)>,
    /// It was assigned under `attempt` before; a new assignment needs a new one.
    pub used: bool,
    /// Start over although nothing about it changed: one of its inputs broke off.
    pub restart: bool,
}

/// Whether the owners have reported all sources that they knew at the start.
#[derive(Debug)]
pub(super) enum Barrier {
    /// Not all sources are watched yet.
    Watching,
    /// These questions are open. Their answers mark that the owners have reported those sources.
    Asked(BTreeSet<u64>),
    Passed,
}

/// The right to make the target. Its owner gives it to one reduction, or put, at a time.
#[derive(Debug)]
pub(super) enum Right {
    /// This owner was asked last. The root may be done meanwhile, if the right was lost while we were believed dead.
    Asked { owner: NodeId, done_root: Option<SlotReport> },
    /// It was given at this time.
    Given { owner: NodeId, stamp: Stamp },
}

impl Right {
    /// The owner whose verdict counts.
    pub fn owner(&self) -> NodeId {
        match *self {
            Right::Asked { owner, .. } | Right::Given { owner, .. } => owner,
        }
    }

    pub fn stamp(&self) -> Option<Stamp> {
        match *self {
            Right::Asked { .. } => None,
            Right::Given { stamp, .. } => Some(stamp),
        }
    }

    pub fn expect_from(&mut self, asked: NodeId) {
        match self {
            Right::Asked { owner, .. } | Right::Given { owner, .. } => *owner = asked,
        }
    }
}

/// How the sum is made.
#[derive(Debug)]
pub(super) enum Stage {
    /// Along a tree of slots, which grows as sources arrive; before that, nothing is made.
    Tree,
    /// In stripes, by these assignments: the slots of all stripes; and one more slot, the same for every node, that
    /// assembles the target. The tree's slots only record the chosen sources, and are sent no assignments.
    Stripes(Vec<(NodeId, SlotAssignment)>),
    /// By the coordinator itself.
    Small(Small),
    /// It is final; only the root's answer is missing.
    Committed(Commitment),
}

#[derive(Debug)]
pub(super) struct Reduction {
    pub id: ReductionId,
    pub client: ClientId,
    /// The call to answer; `None` if nobody waits for the reply.
    pub call: Option<u64>,
    pub request: Request,
    pub policy: Policy,
    /// The place of each source in the request.
    pub places: BTreeMap<ObjectId, usize>,
    pub barrier: Barrier,
    /// Whether it may make its target.
    pub right: Right,
    pub facts: Option<Facts>,
    pub degree: Degree,
    pub stage: Stage,
    /// Slots in order of position.
    pub slots: Vec<(u32, Slot)>,
    pub next_slot: u32,
    /// Every node that was ever assigned a slot.
    pub participants: BTreeSet<NodeId>,
    /// Reports that proved wrong: their copies are not chosen again.
    pub bad: BTreeSet<(usize, NodeId, Edition)>,
    pub deleted: BTreeSet<usize>,
    /// The size up to which sources are folded here, without a tree.
    pub small_bytes_max: u64,
    /// Small sources that came with their notifications, by index.
    pub brought: BTreeMap<usize, CopyId>,
    /// Allreduce: nodes that were sent a prefetch of the target.
    pub prefetched: BTreeSet<NodeId>,
    /// The time of the next look at arrivals, if there are many slots.
    pub next_look: Duration,
    /// When the first of the current slots was assigned.
    pub began: Option<Duration>,
    /// How often it may be striped (again).
    pub stripings_left: u32,
}

impl Reduction {
    /// A reduction of which nothing is known yet. Its target's owner is about to be asked for the right to make it.
    pub fn new(id: ReductionId, (client, call): (ClientId, u64), request: Request, owner: NodeId) -> Self {
        let places = request.sources.iter().enumerate().map(|(place, &source)| (source, place)).collect();
        Reduction {
            id,
            client,
            call: Some(call),
            request,
            policy: Policy::default(),
            places,
            barrier: Barrier::Watching,
            right: Right::Asked { owner, done_root: None },
            facts: None,
            degree: Degree::Chain,
            stage: Stage::Tree,
            slots: Vec::new(),
            next_slot: 0,
            participants: BTreeSet::new(),
            bad: BTreeSet::new(),
            deleted: BTreeSet::new(),
            small_bytes_max: 0,
            brought: BTreeMap::new(),
            prefetched: BTreeSet::new(),
            next_look: Duration::ZERO,
            began: None,
            stripings_left: STRIPINGS_MAX,
        }
    }

    pub fn target(&self) -> ObjectId {
        self.request.target
    }

    pub fn k(&self) -> usize {
        self.request.k as usize
    }

    /// The facts, once the reduction is past learning them.
    pub fn facts(&self) -> &Facts {
        self.facts.as_ref().expect("learnt before anything is made")
    }

    pub fn is_striped(&self) -> bool {
        matches!(self.stage, Stage::Stripes(_))
    }

    pub fn small_mut(&mut self) -> Option<&mut Small> {
        match &mut self.stage {
            Stage::Small(small) => Some(small),
            Stage::Tree | Stage::Stripes(_) | Stage::Committed(_) => None,
        }
    }

    pub fn commitment(&self) -> Option<&Commitment> {
        match &self.stage {
            Stage::Committed(commitment) => Some(commitment),
            Stage::Tree | Stage::Stripes(_) | Stage::Small(_) => None,
        }
    }

    /// The place of the object in the list of sources.
    pub fn index_of(&self, object: ObjectId) -> Option<usize> {
        self.places.get(&object).copied()
    }

    pub fn chosen_count(&self) -> usize {
        self.slots.iter().map(|(_, slot)| slot.sources.len()).sum()
    }

    /// The sources that take part, by their indices.
    pub fn chosen(&self) -> BTreeSet<usize> {
        self.slots.iter().flat_map(|(_, slot)| slot.sources.iter().map(|chosen| chosen.index)).collect()
    }

    /// All current assignments, each with its node. A committed reduction has none.
    pub fn assignments(&self) -> impl Iterator<Item = &(NodeId, SlotAssignment)> {
        let (tree, stripes): (&[_], &[_]) = match &self.stage {
            Stage::Tree => (&self.slots, &[]),
            Stage::Stripes(assignments) => (&[], assignments),
            Stage::Small(_) | Stage::Committed(_) => (&[], &[]),
        };
        tree.iter().filter_map(|(_, slot)| slot.assigned.as_ref()).chain(stripes)
    }

    /// The assignment that the report is about, if it is current.
    pub fn assignment_of(&self, report: SlotReport) -> Option<&SlotAssignment> {
        let SlotReport { from, slot, attempt } = report;
        let assignments =
            self.assignments().filter(|(at, assignment)| *at == from && assignment.slot == slot);
        assignments.map(|(_, assignment)| assignment).find(|assignment| assignment.attempt == attempt)
    }

    /// The sources that took part, in fold order of the slots.
    pub fn sources_in(&self) -> Vec<ObjectId> {
        let chosen = self.slots.iter().flat_map(|(_, slot)| slot.sources.iter());
        chosen.map(|chosen| self.request.sources[chosen.index]).collect()
    }
}

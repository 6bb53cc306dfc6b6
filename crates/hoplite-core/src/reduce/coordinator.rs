//! One call of reduce, at its coordinator: the state of the reduction, and each step that advances it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::peer::{PeerMessage, SlotAssignment, Verdict};
use hoplite_types::{
    Claim, CopyId, Dtype, Edition, ErrorKind, FoldOrder, Header, NodeId, ObjectId, Op, ReductionId, Stamp,
};

use super::commit::Commitment;
use super::reduce_scatter::Stripes;
use super::request::Request;
use super::small::Small;
use crate::cost::{best_degree, Degree};
use crate::io::ClientId;
use crate::timers::Timer;
use crate::Core;

/// From so many slots on, arrivals are collected until the next look at the slots.
const SLOTS_MANY: usize = 256;

/// The time between two looks at the slots, for each slot: some times what a look takes.
const LOOK_TIME: Duration = Duration::from_micros(4);

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

/// The right to make the target. Its owner gives it to one reduction, or put, at a time.
#[derive(Debug, Default)]
pub(super) struct TargetRight {
    /// The owner that was asked for it last.
    pub asked: Option<NodeId>,
    /// The time at which it was given.
    pub stamp: Option<Stamp>,
}

#[derive(Debug)]
pub(crate) struct Reduction {
    pub(super) client: ClientId,
    /// The call to answer; `None` if nobody waits for the reply.
    pub(super) call: Option<u64>,
    pub(super) request: Request,
    /// Open questions whose answers mark that the owners have reported all sources known at the start. `None` until all
    /// sources are watched.
    pub(super) barrier: Option<BTreeSet<u64>>,
    pub(super) facts: Option<Facts>,
    pub(super) degree: Degree,
    /// Slots in order of position.
    pub(super) slots: Vec<(u32, Slot)>,
    pub(super) next_slot: u32,
    /// Every node that was ever assigned a slot.
    pub(super) participants: BTreeSet<NodeId>,
    /// Reports that proved wrong: their copies are not chosen again.
    pub(super) bad: BTreeSet<(usize, NodeId, Edition)>,
    pub(super) deleted: BTreeSet<usize>,
    /// The size up to which sources are folded here, without a tree.
    pub(crate) small_bytes_max: u64,
    /// Small sources that came with their notifications, by index.
    pub(super) brought: BTreeMap<usize, CopyId>,
    pub(super) small: Option<Small>,
    /// Allreduce: nodes that were sent a prefetch of the target.
    pub(super) prefetched: BTreeSet<NodeId>,
    /// Whether it may make its target.
    pub(super) right: TargetRight,
    /// The time of the next look at arrivals, if there are many slots.
    pub(super) next_look: Duration,
    /// When the first of the current slots was assigned.
    pub(super) began: Option<Duration>,
    /// The place of each source in the request.
    pub(super) places: BTreeMap<ObjectId, usize>,
    /// Set while it is striped. Then the slots only record the chosen sources, and are sent no assignments.
    pub(super) stripes: Option<Stripes>,
    /// How often it may be striped (again).
    pub(super) stripings_left: u32,
    /// The root, its slot and attempt, if it was done while we had no right to the target.
    pub(super) done_before_verdict: Option<(NodeId, u32, u32)>,
    /// Set once it is final; only the root's answer is missing.
    pub(super) commitment: Option<Commitment>,
}

impl Reduction {
    pub(crate) fn target(&self) -> ObjectId {
        self.request.target
    }

    /// The time at which the target's owner gave us the right to make it.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.right.stamp
    }

    /// The owner whose verdict on that counts.
    pub(crate) fn asked(&self) -> Option<NodeId> {
        self.right.asked
    }

    pub(crate) fn expect_verdict_from(&mut self, owner: NodeId) {
        self.right.asked = Some(owner);
    }

    /// Others believed us dead, and the owner may have given the right to another.
    pub(crate) fn forget_verdict(&mut self) {
        if self.commitment.is_none() {
            self.right.stamp = None;
        }
    }

    pub(crate) fn sources_count(&self) -> usize {
        self.request.sources.len()
    }

    /// An owner has reported all sources that it knew at the start. Returns whether all owners have.
    pub(super) fn note_answer(&mut self, token: u64) -> bool {
        let Some(barrier) = &mut self.barrier else { return false };
        barrier.remove(&token);
        barrier.is_empty()
    }

    pub(super) fn k(&self) -> usize {
        self.request.k as usize
    }

    /// The place of the object in the list of sources.
    pub(super) fn index_of(&self, object: ObjectId) -> Option<usize> {
        self.places.get(&object).copied()
    }

    pub(super) fn chosen_count(&self) -> usize {
        self.slots.iter().map(|(_, slot)| slot.sources.len()).sum()
    }

    /// The sources that take part, by their indices.
    pub(super) fn chosen(&self) -> BTreeSet<usize> {
        self.slots.iter().flat_map(|(_, slot)| slot.sources.iter().map(|chosen| chosen.index)).collect()
    }

    /// All current assignments, each with its node.
    pub(super) fn assignments(&self) -> impl Iterator<Item = &(NodeId, SlotAssignment)> {
        let slots = self.slots.iter().filter_map(|(_, slot)| slot.assigned.as_ref());
        slots.chain(self.stripes.iter().flat_map(|stripes| &stripes.assignments))
    }

    /// The assignment that `node` has for this attempt of the slot, if it is current.
    pub(super) fn assignment_of(&self, node: NodeId, slot: u32, attempt: u32) -> Option<&SlotAssignment> {
        let assignments =
            self.assignments().filter(|(at, assignment)| *at == node && assignment.slot == slot);
        assignments.map(|(_, assignment)| assignment).find(|assignment| assignment.attempt == attempt)
    }

    /// The sources that took part, in fold order of the slots.
    pub(super) fn sources_in(&self) -> Vec<ObjectId> {
        let chosen = self.slots.iter().flat_map(|(_, slot)| slot.sources.iter());
        chosen.map(|chosen| self.request.sources[chosen.index]).collect()
    }
}

impl Core {
    /// The copies of a source, or of the target, changed.
    pub(crate) fn on_reduction_change(&mut self, number: u64, object: ObjectId) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        if reduction.commitment.is_some() {
            return self.look_for_committed_target(number);
        }
        if object == reduction.request.target {
            return;
        }
        if reduction.small.is_some() {
            return self.get_small_source(number, object);
        }
        self.advance_in_time(number);
    }

    /// Copies of some of its sources went with their nodes.
    pub(crate) fn on_sources_gone(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        // A committed reduction waits for its target, and small sources are here or wanted.
        if reduction.commitment.is_none() && reduction.small.is_none() {
            self.advance_in_time(number);
        }
    }

    /// With many slots, arrivals are looked at together: to look at all slots for each arrival would take longer than
    /// the time between arrivals.
    fn advance_in_time(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        let timer = Timer::AdvanceReduction(number);
        if reduction.slots.len() < SLOTS_MANY || self.ctx.now >= reduction.next_look {
            self.advance_reduction(number);
        } else if !self.ctx.timers.is_set(timer) {
            self.ctx.timers.set(reduction.next_look, timer);
        }
    }

    pub(crate) fn on_reduction_deleted(&mut self, number: u64, object: ObjectId) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let Some(index) = reduction.index_of(object) else { return };
        let Request { target, sources, .. } = &reduction.request;
        reduction.deleted.insert(index);
        let (left, k) = (sources.len() - reduction.deleted.len(), reduction.k());
        if left >= k {
            return self.advance_reduction(number);
        }
        let message = format!(
            "{}: source {object} of {target} was deleted; {left} of the {k} needed are left",
            self.ctx.me
        );
        self.fail_reduction(number, ErrorKind::Deleted, &message);
    }

    /// The target of some reductions is deleted.
    pub(crate) fn fail_reductions_onto(&mut self, target: ObjectId) {
        for number in self.reductions_onto(target).collect::<Vec<_>>() {
            self.fail_for_deletion(number);
        }
    }

    /// The reductions called here whose target this is.
    pub(crate) fn reductions_onto(&self, target: ObjectId) -> impl Iterator<Item = u64> + '_ {
        let shard = target.shard();
        let onto = self.targets.range((shard, target, 0)..=(shard, target, u64::MAX));
        onto.map(|&(_, _, number)| number)
    }

    pub(super) fn fail_for_deletion(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        let message = format!("{}: the target {} was deleted", self.ctx.me, reduction.request.target);
        self.fail_reduction(number, ErrorKind::Deleted, &message);
    }

    /// The verdict of the target's owner on whether we may make it.
    pub(crate) fn on_reduction_verdict(&mut self, number: u64, verdict: Verdict) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        match verdict {
            // A repetition: slots that failed are assigned again in their own time.
            Verdict::Accepted(stamp) if reduction.right.stamp == Some(stamp) => {}
            Verdict::Accepted(stamp) => {
                reduction.right.stamp = Some(stamp);
                let done = reduction.done_before_verdict.take();
                // A root that died since has nothing to commit any more.
                if let Some((root, slot, attempt)) = done.filter(|&(root, ..)| self.ctx.shards.contains(root))
                {
                    self.on_root_done(root, number, slot, attempt);
                }
                self.seal_small(number);
                self.advance_reduction(number);
            }
            // Asked again after it was accepted: either our own target exists by now, or our root is refused as well.
            Verdict::Exists(_) if reduction.right.stamp.is_some() => {}
            Verdict::Deleted => self.fail_for_deletion(number),
            _ => {
                let target = reduction.request.target;
                let message = format!("{}: the target {target} exists already", self.ctx.me);
                self.fail_reduction(number, ErrorKind::AlreadyExists, &message);
            }
        }
    }

    pub(crate) fn claim_of(&self, number: u64) -> Claim {
        ReductionId { coordinator: self.ctx.me, number }.claim()
    }

    /// Chooses sources as they become available and brings the tree up to date.
    pub(crate) fn advance_reduction(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        if reduction.small.is_some() {
            return self.get_small_sources(number);
        }
        let knows_what_exists = reduction.barrier.as_ref().is_some_and(BTreeSet::is_empty);
        if !knows_what_exists || reduction.commitment.is_some() {
            return;
        }
        // No sum is made that may turn out not to be wanted.
        if reduction.right.stamp.is_none() || (reduction.facts.is_none() && !self.learn_facts(number)) {
            return;
        }
        let reduction = &self.reductions[&number];
        if reduction.facts.as_ref().expect("learnt").size <= reduction.small_bytes_max {
            return self.start_small(number);
        }
        self.drop_vanished_sources(number);
        self.give_up_broken_stripes(number);
        let ready = match self.ready_sources(number) {
            Ok(ready) => ready,
            Err(error) => return self.fail_reduction(number, error.kind, &error.message),
        };
        let reduction = self.reductions.get_mut(&number).expect("seen above");
        let missing = reduction.k() - reduction.chosen_count();
        let fixed_subset =
            reduction.request.order == FoldOrder::Fixed && reduction.k() < reduction.request.sources.len();
        // In fixed order the places depend on the whole set: it must be known first.
        let ready: Vec<_> = match fixed_subset && ready.len() < missing {
            true => Vec::new(),
            false => ready.into_iter().take(missing).collect(),
        };
        self.assign_sources(number, ready);
        let reduction = self.reductions.get_mut(&number).expect("seen above");
        reduction.next_look = self.ctx.now + LOOK_TIME * reduction.slots.len() as u32;
        if !self.stripe(number) {
            self.update_plan(number);
        }
        self.prefetch_to_sources(number);
    }

    /// Size and type, from the first source in the list that exists.
    fn learn_facts(&mut self, number: u64) -> bool {
        let reduction = &self.reductions[&number];
        let sources = reduction.request.sources.iter().enumerate();
        let found = sources
            .filter_map(|(index, &source)| Some((source, self.kind_of_source(reduction, index)?)))
            .next();
        let Some((source, (size, header))) = found else { return false };
        let op = reduction.request.op;
        let Some(dtype) = header.dtype else {
            let message = format!("{}: source {source} is not an array of a reducible dtype", self.ctx.me);
            self.fail_reduction(number, ErrorKind::Mismatch, &message);
            return false;
        };
        if op == Op::Mean && !dtype.is_float() {
            let message = format!("{}: a mean needs floats; source {source} is {dtype}", self.ctx.me);
            self.fail_reduction(number, ErrorKind::Mismatch, &message);
            return false;
        }
        let holder = |&source: &ObjectId| self.subscriptions.copies(source).next().map(|(node, _)| node);
        let holders: Option<BTreeSet<_>> = reduction.request.sources.iter().map(holder).collect();
        let slots = holders.map_or(reduction.k(), |nodes| nodes.len());
        let (latency_s, bytes_per_s) = self.ctx.links.typical();
        let degree = match reduction.request.order {
            FoldOrder::Fixed => Degree::Chain,
            FoldOrder::Arrival => {
                self.reduce_degree.unwrap_or_else(|| best_degree(slots, size, latency_s, bytes_per_s))
            }
        };
        let reduction = self.reductions.get_mut(&number).expect("seen above");
        reduction.degree = degree;
        reduction.facts = Some(Facts { size, header, dtype });
        true
    }

    /// Size and header of a source that exists, or came here with its notification.
    fn kind_of_source(&self, reduction: &Reduction, index: usize) -> Option<(u64, Header)> {
        if let Some((_, report)) = self.subscriptions.copies(reduction.request.sources[index]).next() {
            return Some((report.size, report.header.clone()));
        }
        let brought = self.copies.get(*reduction.brought.get(&index)?)?;
        Some((brought.extent.size, brought.header.clone()))
    }

    /// Allreduce: every node that gives a source will want the target. It is asked to prefetch now, so that it streams
    /// behind the root. So is a node that replaces a dead one.
    fn prefetch_to_sources(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        if !reduction.request.to_sources || reduction.chosen_count() < reduction.k() {
            return;
        }
        let id = reduction.request.target;
        let nodes: BTreeSet<_> = reduction.slots.iter().filter_map(|(_, slot)| slot.node).collect();
        let fresh: Vec<_> = nodes.difference(&reduction.prefetched).copied().collect();
        reduction.prefetched.extend(&fresh);
        for node in fresh {
            self.ctx.send(node, PeerMessage::Prefetch { id }, None);
        }
    }
}

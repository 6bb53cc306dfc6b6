//! One call of reduce, on the node where it was called: what is known of it, and each step that brings it on.

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

/// From so many slots on, what arrives meanwhile waits for the next look at them.
const SLOTS_MANY: usize = 256;

/// The time between two looks at them, for each slot: some times what a look takes.
const LOOK_TIME: Duration = Duration::from_micros(4);

/// What all sources have in common; known from the first one.
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

/// A place in the tree, and what was last said to whom about it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// `None`: vacant, its node died.
    pub node: Option<NodeId>,
    pub sources: Vec<Chosen>,
    pub attempt: u32,
    /// Of the last assignment.
    pub version: u32,
    pub assigned: Option<(NodeId, SlotAssignment)>,
    /// It was assigned under `attempt` before; a new assignment needs a new one.
    pub used: bool,
    /// Start over although nothing about it changed: one of its inputs broke off.
    pub restart: bool,
}

/// The target's owner gives the right to make it to one reduction, or put, at a time.
#[derive(Debug, Default)]
pub(super) struct TargetRight {
    /// Who was asked for it last.
    pub asked: Option<NodeId>,
    /// When it was given.
    pub stamp: Option<Stamp>,
}

#[derive(Debug)]
pub(crate) struct Reduction {
    pub(super) client: ClientId,
    /// The call to answer; `None` if nobody waits for the reply.
    pub(super) call: Option<u64>,
    pub(super) request: Request,
    /// Directory questions whose answers mark the end of what is known of the sources at the start; `None` until all
    /// sources are watched.
    pub(super) barrier: Option<BTreeSet<u64>>,
    pub(super) facts: Option<Facts>,
    pub(super) degree: Degree,
    /// Slots in order of position.
    pub(super) slots: Vec<(u32, Slot)>,
    pub(super) next_slot: u32,
    /// Every node that was ever assigned a slot.
    pub(super) participants: BTreeSet<NodeId>,
    /// Reports that proved wrong: do not choose them again.
    pub(super) bad: BTreeSet<(usize, NodeId, Edition)>,
    pub(super) deleted: BTreeSet<usize>,
    /// Up to how many bytes sources are folded here, without a tree.
    pub(crate) small_bytes_max: u64,
    /// Small sources that came with the news of them, by index.
    pub(super) brought: BTreeMap<usize, CopyId>,
    pub(super) small: Option<Small>,
    /// Allreduce: nodes that were told to fetch the target.
    pub(super) prefetched: BTreeSet<NodeId>,
    /// Whether it may make its target.
    pub(super) right: TargetRight,
    /// When arrivals are looked at next, if there are many slots.
    pub(super) next_look: Duration,
    /// When the first slot was assigned, of those that stand.
    pub(super) began: Option<Duration>,
    /// Where each source stands in the request.
    pub(super) places: BTreeMap<ObjectId, usize>,
    /// Set while it is done in stripes: then the slots say who takes part, and are told nothing.
    pub(super) stripes: Option<Stripes>,
    /// How often it may be striped (again).
    pub(super) stripings_left: u32,
    /// The root, its slot and attempt, if that was done while we had no right to the target.
    pub(super) done_before_verdict: Option<(NodeId, u32, u32)>,
    /// Final; only the root's answer is missing.
    pub(super) commitment: Option<Commitment>,
}

impl Reduction {
    pub(crate) fn target(&self) -> ObjectId {
        self.request.target
    }

    /// When the target's owner gave us the right to make it.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.right.stamp
    }

    /// Whose word on that counts.
    pub(crate) fn asked(&self) -> Option<NodeId> {
        self.right.asked
    }

    pub(crate) fn expect_verdict_from(&mut self, owner: NodeId) {
        self.right.asked = Some(owner);
    }

    /// Others held us for dead, and may have given the right to somebody else.
    pub(crate) fn forget_verdict(&mut self) {
        if self.commitment.is_none() {
            self.right.stamp = None;
        }
    }

    pub(crate) fn sources_count(&self) -> usize {
        self.request.sources.len()
    }

    /// An owner has told us of all sources that it knew at the start. Returns whether all have.
    pub(super) fn note_answer(&mut self, token: u64) -> bool {
        let Some(barrier) = &mut self.barrier else { return false };
        barrier.remove(&token);
        barrier.is_empty()
    }

    pub(super) fn k(&self) -> usize {
        self.request.k as usize
    }

    /// Where the object stands in the list of sources.
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

    /// Every assignment that stands, and to whom.
    pub(super) fn assignments(&self) -> impl Iterator<Item = &(NodeId, SlotAssignment)> {
        let slots = self.slots.iter().filter_map(|(_, slot)| slot.assigned.as_ref());
        slots.chain(self.stripes.iter().flat_map(|stripes| &stripes.assignments))
    }

    /// What `node` was told of this attempt of the slot, if that stands.
    pub(super) fn assignment_of(&self, node: NodeId, slot: u32, attempt: u32) -> Option<&SlotAssignment> {
        let assignments =
            self.assignments().filter(|(at, assignment)| *at == node && assignment.slot == slot);
        assignments.map(|(_, assignment)| assignment).find(|assignment| assignment.attempt == attempt)
    }

    /// The sources that went in, in fold order of the slots.
    pub(super) fn sources_in(&self) -> Vec<ObjectId> {
        let chosen = self.slots.iter().flat_map(|(_, slot)| slot.sources.iter());
        chosen.map(|chosen| self.request.sources[chosen.index]).collect()
    }
}

impl Core {
    /// Something about a source's copies, or the target's, changed.
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

    /// Copies of some of its sources went with their nodes. Says how many sources it has.
    pub(crate) fn on_sources_gone(&mut self, number: u64) -> usize {
        let Some(reduction) = self.reductions.get(&number) else { return 0 };
        let sources = reduction.request.sources.len();
        // A committed one waits for its target, and small sources are here or wanted.
        if reduction.commitment.is_none() && reduction.small.is_none() {
            self.advance_in_time(number);
        }
        sources
    }

    /// With many slots, arrivals are looked at together: to look at all slots for each of them would take longer
    /// than they do.
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

    /// Those called here that want to make this target.
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

    /// The word of the target's owner on whether we may make it.
    pub(crate) fn on_reduction_verdict(&mut self, number: u64, verdict: Verdict) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        match verdict {
            // Said once more: slots that failed are assigned again in their own time.
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
            // Asked again after it was accepted: that is ours, made meanwhile, or our root is refused as well.
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
        // Nothing is summed up that may turn out not to be wanted.
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

    /// Size and header of a source that exists, or came here with the news of it.
    fn kind_of_source(&self, reduction: &Reduction, index: usize) -> Option<(u64, Header)> {
        if let Some((_, report)) = self.subscriptions.copies(reduction.request.sources[index]).next() {
            return Some((report.size, report.header.clone()));
        }
        let brought = self.copies.table.get(reduction.brought.get(&index)?)?;
        Some((brought.extent.size, brought.header.clone()))
    }

    /// Allreduce: every node that gives a source will want the target; let it ask now, so that it
    /// streams behind the root. So does one that takes a dead one's place.
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
            self.send(node, PeerMessage::Prefetch { id }, None);
        }
    }
}

//! Striped allreduce, at its coordinator (docs/decisions/0008): a ring reduce-scatter, whose sums continue as a ring
//! all-gather. With n nodes, the sources are cut into n stripes. Each stripe is summed along the ring of the nodes,
//! starting at a different one, and its sum continues along the same ring. So every link carries 2·(n-1)/n of an
//! object, and is busy from the first byte on.
//!
//! ```text
//!  stripe j:  j+1 ─▶ j+2 ─▶ … ─▶ j  (slots of a chain: its sum is made at j)
//!                                j ─▶ j+1 ─▶ … ─▶ j-1  (parts of the target, each passed on as it comes)
//! ```
//! All slots are assigned at once, and never changed. If anything goes wrong before the commit, all are released, and
//! the reduction starts over from its sources.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::limits::ALIGNMENT;
use hoplite_types::peer::{Child, PeerMessage, SlotAssignment, SlotFailure, Source};
use hoplite_types::{Edition, FoldOrder, Header, NodeId, ObjectId, Op, ReductionId};

use super::coordinator::{Reduction, Slot};
use super::plan::slot_writing;
use crate::cost::stripes_pay;
use crate::Core;

/// Limit on how often a reduction is striped: if its stripes keep breaking off, something is wrong with its nodes or
/// links.
pub(super) const STRIPINGS_MAX: u32 = 2;

/// Fewer nodes gain nothing: two exchange halves at best, which is what a chain sends.
const NODES_MIN: usize = 3;

/// The assignments of one striping.
#[derive(Debug)]
pub(super) struct Stripes {
    /// The slots of all stripes; and one more slot, the same for every node, that assembles the target.
    pub assignments: Vec<(NodeId, SlotAssignment)>,
}

/// A node of the ring, and its sources.
type Member = (NodeId, Vec<Source>);

impl Core {
    /// Assigns the reduction in stripes, if that is possible and pays. Returns whether it is striped.
    pub(super) fn stripe(&mut self, number: u64) -> bool {
        let reduction = &self.reductions[&number];
        if reduction.stripes.is_some() {
            return true;
        }
        if !reduction.may_be_striped() || self.reduce_degree.is_some() {
            return false;
        }
        let ring = reduction.ring();
        if !self.should_stripe(reduction, ring.len()) {
            return false;
        }
        if reduction.began.is_some() {
            // They have hardly begun.
            self.start_over(number);
        }
        let lacking = !self.needs_only_space(number);
        let (me, id) = (self.ctx.me, ReductionId { coordinator: self.ctx.me, number });
        let reduction = self.reductions.get_mut(&number).expect("seen above");
        reduction.stripings_left -= 1;
        reduction.participants.extend(ring.iter().map(|(node, _)| *node));
        let mut assignments = reduction.stripe_assignments(id, &ring, me);
        for (node, assignment) in &mut assignments {
            assignment.lacking = lacking;
            assignment.epoch = self.epochs_heard.of(*node);
        }
        reduction.stripes = Some(Stripes { assignments: assignments.clone() });
        for (node, assignment) in assignments {
            self.ctx.send(node, PeerMessage::AssignSlot { reduction: id, assignment }, None);
        }
        true
    }

    fn should_stripe(&self, reduction: &Reduction, nodes: usize) -> bool {
        let Some(facts) = reduction.facts.as_ref().filter(|_| nodes >= NODES_MIN) else { return false };
        let waited = reduction.began.map_or(0.0, |began| (self.ctx.now - began).as_secs_f64());
        let (latency_s, bytes_per_s) = self.ctx.links.typical();
        match self.striped_bytes_min {
            Some(least) => facts.size >= least,
            None => stripes_pay(nodes, facts.size, waited, latency_s, bytes_per_s),
        }
    }

    /// A source is gone: no stripe can be completed without it.
    pub(super) fn give_up_broken_stripes(&mut self, number: u64) {
        let reduction = &self.reductions[&number];
        if reduction.stripes.is_some() && reduction.chosen_count() < reduction.k() {
            self.start_over(number);
        }
    }

    pub(super) fn is_striped_slot(&self, number: u64, node: NodeId, slot: u32, attempt: u32) -> bool {
        let striped = self.reductions.get(&number).filter(|reduction| reduction.stripes.is_some());
        striped.is_some_and(|reduction| reduction.assignment_of(node, slot, attempt).is_some())
    }

    /// One of its slots cannot continue.
    pub(super) fn on_stripe_failed(&mut self, number: u64, from: NodeId, failure: SlotFailure) {
        match failure {
            SlotFailure::Taken | SlotFailure::Refused(_) => return self.fail_for_slot(number, from, failure),
            SlotFailure::NoSpace | SlotFailure::LetGo(_) => {
                self.reductions.get_mut(&number).expect("it has assignments").stripings_left = 0;
            }
            SlotFailure::Source(_) | SlotFailure::Child(_) => {}
        }
        self.start_over(number);
        self.advance_reduction(number);
    }

    /// A node has released the slots of this reduction: they are assigned anew.
    pub(super) fn on_slots_let_go(&mut self, number: u64, node: NodeId) {
        let reduction = &self.reductions[&number];
        if reduction.commitment.is_some() {
            return self.repeat_commit(number, node);
        }
        if reduction.stripes.is_some() {
            self.start_over(number);
        }
        self.advance_reduction(number);
    }

    /// Releases every assignment; the chosen sources stay as they are.
    fn start_over(&mut self, number: u64) {
        let id = ReductionId { coordinator: self.ctx.me, number };
        let reduction = self.reductions.get_mut(&number).expect("the caller's");
        reduction.stripes = None;
        reduction.began = None;
        for (slot_number, slot) in &mut reduction.slots {
            *slot_number = reduction.next_slot;
            reduction.next_slot += 1;
            let Slot { node, sources, .. } = std::mem::take(slot);
            *slot = Slot { node, sources, ..Slot::default() };
        }
        for node in reduction.participants.clone() {
            self.ctx.send(node, PeerMessage::ReleaseSlots { reduction: id }, None);
        }
    }
}

impl Reduction {
    fn may_be_striped(&self) -> bool {
        self.request.to_sources
            && self.request.order == FoldOrder::Arrival
            && self.stripings_left > 0
            && self.chosen_count() == self.k()
    }

    /// The nodes that take part, in order of their slots, with the sources of each.
    fn ring(&self) -> Vec<Member> {
        let mut ring: Vec<Member> = Vec::new();
        let mut places: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (_, slot) in &self.slots {
            let Some(node) = slot.node else { continue };
            let sources = slot
                .sources
                .iter()
                .map(|chosen| Source { id: self.request.sources[chosen.index], edition: chosen.edition });
            let place = *places.entry(node).or_insert(ring.len());
            match ring.get_mut(place) {
                Some((_, given)) => given.extend(sources),
                None => ring.push((node, sources.collect())),
            }
        }
        ring
    }

    /// Every assignment of a striping over `ring`, with new slot numbers.
    fn stripe_assignments(
        &mut self,
        id: ReductionId,
        ring: &[Member],
        me: NodeId,
    ) -> Vec<(NodeId, SlotAssignment)> {
        let size = self.facts.as_ref().expect("stripes come after facts").size;
        let part_bytes = size.div_ceil(ring.len() as u64).next_multiple_of(ALIGNMENT);
        let offsets = (0..size).step_by(part_bytes as usize);
        let mut assignments = Vec::new();
        // The node where each stripe's sum is made, and the sum's description.
        let mut sums: Vec<(usize, Child)> = Vec::new();
        for (stripe, offset) in offsets.enumerate() {
            let bytes = part_bytes.min(size - offset);
            let mut below: Option<Child> = None;
            for position in 1..=ring.len() {
                let (node, sources) = &ring[(stripe + position) % ring.len()];
                let last = position == ring.len();
                let assignment = SlotAssignment {
                    size: bytes,
                    divide_by: (last && self.request.op == Op::Mean).then_some(self.request.k),
                    sources: sources.clone(),
                    children: below.into_iter().collect(),
                    offset,
                    ..self.blank_assignment(id)
                };
                below = Some(Child {
                    slot: assignment.slot,
                    node: *node,
                    id: assignment.out,
                    edition: assignment.edition,
                });
                assignments.push((*node, assignment));
            }
            sums.push((stripe, below.expect("a ring has members")));
        }
        let nodes: BTreeSet<_> = ring.iter().map(|(node, _)| *node).collect();
        let root = if nodes.contains(&me) { me } else { ring[ring.len() - 1].0 };
        let facts = self.facts.as_ref().expect("seen above");
        let whole = SlotAssignment {
            out: self.request.target,
            size,
            header: facts.header.clone(),
            part_bytes: Some(part_bytes),
            ..self.blank_assignment(id)
        };
        for (at, &(node, _)) in ring.iter().enumerate() {
            let (before, _) = ring[(at + ring.len() - 1) % ring.len()];
            let part = |(made_at, sum): &(usize, Child)| match at {
                _ if *made_at == at || ring[*made_at].0 == before => sum.clone(),
                _ => Child { node: before, id: ObjectId::target_part(id, sum.slot), ..sum.clone() },
            };
            let children = sums.iter().map(part).collect();
            assignments.push((node, SlotAssignment { root: node == root, children, ..whole.clone() }));
        }
        assignments
    }

    /// An assignment with a slot number of its own that folds nothing yet.
    fn blank_assignment(&mut self, id: ReductionId) -> SlotAssignment {
        let facts = self.facts.as_ref().expect("assignments come after facts");
        let slot = self.next_slot;
        self.next_slot += 1;
        SlotAssignment {
            slot,
            attempt: 0,
            out: ObjectId::partial_sum(id, slot),
            edition: Edition { writing: slot_writing(id, slot), attempt: 0 },
            root: false,
            size: 0,
            header: Header::default(),
            dtype: facts.dtype,
            op: self.request.op,
            divide_by: None,
            sources: Vec::new(),
            children: Vec::new(),
            open: false,
            version: 1,
            lacking: false,
            offset: 0,
            part_bytes: None,
            claim: id.claim(),
            stamp: self.right.stamp.expect("assignments come with the right to the target"),
            epoch: 0,
        }
    }
}

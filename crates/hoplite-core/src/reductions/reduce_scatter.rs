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
use hoplite_types::{Edition, FoldOrder, Header, NodeId, ObjectId, Op};

use super::epochs::EpochsHeard;
use super::plan::slot_writing;
use super::reduction::{Reduction, Slot, Stage};
use super::{Lent, Step, ADVANCE, WAIT};
use crate::cost::stripes_pay;
use crate::ctx::Ctx;

/// Limit on how often a reduction is striped: if its stripes keep breaking off, something is wrong with its nodes or
/// links.
pub(super) const STRIPINGS_MAX: u32 = 2;

/// Fewer nodes gain nothing: two exchange halves at best, which is what a chain sends.
const NODES_MIN: usize = 3;

/// A node of the ring, and its sources.
type Member = (NodeId, Vec<Source>);

impl Reduction {
    /// Assigns the reduction in stripes, if that is possible and pays. Returns whether it is striped.
    pub(super) fn stripe(&mut self, lent: &mut Lent<'_>, heard: &EpochsHeard) -> bool {
        if self.is_striped() {
            return true;
        }
        if !self.may_be_striped() || self.policy.degree.is_some() {
            return false;
        }
        let ring = self.ring();
        if !self.should_stripe(lent.ctx, ring.len()) {
            return false;
        }
        if self.began.is_some() {
            // They have hardly begun.
            self.start_over(lent.ctx);
        }
        let lacking = !self.needs_only_space(lent);
        self.stripings_left -= 1;
        self.participants.extend(ring.iter().map(|(node, _)| *node));
        let mut assignments = self.stripe_assignments(&ring);
        for (node, assignment) in &mut assignments {
            assignment.lacking = lacking;
            assignment.epoch = heard.of(*node);
        }
        for (node, assignment) in &assignments {
            let assign = PeerMessage::AssignSlot { reduction: self.id, assignment: assignment.clone() };
            lent.ctx.send(*node, assign, None);
        }
        self.stage = Stage::Stripes(assignments);
        true
    }

    fn should_stripe(&self, ctx: &Ctx, nodes: usize) -> bool {
        if nodes < NODES_MIN {
            return false;
        }
        let size = self.facts().size;
        let waited = self.began.map_or(0.0, |began| (ctx.now - began).as_secs_f64());
        let (latency_s, bytes_per_s) = ctx.links.typical();
        match self.policy.striped_bytes_min {
            Some(least) => size >= least,
            None => stripes_pay(nodes, size, waited, latency_s, bytes_per_s),
        }
    }

    /// A source is gone: no stripe can be completed without it.
    pub(super) fn give_up_broken_stripes(&mut self, lent: &mut Lent<'_>) {
        if self.is_striped() && self.chosen_count() < self.k() {
            self.start_over(lent.ctx);
        }
    }

    /// One of its slots cannot continue.
    pub(super) fn on_stripe_failed(
        &mut self,
        lent: &mut Lent<'_>,
        from: NodeId,
        failure: SlotFailure,
    ) -> Step {
        match failure {
            SlotFailure::Taken | SlotFailure::Refused(_) => return self.fail_for_slot(from, failure),
            SlotFailure::NoSpace | SlotFailure::LetGo(_) => self.stripings_left = 0,
            SlotFailure::Source(_) | SlotFailure::Child(_) => {}
        }
        self.start_over(lent.ctx);
        ADVANCE
    }

    /// A node has released the slots of this reduction: they are assigned anew.
    pub(super) fn on_slots_let_go(&mut self, lent: &mut Lent<'_>, node: NodeId) -> Step {
        match self.stage {
            Stage::Committed(_) => {
                self.repeat_commit(lent.ctx, node);
                return WAIT;
            }
            Stage::Stripes(_) => self.start_over(lent.ctx),
            Stage::Tree | Stage::Small(_) => {}
        }
        ADVANCE
    }

    /// Releases every assignment; the chosen sources stay as they are.
    fn start_over(&mut self, ctx: &mut Ctx) {
        self.stage = Stage::Tree;
        self.began = None;
        for (slot_number, slot) in &mut self.slots {
            *slot_number = self.next_slot;
            self.next_slot += 1;
            let Slot { node, sources, .. } = std::mem::take(slot);
            *slot = Slot { node, sources, ..Slot::default() };
        }
        for &node in &self.participants {
            ctx.send(node, PeerMessage::ReleaseSlots { reduction: self.id }, None);
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
    fn stripe_assignments(&mut self, ring: &[Member]) -> Vec<(NodeId, SlotAssignment)> {
        let size = self.facts().size;
        let part_bytes = size.div_ceil(ring.len() as u64).next_multiple_of(ALIGNMENT);
        let offsets = (0..size).step_by(part_bytes as usize);
        let mut assignments = Vec::new();
        // The node where each stripe's sum is made, and the sum's description.
        let mut sums: Vec<(usize, Child)> = Vec::new();
        for (stripe, offset) in offsets.enumerate() {
            let range = (offset, part_bytes.min(size - offset));
            sums.push((stripe, self.chain_of_stripe(ring, stripe, range, &mut assignments)));
        }
        let nodes: BTreeSet<_> = ring.iter().map(|(node, _)| *node).collect();
        let me = self.id.coordinator;
        let root = if nodes.contains(&me) { me } else { ring[ring.len() - 1].0 };
        let slot = self.take_slot_number();
        let whole = SlotAssignment {
            out: self.target(),
            size,
            header: self.facts().header.clone(),
            part_bytes: Some(part_bytes),
            ..self.blank_assignment(slot)
        };
        for (at, &(node, _)) in ring.iter().enumerate() {
            let (before, _) = ring[(at + ring.len() - 1) % ring.len()];
            let part = |(made_at, sum): &(usize, Child)| match at {
                _ if *made_at == at || ring[*made_at].0 == before => sum.clone(),
                _ => Child { node: before, id: ObjectId::target_part(self.id, sum.slot), ..sum.clone() },
            };
            let children = sums.iter().map(part).collect();
            assignments.push((node, SlotAssignment { root: node == root, children, ..whole.clone() }));
        }
        assignments
    }

    /// Assigns the chain that sums up one stripe, which is a range of the sources: its offset and its size. Returns the
    /// description of the sum.
    fn chain_of_stripe(
        &mut self,
        ring: &[Member],
        stripe: usize,
        (offset, size): (u64, u64),
        assignments: &mut Vec<(NodeId, SlotAssignment)>,
    ) -> Child {
        let mut below: Option<Child> = None;
        for position in 1..=ring.len() {
            let (node, sources) = &ring[(stripe + position) % ring.len()];
            let last = position == ring.len();
            let slot = self.take_slot_number();
            let assignment = SlotAssignment {
                size,
                divide_by: (last && self.request.op == Op::Mean).then_some(self.request.k),
                sources: sources.clone(),
                children: below.into_iter().collect(),
                offset,
                ..self.blank_assignment(slot)
            };
            let (id, edition) = (assignment.out, assignment.edition);
            below = Some(Child { slot, node: *node, id, edition });
            assignments.push((*node, assignment));
        }
        below.expect("a ring has members")
    }

    fn take_slot_number(&mut self) -> u32 {
        self.next_slot += 1;
        self.next_slot - 1
    }

    /// An assignment of the slot that folds nothing yet.
    fn blank_assignment(&self, slot: u32) -> SlotAssignment {
        SlotAssignment {
            slot,
            attempt: 0,
            out: ObjectId::partial_sum(self.id, slot),
            edition: Edition { writing: slot_writing(self.id, slot), attempt: 0 },
            root: false,
            size: 0,
            header: Header::default(),
            dtype: self.facts().dtype,
            op: self.request.op,
            divide_by: None,
            sources: Vec::new(),
            children: Vec::new(),
            open: false,
            version: 1,
            lacking: false,
            offset: 0,
            part_bytes: None,
            claim: self.id.claim(),
            stamp: self.right.stamp().expect("assignments come with the right to the target"),
            epoch: 0,
        }
    }
}

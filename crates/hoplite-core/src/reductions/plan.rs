//! Computes each node's assignment from the slots of a reduction.
//!
//! The wanted state is computed afresh after every change, and compared with the assignments sent last. An addition to
//! a slot that was still open keeps its attempt. Any other change starts the next attempt of the slot and, since their
//! child's edition changed, of all of its ancestors.

use std::time::Duration;

use hoplite_types::peer::{Child, PeerMessage, SlotAssignment, Source};
use hoplite_types::{mix64, Edition, FoldOrder, NodeId, ObjectId, Op, ReductionId};

use super::epochs::EpochsHeard;
use super::reduction::{Reduction, Slot};
use super::shape::{places, Place};
use super::Lent;
use crate::cost::Degree;
use crate::timers::Timer;

/// Limit of slots that are sent changes in one turn: some milliseconds' work, with a look at all of them.
const ASSIGNMENTS_PER_TURN: usize = 512;

/// Pause between two turns.
pub(super) const PAUSE: Duration = Duration::from_micros(100);

/// 64 bits that only the results of this slot are written under.
pub(super) fn slot_writing(id: ReductionId, slot: u32) -> u64 {
    mix64(id.coordinator.hash64() ^ mix64(id.number ^ mix64(u64::from(slot) + 1)))
}

impl Reduction {
    /// Sends every slot its changes, the first of many at once.
    pub(super) fn update_plan(&mut self, lent: &mut Lent<'_>, heard: &EpochsHeard) {
        let lacking = !self.needs_only_space(lent);
        let changes = self.changes(lacking, heard);
        let (ctx, reduction) = (&mut *lent.ctx, self.id);
        if changes.len() == ASSIGNMENTS_PER_TURN {
            ctx.timers.set(ctx.now + PAUSE, Timer::AdvanceReduction(reduction.number));
        }
        for (to, assignment) in changes {
            self.began.get_or_insert(ctx.now);
            self.participants.insert(to);
            ctx.send(to, PeerMessage::AssignSlot { reduction, assignment }, None);
        }
    }

    fn is_complete(&self) -> bool {
        self.chosen_count() == self.k()
    }

    /// Each slot's place. In fixed order, a slot's child is the one that holds the index before its
    /// first; in arrival order the shape decides.
    fn places(&self) -> Vec<Place> {
        let last = self.is_complete();
        if self.request.order == FoldOrder::Arrival {
            return places(self.degree, self.slots.len(), last);
        }
        let mut places = places(Degree::Chain, self.slots.len(), last);
        if self.k() < self.request.sources.len() {
            return places;
        }
        for position in 0..self.slots.len() {
            let first = self.slots[position].1.sources[0].index;
            let before = position.checked_sub(1).and_then(|p| self.slots[p].1.sources.last());
            let adjacent = first == 0 || before.is_some_and(|chosen| chosen.index + 1 == first);
            if !adjacent {
                places[position].children.clear();
                places[position].expects_more = true;
                places[position].is_inner = true;
                if let Some(p) = position.checked_sub(1) {
                    places[p].has_parent = false;
                }
            }
        }
        places
    }

    /// The messages that bring every slot up to date, the first of many; notes them as sent.
    fn changes(&mut self, lacking: bool, heard: &EpochsHeard) -> Vec<(NodeId, SlotAssignment)> {
        let (places, complete) = (self.places(), self.is_complete());
        let mut messages = Vec::new();
        // Children come before parents: a parent names its children's editions.
        for position in post_order(&places) {
            let Some(node) = self.slots[position].1.node else { continue };
            let Some(mut wanted) = self.wanted_assignment(position, &places, complete) else {
                self.slots[position].1.assigned = None;
                continue;
            };
            wanted.lacking = lacking;
            wanted.epoch = heard.of(node);
            let fixed = self.request.order == FoldOrder::Fixed;
            if let Some(assignment) = self.slots[position].1.reconcile(node, wanted, fixed) {
                messages.push((node, assignment));
            }
            if messages.len() == ASSIGNMENTS_PER_TURN {
                break;
            }
        }
        messages
    }

    /// The assignment that the slot should have. `None` for a leaf with a single source, which its parent pulls itself.
    fn wanted_assignment(&self, position: usize, places: &[Place], complete: bool) -> Option<SlotAssignment> {
        let (slot_id, slot) = &self.slots[position];
        let place = &places[position];
        let root = complete && !place.has_parent;
        if !root && !place.is_inner && slot.sources.len() == 1 {
            return None;
        }
        let children: Vec<_> = place.children.iter().filter_map(|&child| self.child(child, places)).collect();
        let vacant = children.len() < place.children.len();
        let sources = slot
            .sources
            .iter()
            .map(|chosen| Source { id: self.request.sources[chosen.index], edition: chosen.edition });
        let facts = self.facts();
        Some(SlotAssignment {
            slot: *slot_id,
            attempt: slot.attempt,
            out: if root { self.target() } else { self.partial_sum(position) },
            edition: self.edition(position),
            root,
            size: facts.size,
            header: facts.header.clone(),
            dtype: facts.dtype,
            op: self.request.op,
            divide_by: (root && self.request.op == Op::Mean).then_some(self.request.k),
            sources: sources.collect(),
            children,
            open: vacant || place.expects_more || (!root && !place.has_parent),
            version: slot.version,
            lacking: false,
            offset: 0,
            part_bytes: None,
            claim: self.id.claim(),
            stamp: self.right.stamp().expect("assignments come with the right to the target"),
            epoch: 0,
        })
    }

    /// The edition of the slot's partial sum.
    fn edition(&self, position: usize) -> Edition {
        let (slot_id, slot) = &self.slots[position];
        let assigned = slot.assigned.as_ref().map(|(_, assigned)| assigned.edition.writing);
        let writing = assigned.unwrap_or_else(|| slot_writing(self.id, *slot_id));
        Edition { writing, attempt: slot.attempt }
    }

    /// The id of the slot's partial sum. It is kept: an id is a hash, too costly to compute at each look at all slots.
    fn partial_sum(&self, position: usize) -> ObjectId {
        let (slot_id, slot) = &self.slots[position];
        match &slot.assigned {
            Some((_, assigned)) if !assigned.root => assigned.out,
            _ => ObjectId::partial_sum(self.id, *slot_id),
        }
    }

    /// The child as described to its parent.
    fn child(&self, position: usize, places: &[Place]) -> Option<Child> {
        let (slot_id, slot) = &self.slots[position];
        let node = slot.node?;
        let child = match (&slot.assigned, &slot.sources[..]) {
            (None, [only]) if !places[position].is_inner => {
                let (id, edition) = (self.request.sources[only.index], only.edition);
                Child { slot: *slot_id, node, id, edition }
            }
            _ => {
                let (id, edition) = (self.partial_sum(position), self.edition(position));
                Child { slot: *slot_id, node, id, edition }
            }
        };
        Some(child)
    }
}

impl Slot {
    /// Compares the wanted assignment with the one sent last; returns the assignment to send, if any.
    fn reconcile(&mut self, node: NodeId, mut wanted: SlotAssignment, fixed: bool) -> Option<SlotAssignment> {
        let restart = std::mem::take(&mut self.restart);
        if let Some((at, assigned)) = &self.assigned {
            let same_place = *at == node && !restart;
            wanted.attempt = assigned.attempt;
            wanted.edition.attempt = assigned.attempt;
            // A slot that stops lacking sources is notified only together with another change (see `preemption`).
            let lacking = std::mem::replace(&mut wanted.lacking, assigned.lacking);
            if same_place && wanted == *assigned {
                return (lacking && !assigned.lacking).then(|| self.lacks());
            }
            wanted.lacking = lacking;
            // A child on the same node would join a running fold behind our own sources, not before them.
            let out_of_order = fixed
                && wanted.children.iter().any(|child| child.node == node)
                && !assigned.children.iter().any(|child| child.node == node);
            if !(same_place && is_addition(assigned, &wanted)) || out_of_order {
                self.attempt += 1;
            }
        } else if self.used {
            self.attempt += 1;
        }
        self.used = true;
        self.version += 1;
        wanted.version = self.version;
        wanted.attempt = self.attempt;
        wanted.edition.attempt = self.attempt;
        self.assigned = Some((node, wanted.clone()));
        Some(wanted)
    }
}

impl Slot {
    /// A source of the reduction is gone: other reductions may preempt its partial sums from now on.
    fn lacks(&mut self) -> SlotAssignment {
        self.version += 1;
        let (_, assigned) = self.assigned.as_mut().expect("its caller has looked");
        (assigned.lacking, assigned.version) = (true, self.version);
        assigned.clone()
    }
}

/// Whether a slot that is assigned `assigned` can become `wanted` without starting over. It must have been open, so
/// that it has no readers, and lose none of its inputs.
fn is_addition(assigned: &SlotAssignment, wanted: &SlotAssignment) -> bool {
    assigned.open
        && (assigned.epoch, assigned.stamp) == (wanted.epoch, wanted.stamp)
        && (wanted.root || !assigned.root)
        && wanted.sources.starts_with(&assigned.sources)
        && Child::has_all(&wanted.children, &assigned.children)
}

/// Positions with every child before its parent.
fn post_order(places: &[Place]) -> Vec<usize> {
    let mut order = Vec::with_capacity(places.len());
    let roots = (0..places.len()).filter(|&position| !places[position].has_parent);
    let mut stack: Vec<_> = roots.map(|position| (position, false)).collect();
    while let Some((position, children_done)) = stack.pop() {
        if children_done {
            order.push(position);
        } else {
            stack.push((position, true));
            stack.extend(places[position].children.iter().map(|&child| (child, false)));
        }
    }
    order
}

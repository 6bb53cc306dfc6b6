//! Both sides of a reduction resend state that a broken connection or a false death may have lost.
//!
//! A coordinator resends its assignments and commits to a node over each new connection. A slot's node periodically
//! reports the state of its slots to their coordinators, which answer with any message that it missed. So neither side
//! needs to know which messages the other has received.

use hoplite_types::peer::{PeerMessage, SlotFailure};
use hoplite_types::{NodeId, ReductionId};

use super::slot_table::{Running, SlotKey};
use crate::Core;

impl Core {
    /// Resends `node` everything that it must know of the reductions called here.
    pub(crate) fn repeat_assignments(&mut self, node: NodeId) {
        let numbers: Vec<_> = self.reductions.keys().copied().collect();
        for number in numbers {
            self.repeat_commit(number, node);
            let reduction = &self.reductions[&number];
            let mut messages = Vec::new();
            if reduction.prefetched.contains(&node) {
                messages.push(PeerMessage::Prefetch { id: reduction.request.target });
            }
            if reduction.commitment.is_none() {
                let assignments = reduction
                    .assignments()
                    .filter(|(at, _)| *at == node)
                    .map(|(_, assignment)| assignment.clone());
                let reduction = ReductionId { coordinator: self.ctx.me, number };
                messages
                    .extend(assignments.map(|assignment| PeerMessage::AssignSlot { reduction, assignment }));
            }
            messages.into_iter().for_each(|message| self.ctx.send(node, message, None));
        }
    }

    /// Resends commits that are not acknowledged yet to their roots.
    pub(crate) fn repeat_commits(&mut self) {
        let roots = self.reductions.iter().filter_map(|(&number, reduction)| {
            reduction.commitment.as_ref().map(|commitment| (number, commitment.root))
        });
        for (number, root) in roots.collect::<Vec<_>>() {
            self.repeat_commit(number, root);
        }
    }

    /// Reports the state of the slots here to their coordinators; only to `to`, if that is given.
    pub(crate) fn repeat_slot_reports(&mut self, to: Option<NodeId>) {
        for (key, message) in self.slots.reports() {
            let coordinator = key.0.coordinator;
            // A coordinator that is not a member gets its report when it comes back.
            if self.ctx.shards.contains(coordinator) && to.is_none_or(|node| node == coordinator) {
                self.ctx.send(coordinator, message, None);
            }
        }
    }

    /// A slot's node reports that it still holds the slot.
    pub(crate) fn on_slot_held(&mut self, from: NodeId, reduction: ReductionId, slot: u32, attempt: u32) {
        let Some(known) =
            self.reductions.get(&reduction.number).filter(|_| reduction.coordinator == self.ctx.me)
        else {
            return self.ctx.send(from, PeerMessage::ReleaseSlots { reduction }, None);
        };
        match &known.commitment {
            Some(commitment) if commitment.is_for(from) => self.repeat_commit(reduction.number, from),
            Some(_) => self.ctx.send(from, PeerMessage::ReleaseSlots { reduction }, None),
            None => {
                let assigned =
                    known.assignments().find(|(at, assignment)| *at == from && assignment.slot == slot);
                match assigned.map(|(_, assignment)| assignment.clone()) {
                    Some(assignment) if assignment.attempt > attempt => {
                        self.ctx.send(from, PeerMessage::AssignSlot { reduction, assignment }, None);
                    }
                    Some(_) => {}
                    // The slot was given to another node, or to none: an unread sum would hold space until the end.
                    None => self.ctx.send(from, PeerMessage::ReleaseSlot { reduction, slot, attempt }, None),
                }
            }
        }
    }

    /// The coordinator releases this slot.
    pub(crate) fn on_release_slot(&mut self, from: NodeId, key: SlotKey, attempt: u32) {
        let current = self.slots.running.get(&key).filter(|running| running.assignment.attempt == attempt);
        if key.0.coordinator == from && current.is_some_and(Running::needs_coordinator) {
            self.drop_slot(key);
        }
    }

    /// A coordinator is believed dead: its slots are released. If it lives after all, it is notified of that.
    pub(crate) fn release_slots_of(&mut self, coordinator: NodeId) {
        self.slots.epochs_mut().on_down(coordinator);
        for key in self.slots.of(coordinator) {
            self.drop_slot(key);
        }
    }

    /// Whether this assignment must be refused: it was made before or while its coordinator was believed dead. Bytes
    /// that were folded here under the same attempt may have been read, and would not be the same.
    pub(super) fn declines_slot(&mut self, key: SlotKey, attempt: u32, epoch: u64) -> bool {
        let (reduction, slot) = key;
        let fence = self.slots.epochs().fence_of(reduction.coordinator);
        let declined = epoch < fence || !self.ctx.shards.contains(reduction.coordinator);
        if declined {
            let failure = SlotFailure::LetGo(fence);
            let failed = PeerMessage::SlotFailed { reduction, slot, attempt, failure };
            self.ctx.send(reduction.coordinator, failed, None);
        }
        declined
    }

    /// A node reports that it released slots that it was assigned before this epoch.
    pub(crate) fn on_epoch(&mut self, node: NodeId, epoch: u64) {
        if !self.slots.epochs_mut().note_heard(node, epoch) {
            return;
        }
        let assigned = |number: &u64| self.reductions[number].assignments().any(|(at, _)| *at == node);
        let numbers: Vec<_> = self.reductions.keys().copied().filter(assigned).collect();
        for number in numbers {
            self.on_slots_let_go(number, node);
        }
    }
}

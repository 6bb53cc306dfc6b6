//! Both sides send again what a broken connection, or a death that was none, may have swallowed.
//!
//! A coordinator repeats its assignments and commits to a node it has a new connection to. A slot's node tells
//! its coordinators now and then how its slots stand, and is answered by whatever it missed. So neither
//! side has to know what the other has heard.

use hoplite_types::peer::{PeerMessage, SlotFailure};
use hoplite_types::{NodeId, ReductionId};

use super::slot_table::{Running, SlotKey};
use crate::Core;

impl Core {
    /// What `node` must know of the reductions called here.
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
            messages.into_iter().for_each(|message| self.send(node, message, None));
        }
    }

    /// Commits that are not answered yet, to their roots.
    pub(crate) fn repeat_commits(&mut self) {
        let roots = self.reductions.iter().filter_map(|(&number, reduction)| {
            reduction.commitment.as_ref().map(|commitment| (number, commitment.root))
        });
        for (number, root) in roots.collect::<Vec<_>>() {
            self.repeat_commit(number, root);
        }
    }

    /// How the slots here stand, to their coordinators; only to one of them if that is given.
    pub(crate) fn repeat_slot_reports(&mut self, to: Option<NodeId>) {
        for (key, message) in self.slots.reports() {
            let coordinator = key.0.coordinator;
            // Who is no member hears it when it comes back.
            if self.ctx.shards.contains(coordinator) && to.is_none_or(|node| node == coordinator) {
                self.send(coordinator, message, None);
            }
        }
    }

    /// A slot's node reports that it still holds the slot.
    pub(crate) fn on_slot_held(&mut self, from: NodeId, reduction: ReductionId, slot: u32, attempt: u32) {
        let Some(known) =
            self.reductions.get(&reduction.number).filter(|_| reduction.coordinator == self.ctx.me)
        else {
            return self.send(from, PeerMessage::ReleaseSlots { reduction }, None);
        };
        match &known.commitment {
            Some(commitment) if commitment.is_for(from) => self.repeat_commit(reduction.number, from),
            Some(_) => self.send(from, PeerMessage::ReleaseSlots { reduction }, None),
            None => {
                let assigned =
                    known.assignments().find(|(at, assignment)| *at == from && assignment.slot == slot);
                match assigned.map(|(_, assignment)| assignment.clone()) {
                    Some(assignment) if assignment.attempt > attempt => {
                        self.send(from, PeerMessage::AssignSlot { reduction, assignment }, None);
                    }
                    Some(_) => {}
                    // It was given to another, or to nobody: a sum that nobody reads would hold space until the end.
                    None => self.send(from, PeerMessage::ReleaseSlot { reduction, slot, attempt }, None),
                }
            }
        }
    }

    /// The slot is not ours any more.
    pub(crate) fn on_release_slot(&mut self, from: NodeId, key: SlotKey, attempt: u32) {
        let current = self.slots.running.get(&key).filter(|running| running.assignment.attempt == attempt);
        if key.0.coordinator == from && current.is_some_and(Running::needs_coordinator) {
            self.drop_slot(key);
        }
    }

    /// A coordinator is dead, as far as we can tell: its slots are let go, and if it lives after all it
    /// will be told so.
    pub(crate) fn release_slots_of(&mut self, coordinator: NodeId) {
        self.slots.epochs_mut().on_down(coordinator);
        for key in self.slots.of(coordinator) {
            self.drop_slot(key);
        }
    }

    /// Whether this assignment must not be followed: it was made when we had taken its coordinator for dead, or
    /// before. What was summed up here under the same attempt may have been read, and would not be the same bytes.
    pub(super) fn declines_slot(&mut self, key: SlotKey, attempt: u32, epoch: u64) -> bool {
        let (reduction, slot) = key;
        let fence = self.slots.epochs().fence_of(reduction.coordinator);
        let declined = epoch < fence || !self.ctx.shards.contains(reduction.coordinator);
        if declined {
            let failure = SlotFailure::LetGo(fence);
            let failed = PeerMessage::SlotFailed { reduction, slot, attempt, failure };
            self.send(reduction.coordinator, failed, None);
        }
        declined
    }

    /// A node says that it let go of slots which it was assigned before this epoch.
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

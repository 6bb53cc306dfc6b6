//! A coordinator resends state that a broken connection or a false death may have lost.
//!
//! It resends its assignments and commits to a node over each new connection. And it answers the periodic reports of
//! slots (see `slots::repeat`) with any message that their nodes missed.

use hoplite_types::peer::PeerMessage;
use hoplite_types::{NodeId, ReductionId};

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

    /// A node reports that it released slots that it was assigned before this epoch.
    pub(crate) fn on_epoch(&mut self, node: NodeId, epoch: u64) {
        if !self.epochs_heard.note(node, epoch) {
            return;
        }
        let assigned = |number: &u64| self.reductions[number].assignments().any(|(at, _)| *at == node);
        let numbers: Vec<_> = self.reductions.keys().copied().filter(assigned).collect();
        for number in numbers {
            self.on_slots_let_go(number, node);
        }
    }
}

//! A coordinator resends state that a broken connection or a false death may have lost.
//!
//! It resends its assignments and commits to a node over each new connection. And it answers the periodic reports of
//! slots (see `slots::repeat`) with any message that their nodes missed.

use hoplite_types::peer::PeerMessage;
use hoplite_types::{NodeId, ReductionId};

use super::reduction::{Reduction, Stage};
use super::{Lent, Reductions, SlotReport};
use crate::ctx::Ctx;

impl Reductions {
    /// Resends `node` everything that it must know of the reductions called here.
    pub fn repeat_assignments(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.table.values().for_each(|reduction| reduction.repeat_assignments(ctx, node));
    }

    /// Resends commits that are not acknowledged yet to their roots.
    pub fn repeat_commits(&mut self, ctx: &mut Ctx) {
        for reduction in self.table.values() {
            if let Some(commitment) = reduction.commitment() {
                reduction.repeat_commit(ctx, commitment.root);
            }
        }
    }

    /// A slot's node reports that it still holds the slot.
    pub fn on_slot_held(&mut self, ctx: &mut Ctx, id: ReductionId, report: SlotReport) {
        match self.table.get(&id.number).filter(|known| known.id == id) {
            Some(reduction) => reduction.on_slot_held(ctx, report),
            // It is over.
            None => ctx.send(report.from, PeerMessage::ReleaseSlots { reduction: id }, None),
        }
    }

    /// A node reports that it released slots that it was assigned before this epoch.
    pub fn on_epoch(&mut self, lent: &mut Lent<'_>, node: NodeId, epoch: u64) {
        if !self.heard.note(node, epoch) {
            // A repetition: its slots were assigned anew since.
            return;
        }
        let is_assigned = |reduction: &Reduction| match &reduction.stage {
            Stage::Committed(commitment) => commitment.is_for(node),
            _ => reduction.assignments().any(|(at, _)| *at == node),
        };
        for number in self.numbers(is_assigned) {
            self.step(lent, number, |reduction, lent| reduction.on_slots_let_go(lent, node));
        }
    }
}

impl Reduction {
    fn repeat_assignments(&self, ctx: &mut Ctx, node: NodeId) {
        self.repeat_commit(ctx, node);
        if self.prefetched.contains(&node) {
            ctx.send(node, PeerMessage::Prefetch { id: self.target() }, None);
        }
        for (_, assignment) in self.assignments().filter(|(at, _)| *at == node) {
            let assign = PeerMessage::AssignSlot { reduction: self.id, assignment: assignment.clone() };
            ctx.send(node, assign, None);
        }
    }

    pub(super) fn on_slot_held(&self, ctx: &mut Ctx, SlotReport { from, slot, attempt }: SlotReport) {
        let reduction = self.id;
        match &self.stage {
            Stage::Committed(commitment) if commitment.is_for(from) => self.repeat_commit(ctx, from),
            Stage::Committed(_) => ctx.send(from, PeerMessage::ReleaseSlots { reduction }, None),
            Stage::Tree | Stage::Stripes(_) | Stage::Small(_) => {
                let assigned =
                    self.assignments().find(|(at, assignment)| *at == from && assignment.slot == slot);
                match assigned.map(|(_, assignment)| assignment) {
                    Some(assignment) if assignment.attempt > attempt => {
                        let assignment = assignment.clone();
                        ctx.send(from, PeerMessage::AssignSlot { reduction, assignment }, None);
                    }
                    Some(_) => {}
                    // The slot was given to another node, or to none: an unread sum would hold space until the end.
                    None => ctx.send(from, PeerMessage::ReleaseSlot { reduction, slot, attempt }, None),
                }
            }
        }
    }
}

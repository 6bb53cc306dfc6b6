//! Preemption, at the coordinator: a slot that waits for space may preempt others on its node (see `slots::preemption`),
//! if its reduction waits for nothing else.

use hoplite_types::peer::{PeerMessage, SlotFailure};
use hoplite_types::{NodeId, ReductionId};

use crate::Core;

impl Core {
    /// A slot waits for space.
    pub(crate) fn on_slot_needs_space(
        &mut self,
        from: NodeId,
        reduction: ReductionId,
        slot: u32,
        attempt: u32,
    ) {
        self.on_slot_held(from, reduction, slot, attempt);
        if reduction.coordinator == self.ctx.me && self.is_striped_slot(reduction.number, from, slot, attempt)
        {
            // The partial sums of a plain tree take less space: the root needs only the target.
            return self.on_stripe_failed(reduction.number, from, SlotFailure::NoSpace);
        }
        if reduction.coordinator == self.ctx.me && self.needs_only_space(reduction.number) {
            self.ctx.send(from, PeerMessage::Preempt { reduction, slot, attempt }, None);
        }
    }

    /// Whether all sources are chosen and complete, so that it waits for no other work.
    pub(super) fn needs_only_space(&self, number: u64) -> bool {
        let Some(reduction) = self.reductions.get(&number) else { return false };
        let is_whole = |(_, slot): &(u32, super::coordinator::Slot)| {
            slot.sources.iter().all(|chosen| {
                let mut copies = self.subscriptions.copies(reduction.request.sources[chosen.index]);
                copies.any(|(node, report)| {
                    slot.node == Some(node) && report.edition == chosen.edition && report.complete
                })
            })
        };
        reduction.commitment.is_none()
            && reduction.chosen_count() == reduction.k()
            && reduction.slots.iter().all(is_whole)
    }
}

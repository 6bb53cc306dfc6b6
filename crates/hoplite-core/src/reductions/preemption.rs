//! Preemption: a slot that waits for space may preempt others on its node (see `slots::preemption`), if its reduction
//! waits for nothing else.

use hoplite_types::peer::{PeerMessage, SlotFailure};
use hoplite_types::ReductionId;

use super::reduction::{Reduction, Slot};
use super::{Lent, Reductions, SlotReport, Step, WAIT};

impl Reductions {
    /// A slot waits for space.
    pub fn on_slot_needs_space(&mut self, lent: &mut Lent<'_>, id: ReductionId, report: SlotReport) {
        self.on_slot_held(lent.ctx, id, report);
        if id.coordinator == lent.ctx.me {
            self.step(lent, id.number, |reduction, lent| reduction.on_slot_needs_space(lent, report));
        }
    }
}

impl Reduction {
    fn on_slot_needs_space(&mut self, lent: &mut Lent<'_>, report: SlotReport) -> Step {
        if self.is_striped() && self.assignment_of(report).is_some() {
            // The partial sums of a plain tree take less space: the root needs only the target.
            return self.on_stripe_failed(lent, report.from, SlotFailure::NoSpace);
        }
        if self.needs_only_space(lent) {
            let SlotReport { from, slot, attempt } = report;
            lent.ctx.send(from, PeerMessage::Preempt { reduction: self.id, slot, attempt }, None);
        }
        WAIT
    }

    /// Whether all sources are chosen and complete, so that it waits for no other work.
    pub(super) fn needs_only_space(&self, lent: &Lent<'_>) -> bool {
        let is_whole = |(_, slot): &(u32, Slot)| {
            slot.sources.iter().all(|chosen| {
                let mut copies = lent.subscriptions.copies(self.request.sources[chosen.index]);
                copies.any(|(node, report)| {
                    slot.node == Some(node) && report.edition == chosen.edition && report.complete
                })
            })
        };
        self.commitment().is_none() && self.chosen_count() == self.k() && self.slots.iter().all(is_whole)
    }
}

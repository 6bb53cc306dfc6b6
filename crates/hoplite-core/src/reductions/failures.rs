//! Slots that cannot continue by themselves, and how their coordinator reacts.

use std::time::Duration;

use hoplite_types::peer::{PeerMessage, SlotAssignment, SlotFailure, Source, Verdict};
use hoplite_types::{ErrorKind, NodeId, ObjectId, ReductionId};

use super::plan::PAUSE;
use super::reduction::{Reduction, Slot};
use super::{fail, Lent, Reductions, SlotReport, Step, ADVANCE, WAIT};
use crate::ctx::Ctx;
use crate::timers::Timer;

/// How long a slot that has failed before pauses. A dead child is refused at once, many thousand times a second, until
/// the members agree that it is dead.
const RETRY_SLOT_AFTER: Duration = Duration::from_millis(20);

impl Reductions {
    pub fn on_slot_failed(
        &mut self,
        lent: &mut Lent<'_>,
        number: u64,
        report: SlotReport,
        failure: SlotFailure,
    ) {
        let Some(reduction) = self.table.get(&number) else {
            let id = ReductionId { coordinator: lent.ctx.me, number };
            return lent.ctx.send(report.from, PeerMessage::ReleaseSlots { reduction: id }, None);
        };
        if reduction.commitment().is_some() {
            return reduction.repeat_commit(lent.ctx, report.from);
        }
        if let SlotFailure::LetGo(epoch) = failure {
            self.on_epoch(lent, report.from, epoch);
        }
        self.step(lent, number, |reduction, lent| reduction.on_slot_failed(lent, report, failure));
    }
}

impl Reduction {
    fn on_slot_failed(&mut self, lent: &mut Lent<'_>, report: SlotReport, failure: SlotFailure) -> Step {
        let from = report.from;
        let Some(assigned) = self.assignment_of(report).cloned() else {
            // It was assigned anew meanwhile.
            return WAIT;
        };
        if let SlotFailure::Source(source) = failure {
            self.avoid_source(from, &assigned, source);
        }
        if self.is_striped() {
            return self.on_stripe_failed(lent, from, failure);
        }
        let assigned = self.current_slot(report);
        if assigned.node != Some(from) {
            // Its source there is gone; the place is to be filled anew.
            return WAIT;
        }
        assigned.restart = true;
        let again = assigned.attempt > 0;
        match failure {
            SlotFailure::NoSpace | SlotFailure::Taken | SlotFailure::Refused(_) => {
                return self.fail_for_slot(from, failure)
            }
            SlotFailure::Source(_) => return ADVANCE,
            // The child may not know of its slot, or not any more.
            SlotFailure::Child(child) => self.repeat_assignment(lent.ctx, child),
            SlotFailure::LetGo(_) => {}
        }
        if !again {
            return ADVANCE;
        }
        // A turn of assignments may be scheduled already.
        let timer = Timer::AdvanceReduction(self.id.number);
        if lent.ctx.timers.due(timer).is_none_or(|due| due > lent.ctx.now + PAUSE) {
            lent.ctx.timers.set(lent.ctx.now + RETRY_SLOT_AFTER, timer);
        }
        WAIT
    }

    pub(super) fn fail_for_slot(&self, node: NodeId, failure: SlotFailure) -> Step {
        let (me, target) = (self.id.coordinator, self.target());
        match failure {
            SlotFailure::Refused(Verdict::Deleted) => self.fail_for_deletion(),
            SlotFailure::Taken | SlotFailure::Refused(_) => {
                let message = format!("{me}: the target {target} exists already on {node}");
                fail(ErrorKind::AlreadyExists, &message)
            }
            SlotFailure::NoSpace | SlotFailure::Source(_) | SlotFailure::Child(_) | SlotFailure::LetGo(_) => {
                let size = self.facts().size;
                let message =
                    format!("{me}: {node} has no room for a partial sum of {target} ({size} bytes)");
                fail(ErrorKind::StoreFull, &message)
            }
        }
    }

    /// The slot's node does not have this source after all: it is not taken from that copy again.
    fn avoid_source(&mut self, node: NodeId, assignment: &SlotAssignment, source: ObjectId) {
        let assigned = assignment.sources.iter().find(|assigned| assigned.id == source);
        if let (Some(index), Some(&Source { edition, .. })) = (self.index_of(source), assigned) {
            self.bad.insert((index, node, edition));
        }
    }

    fn repeat_assignment(&self, ctx: &mut Ctx, slot: u32) {
        let found = self.slots.iter().find(|(id, _)| *id == slot);
        // A leaf with a single source has no assignment: its parent pulls the source itself.
        if let Some((node, assignment)) = found.and_then(|(_, slot)| slot.assigned.as_ref()) {
            let assign = PeerMessage::AssignSlot { reduction: self.id, assignment: assignment.clone() };
            ctx.send(*node, assign, None);
        }
    }

    /// The slot of the tree that the report is about, which is current.
    fn current_slot(&mut self, report: SlotReport) -> &mut Slot {
        let found = self.slots.iter_mut().find(|(id, _)| *id == report.slot);
        found.map(|(_, slot)| slot).expect("it has an assignment")
    }
}

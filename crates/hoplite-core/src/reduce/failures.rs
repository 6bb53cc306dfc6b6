//! Slots that cannot continue by themselves, and how their coordinator reacts.

use std::time::Duration;

use hoplite_types::peer::{PeerMessage, SlotAssignment, SlotFailure, Source, Verdict};
use hoplite_types::{ErrorKind, NodeId, ObjectId, ReductionId};

use super::coordinator::Slot;
use super::plan::PAUSE;
use crate::timers::Timer;
use crate::Core;

/// How long a slot that has failed before pauses. A dead child is refused at once, many thousand times a second, until
/// the members agree that it is dead.
const RETRY_SLOT_AFTER: Duration = Duration::from_millis(20);

impl Core {
    pub(crate) fn on_slot_failed(
        &mut self,
        from: NodeId,
        number: u64,
        slot: u32,
        attempt: u32,
        failure: SlotFailure,
    ) {
        let id = ReductionId { coordinator: self.ctx.me, number };
        match self.reductions.get(&number).map(|reduction| reduction.commitment.is_some()) {
            None => return self.ctx.send(from, PeerMessage::ReleaseSlots { reduction: id }, None),
            Some(true) => return self.repeat_commit(number, from),
            Some(false) => {}
        }
        if let SlotFailure::LetGo(epoch) = failure {
            self.on_epoch(from, epoch);
        }
        let Some(assigned) =
            self.reductions.get(&number).and_then(|known| known.assignment_of(from, slot, attempt))
        else {
            return;
        };
        let assigned = assigned.clone();
        if let SlotFailure::Source(source) = failure {
            self.avoid_source(number, from, &assigned, source);
        }
        if self.reductions[&number].stripes.is_some() {
            return self.on_stripe_failed(number, from, failure);
        }
        let Some(assigned) = self.current_slot(number, slot, attempt).filter(|slot| slot.node == Some(from))
        else {
            return;
        };
        assigned.restart = true;
        let again = assigned.attempt > 0;
        match failure {
            SlotFailure::NoSpace | SlotFailure::Taken | SlotFailure::Refused(_) => {
                return self.fail_for_slot(number, from, failure)
            }
            SlotFailure::Source(_) => return self.advance_reduction(number),
            // The child may not know of its slot, or not any more.
            SlotFailure::Child(child) => self.repeat_assignment(number, child),
            SlotFailure::LetGo(_) => {}
        }
        if !again {
            return self.advance_reduction(number);
        }
        // A turn of assignments may be scheduled already.
        let timer = Timer::AdvanceReduction(number);
        if self.ctx.timers.due(timer).is_none_or(|due| due > self.ctx.now + PAUSE) {
            self.ctx.timers.set(self.ctx.now + RETRY_SLOT_AFTER, timer);
        }
    }

    pub(super) fn fail_for_slot(&mut self, number: u64, node: NodeId, failure: SlotFailure) {
        let reduction = &self.reductions[&number];
        let target = reduction.request.target;
        let size = reduction.facts.as_ref().map_or(0, |facts| facts.size);
        let (kind, message) = match failure {
            SlotFailure::Refused(Verdict::Deleted) => return self.fail_for_deletion(number),
            SlotFailure::Taken | SlotFailure::Refused(_) => {
                let message = format!("{}: the target {target} exists already on {node}", self.ctx.me);
                (ErrorKind::AlreadyExists, message)
            }
            _ => {
                let message = format!(
                    "{}: {node} has no room for a partial sum of {target} ({size} bytes)",
                    self.ctx.me
                );
                (ErrorKind::StoreFull, message)
            }
        };
        self.fail_reduction(number, kind, &message);
    }

    /// The slot's node does not have this source after all: it is not taken from that copy again.
    fn avoid_source(&mut self, number: u64, node: NodeId, assignment: &SlotAssignment, source: ObjectId) {
        let reduction = self.reductions.get_mut(&number).expect("it has a slot");
        let index = reduction.request.sources.iter().position(|&listed| listed == source);
        let assigned = assignment.sources.iter().find(|assigned| assigned.id == source);
        if let (Some(index), Some(&Source { edition, .. })) = (index, assigned) {
            reduction.bad.insert((index, node, edition));
        }
    }

    fn repeat_assignment(&mut self, number: u64, slot: u32) {
        let slots = &self.reductions[&number].slots;
        let assigned = slots.iter().find(|(id, _)| *id == slot).and_then(|(_, slot)| slot.assigned.clone());
        if let Some((node, assignment)) = assigned {
            let reduction = ReductionId { coordinator: self.ctx.me, number };
            self.ctx.send(node, PeerMessage::AssignSlot { reduction, assignment }, None);
        }
    }

    fn current_slot(&mut self, number: u64, slot: u32, attempt: u32) -> Option<&mut Slot> {
        let slots = &mut self.reductions.get_mut(&number)?.slots;
        let (_, slot) = slots.iter_mut().find(|(id, _)| *id == slot)?;
        (slot.attempt == attempt && slot.assigned.is_some()).then_some(slot)
    }
}

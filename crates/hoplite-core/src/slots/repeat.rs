//! Slots periodically report their state to their coordinators, which answer with any message that was missed. So
//! neither side needs to know which messages the other has received.

use hoplite_types::peer::{PeerMessage, SlotFailure};
use hoplite_types::NodeId;

use super::table::{Running, SlotKey};
use super::Slots;
use crate::ctx::Ctx;

impl Slots {
    /// Whether there are slots to report to their coordinators.
    pub fn has_reports(&self) -> bool {
        self.table.count() > 0
    }

    /// Reports the state of the slots here to their coordinators; only to `to`, if that is given.
    pub fn repeat_reports(&self, ctx: &mut Ctx, to: Option<NodeId>) {
        let open = self.table.iter().filter(|(_, running)| running.needs_coordinator());
        for (key, running) in open {
            let coordinator = key.0.coordinator;
            // A coordinator that is not a member gets its report when it comes back.
            if ctx.shards.contains(coordinator) && to.is_none_or(|node| node == coordinator) {
                ctx.send(coordinator, report(key, running), None);
            }
        }
    }

    /// The epoch that assignments of this coordinator must know of.
    pub fn fence_of(&self, coordinator: NodeId) -> u64 {
        self.epochs.fence_of(coordinator)
    }

    /// Whether this assignment must be refused: it was made before or while its coordinator was believed dead. Bytes
    /// that were folded here under the same attempt may have been read, and would not be the same.
    pub(super) fn declines(&self, ctx: &mut Ctx, key: SlotKey, attempt: u32, epoch: u64) -> bool {
        let (reduction, slot) = key;
        let fence = self.epochs.fence_of(reduction.coordinator);
        let declined = epoch < fence || !ctx.shards.contains(reduction.coordinator);
        if declined {
            let failure = SlotFailure::LetGo(fence);
            let failed = PeerMessage::SlotFailed { reduction, slot, attempt, failure };
            ctx.send(reduction.coordinator, failed, None);
        }
        declined
    }
}

/// The report of a slot to its coordinator.
fn report((reduction, slot): SlotKey, running: &Running) -> PeerMessage {
    let attempt = running.assignment.attempt;
    match running.failure {
        Some(failure) => PeerMessage::SlotFailed { reduction, slot, attempt, failure },
        None if running.is_done_root() => PeerMessage::RootDone { reduction, slot, attempt },
        None => PeerMessage::SlotHeld { reduction, slot, attempt },
    }
}

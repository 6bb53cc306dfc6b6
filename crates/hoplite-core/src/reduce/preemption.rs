//! Preemption: reductions release space that others need. Partial sums stay until their reduction is over, so two large
//! reductions in stores too small for both would wait for each other.
//!
//! ```text
//!  slot waits for space ── SlotNeedsSpace ──▶ coordinator: all sources complete? ── Preempt ──▶ others here let go
//! ```
//! One reduction always has precedence over all others in its way: of those that lack only space, the one with the
//! smallest id. It gets its space everywhere, ends, and gives it back. A reduction that still lacks a complete source
//! comes after those and preempts none: it may lack an object that they are about to make. A slot's old report about
//! this does no harm: the slot is assigned anew with a newer one.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::peer::{PeerMessage, SlotAssignment, SlotFailure};
use hoplite_types::{CopyId, NodeId, ReductionId};

use super::slot_table::{Running, SlotKey, State};
use crate::copies::SpaceWaiter;
use crate::timers::Timer;
use crate::Core;

/// How long a slot waits for space before others are preempted, and between two checks. Their partial sums are lost. So
/// it is long enough for most of them to end by themselves, and short for a slot that would wait for ever.
const PREEMPT_AFTER: Duration = Duration::from_secs(1);

impl Core {
    pub(super) fn wait_for_slot_space(&mut self, key: SlotKey) {
        let (reduction, slot) = key;
        let size = self.slots.running.get(&key).map_or(0, |running| running.assignment.size);
        self.copies.wait_for_space(&mut self.ctx, SpaceWaiter::Slot { reduction, slot }, size);
        let timer = Timer::SlotNeedsSpace(reduction, slot);
        if !self.ctx.timers.is_set(timer) {
            self.ctx.timers.set(self.ctx.now + PREEMPT_AFTER, timer);
        }
    }

    /// The slot has its space, or no longer needs it.
    pub(super) fn end_wait_for_space(&mut self, key: SlotKey) {
        let (reduction, slot) = key;
        self.ctx.timers.clear(Timer::SlotNeedsSpace(reduction, slot));
        self.copies.end_wait_for_space(SpaceWaiter::Slot { reduction, slot });
        self.end_preemption(key);
    }

    /// No space is reserved for this slot any more: the waiters behind it try again.
    fn end_preemption(&mut self, key: SlotKey) {
        if self.slots.end_preemption(key) {
            self.copies.note_space();
        }
    }

    /// Whether space is being made here for a slot that has precedence over this one.
    pub(super) fn is_preempted_here(&self, key: SlotKey, assignment: &SlotAssignment) -> bool {
        self.slots.preempting().any(|other| is_preempted_by(key, assignment, other))
    }

    pub(crate) fn on_slot_space_timer(&mut self, key: SlotKey) {
        self.end_preemption(key);
        let (reduction, slot) = key;
        if self.copies.waits_for_space(SpaceWaiter::Slot { reduction, slot }) {
            let attempt = self.slots.running[&key].assignment.attempt;
            self.ctx.send(
                reduction.coordinator,
                PeerMessage::SlotNeedsSpace { reduction, slot, attempt },
                None,
            );
            self.ctx.timers.set(self.ctx.now + PREEMPT_AFTER, Timer::SlotNeedsSpace(reduction, slot));
        }
    }

    /// The coordinator's side: a slot waits for space.
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

    /// Other slots here release their partial sums, if that makes the space that this slot waits for.
    pub(crate) fn on_preempt(&mut self, key: SlotKey, attempt: u32) {
        let current = self.slots.running.get(&key).filter(|running| running.assignment.attempt == attempt);
        let Some(Running { assignment, state: State::Waiting, .. }) = current else { return };
        let assignment = assignment.clone();
        let Some(victims) = self.preemption_victims(key, &assignment) else { return };
        self.slots.running.get_mut(&key).expect("it waits").assignment.lacking = false;
        self.slots.begin_preemption(key);
        for (victim, copy) in victims {
            let epoch = self.slots.epochs().fence_of(victim.0.coordinator);
            self.fail_slot(victim, SlotFailure::LetGo(epoch));
            self.copies.withdraw(&mut self.ctx, copy);
            self.copies.doom(&mut self.ctx, copy);
        }
    }

    /// The fewest slots that must be preempted, the last in order first. `None` if it would not fit even so.
    fn preemption_victims(
        &mut self,
        key: SlotKey,
        assignment: &SlotAssignment,
    ) -> Option<Vec<(SlotKey, CopyId)>> {
        let inputs: BTreeSet<_> =
            self.local_inputs(&assignment.sources, &assignment.children).ok()??.into_iter().collect();
        let holds = |(&victim, running): (&SlotKey, &Running)| match running.state {
            // A root with the complete sum may be committed.
            State::Folded { .. } if running.assignment.root => None,
            State::Folding { copy, .. } | State::Folded { copy } | State::Gathering { copy } => {
                let known = self.copies.get(copy)?;
                let free = !known.doomed && known.views == 0 && !inputs.contains(&copy);
                (free && is_preempted_by(victim, &running.assignment, key)).then_some((victim, copy))
            }
            State::Waiting | State::Failed => None,
        };
        let victims: Vec<_> = self.slots.running.iter().filter_map(holds).collect();
        let copies: Vec<_> = victims.iter().map(|&(_, copy)| copy).collect();
        let count = self.copies.count_to_give_up(&copies, assignment.size, &inputs)?;
        Some(victims.into_iter().rev().take(count).collect())
    }
}

/// Whether a slot gives up its space for another slot, whose reduction lacks only space.
fn is_preempted_by(key: SlotKey, assignment: &SlotAssignment, to: SlotKey) -> bool {
    let ((reduction, _), (other, _)) = (key, to);
    reduction != other && (assignment.lacking || reduction > other)
}

//! Preemption: slots release space that others need. Partial sums stay until their reduction is over, so two large
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
use hoplite_types::CopyId;

use super::assign::local_inputs;
use super::table::{Running, SlotKey, State};
use super::Slots;
use crate::copies::SpaceWaiter;
use crate::lent::Lent;
use crate::timers::Timer;

/// How long a slot waits for space before others are preempted, and between two checks. Their partial sums are lost. So
/// it is long enough for most of them to end by themselves, and short for a slot that would wait for ever.
const PREEMPT_AFTER: Duration = Duration::from_secs(1);

impl Slots {
    pub(super) fn wait_for_space(&self, lent: &mut Lent<'_>, key: SlotKey) {
        let (reduction, slot) = key;
        let size = self.table.get(key).expect("the caller's").assignment.size;
        lent.copies.wait_for_space(lent.ctx, SpaceWaiter::Slot { reduction, slot }, size);
        let timer = Timer::SlotNeedsSpace(reduction, slot);
        if !lent.ctx.timers.is_set(timer) {
            lent.ctx.timers.set(lent.ctx.now + PREEMPT_AFTER, timer);
        }
    }

    /// The slot has its space, or no longer needs it.
    pub(super) fn end_wait_for_space(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        let (reduction, slot) = key;
        lent.ctx.timers.clear(Timer::SlotNeedsSpace(reduction, slot));
        lent.copies.end_wait_for_space(SpaceWaiter::Slot { reduction, slot });
        self.end_preemption(lent, key);
    }

    /// No space is reserved for this slot any more: the waiters behind it try again.
    fn end_preemption(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        if self.table.end_preemption(key) {
            lent.copies.note_space();
        }
    }

    /// Whether space is being made here for a slot that has precedence over this one.
    pub(super) fn is_preempted_here(&self, key: SlotKey, assignment: &SlotAssignment) -> bool {
        self.table.preempting().any(|other| is_preempted_by(key, assignment, other))
    }

    pub fn on_space_timer(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        self.end_preemption(lent, key);
        let (reduction, slot) = key;
        if lent.copies.waits_for_space(SpaceWaiter::Slot { reduction, slot }) {
            let attempt = self.table.get(key).expect("it waits").assignment.attempt;
            let needs = PeerMessage::SlotNeedsSpace { reduction, slot, attempt };
            lent.ctx.send(reduction.coordinator, needs, None);
            lent.ctx.timers.set(lent.ctx.now + PREEMPT_AFTER, Timer::SlotNeedsSpace(reduction, slot));
        }
    }

    /// Other slots here release their partial sums, if that makes the space that this slot waits for.
    pub fn on_preempt(&mut self, lent: &mut Lent<'_>, key: SlotKey, attempt: u32) {
        // Otherwise the slot got its space meanwhile, or is over.
        let Some(assignment) = self.table.waiting(key).filter(|waiting| waiting.attempt == attempt) else {
            return;
        };
        // It would not fit even so.
        let Some(victims) = self.preemption_victims(lent, key, assignment) else { return };
        self.table.note_not_lacking(key);
        self.table.begin_preemption(key);
        for (victim, copy) in victims {
            let epoch = self.epochs.fence_of(victim.0.coordinator);
            self.fail(lent.ctx, victim, SlotFailure::LetGo(epoch));
            lent.copies.withdraw(lent.ctx, copy);
            lent.copies.doom(lent.ctx, copy);
        }
    }

    /// The fewest slots that must be preempted, the last in order first. `None` if it would not fit even so.
    fn preemption_victims(
        &self,
        lent: &mut Lent<'_>,
        key: SlotKey,
        assignment: &SlotAssignment,
    ) -> Option<Vec<(SlotKey, CopyId)>> {
        let inputs: BTreeSet<_> =
            local_inputs(lent, &assignment.sources, &assignment.children).ok()??.into_iter().collect();
        let holds = |(victim, running): (SlotKey, &Running)| match running.state {
            // A root with the complete sum may be committed.
            State::Folded { .. } if running.assignment.root => None,
            State::Folding { copy, .. } | State::Folded { copy } | State::Gathering { copy } => {
                let known = lent.copies.get(copy)?;
                let free = !known.doomed && known.views == 0 && !inputs.contains(&copy);
                (free && is_preempted_by(victim, &running.assignment, key)).then_some((victim, copy))
            }
            State::Waiting | State::Failed => None,
        };
        let victims: Vec<_> = self.table.iter().filter_map(holds).collect();
        let copies: Vec<_> = victims.iter().map(|&(_, copy)| copy).collect();
        let count = lent.copies.count_to_give_up(&copies, assignment.size, &inputs)?;
        Some(victims.into_iter().rev().take(count).collect())
    }
}

/// Whether a slot gives up its space for another slot, whose reduction lacks only space.
fn is_preempted_by(key: SlotKey, assignment: &SlotAssignment, to: SlotKey) -> bool {
    let ((reduction, _), (other, _)) = (key, to);
    reduction != other && (assignment.lacking || reduction > other)
}

//! Leaving in good order: copies that only this node holds are handed over to others, then the members are notified.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::peer::CopyReport;
use hoplite_types::{CopyId, NodeId, ObjectId};

use crate::io::Output;
use crate::subscriptions::Watcher;
use crate::timers::Timer;
use crate::Core;

/// Limit of copies that are looked at in one turn.
const COPIES_PER_TURN: usize = 256;
const PAUSE: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct Leaving {
    until: Duration,
    /// The copies after this one have yet to be looked at. `None` once all were.
    behind: Option<CopyId>,
    /// Objects that only we keep, as far as we know: they must be pinned elsewhere before we go.
    kept_here: BTreeSet<ObjectId>,
    /// The other members were notified.
    is_gone: bool,
}

impl Core {
    /// The daemon is about to end, within this time at the latest.
    pub(crate) fn on_leave(&mut self, within: Duration) {
        if self.leaving.is_some() {
            return;
        }
        let until = self.ctx.now + within;
        let behind = Some(CopyId(0));
        self.ctx.is_leaving = true;
        self.leaving = Some(Leaving { until, behind, kept_here: BTreeSet::new(), is_gone: false });
        self.ctx.timers.set(until, Timer::Leave);
        if !within.is_zero() {
            self.hand_over_some();
        }
    }

    fn is_handing_over(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.until > self.ctx.now)
    }

    /// Reports the next few copies to their owners as leaving. The owners have another node pin the objects that only
    /// this one has; we watch for that.
    pub(crate) fn hand_over_some(&mut self) {
        if !self.is_handing_over() {
            return;
        }
        let Some(behind) = self.leaving.as_ref().and_then(|leaving| leaving.behind) else { return };
        let next = self.copies.behind(behind).take(COPIES_PER_TURN);
        let next: Vec<_> = next.map(|(id, copy)| (id, copy.object)).collect();
        if let Some(leaving) = &mut self.leaving {
            leaving.behind = next.last().map(|&(id, _)| id);
        }
        for &(copy, object) in &next {
            if self.copies.live(object) == Some(copy) && self.stays_here(object) {
                self.hand_over(copy, object);
            }
        }
        match next.is_empty() {
            true => self.leave_if_nothing_is_left(),
            false => self.ctx.timers.set(self.ctx.now + PAUSE, Timer::HandOver),
        }
    }

    /// Whether there is a sealed copy here that is pinned and public.
    fn stays_here(&self, object: ObjectId) -> bool {
        self.copies.live_copy(object).is_some_and(|copy| copy.public && copy.pinned && copy.is_sealed())
    }

    /// Hands over a copy that becomes pinned while we are leaving. It may have been reported to its owner before we
    /// knew that we leave.
    pub(crate) fn hand_over(&mut self, copy: CopyId, object: ObjectId) {
        if self.is_handing_over() {
            self.copies.announce(&mut self.ctx, copy, true, false);
            self.watch(object, Watcher::Leave);
            self.on_handed_over(object);
        }
    }

    /// The copies of an object of ours changed: it may be pinned elsewhere by now, or gone from here.
    pub(crate) fn on_handed_over(&mut self, object: ObjectId) {
        let elsewhere = |(node, report): (NodeId, &CopyReport)| {
            let stays = report.complete && report.pinned && !report.leaving;
            stays && node != self.ctx.me && self.ctx.shards.contains(node)
        };
        if !self.ctx.is_leaving {
            return;
        }
        let done = !self.stays_here(object) || self.subscriptions.copies(object).any(elsewhere);
        let Some(leaving) = &mut self.leaving else { return };
        match done {
            true => leaving.kept_here.remove(&object),
            // Perhaps it was handed over before, to a node that is gone.
            false => leaving.kept_here.insert(object),
        };
        if done {
            self.leave_if_nothing_is_left();
        }
    }

    /// Leaves, if nothing more is to be handed over.
    pub(crate) fn leave_if_nothing_is_left(&mut self) {
        if !self.is_handing_over() {
            return;
        }
        let handed_over = |leaving: &Leaving| leaving.behind.is_none() && leaving.kept_here.is_empty();
        // Members that were lost may be found again in time, unless there never were any.
        let alone = self.ctx.shards.len() == 1 && self.members.expects_nobody();
        let busy = !self.writes.is_empty() || !self.reductions.is_empty() || self.slots.await_commits();
        if alone || (!busy && self.leaving.as_ref().is_some_and(handed_over)) {
            self.ctx.timers.set(self.ctx.now, Timer::Leave);
        }
    }

    /// From then on it decides nothing, because it could not notify anybody.
    pub(crate) fn has_left(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leaving| leaving.is_gone)
    }

    pub(crate) fn on_leave_timer(&mut self) {
        if let Some(leaving) = &mut self.leaving {
            leaving.is_gone = true;
        }
        // Owners remove the subscriptions of a departed node by themselves: no unsubscriptions are sent.
        let changes = self.members.leave(self.ctx.now);
        self.on_member_changes(changes);
        self.ctx.out.push_back(Output::Left);
    }
}

//! Leaving in good order: copies that only this node holds are handed over to others, then the members are notified.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::peer::CopyReport;
use hoplite_types::{CopyId, NodeId, ObjectId};

use crate::copies::Copies;
use crate::ctx::Ctx;
use crate::keys::Watcher;
use crate::subscriptions::Subscriptions;
use crate::timers::Timer;

/// Limit of copies that are looked at in one turn.
const COPIES_PER_TURN: usize = 256;
const PAUSE: Duration = Duration::from_micros(100);

/// Nothing to do until the daemon is about to end.
#[derive(Debug, Default)]
pub(crate) struct Leave(Option<Leaving>);

#[derive(Debug)]
struct Leaving {
    until: Duration,
    /// The copies after this one have yet to be looked at. `None` once all were.
    behind: Option<CopyId>,
    /// Objects that only we keep, as far as we know: they must be pinned elsewhere before we go.
    kept_here: BTreeSet<ObjectId>,
    /// The other members were notified.
    is_gone: bool,
}

impl Leave {
    /// The daemon is about to end, within this time at the latest.
    pub fn begin(
        &mut self,
        ctx: &mut Ctx,
        copies: &mut Copies,
        watched: &mut Subscriptions,
        within: Duration,
    ) {
        if self.0.is_some() {
            // It was told before.
            return;
        }
        let until = ctx.now + within;
        let behind = Some(CopyId(0));
        ctx.is_leaving = true;
        self.0 = Some(Leaving { until, behind, kept_here: BTreeSet::new(), is_gone: false });
        ctx.timers.set(until, Timer::Leave);
        if !within.is_zero() {
            self.hand_over_some(ctx, copies, watched);
        }
    }

    pub fn is_handing_over(&self, ctx: &Ctx) -> bool {
        self.0.as_ref().is_some_and(|leaving| leaving.until > ctx.now)
    }

    /// Whether nothing is left to be handed over.
    pub fn has_handed_over(&self) -> bool {
        self.0.as_ref().is_some_and(|leaving| leaving.behind.is_none() && leaving.kept_here.is_empty())
    }

    /// From then on the node decides nothing, because it could not notify anybody.
    pub fn has_left(&self) -> bool {
        self.0.as_ref().is_some_and(|leaving| leaving.is_gone)
    }

    /// The other members are being notified.
    pub fn note_left(&mut self) {
        if let Some(leaving) = &mut self.0 {
            leaving.is_gone = true;
        }
    }

    /// Reports the next few copies to their owners as leaving. The owners have another node pin the objects that only
    /// this one has; we watch for that.
    pub fn hand_over_some(&mut self, ctx: &mut Ctx, copies: &mut Copies, watched: &mut Subscriptions) {
        let Some(leaving) = self.0.as_mut().filter(|leaving| leaving.until > ctx.now) else {
            // The time for that is up.
            return;
        };
        let Some(behind) = leaving.behind else {
            // All were looked at.
            return;
        };
        let next = copies.behind(behind).take(COPIES_PER_TURN);
        let next: Vec<_> = next.map(|(id, copy)| (id, copy.object)).collect();
        leaving.behind = next.last().map(|&(id, _)| id);
        for &(copy, object) in &next {
            if copies.live(object) == Some(copy) && stays_here(copies, object) {
                self.hand_over(ctx, copies, watched, copy);
            }
        }
        match next.is_empty() {
            true => ctx.work_ended = true,
            false => ctx.timers.set(ctx.now + PAUSE, Timer::HandOver),
        }
    }

    /// Hands over a copy that becomes pinned while we are leaving. It may have been reported to its owner before we
    /// knew that we leave.
    pub fn hand_over(
        &mut self,
        ctx: &mut Ctx,
        copies: &mut Copies,
        watched: &mut Subscriptions,
        copy: CopyId,
    ) {
        if self.is_handing_over(ctx) {
            let object = copies[copy].object;
            copies.announce(ctx, copy, true, false);
            watched.watch(ctx, object, Watcher::Leave);
            self.on_handed_over(ctx, copies, watched, object);
        }
    }

    /// The copies of an object of ours changed: it may be pinned elsewhere by now, or gone from here.
    pub fn on_handed_over(
        &mut self,
        ctx: &mut Ctx,
        copies: &Copies,
        watched: &Subscriptions,
        object: ObjectId,
    ) {
        let Some(leaving) = &mut self.0 else {
            // Nothing is handed over while we stay.
            return;
        };
        let elsewhere = |(node, report): (NodeId, &CopyReport)| {
            let stays = report.complete && report.pinned && !report.leaving;
            stays && node != ctx.me && ctx.shards.contains(node)
        };
        let done = !stays_here(copies, object) || watched.copies(object).any(elsewhere);
        match done {
            true => leaving.kept_here.remove(&object),
            // Perhaps it was handed over before, to a node that is gone.
            false => leaving.kept_here.insert(object),
        };
        if done {
            ctx.work_ended = true;
        }
    }
}

/// Whether there is a sealed copy here that is pinned and public.
fn stays_here(copies: &Copies, object: ObjectId) -> bool {
    copies.live_copy(object).is_some_and(|copy| copy.public && copy.pinned && copy.is_sealed())
}

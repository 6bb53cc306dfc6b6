//! Ending in good order: what only this node holds is brought elsewhere, then the others are told.

use std::time::Duration;

use hoplite_words::peer::CopyReport;
use hoplite_words::{NodeId, ObjectId};

use crate::io::Output;
use crate::subscriptions::Watcher;
use crate::timers::Timer;
use crate::Core;

impl Core {
    /// The daemon is to end, within this time at the latest.
    pub(crate) fn on_leave(&mut self, within: Duration) {
        if self.leaving.is_some() {
            return;
        }
        self.leaving = Some(self.now + within);
        self.timers.set(self.now + within, Timer::Leave);
        if within.is_zero() {
            return;
        }
        // Their owners see to it that another node gets what only this one has; we watch them do it.
        for (copy, object) in self.own_copies() {
            self.announce(copy, true, false);
            self.watch(object, Watcher::Leave);
        }
        self.leave_if_nothing_is_left();
    }

    /// Sealed copies that are to stay here.
    fn own_copies(&self) -> Vec<(hoplite_words::CopyId, ObjectId)> {
        let kept =
            |copy: &crate::copies::Copy| copy.public && !copy.doomed && copy.pinned && copy.is_sealed();
        self.copies.table.iter().filter(|(_, copy)| kept(copy)).map(|(&id, copy)| (id, copy.object)).collect()
    }

    /// Something changed that may let us go.
    pub(crate) fn leave_if_nothing_is_left(&mut self) {
        let Some(until) = self.leaving.filter(|&until| until > self.now) else { return };
        debug_assert!(until > self.now);
        let elsewhere = |(node, report): (NodeId, &CopyReport)| {
            node != self.me
                && report.complete
                && report.pinned
                && !report.leaving
                && self.shards.contains(node)
        };
        // Whoever is lost may be found again in time, unless there never was anybody.
        let alone = self.shards.iter().count() == 1 && self.members.expects_nobody();
        let kept = |object| self.subscriptions.copies(object).any(elsewhere);
        let busy = !self.writes.is_empty() || !self.reductions.is_empty();
        if alone || (!busy && self.own_copies().into_iter().all(|(_, object)| kept(object))) {
            self.timers.set(self.now, Timer::Leave);
        }
    }

    pub(crate) fn on_leave_timer(&mut self) {
        for object in self.subscriptions.objects() {
            self.unwatch(object, Watcher::Leave);
        }
        let changes = self.members.leave(self.now);
        self.on_member_changes(changes);
        self.out.push_back(Output::Left);
    }
}

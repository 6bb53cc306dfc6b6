//! Deleted ids, at their owner.

use std::time::Duration;

use hoplite_words::peer::DirectoryAnswer;
use hoplite_words::{NodeId, ObjectId};

use crate::timers::Timer;
use crate::Core;

impl Core {
    /// The id is deleted: everyone who has it or waits for it is told, a tombstone stands.
    pub(super) fn bury(&mut self, id: ObjectId, ttl: Duration) {
        let until = self.now + ttl;
        let me = self.me;
        let heir = self.shards.owner_among(id, |node| node != me);
        let entry = self.entry_mut(id);
        let known = std::mem::take(entry);
        let until = known.buried_until.map_or(until, |old| old.max(until));
        let mut everyone = known.everyone();
        // Who would own it without us remembers it too, or it might rise again if we died now.
        everyone.extend(heir);
        entry.buried_until = Some(until);
        entry.told_deleted = known.told_deleted;
        entry.told_deleted.extend(everyone.iter().copied());
        self.timers.set(until, Timer::Tombstone(id));
        self.timers.clear(Timer::Loss(id));
        for node in everyone {
            self.answer(node, id, DirectoryAnswer::Deleted);
        }
    }

    pub(crate) fn on_tombstone_over(&mut self, id: ObjectId) {
        let now = self.now;
        self.change_entry(id, |entry| {
            for until in [&mut entry.buried_until, &mut entry.mourned_until] {
                *until = until.filter(|&until| until > now);
            }
        });
    }

    /// Our word to `node` that something is deleted may be lost.
    pub(crate) fn repeat_deletions(&mut self, node: NodeId) {
        let told = self.directory.entries.iter().filter(|(_, entry)| entry.told_deleted.contains(&node));
        for id in told.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.answer(node, id, DirectoryAnswer::Deleted);
        }
    }
}

//! Objects whose last complete copy is gone, and seeing to it that this does not happen [design §4].

use std::time::Duration;

use hoplite_words::peer::{DirectoryAnswer, Verdict};
use hoplite_words::{limits, NodeId, ObjectId};

use crate::timers::Timer;
use crate::Core;

impl Core {
    /// A complete copy existed somewhere, says the owner before us, or a reduction's coordinator.
    pub(super) fn on_mourn(&mut self, id: ObjectId, ttl_ms: u64) {
        let ttl = Duration::from_millis(ttl_ms).min(limits::TOMBSTONE_TTL);
        let until = self.now + ttl;
        let entry = self.entry_mut(id);
        if entry.buried_until.is_none() {
            entry.mourn(until);
            self.timers.set(until, Timer::Tombstone(id));
            self.tell_witness(id);
            self.tell_if_lost(id, None);
        }
    }

    /// If the object is lost, says so to `to`, or to everyone who waits; remembers it for those who come
    /// later. An entry that is new here because owners changed waits first for what the others hold.
    pub(super) fn tell_if_lost(&mut self, id: ObjectId, to: Option<NodeId>) {
        let until = self.now + limits::TOMBSTONE_TTL;
        let dead = |node| !self.shards.contains(node);
        let entry = self.directory.entries.get_mut(&id).filter(|entry| entry.is_lost(dead));
        let Some(entry) = entry else { return };
        if entry.mourned_until.is_none() {
            entry.mourn(until);
            self.timers.set(until, Timer::Tombstone(id));
        }
        if let Some(due) = entry.trusted_from.filter(|&from| from > self.now) {
            return self.timers.set(due, Timer::Loss(id));
        }
        let entry = &self.directory.entries[&id];
        let waiting = entry.asks.iter().map(|ask| ask.node).chain(entry.subscribers.keys().copied());
        let told: Vec<_> = to.map_or_else(|| waiting.collect(), |node| vec![node]);
        for node in told {
            self.answer(node, id, DirectoryAnswer::Lost);
        }
    }

    /// All that others hold is known by now.
    pub(crate) fn on_loss_timer(&mut self, id: ObjectId) {
        self.drop_orphans(id);
        self.tell_if_lost(id, None);
        self.serve_asks(id);
    }

    /// With its writer gone, part of a writing is of no use: its receivers drop it and ask again.
    pub(super) fn drop_orphans(&mut self, id: ObjectId) {
        let Some(entry) = self.directory.entries.get_mut(&id) else { return };
        for (orphan, edition) in entry.take_orphans() {
            self.tell_subscribers_gone(id, orphan);
            let verdict = Verdict::Deleted;
            self.answer(orphan, id, DirectoryAnswer::Verdict { edition, verdict });
        }
    }

    /// A receiver reported its copy: if nobody has said that he writes or holds the whole, he may be dead.
    pub(super) fn drop_orphans_once_trusted(&mut self, id: ObjectId) {
        let Some(entry) = self.directory.entries.get(&id) else { return };
        match entry.trusted_from.filter(|&from| from > self.now) {
            Some(due) => self.timers.set(due, Timer::Loss(id)),
            None => self.drop_orphans(id),
        }
    }

    /// The node that kept the object for good may be gone or going: another complete copy is to stay; and
    /// if the only one is on a node that leaves, another node gets it.
    pub(super) fn secure(&mut self, id: ObjectId) {
        let Some(entry) = self.directory.entries.get(&id) else { return };
        let complete = || entry.reported().filter(|(_, report)| report.complete);
        if complete().any(|(_, report)| report.pinned && !report.leaving) {
            return;
        }
        let stays = complete().find(|(_, report)| !report.leaving).map(|(node, _)| node);
        let leaves: Vec<_> = complete().map(|(node, _)| node).collect();
        let keeper = match stays {
            Some(node) => Some(node),
            // Being written or reduced: its writer will pin it.
            None if leaves.is_empty() => None,
            None => self.shards.owner_among(id, |node| !leaves.contains(&node)),
        };
        if let Some(node) = keeper {
            self.answer(node, id, DirectoryAnswer::Pin);
        }
    }

    /// Looks after every entry: what was said while members came and went may be lost.
    pub(crate) fn secure_entries(&mut self) {
        let ids: Vec<_> = self.directory.entries.keys().copied().collect();
        ids.into_iter().for_each(|id| self.secure(id));
    }
}

//! Deleted ids, at their owner.

use std::time::Duration;

use hoplite_words::peer::DirectoryAnswer;
use hoplite_words::{limits, NodeId, ObjectId};

use super::entry::Entry;
use crate::timers::Timer;
use crate::Core;

impl Core {
    /// The id is deleted: everyone who has it or waits for it is told, a tombstone stands.
    pub(super) fn bury(&mut self, id: ObjectId, ttl: Duration) {
        if ttl.is_zero() {
            // It was on its way for as long as it stood.
            return;
        }
        let until = self.now + ttl;
        self.remembered.remove(id);
        let everyone = self.entry_mut(id).bury(until);
        self.timers.set(self.directory.entries[&id].buried_until.unwrap_or(until), Timer::Tombstone(id));
        self.timers.clear(Timer::Loss(id));
        for node in everyone {
            self.tell_deleted(node, id);
        }
        self.tell_heir(id);
    }

    pub(super) fn tell_deleted(&mut self, node: NodeId, id: ObjectId) {
        let until = self.directory.entries.get(&id).and_then(|entry| entry.buried_until);
        let ttl = until.unwrap_or_default().saturating_sub(self.now);
        self.answer(node, id, DirectoryAnswer::Deleted { ttl_ms: ttl.as_millis() as u64 });
    }

    /// Who would own the tombstone without us remembers it too, or the object might rise again if we died.
    fn tell_heir(&mut self, id: ObjectId) {
        let heir = self.next_in_line(id);
        let Some(entry) = self.directory.entries.get_mut(&id) else { return };
        let old = std::mem::replace(&mut entry.heir, heir);
        if let Some(heir) = heir.filter(|_| heir != old) {
            if entry.unheard.insert(heir) {
                self.tell_deleted(heir, id);
            }
        }
    }

    /// Members came or went.
    pub(crate) fn tell_heirs(&mut self) {
        let buried = self.directory.entries.iter().filter(|(_, entry)| entry.buried_until.is_some());
        for id in buried.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.tell_heir(id);
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

    /// A call deletes the id: it is done when everyone concerned has heard, so that a get begun
    /// afterwards finds the object nowhere.
    pub(super) fn delete_everywhere(&mut self, origin: NodeId, id: ObjectId, token: u64) {
        self.bury(id, limits::TOMBSTONE_TTL);
        let deleters = &mut self.entry_mut(id).deleters;
        if !deleters.contains(&(origin, token)) {
            deleters.push((origin, token));
        }
        self.finish_deletes(id);
    }

    /// `node` has dropped what it had of the deleted object.
    pub(crate) fn on_deletion_heard(&mut self, node: NodeId, id: ObjectId) {
        self.change_entry(id, |entry| entry.unheard.remove(&node));
        self.finish_deletes(id);
    }

    /// Nobody waits for a node that is no member: it hears of the deletion when it comes back.
    pub(super) fn finish_deletes(&mut self, id: ObjectId) {
        let Some(entry) = self.directory.entries.get_mut(&id) else { return };
        if entry.unheard.iter().any(|&node| self.shards.contains(node)) {
            return;
        }
        for (node, token) in std::mem::take(&mut entry.deleters) {
            self.answer(node, id, DirectoryAnswer::DeleteDone { token });
        }
    }

    /// Our word to `node` that something is deleted may be lost.
    pub(crate) fn repeat_deletions(&mut self, node: NodeId) {
        let stands = |entry: &Entry| entry.buried_until.is_some_and(|until| until > self.now);
        let told = self.directory.entries.iter();
        let told = told.filter(|(_, entry)| stands(entry) && entry.unheard.contains(&node));
        for id in told.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.tell_deleted(node, id);
        }
    }
}

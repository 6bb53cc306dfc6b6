//! Deleted ids that this node has heard of. The owner's tombstone may die with the owner; so whoever
//! held, wanted or deleted the object remembers it too, and tells a new owner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::peer::DirectoryRequest;
use hoplite_words::{limits, NodeId, ObjectId};

use crate::timers::Timer;
use crate::Core;

/// Graves that are remembered: forgetting the oldest means that only their owner knows them.
const GRAVES_MAX: usize = 16_384;

#[derive(Debug)]
struct Grave {
    until: Duration,
    /// The owner that knows of it.
    told: NodeId,
}

#[derive(Debug, Default)]
pub(crate) struct Graves {
    table: BTreeMap<ObjectId, Grave>,
    /// In order of their end.
    order: BTreeSet<(Duration, ObjectId)>,
}

impl Graves {
    fn add(&mut self, id: ObjectId, until: Duration, told: NodeId) {
        if self.table.contains_key(&id) {
            return;
        }
        self.table.insert(id, Grave { until, told });
        self.order.insert((until, id));
        if self.order.len() > GRAVES_MAX {
            self.drop_first();
        }
    }

    pub fn contains(&self, id: ObjectId) -> bool {
        self.table.contains_key(&id)
    }

    fn drop_first(&mut self) {
        if let Some((_, id)) = self.order.pop_first() {
            self.table.remove(&id);
        }
    }
}

impl Core {
    /// `id` was deleted; its owner of the moment knows. That may be us: our tombstone is handed over once,
    /// and that word may be lost.
    pub(crate) fn remember_grave(&mut self, id: ObjectId, ttl: Duration) {
        let until = self.now + ttl.min(limits::TOMBSTONE_TTL);
        self.graves.add(id, until, self.shards.owner(id));
        self.await_first_end();
    }

    pub(crate) fn on_graves_timer(&mut self) {
        while self.graves.order.first().is_some_and(|&(until, _)| until <= self.now) {
            self.graves.drop_first();
        }
        self.await_first_end();
    }

    fn await_first_end(&mut self) {
        if let Some(&(until, _)) = self.graves.order.first() {
            self.timers.set(until, Timer::Graves);
        }
    }

    /// Owners changed: the new ones are told.
    pub(crate) fn move_graves(&mut self) {
        let shards = &self.shards;
        let moved = self.graves.table.iter_mut().filter_map(|(&id, grave)| {
            let owner = shards.owner(id);
            let moved = owner != grave.told;
            grave.told = owner;
            moved.then_some((id, grave.until))
        });
        for (id, until) in moved.collect::<Vec<_>>() {
            self.bury_at_owner(id, until);
        }
    }

    /// What was said to `node` lately may be lost.
    pub(crate) fn repeat_graves(&mut self, node: NodeId) {
        let told = self.graves.table.iter().filter(|(_, grave)| grave.told == node);
        for (id, until) in told.map(|(&id, grave)| (id, grave.until)).collect::<Vec<_>>() {
            self.bury_at_owner(id, until);
        }
    }

    fn bury_at_owner(&mut self, id: ObjectId, until: Duration) {
        let ttl_ms = until.saturating_sub(self.now).as_millis() as u64;
        if ttl_ms == 0 {
            return;
        }
        self.ask_owner(id, DirectoryRequest::Bury { ttl_ms }, None);
    }
}

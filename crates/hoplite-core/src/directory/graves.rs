//! Deleted ids that this node has heard of. The owner's tombstone may die with the owner; so whoever
//! held, wanted or deleted the object remembers it too, and tells a new owner.

use std::time::Duration;

use hoplite_words::peer::DirectoryRequest;
use hoplite_words::{limits, NodeId, ObjectId};

use super::fading::Fading;
use crate::timers::Timer;
use crate::Core;

/// Graves that are remembered: forgetting the oldest means that only their owner knows them.
const GRAVES_MAX: usize = 16_384;

/// With the owner that knows of it.
pub(crate) type Graves = Fading<GRAVES_MAX>;

impl Core {
    /// `id` was deleted; its owner of the moment knows. That may be us: our tombstone is handed over once,
    /// and that word may be lost.
    pub(crate) fn remember_grave(&mut self, id: ObjectId, ttl: Duration) {
        if !self.graves.contains(id) {
            let until = self.now + ttl.min(limits::TOMBSTONE_TTL);
            self.graves.insert(id, self.shards.owner(id), until);
        }
        self.forget_graves();
    }

    pub(crate) fn forget_graves(&mut self) {
        if let Some(next) = self.graves.expire(self.now) {
            self.timers.set(next, Timer::Graves);
        }
    }

    /// Owners changed: the new ones are told.
    pub(crate) fn move_graves(&mut self) {
        let moved = self.graves.iter().filter_map(|(id, grave)| {
            let owner = self.shards.owner(id);
            (owner != grave.node).then_some((id, owner, grave.until))
        });
        for (id, owner, until) in moved.collect::<Vec<_>>() {
            self.graves.insert(id, owner, until);
            self.bury_at_owner(id, until);
        }
    }

    /// What was said to `node` lately may be lost.
    pub(crate) fn repeat_graves(&mut self, node: NodeId) {
        let told = self.graves.iter().filter(|(_, grave)| grave.node == node);
        for (id, until) in told.map(|(id, grave)| (id, grave.until)).collect::<Vec<_>>() {
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

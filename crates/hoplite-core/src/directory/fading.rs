//! Ids that are remembered for a while, each with the node it has to do with; those that end first are
//! forgotten first, also when there are too many.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::{NodeId, ObjectId};

#[derive(Debug)]
pub(super) struct Memory {
    pub node: NodeId,
    pub until: Duration,
}

/// No more than `MAX` ids.
#[derive(Debug, Default)]
pub(crate) struct Fading<const MAX: usize> {
    table: BTreeMap<ObjectId, Memory>,
    /// In order of their end.
    order: BTreeSet<(Duration, ObjectId)>,
}

impl<const MAX: usize> Fading<MAX> {
    /// What was remembered of `id` before is replaced.
    pub(super) fn insert(&mut self, id: ObjectId, node: NodeId, until: Duration) {
        self.remove(id);
        self.table.insert(id, Memory { node, until });
        self.order.insert((until, id));
        if self.order.len() > MAX {
            self.remove_first();
        }
    }

    pub(crate) fn remove(&mut self, id: ObjectId) {
        if let Some(memory) = self.table.remove(&id) {
            self.order.remove(&(memory.until, id));
        }
    }

    fn remove_first(&mut self) {
        if let Some((_, id)) = self.order.pop_first() {
            self.table.remove(&id);
        }
    }

    /// Forgets whatever has ended, and says when the next one ends.
    pub(super) fn expire(&mut self, now: Duration) -> Option<Duration> {
        while self.order.first().is_some_and(|&(until, _)| until <= now) {
            self.remove_first();
        }
        self.order.first().map(|&(until, _)| until)
    }

    pub(crate) fn contains(&self, id: ObjectId) -> bool {
        self.table.contains_key(&id)
    }

    pub(super) fn get(&self, id: ObjectId) -> Option<&Memory> {
        self.table.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ObjectId, &Memory)> {
        self.table.iter().map(|(&id, memory)| (id, memory))
    }
}

//! Pulls that came before their copies.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::client::Gauge;
use hoplite_types::{NodeId, ObjectId};

use super::{forget, Pull};
use crate::keys::PullKey;

/// Limit of early pulls that wait here. Further ones are refused, and their receivers ask their owners again.
const PARKED_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Parked {
    table: BTreeMap<PullKey, Pull>,
    by_object: BTreeMap<ObjectId, BTreeSet<PullKey>>,
    /// Count of early pulls that were refused because too many were parked.
    refused: u64,
}

impl Parked {
    pub fn park(&mut self, key: PullKey, pull: Pull) {
        self.table.insert(key, pull);
        self.by_object.entry(pull.id).or_default().insert(key);
    }

    pub fn unpark(&mut self, key: PullKey) -> Option<Pull> {
        let pull = self.table.remove(&key)?;
        forget(&mut self.by_object, pull.id, key);
        Some(pull)
    }

    pub fn has(&self, key: PullKey) -> bool {
        self.table.contains_key(&key)
    }

    /// Whether no more may wait.
    pub fn is_full(&self) -> bool {
        self.table.len() >= PARKED_MAX
    }

    pub fn note_refused(&mut self) {
        self.refused += 1;
    }

    pub fn of_object(&self, id: ObjectId) -> Vec<(PullKey, Pull)> {
        let keys = self.by_object.get(&id).into_iter().flatten();
        keys.map(|&key| (key, self.table[&key])).collect()
    }

    pub fn of_node(&self, node: NodeId) -> Vec<PullKey> {
        self.table.keys().copied().filter(|key| key.to == node).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn gauge(&self) -> Gauge {
        let (name, value) = ("pulls that wait for their copy".to_owned(), self.table.len() as u64);
        Gauge { name, value, limit: PARKED_MAX as u64, met: self.refused }
    }
}

//! One shard that this node owns, and for each node the entries that involve it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use hoplite_types::peer::DirectoryRequest;
use hoplite_types::{NodeId, ObjectId};

use super::entry::{Content, Entry};
use super::held::HeldRequests;
use super::holders::Held;
use crate::ctx::Ctx;

/// Limit of requests held for all recovering shards together, about 200 bytes each. Dropped ones are repeated by
/// their senders, which miss an answer.
pub(super) const HELD_MAX: usize = 65_536;

/// The state of a shard until it is active.
#[derive(Debug, Default)]
pub(super) struct Recovering {
    /// How many members' inventories are still to come.
    pub awaited: usize,
    pub held: HeldRequests,
}

#[derive(Debug, Default)]
pub(super) struct OwnedShard {
    entries: BTreeMap<ObjectId, Box<Entry>>,
    by_node: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    recovering: Option<Box<Recovering>>,
}

impl OwnedShard {
    /// A shard of whose objects other nodes may know.
    pub fn recovering() -> Self {
        OwnedShard { recovering: Some(Box::default()), ..OwnedShard::default() }
    }

    pub fn is_active(&self) -> bool {
        self.recovering.is_none()
    }

    pub fn recovery_mut(&mut self) -> Option<&mut Recovering> {
        self.recovering.as_deref_mut()
    }

    /// One more member's inventory is to come, even if the shard was active before.
    pub fn await_one_more(&mut self) {
        self.recovering.get_or_insert_default().awaited += 1;
    }

    /// All inventories are here: returns the held requests.
    pub fn activate(&mut self) -> Vec<(ObjectId, NodeId, DirectoryRequest)> {
        self.recovering.take().map(|recovering| recovering.held.into_requests()).unwrap_or_default()
    }

    pub fn held_count(&self) -> usize {
        self.recovering.as_ref().map_or(0, |recovering| recovering.held.len())
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn entry(&self, id: ObjectId) -> Option<&Entry> {
        self.entries.get(&id).map(|entry| &**entry)
    }

    pub fn known_mut(&mut self, id: ObjectId) -> Option<&mut Entry> {
        self.entries.get_mut(&id).map(|entry| &mut **entry)
    }

    pub fn entry_mut(&mut self, id: ObjectId) -> &mut Entry {
        self.entries.entry(id).or_default()
    }

    pub fn ids(&self) -> Vec<ObjectId> {
        self.entries.keys().copied().collect()
    }

    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.by_node.keys().copied()
    }

    /// Ids of entries in which the node is involved.
    pub fn of_node(&self, node: NodeId) -> impl Iterator<Item = ObjectId> + '_ {
        self.by_node.get(&node).into_iter().flatten().copied()
    }

    pub fn count_of(&self, node: NodeId) -> usize {
        self.by_node.get(&node).map_or(0, |ids| ids.len())
    }

    pub fn reindex(&mut self, id: ObjectId, node: NodeId) {
        if self.entries.get(&id).is_some_and(|entry| entry.involves(node)) {
            self.by_node.entry(node).or_default().insert(id);
        } else if let Some(ids) = self.by_node.get_mut(&node) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    /// Objects after `after` whose complete copies were all on nodes that are not members.
    pub fn lost_with_strangers<'a>(
        &'a self,
        ctx: &'a Ctx,
        after: Option<ObjectId>,
    ) -> impl Iterator<Item = ObjectId> + 'a {
        let is_lost = |entry: &Entry| {
            let stands = |(node, held): (NodeId, &Held)| held.is_alive() && ctx.shards.contains(node);
            matches!(entry.content, Content::Complete { .. }) && !entry.holders.iter().any(stands)
        };
        let behind = self.entries.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        behind.filter(move |(_, entry)| is_lost(entry)).map(|(&id, _)| id)
    }

    /// Removes an entry, with all references to it.
    pub fn take(&mut self, id: ObjectId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        let nodes: BTreeSet<_> = entry.nodes().collect();
        nodes.into_iter().for_each(|node| self.reindex(id, node));
        Some(*entry)
    }

    /// Whether the index agrees with the entries.
    #[cfg(debug_assertions)]
    pub fn is_index_right(&self) -> bool {
        let mut right: BTreeMap<NodeId, BTreeSet<ObjectId>> = BTreeMap::new();
        for (&id, entry) in &self.entries {
            for node in entry.nodes() {
                right.entry(node).or_default().insert(id);
            }
        }
        right == self.by_node
    }
}

//! Keeps one complete copy of each object pinned when the node that pinned it is dead or leaving.
//!
//! The owner tells a node to pin its copy, and repeats this on each new connection until the node reports a pinned
//! copy. A node without space refuses; then the owner tells another one.

use std::ops::Bound;
use std::time::Duration;

use hoplite_types::peer::DirectoryAnswer;
use hoplite_types::{NodeId, ObjectId};

use super::entry::Entry;
use super::holders::Held;
use super::Directory;
use crate::ctx::Ctx;
use crate::timers::Timer;

/// How long until nodes that had no space are asked again, if no other node is left.
const PIN_AGAIN_AFTER: Duration = Duration::from_secs(5);

impl Directory {
    /// The node that pinned the object may be gone or leaving: another complete copy is to be pinned. If the only
    /// complete copy is on a node that leaves, another node fetches it.
    pub(super) fn secure(&mut self, ctx: &mut Ctx, id: ObjectId) {
        if !self.is_active(id.shard()) {
            return;
        }
        let Some(entry) = self.entry(id) else { return };
        let keeper = match entry.is_kept() {
            true => None,
            false => entry.choose_keeper(ctx, id),
        };
        let known = entry.keeper.as_ref();
        let told = known.and_then(|keeper| keeper.node);
        let is_refused = keeper.is_none() && known.is_some_and(|known| !known.refused.is_empty());
        if is_refused && !entry.is_kept() && !ctx.timers.is_set(Timer::Pin(id)) {
            ctx.timers.set(ctx.now + PIN_AGAIN_AFTER, Timer::Pin(id));
        }
        if told == keeper {
            return;
        }
        if let Some(told) = told {
            self.forget_keeper(told, id);
        }
        if let Some(keeper) = keeper {
            self.entry_mut(id).keeper.get_or_insert_default().node = Some(keeper);
            self.pinning.entry(keeper).or_default().insert(id);
            self.answer(ctx, keeper, id, DirectoryAnswer::Pin);
        }
    }

    pub(super) fn forget_keeper(&mut self, keeper: NodeId, id: ObjectId) {
        if let Some(ids) = self.pinning.get_mut(&keeper) {
            ids.remove(&id);
            if ids.is_empty() {
                self.pinning.remove(&keeper);
            }
        }
        if let Some(known) = self.known_entry_mut(id).and_then(|entry| entry.keeper.as_deref_mut()) {
            known.node = None;
        }
    }

    /// `node` reports that its copy is pinned.
    pub(super) fn on_pinned(&mut self, node: NodeId, id: ObjectId) {
        let Some(entry) = self.known_entry_mut(id) else { return };
        if entry.keeper.as_ref().is_some_and(|keeper| keeper.node == Some(node)) {
            entry.keeper = None;
            self.forget_keeper(node, id);
        }
    }

    pub(super) fn on_pin_refused(&mut self, ctx: &mut Ctx, node: NodeId, id: ObjectId) {
        let Some(keeper) = self.known_entry_mut(id).and_then(|entry| entry.keeper.as_deref_mut()) else {
            // A former owner told it to; ours is another choice.
            return;
        };
        if keeper.node != Some(node) {
            return;
        }
        keeper.refused.push(node);
        self.forget_keeper(node, id);
        self.secure(ctx, id);
    }

    /// It has a complete copy by now, whether or not it had space for one before.
    pub(super) fn forget_refusal(&mut self, node: NodeId, id: ObjectId) {
        if let Some(keeper) = self.known_entry_mut(id).and_then(|entry| entry.keeper.as_deref_mut()) {
            keeper.refused.retain(|&refused| refused != node);
        }
    }

    /// Nodes that had no space may have some by now.
    pub fn on_pin_timer(&mut self, ctx: &mut Ctx, id: ObjectId) {
        if let Some(keeper) = self.known_entry_mut(id).and_then(|entry| entry.keeper.as_deref_mut()) {
            keeper.refused.clear();
            self.secure(ctx, id);
        }
    }

    /// Handles some of the objects that `node` was to pin. Our request may have been lost, so it is repeated; if the
    /// node is gone, another one is chosen. Returns the last of the objects if there may be more.
    pub(super) fn pin_some(
        &mut self,
        ctx: &mut Ctx,
        node: NodeId,
        after: Option<ObjectId>,
        most: usize,
    ) -> Option<ObjectId> {
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        let told = self.pinning.get(&node)?.range((behind, Bound::Unbounded));
        let ids: Vec<_> = told.take(most).copied().collect();
        for &id in &ids {
            if ctx.shards.contains(node) {
                self.answer(ctx, node, id, DirectoryAnswer::Pin);
            } else {
                self.forget_keeper(node, id);
                self.secure(ctx, id);
            }
        }
        ids.last().copied().filter(|_| ids.len() >= most)
    }
}

impl Entry {
    fn complete(&self) -> impl Iterator<Item = (NodeId, &Held)> {
        self.holders.reported().filter(|(_, held)| held.complete)
    }

    fn is_kept(&self) -> bool {
        self.complete().any(|(_, held)| held.pinned && !held.leaving)
    }

    /// Chooses the node to pin it: one that has it or, if all of those are leaving, any node.
    fn choose_keeper(&self, ctx: &Ctx, id: ObjectId) -> Option<NodeId> {
        let known = self.keeper.as_deref();
        let refused = |node: NodeId| known.is_some_and(|keeper| keeper.refused.contains(&node));
        let eligible = |node: NodeId| ctx.shards.contains(node) && !refused(node);
        let stays = |(node, held): &(NodeId, &Held)| !held.leaving && eligible(*node);
        if let Some((node, _)) = self.complete().find(stays) {
            return Some(node);
        }
        let mut complete = self.complete().peekable();
        if complete.peek().is_none() || complete.any(|(_, held)| !held.leaving) {
            // It is being written or reduced: its writer will pin it. Or it stays as it is, for want of space.
            return None;
        }
        let told = known.and_then(|keeper| keeper.node).filter(|&node| eligible(node));
        let leaves = |node: NodeId| self.holders.get(node).is_some_and(|held| held.leaving);
        told.or_else(|| ctx.shards.first_for(id, |node| eligible(node) && !leaves(node)))
    }
}

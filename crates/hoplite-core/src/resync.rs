//! Anti-entropy: resends state that a broken connection, a false death or a change of owners may have lost.
//!
//! | when | what |
//! |---|---|
//! | a shard has a new owner | that owner pulls inventories (`directory::recovery`), or is asked to; we ask it our open questions |
//! | a connection broke, a node came back | both sides pull each other's inventory, and repeat questions, deletions, pins and slot assignments |
//! | a node was believed dead | it is asked to do the same |
//! | a question stays open | that question is repeated, at growing intervals |

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::peer::{PeerMessage, ShardQuery};
use hoplite_types::{NodeId, ObjectId};

use crate::shards::{Moved, ShardSet};
use crate::timers::Timer;
use crate::Core;

/// How soon after its connection broke a peer is resynced.
const RESYNC_AFTER: Duration = Duration::from_millis(50);

/// How long a new owner of a shard has to pull our inventory by itself: it may learn of the change of members
/// later than we.
const PULL_WITHIN: Duration = Duration::from_secs(3);

impl Core {
    /// Some shards have other owners or backups.
    pub(crate) fn on_owners_moved(&mut self, moved: &Moved) {
        self.directory.on_moved(&mut self.ctx, moved);
        if !moved.owners.is_empty() {
            self.expect_pulls(&moved.owners);
            self.repeat_questions(&moved.owners);
        }
        let mut owners: BTreeSet<_> =
            moved.claims_over.iter().map(|shard| self.ctx.shards.owner_of(shard)).collect();
        owners.remove(&self.ctx.me);
        for owner in owners {
            self.needs_resync.insert(owner);
            self.resync_soon(owner);
        }
    }

    /// Another node claims to own these shards: it has learnt of a change of members before us.
    pub(crate) fn note_owner(&mut self, node: NodeId, queries: &[ShardQuery]) {
        self.note_member(node);
        let mut owners = ShardSet::default();
        for &ShardQuery { shard, .. } in queries {
            if self.ctx.shards.note_claimed(self.ctx.now, shard, node) {
                owners.insert(shard);
            }
        }
        if !owners.is_empty() {
            self.on_owners_moved(&Moved { owners, ..Moved::default() });
            self.ctx.arm_refresh();
        }
        for &ShardQuery { shard, .. } in queries {
            if self.ctx.shards.owner_of(shard) == node {
                self.not_pulled.remove(shard);
            }
        }
    }

    /// Waits for the new owners of these shards to pull our inventory.
    fn expect_pulls(&mut self, moved: &ShardSet) {
        for shard in moved.iter().filter(|&shard| self.copies.count_in(shard) > 0) {
            self.not_pulled.set(shard, !self.ctx.shards.is_mine(shard));
        }
        if !self.not_pulled.is_empty() && !self.ctx.timers.is_set(Timer::NotPulled) {
            self.ctx.timers.set(self.ctx.now + PULL_WITHIN, Timer::NotPulled);
        }
    }

    /// Asks owners to resync that have not pulled. They may have owned these shards all along, while we believed a dead
    /// node alive, and our reports went to that node.
    pub(crate) fn ask_for_pulls(&mut self) {
        let not_pulled = std::mem::take(&mut self.not_pulled);
        let holding = not_pulled.iter().filter(|&shard| self.copies.count_in(shard) > 0);
        let owners: BTreeSet<_> = holding.map(|shard| self.ctx.shards.owner_of(shard)).collect();
        for owner in owners {
            self.needs_resync.insert(owner);
            self.resync_soon(owner);
        }
    }

    /// Repeats all unanswered questions about the objects in these shards; owners recognise repetitions.
    pub(crate) fn repeat_questions(&mut self, shards: &ShardSet) {
        let of = |id: ObjectId| shards.contains(id.shard());
        self.fetches.repeat_asks(shards);
        self.subscriptions.repeat(&mut self.ctx, shards);
        self.calls.repeat_questions(of);
        self.ask_due_questions();
        self.repeat_verdict_requests(of);
    }

    pub(crate) fn on_refresh(&mut self) {
        self.ctx.rearm_refresh();
        self.repeat_questions(&ShardSet::all());
        self.repeat_commits();
        self.repeat_slot_reports(None);
        self.forget_old_claims();
        if !self.has_open_questions() {
            self.ctx.timers.clear(Timer::Refresh);
        }
    }

    fn has_open_questions(&self) -> bool {
        self.fetches.has_open_asks()
            || self.subscriptions.has_open()
            || self.calls.has_questions()
            || self.awaits_verdict()
            || self.has_commits()
            || self.slots.has_reports()
            || self.ctx.shards.has_claimed()
    }

    /// Drops old claims of nodes to shards: by now they have either turned out true, or were false.
    fn forget_old_claims(&mut self) {
        let moved = self.ctx.shards.forget_old_claims(self.ctx.now);
        self.on_owners_moved(&moved);
    }

    /// The control connection to a peer broke: the last messages to it may not have arrived.
    pub(crate) fn on_peer_broken(&mut self, node: NodeId) {
        // A sender that we were lent may be no member any more, or not yet.
        if self.ctx.shards.contains(node) {
            // Our request to resync may have been lost as well.
            self.needs_resync.insert(node);
            self.needs_inventory_pull.insert(node);
            if !self.ctx.timers.is_set(Timer::Resync(node)) {
                self.resync_soon(node);
                // This makes the driver dial at once. A refusal shows that the process is gone, not only cut off.
                self.ping(node);
            }
        }
        self.slots_peer_broken(node);
        for transfer in self.fetches.transfers_from(node) {
            // Our pull may be lost; the directory lends the same sender again if it is well.
            self.fetcher().on_pull_refused(transfer);
        }
    }

    /// Schedules a resync of the node, once the connection to it has settled.
    pub(crate) fn resync_soon(&mut self, node: NodeId) {
        self.ctx.timers.set(self.ctx.now + RESYNC_AFTER, Timer::Resync(node));
        self.ctx.hasten_refresh();
    }

    pub(crate) fn on_resync(&mut self, node: NodeId) {
        if self.needs_resync.remove(&node) {
            let epoch = self.slots.fence_of(node);
            self.ctx.send(node, PeerMessage::ResyncRequest { epoch }, None);
        }
        if self.needs_inventory_pull.remove(&node) {
            self.directory.repeat_pull(&mut self.ctx, node);
            self.directory.pull_again(&mut self.ctx, node);
        }
        let theirs = self.ctx.shards.owned_by(node);
        self.repeat_questions(&theirs);
        self.repeat_claims(|id| theirs.contains(id.shard()));
        self.directory.repeat_answers(&mut self.ctx, node);
        self.repeat_assignments(node);
        self.repeat_slot_reports(Some(node));
    }

    /// Nodes that are involved in objects here, and never became members, died before we knew them.
    pub(crate) fn forget_strangers(&mut self) {
        for node in self.directory.strangers(&self.ctx) {
            self.on_node_down(node, None);
        }
    }
}

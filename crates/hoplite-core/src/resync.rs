//! Anti-entropy: resends state that a broken connection, a false death or a change of owners may have lost.
//!
//! | when | what |
//! |---|---|
//! | a shard has a new owner | that owner pulls inventories (`directory::recovery`), or is asked to; we ask it our open questions |
//! | a connection broke, a node came back | both sides pull each other's inventory, and repeat questions, deletions, pins and slot assignments |
//! | a node was believed dead | it is asked to do the same |
//! | a question stays open | that question is repeated, at growing intervals |
//!
//! Here: the nodes with which this is due, and when. `open_questions` repeats what is open.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::{NodeId, Shard};

use crate::copies::Copies;
use crate::ctx::Ctx;
use crate::shards::ShardSet;
use crate::timers::Timer;

/// How soon after its connection broke a peer is resynced.
const RESYNC_AFTER: Duration = Duration::from_millis(50);

/// How long a new owner of a shard has to pull our inventory by itself: it may learn of the change of members
/// later than we.
const PULL_WITHIN: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(crate) struct Resync {
    /// Members some of whose messages may have been dropped as out of date: they are to be asked to resync.
    requests: BTreeSet<NodeId>,
    /// Members whose reports to us may have been lost: they are to be asked for their inventories.
    pulls: BTreeSet<NodeId>,
    /// Shards whose new owner has not yet pulled our inventory.
    not_pulled: ShardSet,
}

impl Resync {
    /// The node is to be asked to resync, when the time for it comes (`soon`).
    pub fn add_request(&mut self, node: NodeId) {
        self.requests.insert(node);
    }

    /// The node is to be asked for its inventory, when the time for it comes.
    pub fn add_pull(&mut self, node: NodeId) {
        self.pulls.insert(node);
    }

    /// Returns whether the node was to be asked to resync.
    pub fn take_request(&mut self, node: NodeId) -> bool {
        self.requests.remove(&node)
    }

    /// Returns whether the node was to be asked for its inventory.
    pub fn take_pull(&mut self, node: NodeId) -> bool {
        self.pulls.remove(&node)
    }

    /// Schedules a resync of the node, once the connection to it has settled.
    pub fn soon(&self, ctx: &mut Ctx, node: NodeId) {
        ctx.timers.set(ctx.now + RESYNC_AFTER, Timer::Resync(node));
        ctx.hasten_refresh();
    }

    /// Schedules a resync in which the node is asked to do the same.
    pub fn request_soon(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.add_request(node);
        self.soon(ctx, node);
    }

    /// The node died.
    pub fn on_node_down(&mut self, ctx: &mut Ctx, node: NodeId) {
        ctx.timers.clear(Timer::Resync(node));
        self.requests.remove(&node);
        self.pulls.remove(&node);
    }

    /// Waits for the new owners of these shards to pull our inventory.
    pub fn expect_pulls(&mut self, ctx: &mut Ctx, copies: &Copies, moved: &ShardSet) {
        for shard in moved.iter().filter(|&shard| copies.count_in(shard) > 0) {
            self.not_pulled.set(shard, !ctx.shards.is_mine(shard));
        }
        if !self.not_pulled.is_empty() && !ctx.timers.is_set(Timer::NotPulled) {
            ctx.timers.set(ctx.now + PULL_WITHIN, Timer::NotPulled);
        }
    }

    /// The owner of this shard pulls our inventory.
    pub fn note_pulled(&mut self, shard: Shard) {
        self.not_pulled.remove(shard);
    }

    /// Asks owners to resync that have not pulled. They may have owned these shards all along, while we believed a dead
    /// node alive, and our reports went to that node.
    pub fn ask_for_pulls(&mut self, ctx: &mut Ctx, copies: &Copies) {
        let not_pulled = std::mem::take(&mut self.not_pulled);
        let holding = not_pulled.iter().filter(|&shard| copies.count_in(shard) > 0);
        let owners: BTreeSet<_> = holding.map(|shard| ctx.shards.owner_of(shard)).collect();
        for owner in owners {
            self.request_soon(ctx, owner);
        }
    }
}

//! Members that come and go, links to them, and the owners of shards, which follow from them.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::peer::{PeerMessage, ShardQuery};
use hoplite_types::NodeId;

use crate::io::{Event, Output};
use crate::members::Change;
use crate::shards::{Moved, ShardSet};
use crate::timers::Timer;
use crate::Core;

/// Members whose links are kept in use, whatever the size of the cluster. Each member is watched by as many others.
const NEIGHBOURS: usize = 16;

/// How often round trips to them are measured.
const PING_PERIOD: Duration = Duration::from_secs(10);

/// The first few measurements follow each other soon: a new peer is busy at first, and so are the nodes it joins.
const PINGS_SOON: u32 = 5;
const PING_SOON: Duration = Duration::from_millis(200);

impl Core {
    pub(crate) fn on_member_changes(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Datagram { to, bytes } => self.ctx.out.push_back(Output::Datagram { to, bytes }),
                Change::Up(node) => self.on_member_up(node),
                Change::Rejoined => self.on_rejoined(),
                Change::Down(node) => {
                    if let Some(moved) = self.ctx.shards.remove(node) {
                        self.ctx.out.push_back(Output::Event(Event::MemberDown { node }));
                        self.on_node_down(node, Some(moved));
                    }
                }
            }
            self.hand_on_notices();
        }
    }

    fn on_member_up(&mut self, node: NodeId) {
        if self.ctx.departed.take(node) {
            self.resync.add_request(node);
        }
        if let Some(moved) = self.ctx.shards.insert(node) {
            self.ctx.out.push_back(Output::Event(Event::MemberUp { node }));
            self.resync.add_pull(node);
            self.directory.on_member_up(&mut self.ctx, node);
            self.on_owners_moved(&moved);
            self.resync.soon(&mut self.ctx, node);
            self.watch_neighbours();
            self.joining.on_member_up(&mut self.ctx, node);
        }
    }

    /// Others believed us dead, and may have made decisions about our shards meanwhile.
    fn on_rejoined(&mut self) {
        self.directory.recover_everything(&mut self.ctx);
        self.ask_for_all_verdicts_again();
        let others: Vec<_> = self.ctx.shards.iter().filter(|&node| node != self.ctx.me).collect();
        others.into_iter().for_each(|node| self.resync.soon(&mut self.ctx, node));
    }

    /// A member died; or a node that never was a member, but that others reported to us.
    pub(crate) fn on_node_down(&mut self, node: NodeId, moved: Option<Moved>) {
        self.ctx.departed.note(node);
        self.ctx.links.forget(node);
        self.ctx.timers.clear(Timer::Ping(node));
        self.resync.on_node_down(&mut self.ctx, node);
        self.sends.on_node_down(&mut self.ctx, node);
        self.with_slots(|slots, lent| slots.on_coordinator_down(lent, node));
        self.with_reductions(|reductions, lent| reductions.on_node_down(lent, node));
        self.directory.on_node_down(&mut self.ctx, node);
        self.subscriptions.on_node_down(&mut self.ctx, node);
        let moved = moved.unwrap_or_else(|| self.ctx.shards.forget_claims_of(node));
        self.on_owners_moved(&moved);
        for backup in self.directory.backup_owners_of(&self.ctx, node) {
            self.resync.request_soon(&mut self.ctx, backup);
        }
        for request in self.directory.take_forwarded_to(&self.ctx, node) {
            self.on_directory(request.origin, request.hops, request.id, request.request);
        }
        self.with_slots(|slots, lent| slots.on_peer_broken(lent, node));
        for transfer in self.fetches.transfers_from(node) {
            self.fetcher().on_pull_refused(transfer);
        }
        self.watch_neighbours();
    }

    /// Keeps links to a few members in use, so that their deaths are noticed at once. Other members are watched by
    /// their own neighbours.
    fn watch_neighbours(&mut self) {
        let neighbours: Vec<_> = self.ctx.shards.neighbours(NEIGHBOURS).collect();
        for node in neighbours {
            if !self.ctx.timers.is_set(Timer::Ping(node)) {
                self.ping(node);
            }
        }
    }

    pub(crate) fn ping(&mut self, node: NodeId) {
        let sent_ns = self.ctx.now.as_nanos() as u64;
        self.ctx.send(node, PeerMessage::Ping { sent_ns }, None);
        if self.ctx.shards.neighbours(NEIGHBOURS).any(|neighbour| neighbour == node) {
            self.ctx.timers.set(self.ctx.now + PING_PERIOD, Timer::Ping(node));
        }
    }

    /// Some shards have other owners or backups.
    pub(crate) fn on_owners_moved(&mut self, moved: &Moved) {
        self.directory.on_moved(&mut self.ctx, moved);
        if !moved.owners.is_empty() {
            self.resync.expect_pulls(&mut self.ctx, &self.copies, &moved.owners);
            self.repeat_questions(&moved.owners);
        }
        let mut owners: BTreeSet<_> =
            moved.claims_over.iter().map(|shard| self.ctx.shards.owner_of(shard)).collect();
        owners.remove(&self.ctx.me);
        for owner in owners {
            self.resync.request_soon(&mut self.ctx, owner);
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
                self.resync.note_pulled(shard);
            }
        }
    }

    /// Drops old claims of nodes to shards: by now they have either turned out true, or were false.
    pub(crate) fn forget_old_claims(&mut self) {
        let moved = self.ctx.shards.forget_old_claims(self.ctx.now);
        self.on_owners_moved(&moved);
    }

    /// The control connection to a peer broke: the last messages to it may not have arrived.
    pub(crate) fn on_peer_broken(&mut self, node: NodeId) {
        // A sender that we were lent may be no member any more, or not yet.
        if self.ctx.shards.contains(node) {
            // Our request to resync may have been lost as well.
            self.resync.add_request(node);
            self.resync.add_pull(node);
            if !self.ctx.timers.is_set(Timer::Resync(node)) {
                self.resync.soon(&mut self.ctx, node);
                // This makes the driver dial at once. A refusal shows that the process is gone, not only cut off.
                self.ping(node);
            }
        }
        self.with_slots(|slots, lent| slots.on_peer_broken(lent, node));
        for transfer in self.fetches.transfers_from(node) {
            // Our pull may be lost; the directory lends the same sender again if it is well.
            self.fetcher().on_pull_refused(transfer);
        }
    }

    /// Nodes that are involved in objects here, and never became members, died before we knew them.
    pub(crate) fn forget_strangers(&mut self) {
        for node in self.directory.strangers(&self.ctx) {
            self.on_node_down(node, None);
        }
    }

    /// The node sent us a request, so it is alive and a member.
    pub(crate) fn note_member(&mut self, node: NodeId) {
        if !self.ctx.shards.contains(node) && !self.ctx.departed.has(node) {
            let changes = self.members.on_heard(self.ctx.now, vec![(node, 0)]);
            self.on_member_changes(changes);
        }
    }

    /// Adds the next few members that others reported.
    pub(crate) fn take_in_members(&mut self) {
        let changes = self.joining.take_in(&self.ctx, &mut self.members);
        self.on_member_changes(changes);
        self.joining.go_on(&mut self.ctx, &self.members);
    }

    /// Starts to serve, once all members are known, and all inventories of our shards have arrived.
    pub(crate) fn take_part_when_joined(&mut self) {
        self.joining.begin(&mut self.ctx);
        if self.joining.knows_members() && !self.directory.is_recovering() {
            self.joining.end();
            self.ctx.has_joined = true;
            self.ctx.is_fresh = false;
            self.repeat_questions(&ShardSet::all());
            self.settle();
        }
    }

    /// A round trip to the node was measured.
    pub(crate) fn on_pong(&mut self, from: NodeId, sent_ns: u64) {
        let round_trip = self.ctx.now.saturating_sub(Duration::from_nanos(sent_ns));
        let measured = self.ctx.links.on_round_trip(from, round_trip.as_secs_f64());
        if measured < PINGS_SOON && self.ctx.shards.contains(from) {
            self.ctx.timers.set(self.ctx.now + PING_SOON, Timer::Ping(from));
        }
    }
}

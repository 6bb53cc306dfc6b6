//! The directory shards that this node owns: the copies of each object, the receivers that wait for it, and the
//! choice of senders.
//!
//! - here: finds the entry for each request, and follows changes of the membership
//! - `shard`: one owned shard, and the nodes involved in its entries
//! - `entry`: knowledge of one object; `holders`: its copies; `asks`: receivers that wait for a sender
//! - `recovery`: a new owner collects all that members know of its shards; `inventory_pulls` asks for it,
//!   `inventory_answers` applies
//! - `claims`: decides which writing becomes the content; `reports`: copies come and go
//! - `questions`: asks, subscriptions, locations; `sender_selection`: chooses a sender for each receiver
//! - `loss`: the last complete copy is gone; `pins`: keeps one complete copy
//! - `tombstones`: deletions; `backups`: tells the backup owner what only this owner knows
//! - `expiring`: ids that expire; `forwarded`: requests sent on to another owner; `held`: requests that wait for
//!   a recovery
//! - `sweeps`: long work in short turns

mod asks;
mod backups;
mod claims;
mod entry;
mod expiring;
mod forwarded;
mod held;
mod holders;
mod inventory_answers;
mod inventory_pulls;
mod loss;
mod pins;
mod questions;
mod recovery;
mod reports;
mod sender_selection;
mod shard;
mod sweeps;
mod tombstones;

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::client::Gauge;
use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{Blob, CopyId, Edition, NodeId, ObjectId, Shard};

use crate::copies::Copies;
use crate::ctx::Ctx;
use crate::shard_table::ShardTable;
use crate::shards::{Moved, ShardSet};
use backups::Backups;
use entry::{Content, Entry};
use forwarded::Forwarded;
use held::Released;
use inventory_pulls::InventoryPulls;
use loss::LostIds;
use shard::OwnedShard;
use sweeps::Sweeps;
use tombstones::Tombstones;

pub(crate) use inventory_pulls::{digest_of, Answer, DIGESTED_MAX, SHARDS_PER_PULL};

/// The part of a request that the core has to carry out.
#[derive(Debug)]
pub(crate) enum Effect {
    /// Keep an evictable copy of a small object beside its entry, then call `on_kept`.
    Keep { id: ObjectId, origin: NodeId, report: CopyReport, payload: Blob },
}

#[derive(Debug, Default)]
pub(crate) struct Directory {
    owned: ShardTable<OwnedShard>,
    tombstones: Tombstones,
    lost: LostIds,
    backups: Backups,
    /// Objects that a node was told to pin, and has not reported as pinned.
    pinning: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    pulls: InventoryPulls,
    forwarded: Forwarded,
    sweeps: Sweeps,
    released: Released,
    /// Count of requests that were dropped because they went round among nodes that do not agree on their owner.
    undeliverable: u64,
}

impl Directory {
    /// A node that expects no others: it owns all shards, and its knowledge is complete.
    pub fn alone() -> Self {
        let owned = Shard::all().map(|shard| (shard, OwnedShard::default())).collect();
        Directory { owned, ..Directory::default() }
    }

    /// A node that is about to join others: it learns which shards it owns, and their contents, once it has (`start`).
    pub fn joining(me: NodeId) -> Self {
        let owned = Shard::all().map(|shard| (shard, OwnedShard::recovering())).collect();
        let pulls = InventoryPulls::of_joiner();
        let mut new = Directory { owned, pulls, ..Directory::default() };
        Shard::all().for_each(|shard| new.await_word_of(me, shard));
        new
    }

    /// The members are known now.
    pub fn start(&mut self, ctx: &mut Ctx) {
        let me = ctx.me;
        let owned: Vec<_> = self.owned.keys().collect();
        owned.into_iter().for_each(|shard| self.on_heard(ctx, shard, me));
        self.pulls.on_members_known();
        self.pull_more(ctx);
    }

    /// The number of entries (of objects that exist or are waited for), and of tombstones.
    pub fn counts(&self) -> (u64, u64) {
        let entries = self.owned.values().map(|shard| shard.len() as u64).sum();
        (entries, self.tombstones.len() as u64)
    }

    pub fn gauges(&self, gauges: &mut Vec<Gauge>) {
        let gauge = |name: &str, value, limit, met| Gauge { name: name.to_owned(), value, limit, met };
        self.tombstones.gauge(gauges);
        self.lost.gauge(gauges);
        self.backups.gauge(gauges);
        self.forwarded.gauge(gauges);
        let held = self.pulls.held as u64;
        gauges.push(gauge("held requests", held, shard::HELD_MAX as u64, self.pulls.held_dropped));
        let shards = self.owned.values().filter(|shard| !shard.is_active()).count() as u64;
        let limit = hoplite_types::limits::SHARDS as u64;
        gauges.push(gauge("recovering shards", shards, limit, self.pulls.given_up));
        gauges.push(gauge("undeliverable requests", 0, 0, self.undeliverable));
    }

    /// The number of entries that a search for the losses in a shard looks at.
    pub fn entries_in(&self, shard: Shard) -> usize {
        self.owned.get(shard).map_or(0, OwnedShard::len) + self.discarded_in(shard)
    }

    fn entry(&self, id: ObjectId) -> Option<&Entry> {
        self.owned.get(id.shard())?.entry(id)
    }

    /// The entry; a new one if there is none. Only for ids that are owned here.
    fn entry_mut(&mut self, id: ObjectId) -> &mut Entry {
        self.shard_mut(id.shard()).entry_mut(id)
    }

    fn known_entry_mut(&mut self, id: ObjectId) -> Option<&mut Entry> {
        self.owned.get_mut(id.shard())?.known_mut(id)
    }

    fn shard_mut(&mut self, shard: Shard) -> &mut OwnedShard {
        self.owned.get_mut(shard).expect("it is owned here")
    }

    /// Whether this owner's knowledge of the shard is complete.
    fn is_active(&self, shard: Shard) -> bool {
        self.owned.get(shard).is_some_and(OwnedShard::is_active)
    }

    /// Updates the index after `node` was added to the entry of `id`, or removed.
    fn reindex(&mut self, id: ObjectId, node: NodeId) {
        if let Some(shard) = self.owned.get_mut(id.shard()) {
            shard.reindex(id, node);
        }
    }

    /// Sets the object's content; a claim that stood before is void.
    fn set_content(&mut self, id: ObjectId, content: Content) {
        let entry = self.entry_mut(id);
        let claimants = [entry.claimant(), content.claimant()];
        let stamp = entry.stamp();
        entry.content = content;
        entry.was_shown &= entry.stamp() == stamp;
        for node in claimants.into_iter().flatten() {
            self.reindex(id, node);
        }
    }

    fn drop_if_empty(&mut self, id: ObjectId) {
        if self.entry(id).is_some_and(Entry::is_empty) {
            self.take_entry(id);
        }
    }

    /// Removes an entry, with all references to it.
    fn take_entry(&mut self, id: ObjectId) -> Option<Entry> {
        let entry = self.owned.get_mut(id.shard())?.take(id)?;
        if let Some(keeper) = entry.keeper.as_ref().and_then(|keeper| keeper.node) {
            self.forget_keeper(keeper, id);
        }
        Some(entry)
    }

    fn answer(&self, ctx: &mut Ctx, to: NodeId, id: ObjectId, answer: DirectoryAnswer) {
        ctx.send(to, PeerMessage::Answer { id, answer }, None);
    }

    /// Serves a request for an id that we own, or holds it until its shard is recovered.
    pub fn on_request(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        origin: NodeId,
        id: ObjectId,
        request: DirectoryRequest,
    ) -> Option<Effect> {
        self.note_origin(ctx, local, origin, id);
        let request = match self.is_active(id.shard()) {
            true => self.queue_behind_released(origin, id, request)?,
            false => self.hold(ctx, origin, id, request)?,
        };
        match request {
            DirectoryRequest::Announce { report, payload, wants_verdict } => {
                return self.on_announce(ctx, local, origin, id, report, payload, wants_verdict);
            }
            DirectoryRequest::Withdraw { seq, edition } => {
                self.on_withdraw(ctx, local, origin, id, seq, edition);
            }
            DirectoryRequest::Ask { ask, have, failed } => {
                self.on_ask(ctx, local, origin, id, ask, have, failed);
            }
            DirectoryRequest::CancelAsk { ask } => self.on_cancel_ask(ctx, local, origin, id, ask),
            DirectoryRequest::Subscribe { bytes_max } => self.on_subscribe(ctx, local, origin, id, bytes_max),
            DirectoryRequest::Unsubscribe => self.end_subscription(id, origin),
            DirectoryRequest::Delete { token } => self.on_delete(ctx, origin, id, token),
            DirectoryRequest::Locate { token } => self.on_locate(ctx, origin, id, token),
            DirectoryRequest::Claim { seq, claim } => self.on_claim(ctx, local, id, seq, claim),
            DirectoryRequest::ReleaseClaim { claim, made } => {
                self.on_release_claim(ctx, local, id, claim, made);
            }
            DirectoryRequest::MarkLost { claim } => self.on_mark_lost(ctx, local, id, claim),
            DirectoryRequest::Bring { nodes } => self.on_bring(ctx, id, nodes),
            DirectoryRequest::PinRefused => self.on_pin_refused(ctx, origin, id),
        }
        None
    }

    /// A request of this node about an object is about to be served or held.
    fn note_origin(&mut self, ctx: &mut Ctx, local: &Copies, origin: NodeId, id: ObjectId) {
        if !ctx.shards.contains(origin) {
            // If it is dead, it will never withdraw anything.
            self.note_stranger(ctx);
        }
        self.sweep_entry(ctx, local, id);
    }

    /// A node or client besides the writer has been given bytes of this writing.
    pub fn note_shown(&mut self, id: ObjectId, edition: Edition) {
        let Some(entry) = self.known_entry_mut(id).filter(|entry| entry.may_be_taken_back()) else { return };
        if entry.holders.iter().any(|(_, held)| held.complete && held.edition == edition) {
            entry.was_shown = true;
            self.lost.remove(id);
        }
    }

    /// The sealed copy here of a small object, if its bytes may be sent with an answer. The copy of a withdrawn put is
    /// about to go, and its bytes may not be sent.
    fn small_to_send(&self, local: &Copies, id: ObjectId) -> Option<CopyId> {
        let copy = local.small_sealed(id)?;
        let edition = local[copy].edition;
        let mut holders = self.entry(id)?.holders.iter();
        holders.any(|(_, held)| held.complete && held.edition == edition).then_some(copy)
    }

    /// Whether this request withdraws a put of `origin`. The copy of it that was kept here, if any, is dropped first,
    /// so that it does not count as a complete copy of the object.
    pub fn is_taken_back(&self, origin: NodeId, id: ObjectId, request: &DirectoryRequest) -> Option<Edition> {
        let &DirectoryRequest::Withdraw { seq, edition } = request else { return None };
        let held = self.entry(id).filter(|entry| !entry.was_shown)?.holders.get(origin)?;
        (held.pinned && held.seq <= seq && held.edition == edition).then_some(edition)
    }

    /// Members changed, and with them the owners of shards.
    pub fn on_moved(&mut self, ctx: &mut Ctx, moved: &Moved) {
        let mut given_up = ShardSet::default();
        for shard in moved.owners.iter() {
            match (ctx.shards.is_mine(shard), self.owned.contains(shard)) {
                (true, false) => self.begin_recovery(ctx, shard),
                (false, true) => drop(given_up.insert(shard)),
                (true, true) | (false, false) => {}
            }
        }
        self.give_shards_up(ctx, &given_up);
        for shard in moved.backups.iter() {
            self.on_backup_moved(ctx, shard);
        }
        self.pull_more(ctx);
    }

    /// A member came up. Shards that are not active yet wait for its inventory, too.
    pub fn on_member_up(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.on_node_up(node);
        if self.pulls.awaits_company {
            return self.recover_everything(ctx);
        }
        // It may own some of the shards now; those we are about to give up.
        let recovering = self.owned.iter().filter(|(_, owned)| !owned.is_active()).map(|(shard, _)| shard);
        let recovering: Vec<_> = recovering.filter(|&shard| ctx.shards.is_mine(shard)).collect();
        for shard in recovering {
            self.await_also(shard, node);
        }
        self.pull_more(ctx);
    }

    /// Recent answers to `node` may have been lost: those that it must know are repeated.
    pub fn repeat_answers(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.sweep_deletions(ctx, node);
        self.sweep_pins(ctx, node);
    }

    /// A member died, or a node that never was a member.
    pub fn on_node_down(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.recovery_node_down(ctx, node);
        self.deletions_node_down(ctx, node);
        self.sweep_node(ctx, node);
    }

    /// Describes the state that is left besides the shards themselves, in words.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (shard, owned) in self.owned.iter() {
            if owned.len() > 0 || !owned.is_active() || owned.nodes().next().is_some() {
                left.push(format!("{shard:?}: {owned:?}"));
            }
        }
        let tables = [
            ("tombstones", self.tombstones.len() == 0 && !self.has_deletions()),
            ("lost ids", self.lost.is_empty()),
            ("backup ids", self.backups.is_empty()),
            ("pins", self.pinning.is_empty()),
            ("sweeps", self.sweeps.is_empty() && self.released.is_empty()),
        ];
        if !self.pulls.is_empty() {
            left.push(format!("{:?}", self.pulls));
        }
        left.extend(tables.iter().filter(|(_, is_empty)| !is_empty).map(|(name, _)| name.to_string()));
        left
    }

    /// The first shard whose index is wrong, if any.
    #[cfg(debug_assertions)]
    pub fn wrong_index(&self) -> Option<Shard> {
        self.owned.iter().find(|(_, owned)| !owned.is_index_right()).map(|(shard, _)| shard)
    }
}

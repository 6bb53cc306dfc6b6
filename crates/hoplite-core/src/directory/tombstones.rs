//! Tombstones of deleted ids, at their owner and at all nodes that heard of the deletion.
//!
//! A tombstone has the time of the deletion by the cluster's clock: an object accepted later is another one and
//! stays. Each node counts the fixed lifetime by itself, because the cluster's clock may jump. A delete is done
//! when the backup owner and all nodes that hold the object, wait for it or may yet seal it have heard of it. So
//! a get that begins afterwards finds the object nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use hoplite_types::client::Gauge;
use hoplite_types::peer::{CopyReport, Deletion, DirectoryAnswer, Verdict};
use hoplite_types::{limits, NodeId, ObjectId, Shard, Stamp};

use super::entry::{Content, Entry};
use super::expiring::{Ends, Expiring};
use super::Directory;
use crate::ctx::Ctx;
use crate::timers::Timer;

/// Limit of one node's tombstones, some 55 bytes each. Beyond it the oldest go early: a late announcement of one of
/// those revives the object.
const TOMBSTONES_MAX: usize = 1 << 20;

/// Limit of deletes under way at one owner, about 150 bytes each. Further ones wait until they are repeated.
const DELETIONS_MAX: usize = 1 << 18;

/// The time of the deletion, and the second of this node's clock in which it is forgotten; in 12 bytes.
#[derive(Debug, Clone, Copy)]
struct Tombstone {
    stamp: [u32; 2],
    until: u32,
}

impl Ends for Tombstone {
    fn second(&self) -> u64 {
        u64::from(self.until)
    }
}

impl Tombstone {
    fn new(stamp: Stamp, until: Duration) -> Self {
        Tombstone { stamp: [(stamp.0 >> 32) as u32, stamp.0 as u32], until: until.as_secs() as u32 }
    }

    fn stamp(self) -> Stamp {
        Stamp(u64::from(self.stamp[0]) << 32 | u64::from(self.stamp[1]))
    }

    fn deletion(self, now: Duration) -> Deletion {
        let left = Duration::from_secs(self.until.into()).saturating_sub(now);
        let age = limits::TOMBSTONE_TTL.saturating_sub(left);
        Deletion { stamp: self.stamp(), age_ms: age.as_millis() as u64 }
    }
}

#[derive(Debug, Default)]
pub(super) struct Tombstones {
    table: Expiring<Tombstone, TOMBSTONES_MAX>,
    /// Deletions that not all nodes have acknowledged.
    deletions: BTreeMap<ObjectId, UnderWay>,
    put_off: u64,
}

#[derive(Debug, Default)]
struct UnderWay {
    unheard: BTreeSet<NodeId>,
    /// The calls to answer when it is done.
    deleters: Vec<(NodeId, u64)>,
}

impl Tombstones {
    pub fn get(&self, id: ObjectId) -> Option<Stamp> {
        self.table.get(id).map(|tombstone| tombstone.stamp())
    }

    fn deletion(&self, now: Duration, id: ObjectId) -> Option<Deletion> {
        self.table.get(id).map(|tombstone| tombstone.deletion(now))
    }

    pub fn contains(&self, id: ObjectId) -> bool {
        self.table.contains(id)
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn has_of(&self, shard: Shard) -> bool {
        self.table.has_of(shard)
    }

    pub fn of_shard(
        &self,
        now: Duration,
        shard: Shard,
        after: Option<ObjectId>,
    ) -> impl Iterator<Item = (ObjectId, Deletion)> + '_ {
        self.table.of_shard(shard, after).map(move |(id, tombstone)| (id, tombstone.deletion(now)))
    }

    /// Records a deletion, if its lifetime is not over. Returns false if it is, or if the deletion was known.
    fn insert(&mut self, ctx: &mut Ctx, id: ObjectId, Deletion { stamp, age_ms }: Deletion) -> bool {
        ctx.clock.observe(ctx.now, stamp);
        let left = limits::TOMBSTONE_TTL.saturating_sub(Duration::from_millis(age_ms));
        if left.is_zero() || self.get(id).is_some_and(|known| known >= stamp) {
            return false;
        }
        let until = ctx.now + left;
        self.table.insert(id, Tombstone::new(stamp, until));
        self.expire(ctx);
        true
    }

    fn expire(&mut self, ctx: &mut Ctx) {
        let second = ctx.now.as_secs() as u32;
        if let Some(next) = self.table.expire(ctx.now, |tombstone| tombstone.until < second) {
            ctx.timers.set(next, Timer::Tombstones);
        }
    }

    pub fn gauge(&self, gauges: &mut Vec<Gauge>) {
        let gauge = |name: &str, value, limit, met| Gauge { name: name.to_owned(), value, limit, met };
        gauges.push(gauge("tombstones", self.len() as u64, TOMBSTONES_MAX as u64, self.table.dropped()));
        gauges.push(gauge(
            "deletes under way",
            self.deletions.len() as u64,
            DELETIONS_MAX as u64,
            self.put_off,
        ));
    }
}

impl Directory {
    pub fn is_deleted(&self, id: ObjectId) -> bool {
        self.tombstones.contains(id)
    }

    pub fn expire_tombstones(&mut self, ctx: &mut Ctx) {
        self.tombstones.expire(ctx);
    }

    pub(super) fn has_deletions(&self) -> bool {
        !self.tombstones.deletions.is_empty()
    }

    /// The time at which the object was deleted, unless a content that was accepted since exists or is being written.
    pub(super) fn deleted_at(&self, id: ObjectId) -> Option<Stamp> {
        let deleted = self.tombstones.get(id)?;
        let later = self.entry(id).and_then(Entry::stamp).is_some_and(|accepted| accepted > deleted);
        (!later).then_some(deleted)
    }

    /// A content that was accepted after the object's deletion came to nothing: the deletion counts again, also for
    /// nodes that have asked since. They may have parts of that content, so the deletion gets its time of acceptance:
    /// they take an earlier deletion for that of another object.
    pub(super) fn tell_if_deleted(&mut self, ctx: &mut Ctx, id: ObjectId, accepted: Option<Stamp>) {
        if self.deleted_at(id).is_none() {
            return;
        }
        if let (Some(stamp), Some(known)) = (accepted, self.tombstones.deletion(ctx.now, id)) {
            self.tombstones.insert(ctx, id, Deletion { stamp, ..known });
        }
        self.tell_everyone_deleted(ctx, id);
    }

    /// A call deletes the id.
    pub(super) fn on_delete(&mut self, ctx: &mut Ctx, origin: NodeId, id: ObjectId, token: u64) {
        let deletions = &self.tombstones.deletions;
        if deletions.len() >= DELETIONS_MAX && !deletions.contains_key(&id) {
            self.tombstones.put_off += 1;
            return;
        }
        if self.deleted_at(id).is_none() {
            // Not earlier than the deleted content, even if that has a stamp too far ahead to be credible.
            let known = self.entry(id).and_then(Entry::stamp).unwrap_or(Stamp::from_ms(0));
            let stamp = ctx.clock.tick(ctx.now).max(known);
            self.add_tombstone(ctx, id, Deletion { stamp, age_ms: 0 });
        }
        let deleters = &mut self.tombstones.deletions.entry(id).or_default().deleters;
        if !deleters.contains(&(origin, token)) {
            deleters.push((origin, token));
        }
        self.finish_deletion(ctx, id);
    }

    /// The id is deleted: notifies all nodes concerned, and keeps nothing of it but the tombstone.
    fn add_tombstone(&mut self, ctx: &mut Ctx, id: ObjectId, deletion: Deletion) {
        if self.tombstones.insert(ctx, id, deletion) {
            self.tell_everyone_deleted(ctx, id);
        }
    }

    fn tell_everyone_deleted(&mut self, ctx: &mut Ctx, id: ObjectId) {
        self.lost.remove(id);
        self.backups.remove(id);
        let backup = ctx.shards.backup_of(id.shard()).filter(|_| ctx.shards.is_mine(id.shard()));
        let entry = self.take_entry(id);
        let concerned = entry.iter().flat_map(|entry| entry.nodes());
        let concerned: BTreeSet<_> = concerned.chain(backup).collect();
        for &node in &concerned {
            self.tell_deleted(ctx, node, id);
        }
        if !concerned.is_empty() {
            self.tombstones.deletions.entry(id).or_default().unheard.extend(concerned);
            // Perhaps none of them is a member.
            self.finish_deletion(ctx, id);
        }
    }

    /// A node reports that the object was deleted at that time.
    pub fn on_heard_deleted(&mut self, ctx: &mut Ctx, id: ObjectId, deletion: Deletion) {
        let stamp = deletion.stamp;
        match self.entry(id) {
            Some(entry) if entry.stamp().is_some_and(|accepted| accepted > stamp) => {
                let is_final =
                    matches!(entry.content, Content::Complete { .. }) && !entry.may_be_taken_back();
                if !is_final {
                    // It counts if that content comes to nothing.
                    self.tombstones.insert(ctx, id, deletion);
                }
            }
            Some(_) => self.add_tombstone(ctx, id, deletion),
            None => {
                self.lost.remove(id);
                self.backups.remove(id);
                self.tombstones.insert(ctx, id, deletion);
            }
        }
    }

    /// Refuses a content that was accepted before its id was deleted, or not at all. A later content that is complete
    /// for good ends the tombstone.
    pub(super) fn refuse_deleted(
        &mut self,
        ctx: &mut Ctx,
        origin: NodeId,
        id: ObjectId,
        report: &CopyReport,
        wants_verdict: bool,
    ) -> bool {
        let Some(deleted) = self.tombstones.get(id) else { return false };
        let entry = self.entry(id);
        let accepted = report.claim.and_then(|claim| entry.and_then(|entry| entry.accepted_under(claim)));
        if report.stamp.max(accepted).is_some_and(|stamp| stamp > deleted) {
            if report.complete && report.stamp.is_some() {
                self.tombstones.table.remove(id);
            }
            return false;
        }
        match wants_verdict {
            true => {
                let verdict = DirectoryAnswer::Verdict { edition: report.edition, verdict: Verdict::Deleted };
                self.answer(ctx, origin, id, verdict);
            }
            // It is notified below.
            false if report.stamp.is_some() => {}
            false => self.tell_deleted(ctx, origin, id),
        }
        if report.stamp.is_some() {
            self.await_deletion_at(ctx, origin, id);
        }
        true
    }

    /// `node` may serve the deleted object until it has acknowledged the deletion: no delete returns before.
    fn await_deletion_at(&mut self, ctx: &mut Ctx, node: NodeId, id: ObjectId) {
        self.tell_deleted(ctx, node, id);
        let deletions = &mut self.tombstones.deletions;
        let has_space = deletions.len() < DELETIONS_MAX || deletions.contains_key(&id);
        if has_space && ctx.shards.contains(node) {
            deletions.entry(id).or_default().unheard.insert(node);
        }
    }

    pub(super) fn tell_deleted(&self, ctx: &mut Ctx, node: NodeId, id: ObjectId) {
        if let Some(deletion) = self.tombstones.deletion(ctx.now, id) {
            self.answer(ctx, node, id, DirectoryAnswer::Deleted { deletion });
        }
    }

    /// `node` has dropped its copy of the deleted object.
    pub fn on_deletion_ack(&mut self, ctx: &mut Ctx, node: NodeId, id: ObjectId) {
        if let Some(deletion) = self.tombstones.deletions.get_mut(&id) {
            deletion.unheard.remove(&node);
            self.finish_deletion(ctx, id);
        }
    }

    /// Finishes a deletion that all members have acknowledged. Other nodes are notified when they come back.
    fn finish_deletion(&mut self, ctx: &mut Ctx, id: ObjectId) {
        let Some(deletion) = self.tombstones.deletions.get_mut(&id) else { return };
        if deletion.unheard.iter().any(|&node| ctx.shards.contains(node)) {
            return;
        }
        let under_way = self.tombstones.deletions.remove(&id).expect("just seen");
        let deletion = self.tombstones.deletion(ctx.now, id);
        for (node, token) in under_way.deleters {
            self.answer(ctx, node, id, DirectoryAnswer::DeleteDone { token, deletion });
        }
    }

    pub(super) fn deletions_node_down(&mut self, ctx: &mut Ctx, node: NodeId) {
        // Many deletions may wait for it.
        self.sweep_deletions(ctx, node);
    }

    /// Our notifications of deletions to `node` may have been lost, and are repeated; or it is gone, and is no longer
    /// waited for. Looks at so many deletions under way, and returns the last of them if there may be more.
    pub(super) fn repeat_deletions(
        &mut self,
        ctx: &mut Ctx,
        node: NodeId,
        after: Option<ObjectId>,
        most: usize,
    ) -> Option<ObjectId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let open = self.tombstones.deletions.range((from, Bound::Unbounded)).take(most);
        let open: Vec<_> = open.map(|(&id, deletion)| (id, deletion.unheard.contains(&node))).collect();
        for &(id, _) in open.iter().filter(|(_, is_awaited)| *is_awaited) {
            match ctx.shards.contains(node) {
                true => self.tell_deleted(ctx, node, id),
                false => self.finish_deletion(ctx, id),
            }
        }
        open.last().map(|&(id, _)| id).filter(|_| open.len() >= most)
    }

    /// The deletions in a shard that this node knows, for its inventory.
    pub fn tombstones_of(
        &self,
        now: Duration,
        shard: Shard,
        after: Option<ObjectId>,
    ) -> impl Iterator<Item = (ObjectId, Deletion)> + '_ {
        let any = self.tombstones.has_of(shard);
        any.then(|| self.tombstones.of_shard(now, shard, after)).into_iter().flatten()
    }

    /// Another node owns them now: callers repeat their deletes to that one.
    pub(super) fn give_deletions_up(&mut self, is_mine: impl Fn(Shard) -> bool) {
        self.tombstones.deletions.retain(|id, _| is_mine(id.shard()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_takes_no_more_than_64_bytes() {
        // A leaf of the table holds 11 of them, and is at least two thirds full, since ids come in no order.
        let in_table = (size_of::<(Shard, ObjectId)>() + size_of::<Tombstone>()) * 3 / 2;
        let in_list = size_of::<ObjectId>();
        assert!(in_table + in_list <= 64, "{in_table} + {in_list}");
    }

    #[test]
    fn the_ten_minutes_count_from_the_deletion_whatever_the_clock_does() {
        let me = NodeId { addr: ([127, 0, 0, 1], 1).into(), incarnation: 1_000_000 };
        let mut ctx = Ctx::new(me);
        ctx.now = Duration::from_secs(1000);
        let mut tombstones = Tombstones::default();
        let deletion = Deletion { stamp: Stamp::from_ms(1_500_000), age_ms: 500_000 };
        let id = ObjectId::from_name("x");
        assert!(tombstones.insert(&mut ctx, id, deletion), "deleted 500 s ago");
        ctx.clock.observe(ctx.now, Stamp::from_ms(9_000_000));
        ctx.now = Duration::from_secs(1098);
        tombstones.expire(&mut ctx);
        assert_eq!(tombstones.get(id), Some(deletion.stamp));
        assert_eq!(tombstones.deletion(ctx.now, id).map(|deletion| deletion.age_ms / 1000), Some(598));
        ctx.now = Duration::from_secs(1102);
        tombstones.expire(&mut ctx);
        assert!(!tombstones.contains(id));
        let over = Deletion { age_ms: 600_000, ..deletion };
        assert!(!tombstones.insert(&mut ctx, id, over), "its time is over");
    }
}

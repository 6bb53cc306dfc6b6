//! Lost objects, whose last complete copy is gone, and partial copies of writings that no node can complete.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_types::client::Gauge;
use hoplite_types::peer::{DirectoryAnswer, Scope, Verdict};
use hoplite_types::{limits, Edition, NodeId, ObjectId, Shard};

use super::asks::Ask;
use super::entry::Content;
use super::expiring::Expiring;
use super::holders::Held;
use super::Directory;
use crate::ctx::Ctx;
use crate::timers::Timer;

/// Limit of lost objects that are remembered, some 50 bytes each. The loss of a forgotten one is not reported to later
/// askers.
const LOST_MAX: usize = 1 << 20;

/// How long a loss is remembered.
pub(super) const LOST_TTL: Duration = limits::TOMBSTONE_TTL;

/// Lost ids, each with the second of this node's clock in which it is forgotten.
#[derive(Debug, Default)]
pub(super) struct LostIds(Expiring<u32, LOST_MAX>);

impl LostIds {
    pub fn contains(&self, id: ObjectId) -> bool {
        self.0.contains(id)
    }

    pub fn has_of(&self, shard: Shard) -> bool {
        self.0.has_of(shard)
    }

    pub fn remove(&mut self, id: ObjectId) {
        self.0.remove(id);
    }

    pub fn insert(&mut self, ctx: &mut Ctx, id: ObjectId, ttl: Duration) {
        let until = ctx.now + ttl.min(LOST_TTL);
        self.0.insert(id, until.as_secs() as u32);
        self.expire(ctx);
    }

    fn expire(&mut self, ctx: &mut Ctx) {
        let second = ctx.now.as_secs() as u32;
        if let Some(next) = self.0.expire(ctx.now, |&until| until < second) {
            ctx.timers.set(next, Timer::LostIds);
        }
    }

    /// The lost ids of a shard, with the time since each was lost.
    pub fn of_shard(
        &self,
        now: Duration,
        shard: Shard,
        after: Option<ObjectId>,
    ) -> impl Iterator<Item = (ObjectId, Duration)> + '_ {
        let age = move |&until: &u32| {
            LOST_TTL.saturating_sub(Duration::from_secs(until.into()).saturating_sub(now))
        };
        self.0.of_shard(shard, after).map(move |(id, until)| (id, age(until)))
    }

    pub fn gauge(&self, gauges: &mut Vec<Gauge>) {
        gauges.push(Gauge {
            name: "lost ids".to_owned(),
            value: self.0.len() as u64,
            limit: LOST_MAX as u64,
            met: self.0.dropped(),
        });
    }

    pub fn is_empty(&self) -> bool {
        self.0.len() == 0
    }
}

impl Directory {
    /// A complete copy existed, and none is left.
    pub(super) fn remember_lost(&mut self, ctx: &mut Ctx, id: ObjectId) {
        self.lost.insert(ctx, id, LOST_TTL);
        self.tell_backup(ctx, id);
    }

    pub fn forget_lost(&mut self, ctx: &mut Ctx) {
        self.lost.expire(ctx);
    }

    /// Another node reports that it was lost so long ago.
    pub(super) fn on_heard_lost(&mut self, ctx: &mut Ctx, id: ObjectId, age: Duration) {
        let stands = self.entry(id).is_some_and(|entry| entry.holders.any_alive());
        if !stands && !self.tombstones.contains(id) && age < LOST_TTL && !self.lost.contains(id) {
            self.lost.insert(ctx, id, LOST_TTL - age);
            self.tell_if_lost(ctx, id, None);
        }
    }

    /// Lost objects of a shard, as far as this node knows, with the time since each was lost. For the backup, also
    /// objects that no other node could report.
    pub fn losses_of(
        &self,
        ctx: &Ctx,
        scope: Scope,
        shard: Shard,
        after: Option<ObjectId>,
    ) -> Vec<(ObjectId, Duration)> {
        let owned = self.owned.get(shard).filter(|owned| scope == Scope::Past && owned.len() > 0);
        let any = self.lost.has_of(shard) || self.backups.has_of(shard) || self.discarded_in(shard) > 0;
        if owned.is_none() && !any {
            return Vec::new();
        }
        let discarded = self.lost_of_discarded(ctx, shard, after).map(|id| (id, Duration::ZERO));
        let of_dead = self.backups.of_dead(ctx, shard, after).map(|id| (id, Duration::ZERO));
        let only_here = owned.into_iter().flat_map(|owned| {
            let told = owned.ids().into_iter().filter(|&id| owned.entry(id).is_some_and(|e| e.backup_told));
            told.filter(move |&id| after.is_none_or(|after| id > after)).map(|id| (id, Duration::ZERO))
        });
        let lost = self.lost.of_shard(ctx.now, shard, after);
        // In order of ids, so that a page can continue after any of them.
        let all: BTreeMap<_, _> = of_dead.chain(only_here).chain(discarded).chain(lost).collect();
        all.into_iter().collect()
    }

    /// If the last complete copy is gone, records the loss and notifies all that wait.
    pub(super) fn note_if_lost(&mut self, ctx: &mut Ctx, id: ObjectId) {
        let Some(entry) = self.known_entry_mut(id) else { return };
        if matches!(entry.content, Content::Complete { .. }) && !entry.holders.any_alive() {
            entry.content = Content::None;
            entry.was_shown = false;
            self.remember_lost(ctx, id);
            self.tell_if_lost(ctx, id, None);
        }
    }

    /// Whether the object was complete once, and no node has or writes it any more.
    fn is_known_lost(&self, id: ObjectId) -> bool {
        let is_alive = self.entry(id).is_some_and(|entry| entry.is_alive());
        self.lost.contains(id) && !is_alive && self.is_active(id.shard())
    }

    /// If the object is lost, notifies `to`, or all that wait.
    pub(super) fn tell_if_lost(&self, ctx: &mut Ctx, id: ObjectId, to: Option<NodeId>) {
        let Some(entry) = self.entry(id).filter(|_| self.is_known_lost(id)) else { return };
        let asking = entry.asks.iter().map(|ask| ask.node);
        let waiting = asking.chain(entry.subscribers.iter().map(|&(node, _)| node));
        let told: Vec<_> = to.map_or_else(|| waiting.collect(), |node| vec![node]);
        for node in told {
            self.answer(ctx, node, id, DirectoryAnswer::Lost);
        }
    }

    /// At a new owner: a partial copy whose sender is dead counts as proof that the object was complete. The former
    /// owner may have died together with the last copy.
    pub(super) fn infer_loss(&mut self, ctx: &mut Ctx, id: ObjectId) {
        let Some(entry) = self.entry(id).filter(|entry| !entry.is_alive()) else { return };
        let dead = |sender: NodeId| !ctx.shards.contains(sender);
        let asks_for_the_rest = |ask: &Ask| {
            ask.have.is_some_and(|have| !entry.was_abandoned(have))
                && ask.distrust.is_none_or(|(sender, _)| dead(sender))
        };
        let has_part = |held: &Held| held.upstream.is_some_and(dead) && !entry.was_abandoned(held.edition);
        let bereft = entry.asks.iter().any(asks_for_the_rest)
            || entry.holders.reported().any(|(_, held)| has_part(held));
        if !self.lost.contains(id) && bereft {
            self.remember_lost(ctx, id);
        }
        self.tell_if_lost(ctx, id, None);
    }

    /// Part of a writing is of no use once its writer is gone: its receivers drop it and ask again.
    pub(super) fn drop_orphans(&mut self, ctx: &mut Ctx, id: ObjectId) {
        if !self.is_active(id.shard()) {
            return;
        }
        let Some(entry) = self.known_entry_mut(id) else { return };
        for (orphan, edition) in entry.take_orphans() {
            self.reindex(id, orphan);
            self.tell_subscribers_gone(ctx, id, orphan);
            let verdict = Verdict::Abandoned;
            self.answer(ctx, orphan, id, DirectoryAnswer::Verdict { edition, verdict });
        }
    }

    /// `receiver` asks for the rest of a writing that no node can complete: it missed the verdict to drop its part,
    /// which is sent again.
    pub(super) fn tell_if_orphaned(&self, ctx: &mut Ctx, id: ObjectId, receiver: NodeId, edition: Edition) {
        let may_come = self.entry(id).is_some_and(|entry| entry.holders.may_complete(edition));
        if self.is_active(id.shard()) && !may_come {
            let verdict = Verdict::Abandoned;
            self.answer(ctx, receiver, id, DirectoryAnswer::Verdict { edition, verdict });
        }
    }
}

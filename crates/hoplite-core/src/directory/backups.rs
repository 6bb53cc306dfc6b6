//! Tells the backup owner the ids of objects that only their owner could report. Without this, the owner's death
//! would leave later askers waiting for ever. After that death the backup calls these ids lost, unless a node has a
//! copy.
//!
//! ```text
//!  complete here, and nowhere else ──▶ unsent ──── PAUSE ────▶ BackupIds ──▶ at the backup: remembered
//!  (or lost already)                     ▲                                      │ the owner dies
//!                                        └── RENEWED_AFTER, a broken connection ▼ no copy anywhere: lost
//! ```
//! A new backup asks the owner of the shard for these ids and for the tombstones (`recovery`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::client::Gauge;
use hoplite_types::peer::PeerMessage;
use hoplite_types::{limits, NodeId, ObjectId, Shard};

use super::expiring::{Ends, Expiring};
use super::Directory;
use crate::ctx::Ctx;
use crate::timers::Timer;

/// After ids were sent, the owner collects for this long before it sends the next ones: with many small puts, one
/// message for hundreds. Short compared with the time in which a death is noticed.
const PAUSE: Duration = Duration::from_millis(5);

/// How often they are sent again, so that a backup may forget ids that are no longer repeated.
const RENEWED_AFTER: Duration = Duration::from_secs(limits::TOMBSTONE_TTL.as_secs() / 2);

/// Limit of ids remembered for all owners together, about 90 bytes each. A loss of a forgotten one is not reported to
/// later askers.
const BACKUPS_MAX: usize = 1 << 18;

/// Limit of ids in one message.
const IDS_PER_MESSAGE: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Backups {
    /// At the owner: ids that have yet to be sent to their backups.
    unsent: BTreeSet<ObjectId>,
    /// At the backup: the ids, each with the owner that sent it.
    told: Expiring<Told, BACKUPS_MAX>,
}

#[derive(Debug, Clone, Copy)]
struct Told {
    owner: NodeId,
    until: Duration,
}

impl Ends for Told {
    fn second(&self) -> u64 {
        self.until.as_secs()
    }
}

impl Backups {
    pub fn remove(&mut self, id: ObjectId) {
        self.told.remove(id);
    }

    pub fn has_of(&self, shard: Shard) -> bool {
        self.told.has_of(shard)
    }

    /// The ids of a shard that dead owners sent.
    pub fn of_dead<'a>(
        &'a self,
        ctx: &'a Ctx,
        shard: Shard,
        after: Option<ObjectId>,
    ) -> impl Iterator<Item = ObjectId> + 'a {
        let of_dead = self.told.of_shard(shard, after);
        of_dead.filter(|(_, told)| !ctx.shards.contains(told.owner)).map(|(id, _)| id)
    }

    pub fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.told.len() == 0
    }

    pub fn gauge(&self, gauges: &mut Vec<Gauge>) {
        let gauge = |name: &str, value, limit, met| Gauge { name: name.to_owned(), value, limit, met };
        let told = self.told.len() as u64;
        gauges.push(gauge("backup ids", told, BACKUPS_MAX as u64, self.told.dropped()));
    }
}

impl Directory {
    /// Makes sure that the backup knows of the object, if no other node could report it.
    pub(super) fn tell_backup(&mut self, ctx: &mut Ctx, id: ObjectId) {
        if !self.is_active(id.shard()) {
            return;
        }
        let (me, lost) = (ctx.me, self.lost.contains(id));
        let known_only_here = match self.known_entry_mut(id) {
            Some(entry) => {
                let only_here = entry.is_known_only_at(me) || lost;
                let was_told = std::mem::replace(&mut entry.backup_told, only_here);
                only_here && !was_told
            }
            None => lost,
        };
        if known_only_here {
            self.backups.unsent.insert(id);
            if !ctx.timers.is_set(Timer::Backups) {
                self.send_backups(ctx);
            }
        }
    }

    /// Sends the ids that were collected; the rest after a pause.
    pub fn send_backups(&mut self, ctx: &mut Ctx) {
        if self.backups.unsent.is_empty() {
            return;
        }
        ctx.timers.set(ctx.now + PAUSE, Timer::Backups);
        if !ctx.timers.is_set(Timer::BackupRenewal) {
            ctx.timers.set(ctx.now + RENEWED_AFTER, Timer::BackupRenewal);
        }
        let mut messages: BTreeMap<NodeId, Vec<ObjectId>> = BTreeMap::new();
        for _ in 0..IDS_PER_MESSAGE {
            let Some(id) = self.backups.unsent.pop_first() else { break };
            if let Some(backup) = ctx.shards.backup_of(id.shard()) {
                messages.entry(backup).or_default().push(id);
            }
        }
        for (backup, ids) in messages {
            ctx.send(backup, PeerMessage::BackupIds { ids }, None);
        }
    }

    /// Backups are about to forget ids: sends those of one shard again.
    pub(super) fn renew_backups(&mut self, ctx: &mut Ctx, shard: Shard) {
        let Some(owned) = self.owned.get(shard).filter(|owned| owned.is_active()) else { return };
        let told = owned.ids().into_iter().filter(|&id| owned.entry(id).is_some_and(|e| e.backup_told));
        let lost = self.lost.of_shard(ctx.now, shard, None).map(|(id, _)| id);
        self.backups.unsent.extend(told.chain(lost));
        if !ctx.timers.is_set(Timer::Backups) {
            self.send_backups(ctx);
        }
    }

    pub fn on_backup_renewal(&mut self, ctx: &mut Ctx) {
        self.sweep_backups(ctx, None);
        ctx.timers.set(ctx.now + RENEWED_AFTER, Timer::BackupRenewal);
    }

    /// An owner sends the ids of objects that no other node could report.
    pub fn on_backup_ids(&mut self, ctx: &mut Ctx, owner: NodeId, ids: impl IntoIterator<Item = ObjectId>) {
        let until = ctx.now + limits::TOMBSTONE_TTL;
        for id in ids {
            if !self.tombstones.contains(id) {
                self.backups.told.insert(id, Told { owner, until });
            }
        }
        self.forget_backups(ctx);
    }

    pub fn forget_backups(&mut self, ctx: &mut Ctx) {
        let now = ctx.now;
        if let Some(next) = self.backups.told.expire(now, |told| told.until <= now) {
            ctx.timers.set(next, Timer::ForgetBackups);
        }
    }

    /// All inventories of a shard have been applied: ids that its dead owner sent, and that have no copy, are lost.
    pub(super) fn note_lost_of_dead(&mut self, ctx: &mut Ctx, shard: Shard) {
        for id in self.backups.of_dead(ctx, shard, None).collect::<Vec<_>>() {
            self.backups.remove(id);
            if !self.entry(id).is_some_and(|entry| entry.is_alive()) {
                self.remember_lost(ctx, id);
                self.tell_if_lost(ctx, id, None);
            }
        }
    }

    /// The present owners of shards that we know as the dead node's backup. They may have asked us while that node
    /// still lived, and then did not get the ids that it had sent us.
    pub fn backup_owners_of(&self, ctx: &Ctx, dead: NodeId) -> BTreeSet<NodeId> {
        let told = &self.backups.told;
        let is_its = |shard: &Shard| told.of_shard(*shard, None).any(|(_, told)| told.owner == dead);
        let of_others = Shard::all().filter(|&shard| told.has_of(shard) && !ctx.shards.is_mine(shard));
        of_others.filter(is_its).map(|shard| ctx.shards.owner_of(shard)).collect()
    }

    /// Another node is the backup now. It asks for the ids by itself; if we are that node, we do.
    pub(super) fn on_backup_moved(&mut self, ctx: &mut Ctx, shard: Shard) {
        if ctx.shards.backup_of(shard) == Some(ctx.me) {
            self.pull_past(ctx, shard);
        }
    }
}

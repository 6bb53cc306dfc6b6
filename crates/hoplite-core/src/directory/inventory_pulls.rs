//! Asks other nodes for their inventories: which shards are still open, at which nodes, in which order, and the
//! time-outs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::peer::{Cursor, InventoryPage, PeerMessage, Scope, ShardQuery};
use hoplite_types::{mix64, Edition, NodeId, ObjectId, Shard};

use super::entry::Content;
use super::holders::Held;
use super::shard::OwnedShard;
use super::Directory;
use crate::ctx::Ctx;
use crate::shard_table::ShardTable;
use crate::shards::ShardSet;
use crate::timers::Timer;

/// Limit of shards in one request. There are often few objects, and then round trips take most of the time.
pub(crate) const SHARDS_PER_PULL: usize = 1024;

/// Limit of objects that are looked at for the digests of one request, or for one page: some milliseconds' work.
pub(crate) const DIGESTED_MAX: usize = 4096;

/// Limit of nodes that are asked at a time: in a large cluster, answers and connections come a few at once.
const PULLS_MAX: usize = 32;

/// How long an answer may take until it is requested again; doubled each time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a member may delay the recovery of a shard. An unreachable member is dead long before that, or only its
/// link to us is cut: then the owner continues without that member's inventory.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// A node that did not run for so long does not count members as late: their answers may be waiting.
const LATE_AFTER: Duration = Duration::from_millis(100);

/// The time after which it is asked again.
const DEFERRED_FOR: Duration = Duration::from_secs(8);

/// How soon a node that owns nothing new, or ourselves, is asked.
pub(crate) const SOON: Duration = Duration::from_micros(100);

/// The requests for inventories that are open, and those still to be made.
#[derive(Debug, Default)]
pub(super) struct InventoryPulls {
    /// Not all members are known yet. A node that is asked about a shard takes us for its owner, which we may turn out
    /// not to be. So no node is asked before.
    awaits_members: bool,
    /// We were believed dead, and know no member yet that could report what happened to our shards.
    pub awaits_company: bool,
    queue: BTreeMap<NodeId, Queued>,
    running: BTreeMap<NodeId, InventoryPull>,
    /// The recovering shards that wait for the inventory of a member.
    awaited: BTreeMap<NodeId, ShardSet>,
    /// Shards for which requests wait.
    pub demanded: BTreeSet<Shard>,
    /// Members that did not answer in time, and when to ask them again.
    deferred: BTreeMap<NodeId, Duration>,
    /// The number of requests held for all recovering shards together, and of those dropped because too many were.
    pub held: usize,
    pub held_dropped: u64,
    /// Count of members without whose inventory shards were recovered.
    pub given_up: u64,
}

/// Shards that a node has yet to be asked about.
#[derive(Debug, Default)]
struct Queued {
    all: ShardSet,
    past: ShardSet,
}

impl Queued {
    fn of(&mut self, scope: Scope) -> &mut ShardSet {
        match scope {
            Scope::All => &mut self.all,
            Scope::Past => &mut self.past,
        }
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty() && self.past.is_empty()
    }
}

#[derive(Debug)]
struct InventoryPull {
    round: u64,
    scope: Scope,
    shards: BTreeSet<Shard>,
    next: Option<Cursor>,
    /// From the first page.
    since: Option<u64>,
    unchanged: BTreeSet<Shard>,
    /// The time of the first request, or of the last page.
    heard: Duration,
    timeout: Duration,
    /// When the answer is requested again.
    due: Duration,
}

/// A page of an inventory, as it arrived.
#[derive(Debug)]
pub(crate) struct Answer {
    pub round: u64,
    pub since: u64,
    pub page: InventoryPage,
    pub unchanged: Vec<Shard>,
    pub next: Option<Cursor>,
}

impl InventoryPulls {
    pub fn of_joiner() -> Self {
        InventoryPulls { awaits_members: true, ..InventoryPulls::default() }
    }

    pub fn on_members_known(&mut self) {
        self.awaits_members = false;
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
            && self.running.is_empty()
            && self.awaited.is_empty()
            && self.demanded.is_empty()
            && self.held == 0
    }

    fn awaits(&self, node: NodeId, shard: Shard) -> bool {
        self.awaited.get(&node).is_some_and(|shards| shards.contains(shard))
    }

    /// The recovering shards that wait for the inventory of `node`.
    pub fn awaited_of(&self, node: NodeId) -> ShardSet {
        self.awaited.get(&node).cloned().unwrap_or_default()
    }

    /// Returns false if the shard waited for that already.
    pub fn begin_awaiting(&mut self, node: NodeId, shard: Shard) -> bool {
        self.awaited.entry(node).or_default().insert(shard)
    }

    /// Returns false if the shard did not wait for that.
    pub fn await_no_more(&mut self, node: NodeId, shard: Shard) -> bool {
        let Some(shards) = self.awaited.get_mut(&node) else { return false };
        let was_awaited = shards.remove(shard);
        if was_awaited && shards.is_empty() {
            self.awaited.remove(&node);
        }
        was_awaited
    }

    pub fn enqueue(&mut self, node: NodeId, scope: Scope, shard: Shard) {
        self.queue.entry(node).or_default().of(scope).insert(shard);
    }

    /// The next few shards to ask `node` about, all with the same scope: first those for which requests wait.
    fn take(
        &mut self,
        node: NodeId,
        is_wanted: impl Fn(Scope, Shard) -> bool,
    ) -> Option<(Scope, Vec<Shard>)> {
        let queued = self.queue.get_mut(&node)?;
        for scope in [Scope::All, Scope::Past] {
            queued.of(scope).retain(|shard| is_wanted(scope, shard));
        }
        if queued.is_empty() {
            self.queue.remove(&node);
            return None;
        }
        let scope = if queued.all.is_empty() { Scope::Past } else { Scope::All };
        let of_scope = queued.of(scope);
        let demanded = self.demanded.iter().filter(|&&shard| of_scope.contains(shard));
        let mut shards: Vec<_> = demanded.copied().take(SHARDS_PER_PULL).collect();
        let others = of_scope.iter().filter(|shard| !self.demanded.contains(shard));
        shards.extend(others.take(SHARDS_PER_PULL - shards.len()));
        for &shard in &shards {
            of_scope.remove(shard);
        }
        if queued.is_empty() {
            self.queue.remove(&node);
        }
        Some((scope, shards))
    }

    /// A member that did not answer in time is reachable again.
    pub fn defer_no_more(&mut self, ctx: &mut Ctx, node: NodeId) {
        if self.deferred.remove(&node).is_some() {
            ctx.timers.clear(Timer::InventoryPull(node));
        }
    }

    pub fn defer_nobody(&mut self, ctx: &mut Ctx) {
        for node in std::mem::take(&mut self.deferred).into_keys() {
            ctx.timers.clear(Timer::InventoryPull(node));
        }
    }

    /// A node without objects is asked only about shards that wait for its inventory.
    pub fn forget_unawaited(&mut self, node: NodeId) {
        let awaited = self.awaited.get(&node);
        if let Some(queued) = self.queue.get_mut(&node) {
            queued.all.retain(|shard| awaited.is_some_and(|shards| shards.contains(shard)));
            if queued.is_empty() {
                self.queue.remove(&node);
            }
        }
    }

    /// The node is gone: it is asked nothing more.
    pub fn forget_node(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.queue.remove(&node);
        self.running.remove(&node);
        self.deferred.remove(&node);
        ctx.timers.clear(Timer::InventoryPull(node));
    }

    /// Takes note of a page. Returns its scope, and the time before which reports that it does not repeat are out of
    /// date. `None` if it is not the page that was requested last.
    pub fn take_note(&mut self, now: Duration, from: NodeId, answer: &Answer) -> Option<(Scope, u64)> {
        // It must be a page after the one before, or the last: otherwise it could be requested without end.
        let is_news = |pull: &InventoryPull| answer.next.is_none_or(|next| pull.next < Some(next));
        let is_current = |pull: &&mut InventoryPull| pull.round == answer.round && is_news(pull);
        let pull = self.running.get_mut(&from).filter(is_current)?;
        let since = *pull.since.get_or_insert(answer.since);
        pull.unchanged.extend(answer.unchanged.iter().copied());
        pull.next = answer.next;
        pull.timeout = ANSWER_TIMEOUT;
        pull.heard = now;
        Some((pull.scope, since))
    }

    /// Other nodes own these shards: no more inventories of them are pulled. If they come back, all is pulled anew.
    pub fn forget_shards(&mut self, gone: &ShardSet) {
        self.demanded.retain(|&shard| !gone.contains(shard));
        self.awaited.retain(|_, shards| {
            shards.remove_all(gone);
            !shards.is_empty()
        });
        for pull in self.running.values_mut() {
            pull.shards.retain(|&shard| !gone.contains(shard));
        }
    }

    /// Pages received so far may be out of date: inventories that are being pulled are pulled anew.
    pub fn restart(&mut self, ctx: &mut Ctx) {
        for (node, pull) in std::mem::take(&mut self.running) {
            ctx.timers.clear(Timer::InventoryPull(node));
            pull.shards.into_iter().for_each(|shard| self.enqueue(node, pull.scope, shard));
        }
    }
}

impl Directory {
    pub(super) fn pull_more(&mut self, ctx: &mut Ctx) {
        while self.pulls.running.len() < PULLS_MAX && !self.pulls.awaits_members {
            let (running, deferred) = (&self.pulls.running, &self.pulls.deferred);
            let is_idle = |node: &&NodeId| !running.contains_key(node) && !deferred.contains_key(node);
            let Some(&node) = self.pulls.queue.keys().find(is_idle) else { return };
            self.begin_pull(ctx, node);
        }
    }

    fn begin_pull(&mut self, ctx: &mut Ctx, node: NodeId) {
        let (owned, members) = (&self.owned, &*ctx);
        let is_wanted = |scope, shard| is_wanted(owned, members, node, scope, shard);
        let Some((scope, mut shards)) = self.pulls.take(node, is_wanted) else { return };
        let mut digested = 0;
        let mut fits = |shard: &Shard| {
            let fits = digested < DIGESTED_MAX;
            digested += self.owned.get(*shard).map_or(0, |owned| owned.count_of(node));
            fits
        };
        let rest = shards.split_off(shards.iter().take_while(|shard| fits(shard)).count());
        rest.into_iter().for_each(|shard| self.pulls.enqueue(node, scope, shard));
        if shards.is_empty() {
            return;
        }
        let pull = InventoryPull {
            round: ctx.next_number(),
            scope,
            shards: shards.into_iter().collect(),
            next: None,
            since: None,
            unchanged: BTreeSet::new(),
            heard: ctx.now,
            timeout: ANSWER_TIMEOUT,
            due: ctx.now,
        };
        if scope == Scope::All && node != ctx.me {
            self.sweep_questions(ctx, &pull.shards, node);
        }
        self.pulls.running.insert(node, pull);
        self.ask_for_page(ctx, node);
    }

    /// Requests the next page, or the same one again.
    pub(super) fn ask_for_page(&mut self, ctx: &mut Ctx, node: NodeId) {
        let Some(pull) = self.pulls.running.get_mut(&node) else { return };
        // A node that is asked takes us for the owner, or itself.
        pull.shards.retain(|&shard| is_wanted(&self.owned, ctx, node, pull.scope, shard));
        let pull = &self.pulls.running[&node];
        if node == ctx.me {
            // In a turn of its own, like any other node's.
            return ctx.timers.set(ctx.now + SOON, Timer::OwnInventory);
        }
        // A digest is useless for a shard in whose midst the next page begins.
        let is_whole = |shard: Shard| pull.next.is_none_or(|next| shard > next.shard);
        let digest = |shard| is_whole(shard).then(|| self.digest(shard, node, pull.scope)).flatten();
        let query = |&shard: &Shard| ShardQuery { shard, digest: digest(shard) };
        let is_open = |shard: &&Shard| pull.next.is_none_or(|next| **shard >= next.shard);
        let message = PeerMessage::InventoryRequest {
            round: pull.round,
            scope: pull.scope,
            shards: pull.shards.iter().filter(is_open).map(query).collect(),
            from: pull.next,
            fresh: ctx.is_fresh,
            clock: ctx.clock.read(ctx.now),
        };
        let due = (ctx.now + pull.timeout).min(pull.heard + GIVE_UP_AFTER);
        ctx.timers.set(due, Timer::InventoryPull(node));
        ctx.send(node, message, None);
        self.pulls.running.get_mut(&node).expect("it was just seen").due = due;
    }

    /// The pull from ourselves: its round, shards, and the cursor to continue from.
    pub fn own_pull(&self, ctx: &Ctx) -> Option<(u64, Vec<Shard>, Option<Cursor>)> {
        let pull = self.pulls.running.get(&ctx.me)?;
        Some((pull.round, pull.shards.iter().copied().collect(), pull.next))
    }

    /// The digest of the copies in the shard that `node` is known to have. `None` if that knowledge is not reliable.
    fn digest(&self, shard: Shard, node: NodeId, scope: Scope) -> Option<u64> {
        let owned = self.owned.get(shard).filter(|_| scope == Scope::All)?;
        if self.pulls.awaits(node, shard) {
            return None;
        }
        let mut digest = 0;
        for id in owned.of_node(node) {
            let entry = owned.entry(id).expect("it is in the index");
            let contends = entry.contenders.iter().any(|contender| contender.node() == node);
            let claims = matches!(entry.content, Content::Claimed { claim, .. } if claim.by == node);
            let held = entry.holders.get(node);
            // A claim stands as long as some node works under it: its release may have been lost. And a receiver may
            // get its part from another sender than we lent it, so that two could wait for each other; or it may have
            // dropped the part.
            let is_unsure = |held: &Held| held.is_sealer() || held.receives() || !held.is_alive();
            if contends || claims || held.is_some_and(is_unsure) {
                return None;
            }
            if let Some(held) = held.filter(|held| held.complete || held.pinned) {
                digest ^= digest_of(id, held.edition, held.complete, held.pinned);
            }
        }
        Some(digest)
    }

    pub fn on_inventory_pull_timer(&mut self, ctx: &mut Ctx, node: NodeId) {
        if self.pulls.deferred.remove(&node).is_some() {
            return self.pull_more(ctx);
        }
        let Some(pull) = self.pulls.running.get_mut(&node) else { return };
        pull.timeout *= 2;
        let late = ctx.now.saturating_sub(pull.due);
        if late >= LATE_AFTER {
            pull.heard += late;
        }
        match ctx.now >= pull.heard + GIVE_UP_AFTER {
            true => self.give_up_on(ctx, node),
            false => self.ask_for_page(ctx, node),
        }
    }

    /// The connection to `node` is a new one: an earlier request may be lost.
    pub fn repeat_pull(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.ask_for_page(ctx, node);
    }

    /// Recovering shards no longer wait for this member's inventory. It is asked again later, and others meanwhile.
    fn give_up_on(&mut self, ctx: &mut Ctx, node: NodeId) {
        let Some(pull) = self.pulls.running.remove(&node) else { return };
        for &shard in &pull.shards {
            self.pulls.enqueue(node, pull.scope, shard);
        }
        let later = ctx.now + DEFERRED_FOR;
        self.pulls.deferred.insert(node, later);
        ctx.timers.set(later, Timer::InventoryPull(node));
        self.pulls.given_up += u64::from(self.pulls.awaited.contains_key(&node));
        self.await_nothing_of(ctx, node);
        self.pull_more(ctx);
    }

    /// `from` has sent its whole inventory of these shards.
    pub(super) fn end_pull(&mut self, ctx: &mut Ctx, from: NodeId, since: u64) {
        let Some(pull) = self.pulls.running.remove(&from) else { return };
        ctx.timers.clear(Timer::InventoryPull(from));
        if pull.scope == Scope::All {
            for &shard in &pull.shards {
                match pull.unchanged.contains(&shard) {
                    true => self.on_heard(ctx, shard, from),
                    false => self.sweep_unrepeated(ctx, shard, from, since),
                }
            }
        }
        self.pull_more(ctx);
    }
}

/// Whether `node` has yet to be asked about the shard.
fn is_wanted(owned: &ShardTable<OwnedShard>, ctx: &Ctx, node: NodeId, scope: Scope, shard: Shard) -> bool {
    match scope {
        Scope::All => owned.contains(shard) && ctx.shards.is_mine(shard),
        Scope::Past => ctx.shards.owner_of(shard) == node && node != ctx.me,
    }
}

/// A copy's part in the digest of its shard.
pub(crate) fn digest_of(id: ObjectId, edition: Edition, complete: bool, pinned: bool) -> u64 {
    let (low, high) = id.0.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let flags = u64::from(complete) | u64::from(pinned) << 1;
    let edition = mix64(edition.writing ^ mix64(u64::from(edition.attempt) << 2 | flags));
    mix64(word(low) ^ mix64(word(high) ^ edition))
}

//! A new owner of a shard first hears of everything that is known of it; and an owner that may have missed
//! something hears of it again.
//!
//! ```text
//!  members changed ──▶ Recovering: every member is asked ──all have answered──▶ Active
//!                          │ requests wait, but reports of copies              (what waited is answered)
//!  a connection broke, a member came back ──▶ that one is asked; the shard stays active
//! ```
//! The owner asks, page by page, so that neither its own queue nor another's outbox is ever filled. Shards that
//! somebody waits for come first. An owner that asks about a shard it has owned all along says what it knows
//! as a digest for each: then only what differs is told.
//!
//! From its answer on, the asked node takes the asking one for the owner, and no other one's verdicts on what
//! it has just reported. So no two owners ever accept two contents for one id, as long as nobody is held for
//! dead who lives: the new one decides only when it knows all claims that the old one had accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::peer::{Cursor, DirectoryRequest, InventoryPage, PeerMessage, Scope, ShardQuery, Verdict};
use hoplite_words::{mix64, Claim, Edition, NodeId, ObjectId, Shard, Stamp};

use super::entry::{Contender, Content};
use super::holders::Held;
use super::shard::OwnedShard;
use super::Directory;
use crate::copies::Copies;
use crate::ctx::Ctx;
use crate::shard_table::ShardTable;
use crate::shards::ShardSet;
use crate::timers::Timer;

/// Shards in one request: there are often few objects, and then round trips are what takes time.
pub(crate) const SHARDS_PER_PULL: usize = 1024;

/// Objects that are looked at for the digests of one request, or one page: some milliseconds' work.
pub(crate) const DIGESTED_MAX: usize = 4096;

/// Nodes that are asked at a time: a large cluster's answers, and connections, come a few at once.
const PULLS_MAX: usize = 32;

/// How long an answer may take until it is asked for again; twice as long each time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a member may leave an owner waiting that recovers a shard. One that cannot be reached is dead long
/// before, or only this way to it is cut: then the owner goes on without what it knows.
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// Who does not run for so long blames nobody for not having answered meanwhile.
const LATE_AFTER: Duration = Duration::from_millis(100);

/// When it is asked again.
const DEFERRED_FOR: Duration = Duration::from_secs(8);

/// How soon a node that owns nothing new, or ourselves, is asked.
pub(crate) const SOON: Duration = Duration::from_micros(100);

/// What is still to be asked, and of whom.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    /// Not all members are known yet. Whoever is asked about a shard takes us for its owner, which we may turn out
    /// not to be: nobody is asked before.
    awaits_members: bool,
    /// We were held for dead, and know nobody yet who could tell us what became of our shards.
    pub awaits_company: bool,
    queue: BTreeMap<NodeId, Queued>,
    running: BTreeMap<NodeId, Pull>,
    /// The recovering shards that wait for what a member knows.
    awaited: BTreeMap<NodeId, ShardSet>,
    /// Somebody waits for these.
    pub demanded: BTreeSet<Shard>,
    /// Members that did not answer in time: when they are asked on.
    deferred: BTreeMap<NodeId, Duration>,
    /// Requests that wait in all recovering shards together, and those dropped because too many did.
    pub held: usize,
    pub held_dropped: u64,
    /// Members without which shards were recovered.
    pub given_up: u64,
}

/// Shards that a node is to be asked about.
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
struct Pull {
    round: u64,
    scope: Scope,
    shards: BTreeSet<Shard>,
    next: Option<Cursor>,
    /// From the first page.
    since: Option<u64>,
    unchanged: BTreeSet<Shard>,
    /// When it was asked first, or its last page came.
    heard: Duration,
    timeout: Duration,
    /// When the answer is asked for again.
    due: Duration,
}

/// A page of an inventory, as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub round: u64,
    pub since: u64,
    pub page: InventoryPage,
    pub unchanged: Vec<Shard>,
    pub next: Option<Cursor>,
}

impl Pulls {
    pub fn of_joiner() -> Self {
        Pulls { awaits_members: true, ..Pulls::default() }
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

    /// False if nothing waited for that.
    fn await_no_more(&mut self, node: NodeId, shard: Shard) -> bool {
        let Some(shards) = self.awaited.get_mut(&node) else { return false };
        let was_awaited = shards.remove(shard);
        if was_awaited && shards.is_empty() {
            self.awaited.remove(&node);
        }
        was_awaited
    }

    fn enqueue(&mut self, node: NodeId, scope: Scope, shard: Shard) {
        self.queue.entry(node).or_default().of(scope).insert(shard);
    }

    /// The next few shards to ask `node` about, all with the same scope: first those somebody waits for.
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

    /// A member that did not answer in time can be reached again.
    fn defer_no_more(&mut self, ctx: &mut Ctx, node: NodeId) {
        if self.deferred.remove(&node).is_some() {
            ctx.timers.clear(Timer::Pull(node));
        }
    }

    /// Another node owns the shard: nobody is asked about it. If it comes back, all of it is asked for anew.
    fn forget_shard(&mut self, shard: Shard) {
        self.demanded.remove(&shard);
        self.awaited.retain(|_, shards| !shards.remove(shard) || !shards.is_empty());
        for pull in self.running.values_mut() {
            pull.shards.remove(&shard);
        }
    }

    /// What was told so far may be out of date: those that are being asked are asked anew.
    fn restart(&mut self, ctx: &mut Ctx) {
        for (node, pull) in std::mem::take(&mut self.running) {
            ctx.timers.clear(Timer::Pull(node));
            pull.shards.into_iter().for_each(|shard| self.enqueue(node, pull.scope, shard));
        }
    }
}

impl Directory {
    /// We own the shard from now on.
    pub(super) fn begin_recovery(&mut self, ctx: &mut Ctx, shard: Shard) {
        self.owned.insert(shard, OwnedShard::recovering());
        for member in ctx.shards.iter() {
            self.await_also(shard, member);
        }
    }

    /// We were held for dead, or may have been: others may have owned all of our shards meanwhile. Nothing is accepted
    /// before they are heard: what waits in our sockets may be of long ago.
    pub fn recover_everything(&mut self, ctx: &mut Ctx) {
        let members: BTreeSet<_> = ctx.shards.iter().filter(|&node| node != ctx.me).collect();
        self.pulls.awaits_company = members.is_empty();
        if members.is_empty() {
            return;
        }
        self.pulls.restart(ctx);
        for node in std::mem::take(&mut self.pulls.deferred).into_keys() {
            ctx.timers.clear(Timer::Pull(node));
        }
        let ours: Vec<_> = self.owned.keys().filter(|&shard| ctx.shards.is_mine(shard)).collect();
        for shard in ours {
            for &member in &members {
                self.await_also(shard, member);
            }
        }
        self.pull_more(ctx);
    }

    /// `node` may know of the shard, too, which is still being recovered.
    pub(super) fn await_also(&mut self, shard: Shard, node: NodeId) {
        if self.owned.contains(shard) {
            self.await_word_of(node, shard);
            self.pulls.enqueue(node, Scope::All, shard);
        }
    }

    /// The shard is not active before `node` has told what it knows of it.
    pub(super) fn await_word_of(&mut self, node: NodeId, shard: Shard) {
        let Some(owned) = self.owned.get_mut(shard) else { return };
        if self.pulls.awaited.entry(node).or_default().insert(shard) {
            owned.await_one_more();
        }
    }

    pub(super) fn give_shard_up(&mut self, ctx: &mut Ctx, shard: Shard) {
        if let Some(owned) = self.owned.remove(shard) {
            self.note_released(owned.held_count());
            for ids in self.pinning.values_mut() {
                ids.retain(|id| id.shard() != shard);
            }
            self.pinning.retain(|_, ids| !ids.is_empty());
            self.pulls.forget_shard(shard);
            self.give_deletions_up(|other| other != shard);
            self.discard(ctx, shard, owned);
        }
    }

    /// Whether some shard waits for others' word.
    pub fn is_recovering(&self) -> bool {
        self.owned.values().any(|owned| !owned.is_active())
    }

    /// What `node` said lately may be lost, or was not listened to.
    pub fn pull_again(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.pulls.defer_no_more(ctx, node);
        for shard in self.owned.keys() {
            self.pulls.enqueue(node, Scope::All, shard);
        }
        let theirs = ctx.shards.owned_by(node);
        for shard in theirs.iter().filter(|&shard| ctx.shards.backup_of(shard) == Some(ctx.me)) {
            self.pulls.enqueue(node, Scope::Past, shard);
        }
        self.pull_more(ctx);
    }

    /// `node` takes another one for the owner of this shard: our question tells it better.
    pub fn pull_shard(&mut self, ctx: &mut Ctx, node: NodeId, shard: Shard) {
        if ctx.shards.contains(node) && self.owned.contains(shard) {
            self.pulls.enqueue(node, Scope::All, shard);
            self.pull_more(ctx);
        }
    }

    /// We are the shard's backup from now on, and are to know what only its owner does.
    pub(super) fn pull_past(&mut self, ctx: &mut Ctx, shard: Shard) {
        let owner = ctx.shards.owner_of(shard);
        self.pulls.enqueue(owner, Scope::Past, shard);
    }

    /// A node has just started, it says: there is nothing to ask it for.
    pub fn on_fresh(&mut self, node: NodeId) {
        let awaited = self.pulls.awaited.get(&node);
        if let Some(queued) = self.pulls.queue.get_mut(&node) {
            queued.all.retain(|shard| awaited.is_some_and(|shards| shards.contains(shard)));
            if queued.is_empty() {
                self.pulls.queue.remove(&node);
            }
        }
    }

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
        let pull = Pull {
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
        self.pulls.running.insert(node, pull);
        self.ask_for_page(ctx, node);
    }

    /// Asks for the next page, or for the same one again.
    fn ask_for_page(&mut self, ctx: &mut Ctx, node: NodeId) {
        let Some(pull) = self.pulls.running.get_mut(&node) else { return };
        // Who is asked takes us for the owner, or itself.
        pull.shards.retain(|&shard| is_wanted(&self.owned, ctx, node, pull.scope, shard));
        let pull = &self.pulls.running[&node];
        if node == ctx.me {
            // In a turn of its own, like anybody else's.
            return ctx.timers.set(ctx.now + SOON, Timer::OwnInventory);
        }
        let query = |&shard: &Shard| ShardQuery { shard, digest: self.digest(shard, node, pull.scope) };
        let is_open = |shard: &&Shard| pull.next.is_none_or(|next| **shard >= next.shard);
        let message = PeerMessage::InventoryRequest {
            round: pull.round,
            scope: pull.scope,
            shards: pull.shards.iter().filter(is_open).map(query).collect(),
            from: pull.next,
            fresh: self.is_fresh,
            clock: ctx.clock.read(ctx.now),
        };
        let due = (ctx.now + pull.timeout).min(pull.heard + GIVE_UP_AFTER);
        ctx.timers.set(due, Timer::Pull(node));
        ctx.send(node, message, None);
        self.pulls.running.get_mut(&node).expect("it was just seen").due = due;
    }

    /// What we are to answer ourselves: round, shards, and where to go on.
    pub fn own_pull(&self, ctx: &Ctx) -> Option<(u64, Vec<Shard>, Option<Cursor>)> {
        let pull = self.pulls.running.get(&ctx.me)?;
        Some((pull.round, pull.shards.iter().copied().collect(), pull.next))
    }

    /// Stands for the copies in the shard that `node` is known to have; none if that is not to be relied on.
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
            // A claim stands as long as somebody works under it: that it was given up may not have been heard.
            // And from whom it receives a part may be another one than we lent it: two could wait for each other.
            if contends || claims || held.is_some_and(|held| held.is_sealer() || held.receives()) {
                return None;
            }
            if let Some(held) = held.filter(|held| held.complete || held.pinned) {
                digest ^= digest_of(id, held.edition, held.complete, held.pinned);
            }
        }
        Some(digest)
    }

    pub fn on_pull_timer(&mut self, ctx: &mut Ctx, node: NodeId) {
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

    /// The connection to `node` is a new one: what was asked before may be lost.
    pub fn repeat_pull(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.ask_for_page(ctx, node);
    }

    /// Recovering shards wait no longer for what this member knows. It is asked again later, and others meanwhile.
    fn give_up_on(&mut self, ctx: &mut Ctx, node: NodeId) {
        let Some(pull) = self.pulls.running.remove(&node) else { return };
        for &shard in &pull.shards {
            self.pulls.enqueue(node, pull.scope, shard);
        }
        let later = ctx.now + DEFERRED_FOR;
        self.pulls.deferred.insert(node, later);
        ctx.timers.set(later, Timer::Pull(node));
        self.pulls.given_up += u64::from(self.pulls.awaited.contains_key(&node));
        self.await_nothing_of(ctx, node);
        self.pull_more(ctx);
    }

    /// Takes in a page. Returns what copies kept here must go, because their writer gave up what it had put.
    pub fn on_inventory(&mut self, ctx: &mut Ctx, local: &Copies, from: NodeId, answer: Answer) {
        // A page behind the one before, or the last: else it would be asked for without end.
        let is_news = |pull: &Pull| answer.next.is_none_or(|next| pull.next < Some(next));
        let is_current = |pull: &&mut Pull| pull.round == answer.round && is_news(pull);
        let Some(pull) = self.pulls.running.get_mut(&from).filter(is_current) else {
            // Its answer may have come too late.
            self.pulls.defer_no_more(ctx, from);
            return self.pull_more(ctx);
        };
        let since = *pull.since.get_or_insert(answer.since);
        let scope = pull.scope;
        pull.unchanged.extend(answer.unchanged);
        pull.next = answer.next;
        pull.timeout = ANSWER_TIMEOUT;
        pull.heard = ctx.now;
        match scope {
            Scope::All => self.take_page(ctx, local, from, since, answer.page),
            Scope::Past => {
                for (id, deletion) in answer.page.tombstones {
                    self.on_heard_deleted(ctx, id, deletion);
                }
                self.on_backup_ids(ctx, from, answer.page.lost.into_iter().map(|(id, _)| id));
            }
        }
        match answer.next {
            Some(_) => self.ask_for_page(ctx, from),
            None => self.end_pull(ctx, from, since),
        }
    }

    fn take_page(&mut self, ctx: &mut Ctx, local: &Copies, from: NodeId, since: u64, page: InventoryPage) {
        // Deletions first: what they concern is not even looked at.
        for (id, deletion) in page.tombstones {
            self.on_heard_deleted(ctx, id, deletion);
        }
        for (id, report) in page.copies {
            if self.owned.contains(id.shard()) {
                let wants_verdict = report.claim.is_some();
                let request = DirectoryRequest::Announce { report, payload: None, wants_verdict };
                self.on_request(ctx, local, from, id, request);
            }
        }
        for (id, claim, stamp) in page.claims {
            if self.owned.contains(id.shard()) && claim.by == from {
                match stamp {
                    Some(stamp) => self.absorb_claim(ctx, local, id, claim, stamp, since),
                    None => {
                        let request = DirectoryRequest::Claim { seq: since, claim };
                        self.on_request(ctx, local, from, id, request);
                    }
                }
            }
        }
        for (id, age_ms) in page.lost {
            self.on_heard_lost(ctx, id, Duration::from_millis(age_ms));
        }
    }

    /// A claim that an owner before us accepted, or we ourselves.
    fn absorb_claim(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        id: ObjectId,
        claim: Claim,
        stamp: Stamp,
        seq: u64,
    ) {
        ctx.clock.observe(ctx.now, stamp);
        if self.deleted_at(id).is_some_and(|deleted| deleted > stamp) {
            return self.tell_claim_verdict(ctx, id, claim, Verdict::Deleted);
        }
        let entry = self.entry_mut(id);
        match &mut entry.content {
            Content::Claimed { claim: known, seq: last, stamp: then, released } if *known == claim => {
                (*last, *then) = (seq.max(*last), stamp.max(*then));
                // It was taken for dead.
                *released = false;
            }
            Content::Complete { stamp: known, .. } if *known == stamp => {}
            Content::None => {
                self.set_content(id, Content::Claimed { claim, stamp, seq, released: false });
            }
            // Another owner accepted another claim: they knew nothing of each other.
            _ => self.on_claim(ctx, local, id, seq, claim),
        }
    }

    /// `from` has told all it knows of these shards.
    fn end_pull(&mut self, ctx: &mut Ctx, from: NodeId, since: u64) {
        let Some(pull) = self.pulls.running.remove(&from) else { return };
        ctx.timers.clear(Timer::Pull(from));
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

    /// What `node` said of the shard before `since`, and not again in its inventory, is out of date. Adds the copies
    /// that we must let go of to `taken_back`.
    pub(super) fn drop_unrepeated(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        shard: Shard,
        node: NodeId,
        since: u64,
        taken_back: &mut Vec<(ObjectId, Edition)>,
    ) {
        let Some(owned) = self.owned.get(shard) else { return };
        for id in owned.of_node(node).collect::<Vec<_>>() {
            let Some(entry) = self.known_entry_mut(id) else { continue };
            let is_old = |contender: &Contender| match contender {
                Contender::Copy { node: by, report } => *by == node && report.seq < since,
                Contender::Claim { seq, claim } => claim.by == node && *seq < since,
            };
            entry.contenders.retain(|contender| !is_old(contender));
            if matches!(entry.content, Content::Claimed { claim, seq, .. } if claim.by == node && seq < since)
            {
                entry.release(|claim| claim.by == node);
            }
            let held = entry.holders.get(node);
            match held.map(|held| (held.presumed, held.seq < since, held.edition)) {
                Some((false, true, edition)) => {
                    let is_kept = |held: &Held| !held.pinned && held.edition == edition;
                    if node != ctx.me
                        && entry.is_pinned_only_at(node)
                        && entry.holders.get(ctx.me).is_some_and(is_kept)
                        && local.live_copy(id).is_none_or(|copy| !copy.was_read)
                    {
                        // First, so that nobody takes the object for one that was complete here.
                        entry.remove_holder(ctx.me);
                        self.reindex(id, ctx.me);
                        taken_back.push((id, edition));
                    }
                    self.on_withdraw(ctx, local, node, id, since, edition);
                }
                // The answer that lent it a sender may be lost.
                Some((true, ..)) => {
                    let (ask, sender) = held.map(|held| (held.answered, held.upstream)).expect("seen");
                    if let Some(sender) = sender.filter(|&sender| entry.holders.contains(sender)) {
                        self.answer_lend(ctx, id, node, ask, sender);
                    }
                }
                _ => {}
            }
            self.end_released_claim(ctx, local, id);
            self.reindex(id, node);
            self.drop_if_empty(id);
        }
    }

    /// `node` has told all it knows of the shard, or is gone.
    pub(super) fn on_heard(&mut self, ctx: &mut Ctx, shard: Shard, node: NodeId) {
        let was_awaited = self.pulls.await_no_more(node, shard);
        let Some(recovering) = self.owned.get_mut(shard).and_then(OwnedShard::recovery_mut) else { return };
        recovering.awaited -= usize::from(was_awaited);
        if recovering.awaited == 0 {
            self.activate_soon(ctx, shard);
        }
    }

    /// What `node` knows will not come.
    fn await_nothing_of(&mut self, ctx: &mut Ctx, node: NodeId) {
        let awaited = self.pulls.awaited.get(&node).cloned().unwrap_or_default();
        for shard in awaited.iter() {
            self.on_heard(ctx, shard, node);
        }
    }

    pub(super) fn recovery_node_down(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.pulls.queue.remove(&node);
        self.pulls.running.remove(&node);
        self.pulls.deferred.remove(&node);
        ctx.timers.clear(Timer::Pull(node));
        self.await_nothing_of(ctx, node);
        self.pull_more(ctx);
    }
}

/// Whether `node` is still to be asked about the shard.
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

//! Work that a change of members leaves behind, in short turns that delay nothing else. A turn takes about a
//! millisecond, whatever the number of objects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hoplite_types::peer::DirectoryRequest;
use hoplite_types::{Edition, NodeId, ObjectId, Shard};

use super::entry::Entry;
use super::inventory_pulls::SOON;
use super::loss::LOST_TTL;
use super::shard::OwnedShard;
use super::Directory;
use crate::copies::Copies;
use crate::ctx::Ctx;
use crate::timers::Timer;

/// Limit of entries that one turn looks at.
const ENTRIES_PER_TURN: usize = 256;

/// How long a node that is not a member may be involved in entries: by then it is one, or it died before.
const STRANGERS_FOR: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Sweeps {
    /// Recovered shards whose entries have yet to be processed.
    activate: VecDeque<Shard>,
    /// Shards whose inventory a node has sent in full, and the sequence number below which its reports are void.
    unrepeated: BTreeMap<(Shard, NodeId), u64>,
    /// Shards of which a node's inventory is being pulled; the node is to be sent the state of its questions.
    questions: BTreeSet<(Shard, NodeId)>,
    /// Nodes that are gone, and for each the last shard that was swept.
    forget: BTreeMap<NodeId, Option<Shard>>,
    /// Shards that others own now. Losses in them through nodes that died, but were not swept in time, have yet to be
    /// recorded.
    discard: BTreeMap<Shard, OwnedShard>,
    /// Nodes that are to be notified again of deletions under way, or that died before they acknowledged them; and for
    /// each the last deletion that was looked at.
    repeat: BTreeMap<NodeId, Option<ObjectId>>,
    /// Nodes that are to be told again what to pin, or that died before they reported it as pinned; and for each the
    /// last object that was looked at.
    pins: BTreeMap<NodeId, Option<ObjectId>>,
    /// The shard whose backup was sent its ids last, while all are sent again.
    renew: Option<Option<Shard>>,
}

impl Sweeps {
    pub fn is_empty(&self) -> bool {
        let heard = self.unrepeated.is_empty() && self.activate.is_empty();
        heard
            && self.questions.is_empty()
            && self.repeat.is_empty()
            && self.pins.is_empty()
            && self.forget.is_empty()
            && self.discard.is_empty()
            && self.renew.is_none()
    }
}

impl Sweeps {
    /// Drops inventories that are not applied yet: these nodes are asked anew about these shards, or not at all.
    pub fn forget_heard(&mut self, is_void: impl Fn(Shard, NodeId) -> bool) {
        self.unrepeated.retain(|&(shard, node), _| !is_void(shard, node));
    }
}

impl Directory {
    fn work_soon(&self, ctx: &mut Ctx) {
        if !ctx.timers.is_set(Timer::Work) {
            ctx.timers.set(ctx.now + SOON, Timer::Work);
        }
    }

    pub(super) fn activate_soon(&mut self, ctx: &mut Ctx, shard: Shard) {
        self.sweeps.activate.push_back(shard);
        self.work_soon(ctx);
    }

    pub(super) fn sweep_unrepeated(&mut self, ctx: &mut Ctx, shard: Shard, node: NodeId, since: u64) {
        self.sweeps.unrepeated.insert((shard, node), since);
        self.work_soon(ctx);
    }

    pub(super) fn sweep_questions(&mut self, ctx: &mut Ctx, shards: &BTreeSet<Shard>, node: NodeId) {
        self.sweeps.questions.extend(shards.iter().map(|&shard| (shard, node)));
        self.work_soon(ctx);
    }

    pub(super) fn sweep_deletions(&mut self, ctx: &mut Ctx, node: NodeId) {
        if self.has_deletions() {
            self.sweeps.repeat.insert(node, None);
            self.work_soon(ctx);
        }
    }

    pub(super) fn sweep_pins(&mut self, ctx: &mut Ctx, node: NodeId) {
        if self.pinning.contains_key(&node) {
            self.sweeps.pins.insert(node, None);
            self.work_soon(ctx);
        }
    }

    pub(super) fn sweep_node(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.sweep_pins(ctx, node);
        self.sweeps.forget.insert(node, None);
        self.work_soon(ctx);
    }

    /// The node lives: its own reports stand from now on.
    pub fn on_node_up(&mut self, node: NodeId) {
        self.sweeps.forget.remove(&node);
    }

    pub(super) fn discard(&mut self, ctx: &mut Ctx, shard: Shard, owned: OwnedShard) {
        if let Some(earlier) = self.sweeps.discard.insert(shard, owned) {
            self.forget_shard(ctx, &earlier);
        }
        self.work_soon(ctx);
    }

    fn forget_shard(&mut self, ctx: &mut Ctx, owned: &OwnedShard) {
        for id in owned.lost_with_strangers(ctx, None).collect::<Vec<_>>() {
            self.lost.insert(ctx, id, LOST_TTL);
        }
    }

    /// The losses in a shard that we owned until a moment ago.
    pub(super) fn lost_of_discarded<'a>(
        &'a self,
        ctx: &'a Ctx,
        shard: Shard,
        after: Option<ObjectId>,
    ) -> impl Iterator<Item = ObjectId> + 'a {
        self.sweeps
            .discard
            .get(&shard)
            .into_iter()
            .flat_map(move |owned| owned.lost_with_strangers(ctx, after))
    }

    /// The number of entries of a shard that we owned until a moment ago.
    pub(super) fn discarded_in(&self, shard: Shard) -> usize {
        self.sweeps.discard.get(&shard).map_or(0, OwnedShard::len)
    }

    pub(super) fn sweep_backups(&mut self, ctx: &mut Ctx, after: Option<Shard>) {
        self.sweeps.renew = Some(after);
        self.work_soon(ctx);
    }

    /// One turn. Returns copies that were kept here for writers that have withdrawn them.
    pub fn work(&mut self, ctx: &mut Ctx, local: &Copies) -> Vec<(ObjectId, Edition)> {
        let mut taken_back = Vec::new();
        let mut left = ENTRIES_PER_TURN;
        while left > 0 && !(self.sweeps.is_empty() && self.released.is_empty()) {
            let done = self.work_on(ctx, local, left, &mut taken_back);
            left = left.saturating_sub(done + 1);
        }
        if !(self.sweeps.is_empty() && self.released.is_empty()) {
            self.work_soon(ctx);
        }
        taken_back
    }

    /// Does a piece of the work; returns how many entries it looked at.
    fn work_on(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        most: usize,
        taken_back: &mut Vec<(ObjectId, Edition)>,
    ) -> usize {
        if let Some(((shard, node), since)) = self.sweeps.unrepeated.pop_first() {
            let entries = self.owned.get(shard).map_or(0, |owned| owned.count_of(node));
            self.drop_unrepeated(ctx, local, shard, node, since, taken_back);
            self.on_heard(ctx, shard, node);
            return entries;
        }
        if let Some(shard) = self.released.next() {
            return self.release_more(ctx, local, shard);
        }
        if let Some(shard) = self.sweeps.activate.pop_front() {
            return self.activate(ctx, local, shard);
        }
        if let Some((shard, node)) = self.sweeps.questions.pop_first() {
            return self.repeat_state_of_questions(ctx, shard, node);
        }
        if let Some((&node, &after)) = self.sweeps.forget.first_key_value() {
            return self.forget_some(ctx, local, node, after, most);
        }
        if let Some((node, after)) = self.sweeps.repeat.pop_first() {
            if let Some(last) = self.repeat_deletions(ctx, node, after, most) {
                self.sweeps.repeat.insert(node, Some(last));
            }
            return most;
        }
        if let Some((node, after)) = self.sweeps.pins.pop_first() {
            if let Some(last) = self.pin_some(ctx, node, after, most) {
                self.sweeps.pins.insert(node, Some(last));
            }
            return most;
        }
        if let Some((_, owned)) = self.sweeps.discard.pop_first() {
            self.forget_shard(ctx, &owned);
            return owned.len();
        }
        let Some(after) = self.sweeps.renew.take() else { return 0 };
        let behind = after.map_or(0, |shard| shard.index() + 1);
        let next = self.owned.from(behind).next().map(|(shard, owned)| (shard, owned.len()));
        let Some((shard, entries)) = next else { return 0 };
        self.renew_backups(ctx, shard);
        self.sweeps.renew = Some(Some(shard));
        entries
    }

    fn forget_some(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        node: NodeId,
        after: Option<Shard>,
        most: usize,
    ) -> usize {
        let mut ids = Vec::new();
        let mut last = None;
        for (shard, owned) in self.owned.from(after.map_or(0, Shard::index)) {
            ids.extend(owned.of_node(node).take(most - ids.len()));
            last = Some(shard);
            if ids.len() >= most {
                break;
            }
        }
        match (ids.len() >= most, last) {
            (true, Some(shard)) => drop(self.sweeps.forget.insert(node, Some(shard))),
            _ => drop(self.sweeps.forget.remove(&node)),
        }
        for &id in &ids {
            self.forget_node(ctx, local, id, node);
        }
        ids.len()
    }

    /// Removes nodes that are gone from an entry before it is used.
    pub(super) fn sweep_entry(&mut self, ctx: &mut Ctx, local: &Copies, id: ObjectId) {
        if self.sweeps.forget.is_empty() {
            return;
        }
        let Some(entry) = self.entry(id) else { return };
        let gone = self.sweeps.forget.keys().copied().filter(|&node| entry.involves(node));
        for node in gone.collect::<Vec<_>>() {
            self.forget_node(ctx, local, id, node);
        }
    }

    /// A shard's inventories are complete here: applies the consequences, and serves held requests.
    fn activate(&mut self, ctx: &mut Ctx, local: &Copies, shard: Shard) -> usize {
        let Some(owned) = self.owned.get_mut(shard) else { return 0 };
        let is_due =
            |owned: &mut OwnedShard| owned.recovery_mut().is_some_and(|recovering| recovering.awaited == 0);
        if !is_due(owned) {
            return 0;
        }
        let held = owned.activate();
        let ids = owned.ids();
        self.pulls.demanded.remove(&shard);
        // Writers first: partial copies of their writings are no orphans.
        let is_report = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Announce { .. });
        let (reports, others): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|(_, _, request)| is_report(request));
        self.note_released(reports.len());
        let done = reports.len() + ids.len();
        for (id, origin, request) in reports {
            self.on_request(ctx, local, origin, id, request);
        }
        for id in ids {
            self.look_after(ctx, local, id);
        }
        self.note_lost_of_dead(ctx, shard);
        done + self.release(ctx, local, shard, others.into())
    }

    fn look_after(&mut self, ctx: &mut Ctx, local: &Copies, id: ObjectId) {
        let claimant = self.entry(id).and_then(Entry::claimant);
        if let Some(gone) = claimant.filter(|&node| !ctx.shards.contains(node)) {
            self.entry_mut(id).release(|_| true);
            self.reindex(id, gone);
        }
        self.end_released_claim(ctx, local, id);
        // Before anything counts as lost or orphaned: a contender may have the last copy.
        self.settle_contenders(ctx, local, id);
        self.infer_loss(ctx, id);
        self.drop_orphans(ctx, id);
        self.note_if_lost(ctx, id);
        self.secure(ctx, id);
        self.tell_backup(ctx, id);
        self.serve_asks(ctx, local, id);
        self.drop_if_empty(id);
    }

    pub(super) fn note_stranger(&self, ctx: &mut Ctx) {
        if !ctx.timers.is_set(Timer::Strangers) {
            ctx.timers.set(ctx.now + STRANGERS_FOR, Timer::Strangers);
        }
    }

    /// Nodes that reported or asked and are still not members: they died before we knew them. One that lives is asked
    /// to resync when it comes up.
    pub fn strangers(&self, ctx: &Ctx) -> BTreeSet<NodeId> {
        let involved = self.owned.values().flat_map(OwnedShard::nodes);
        involved.filter(|&node| !ctx.shards.contains(node)).collect()
    }
}

//! Objects whose copies are watched through the directory: for `wait`, for reductions, and for want of space.
//!
//! - here: what is known of each object, and its watchers
//! - `telling`: news for many watchers, in turns; `gone`: copies that went with their nodes
//! - `turns`: begins and ends to watch many objects, in turns

mod gone;
mod telling;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::peer::{CopyReport, DirectoryRequest};
use hoplite_types::{Blob, NodeId, ObjectId};

use crate::ctx::Ctx;
use crate::keys::Watcher;
use crate::notices::{News, Notice};
use crate::repeats::Repeats;
use crate::shards::ShardSet;
use crate::timers::Timer;
use gone::Gone;
use telling::Tellings;
use turns::Turns;

/// Limit of subscriptions that are repeated in one turn. There may be many, and hardly ever is one lost unnoticed.
const WATCHED_PER_TURN: usize = 256;
const WATCHED_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Subscription {
    watchers: BTreeSet<Watcher>,
    copies: BTreeMap<NodeId, CopyReport>,
    /// The owner reported it lost, and no complete copy was reported since.
    lost: bool,
    /// It was watched only for its bytes, and they came: its owner sends no more notifications.
    over: bool,
}

/// A reduction that watches its sources.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourcesWatch {
    /// The size up to which it wants their bytes with the news of them.
    pub small_bytes_max: u64,
    /// The number of sources.
    pub count: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    table: BTreeMap<ObjectId, Subscription>,
    repeats: Repeats,
    /// The number of pairs of an object and a watcher.
    pairs: usize,
    /// Objects of which a node has a copy, by node.
    by_node: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    gone: Gone,
    reductions: BTreeMap<u64, SourcesWatch>,
    tellings: Tellings,
    turns: Turns,
}

/// Removes an object from the list of a node.
fn unlist(lists: &mut BTreeMap<NodeId, BTreeSet<ObjectId>>, node: NodeId, object: ObjectId) {
    if let Some(objects) = lists.get_mut(&node) {
        objects.remove(&object);
        if objects.is_empty() {
            lists.remove(&node);
        }
    }
}

impl Subscriptions {
    /// Repeats the subscriptions to objects in these shards, the first few now.
    pub fn repeat(&mut self, ctx: &mut Ctx, shards: &ShardSet) {
        self.repeats.begin(shards);
        if !ctx.timers.is_set(Timer::RefreshWatched) {
            self.repeat_some(ctx);
        }
    }

    fn is_repeating(&self) -> bool {
        self.repeats.are_under_way()
    }

    /// The next few objects whose subscriptions are to be repeated.
    fn next_to_repeat(&mut self, most: usize) -> Vec<ObjectId> {
        self.repeats.next(&self.table, most, |known| !known.over)
    }

    /// Whether there are subscriptions on which owners may still send notifications.
    pub fn has_open(&self) -> bool {
        self.table.values().any(|known| !known.over)
    }

    fn note_copy(&mut self, object: ObjectId, node: NodeId, report: CopyReport) {
        if let Some(known) = self.table.get_mut(&object) {
            known.copies.insert(node, report);
            self.gone.forget(node, object);
            self.by_node.entry(node).or_default().insert(object);
        }
    }

    /// Returns whether the copy was known.
    fn forget_copy(&mut self, object: ObjectId, node: NodeId) -> bool {
        let known = self.table.get_mut(&object).is_some_and(|known| known.copies.remove(&node).is_some());
        unlist(&mut self.by_node, node, object);
        self.gone.forget(node, object);
        known
    }

    /// Clears the state of an object whose bytes came once, if no copy of it is known any more. Returns whether its
    /// owner is to be asked again.
    fn begin_again(&mut self, object: ObjectId) -> bool {
        let Some(known) = self.table.get_mut(&object) else { return false };
        known.copies.is_empty() && std::mem::take(&mut known.over)
    }

    fn remove(&mut self, object: ObjectId) -> Option<Subscription> {
        let nodes: Vec<_> = self.table.get(&object)?.copies.keys().copied().collect();
        for node in nodes {
            self.forget_copy(object, node);
        }
        self.tellings.forget(object);
        self.table.remove(&object)
    }

    /// The copies of a watched object that their nodes have reported.
    pub fn copies(&self, object: ObjectId) -> impl Iterator<Item = (NodeId, &CopyReport)> {
        let copies = self.table.get(&object).into_iter().flat_map(|known| known.copies.iter());
        let standing = copies.filter(move |(&node, _)| !self.gone.has(node, object));
        standing.map(|(&node, report)| (node, report))
    }

    pub fn is_complete(&self, object: ObjectId) -> bool {
        self.copies(object).any(|(_, report)| report.complete)
    }

    /// Whether a later report of the node's copy is known.
    fn knows_later(&self, object: ObjectId, node: NodeId, seq: u64) -> bool {
        let known = self.table.get(&object).and_then(|known| known.copies.get(&node));
        known.is_some_and(|known| known.seq > seq) && !self.gone.has(node, object)
    }

    fn watchers(&self, object: ObjectId) -> impl Iterator<Item = Watcher> + '_ {
        self.table.get(&object).into_iter().flat_map(|known| &known.watchers).copied()
    }

    fn reductions(&self, object: ObjectId) -> Vec<u64> {
        let (first, last) = (Watcher::Reduction(0), Watcher::Reduction(u64::MAX));
        let known = self.table.get(&object);
        let watchers = known.into_iter().flat_map(|known| known.watchers.range(first..=last));
        let number = |watcher: &Watcher| match *watcher {
            Watcher::Reduction(number) => Some(number),
            Watcher::Call(..) | Watcher::Leave | Watcher::Fetch => None,
        };
        watchers.filter_map(number).collect()
    }

    /// Starts watching. Copies that are known already can be read at once; further ones are pushed. Returns whether the
    /// object is known to be lost.
    pub fn watch(&mut self, ctx: &mut Ctx, object: ObjectId, watcher: Watcher) -> bool {
        let known = self.table.entry(object).or_default();
        let first = known.watchers.is_empty() || std::mem::take(&mut known.over);
        let (is_new, lost) = (known.watchers.insert(watcher), known.lost);
        if is_new {
            self.pairs += 1;
            self.tellings.add_one(object);
        }
        if first {
            self.subscribe(ctx, object);
            ctx.arm_refresh();
        }
        lost
    }

    /// Subscribes to the object's copies at its owner.
    fn subscribe(&self, ctx: &mut Ctx, object: ObjectId) {
        let bytes_max = self.wanted_with_news(object);
        ctx.ask_owner(object, DirectoryRequest::Subscribe { bytes_max }, None);
    }

    /// The size up to which an object's bytes are wanted with the notification, which then ends the subscription. For
    /// sums that are made in one place, if there is no other watcher.
    fn wanted_with_news(&self, object: ObjectId) -> Option<u64> {
        let limit = |watcher| match watcher {
            Watcher::Reduction(number) => Some(self.reductions.get(&number)?.small_bytes_max),
            Watcher::Call(..) | Watcher::Leave | Watcher::Fetch => None,
        };
        let mut limits = self.watchers(object).map(limit);
        let first = limits.next()??;
        limits.try_fold(first, |least, limit| Some(least.min(limit?)))
    }

    pub fn unwatch(&mut self, ctx: &mut Ctx, object: ObjectId, watcher: Watcher) {
        let Some(known) = self.table.get_mut(&object) else {
            // It was not watched, or not any more.
            return;
        };
        self.pairs -= usize::from(known.watchers.remove(&watcher));
        if known.watchers.is_empty() {
            let over = known.over;
            self.remove(object);
            if !over {
                ctx.ask_owner(object, DirectoryRequest::Unsubscribe, None);
            }
        }
    }

    /// A reduction is about to watch its sources.
    pub fn begin_reduction(&mut self, number: u64, sources: SourcesWatch) {
        self.reductions.insert(number, sources);
    }

    /// The reduction is over. It may take some turns until its sources are not watched any more.
    pub fn end_reduction(&mut self, number: u64) {
        self.reductions.remove(&number);
    }

    pub fn on_copy_reported(
        &mut self,
        ctx: &mut Ctx,
        object: ObjectId,
        node: NodeId,
        report: CopyReport,
        payload: Option<Blob>,
    ) {
        let is_old = ctx.departed.has(node) || self.knows_later(object, node, report.seq);
        let Some(known) = self.table.get_mut(&object) else {
            // Our unsubscription was lost.
            return ctx.ask_owner(object, DirectoryRequest::Unsubscribe, None);
        };
        if is_old {
            return;
        }
        known.lost &= !report.complete;
        // A node that reports copies to us counts us as a watcher.
        known.over = false;
        self.note_copy(object, node, report.clone());
        if let Some(payload) = payload {
            self.on_subscription_over(ctx, object, report.size);
            for number in self.reductions(object) {
                let (report, payload) = (report.clone(), payload.clone());
                ctx.notices.push_back(Notice::SourceCame { number, object, report, payload });
            }
        }
        self.tell(ctx, object, News::Change);
    }

    /// The owner has sent the bytes, and ended our subscription with them. Other watchers here may remain.
    fn on_subscription_over(&mut self, ctx: &mut Ctx, object: ObjectId, size: u64) {
        if self.wanted_with_news(object).is_none_or(|most| size > most) {
            return self.subscribe(ctx, object);
        }
        if let Some(known) = self.table.get_mut(&object) {
            known.over = true;
        }
    }

    /// The owner sends all nodes that have a copy: copies of others that we know are out of date.
    pub fn on_holders(&mut self, ctx: &mut Ctx, object: ObjectId, nodes: &[NodeId]) {
        if !self.table.contains_key(&object) {
            // Our unsubscription was lost.
            return ctx.ask_owner(object, DirectoryRequest::Unsubscribe, None);
        }
        let nodes: BTreeSet<_> = nodes.iter().copied().collect();
        let known = self.copies(object).map(|(node, _)| node);
        let gone: Vec<_> = known.filter(|node| !nodes.contains(node)).collect();
        for &node in &gone {
            self.forget_copy(object, node);
        }
        if !gone.is_empty() {
            self.tell(ctx, object, News::Change);
        }
    }

    pub fn on_copy_gone(&mut self, ctx: &mut Ctx, object: ObjectId, node: NodeId) {
        if self.forget_gone_copy(ctx, object, node) {
            self.tell(ctx, object, News::Change);
        }
    }

    /// Returns whether the copy was known.
    fn forget_gone_copy(&mut self, ctx: &mut Ctx, object: ObjectId, node: NodeId) -> bool {
        let was_known = self.forget_copy(object, node);
        if was_known && self.begin_again(object) {
            self.subscribe(ctx, object);
            ctx.arm_refresh();
        }
        was_known
    }

    /// The last complete copy of the object is gone.
    pub fn on_lost(&mut self, ctx: &mut Ctx, object: ObjectId) {
        if let Some(known) = self.table.get_mut(&object) {
            known.lost = true;
        }
        self.tell(ctx, object, News::Lost);
    }

    pub fn on_deleted(&mut self, ctx: &mut Ctx, object: ObjectId) {
        self.tell(ctx, object, News::Deleted);
    }

    /// Repeats subscriptions, a few at a time.
    pub fn repeat_some(&mut self, ctx: &mut Ctx) {
        for object in self.next_to_repeat(WATCHED_PER_TURN) {
            self.subscribe(ctx, object);
        }
        if self.is_repeating() {
            ctx.timers.set(ctx.now + WATCHED_PAUSE, Timer::RefreshWatched);
        }
    }

    /// Describes the state that is left, in words. Counts of what happened are none.
    pub fn leftovers(&self) -> Option<String> {
        let is_left =
            !self.table.is_empty() || self.pairs > 0 || !self.reductions.is_empty() || self.has_work();
        is_left.then(|| format!("subscriptions: {self:?}"))
    }

    /// Whether work is left for the next turn.
    pub fn has_work(&self) -> bool {
        self.gone.is_left() || !self.tellings.is_empty() || !self.turns.is_empty()
    }
}

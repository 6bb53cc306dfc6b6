//! Objects whose copies are watched through the directory: for `wait`, for reductions, and for want of space.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use hoplite_types::peer::{CopyReport, DirectoryRequest};
use hoplite_types::{Blob, NodeId, ObjectId};

use crate::io::ClientId;
use crate::repeats::Repeats;
use crate::shards::ShardSet;
use crate::Core;

/// A reason to watch an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Watcher {
    /// A wait, and the object's place in its list.
    Call(ClientId, u64, usize),
    Reduction(u64),
    /// We are leaving, and wait for the object to be handed over.
    Leave,
    /// A fetch that waits for space here has no open ask at the owner; through its subscription it is notified if the
    /// object is deleted.
    Fetch,
}

/// Limit of watchers of one object that are notified in one turn: a millisecond's work or two.
const WATCHERS_PER_TURN: usize = 1024;

/// The kinds of notification about a watched object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum News {
    /// Its set of copies has changed.
    Change,
    Lost,
    Deleted,
}

/// A notification of more watchers than could be notified at once: the last one notified, and the number left. They
/// are notified of the state at that time.
#[derive(Clone, Copy, Debug)]
struct Telling {
    last: Watcher,
    left: usize,
}

#[derive(Debug, Default)]
struct Subscription {
    watchers: BTreeSet<Watcher>,
    copies: BTreeMap<NodeId, CopyReport>,
    /// The owner reported it lost, and no complete copy was reported since.
    lost: bool,
    /// It was watched only for its bytes, and they came: its owner sends no more notifications.
    over: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    table: BTreeMap<ObjectId, Subscription>,
    repeats: Repeats,
    /// The number of pairs of an object and a watcher.
    pairs: usize,
    /// Objects of which a node has a copy, by node.
    by_node: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    /// Objects of which a node had a copy before it died. These copies no longer count; in turns they are removed, and
    /// watchers notified.
    gone: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    /// Reductions that have sources among them.
    reductions_hit: BTreeSet<u64>,
    /// Notifications that some watchers have yet to get.
    telling: BTreeMap<(ObjectId, News), Telling>,
    /// The notification that was continued last.
    told: Option<(ObjectId, News)>,
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
    pub fn pairs(&self) -> usize {
        self.pairs
    }

    /// Schedules the subscriptions to objects in these shards to be repeated.
    pub fn repeat(&mut self, shards: &ShardSet) {
        self.repeats.begin(shards);
    }

    pub fn is_repeating(&self) -> bool {
        self.repeats.are_under_way()
    }

    /// The next few objects whose subscriptions are to be repeated.
    pub fn next_to_repeat(&mut self, most: usize) -> Vec<ObjectId> {
        self.repeats.next(&self.table, most, |known| !known.over)
    }

    /// Whether there are subscriptions on which owners may still send notifications.
    pub fn has_open(&self) -> bool {
        self.table.values().any(|known| !known.over)
    }

    /// Takes the next notification. Objects take turns, even if one changes all the time.
    fn take_telling(&mut self) -> Option<((ObjectId, News), Telling)> {
        let behind = (self.told.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let next = self.telling.range(behind).next().or_else(|| self.telling.first_key_value());
        self.told = next.map(|(&key, _)| key);
        let key = self.told?;
        let telling = self.telling.remove(&key)?;
        if self.telling.is_empty() {
            self.told = None;
        }
        Some((key, telling))
    }

    /// A watcher was added while others have yet to be notified: it may stand among those. It must be notified of a
    /// deletion with them, because the owner is not asked again.
    fn tell_one_more(&mut self, object: ObjectId) {
        for news in [News::Change, News::Lost, News::Deleted] {
            if let Some(telling) = self.telling.get_mut(&(object, news)) {
                telling.left += 1;
            }
        }
    }

    fn note_copy(&mut self, object: ObjectId, node: NodeId, report: CopyReport) {
        if let Some(known) = self.table.get_mut(&object) {
            known.copies.insert(node, report);
            unlist(&mut self.gone, node, object);
            self.by_node.entry(node).or_default().insert(object);
        }
    }

    /// Returns whether the copy was known.
    fn forget_copy(&mut self, object: ObjectId, node: NodeId) -> bool {
        let known = self.table.get_mut(&object).is_some_and(|known| known.copies.remove(&node).is_some());
        unlist(&mut self.by_node, node, object);
        unlist(&mut self.gone, node, object);
        known
    }

    /// The node is dead: none of its copies counts from now on.
    fn disregard_copies_of(&mut self, node: NodeId) {
        if let Some(mut objects) = self.by_node.remove(&node) {
            self.gone.entry(node).or_default().append(&mut objects);
        }
    }

    fn is_disregarded(&self, object: ObjectId, node: NodeId) -> bool {
        self.gone.get(&node).is_some_and(|objects| objects.contains(&object))
    }

    /// The next copy of a dead node to be removed.
    fn next_gone(&self) -> Option<(ObjectId, NodeId)> {
        let (&node, objects) = self.gone.first_key_value()?;
        objects.first().map(|&object| (object, node))
    }

    /// Whether watchers have yet to be notified of the deaths of nodes.
    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty() || !self.reductions_hit.is_empty()
    }

    /// Whether some watchers have yet to be notified.
    pub fn is_telling(&self) -> bool {
        !self.telling.is_empty()
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
        for news in [News::Change, News::Lost, News::Deleted] {
            self.telling.remove(&(object, news));
        }
        self.table.remove(&object)
    }

    /// The copies of a watched object that their nodes have reported.
    pub fn copies(&self, object: ObjectId) -> impl Iterator<Item = (NodeId, &CopyReport)> {
        let copies = self.table.get(&object).into_iter().flat_map(|known| known.copies.iter());
        let standing = copies.filter(move |(&node, _)| !self.is_disregarded(object, node));
        standing.map(|(&node, report)| (node, report))
    }

    pub fn is_complete(&self, object: ObjectId) -> bool {
        self.copies(object).any(|(_, report)| report.complete)
    }

    /// Whether a later report of the node's copy is known.
    fn knows_later(&self, object: ObjectId, node: NodeId, seq: u64) -> bool {
        let known = self.table.get(&object).and_then(|known| known.copies.get(&node));
        known.is_some_and(|known| known.seq > seq) && !self.is_disregarded(object, node)
    }

    fn watchers(&self, object: ObjectId) -> impl Iterator<Item = Watcher> + '_ {
        self.table.get(&object).into_iter().flat_map(|known| &known.watchers).copied()
    }

    fn watchers_count(&self, object: ObjectId) -> usize {
        self.table.get(&object).map_or(0, |known| known.watchers.len())
    }

    /// The next few watchers of an object after `last`, wrapping around at the end.
    fn watchers_behind(&self, object: ObjectId, last: Option<Watcher>, most: usize) -> Vec<Watcher> {
        let Some(Subscription { watchers, .. }) = self.table.get(&object) else { return Vec::new() };
        let behind = watchers.range((last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let first = last.into_iter().flat_map(|last| watchers.range(..=last));
        behind.chain(first).take(most.min(watchers.len())).copied().collect()
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
}

impl Core {
    /// Starts watching. Copies that are known already can be read at once; further ones are pushed.
    pub(crate) fn watch(&mut self, object: ObjectId, watcher: Watcher) {
        let known = self.subscriptions.table.entry(object).or_default();
        let first = known.watchers.is_empty() || std::mem::take(&mut known.over);
        let (is_new, lost) = (known.watchers.insert(watcher), known.lost);
        if is_new {
            self.subscriptions.pairs += 1;
            self.subscriptions.tell_one_more(object);
        }
        if lost {
            self.tell_lost(watcher, object);
        }
        if first {
            self.subscribe(object);
            self.ctx.arm_refresh();
        }
    }

    /// Subscribes to the object's copies at its owner.
    pub(crate) fn subscribe(&mut self, object: ObjectId) {
        let bytes_max = self.wanted_with_news(object);
        self.ctx.ask_owner(object, DirectoryRequest::Subscribe { bytes_max }, None);
    }

    /// The size up to which an object's bytes are wanted with the notification, which then ends the subscription. For
    /// sums that are made in one place, if there is no other watcher.
    fn wanted_with_news(&self, object: ObjectId) -> Option<u64> {
        let limit = |watcher| match watcher {
            Watcher::Reduction(number) => Some(self.reductions.get(&number)?.small_bytes_max),
            Watcher::Call(..) | Watcher::Leave | Watcher::Fetch => None,
        };
        let mut limits = self.subscriptions.watchers(object).map(limit);
        let first = limits.next()??;
        limits.try_fold(first, |least, limit| Some(least.min(limit?)))
    }

    pub(crate) fn unwatch(&mut self, object: ObjectId, watcher: Watcher) {
        let Some(known) = self.subscriptions.table.get_mut(&object) else { return };
        self.subscriptions.pairs -= usize::from(known.watchers.remove(&watcher));
        if known.watchers.is_empty() {
            let over = known.over;
            self.subscriptions.remove(object);
            if !over {
                self.ctx.ask_owner(object, DirectoryRequest::Unsubscribe, None);
            }
        }
    }

    pub(crate) fn on_copy_reported(
        &mut self,
        object: ObjectId,
        node: NodeId,
        report: CopyReport,
        payload: Option<Blob>,
    ) {
        let is_old = self.ctx.departed.has(node) || self.subscriptions.knows_later(object, node, report.seq);
        let Some(known) = self.subscriptions.table.get_mut(&object) else {
            // Our unsubscription was lost.
            return self.ctx.ask_owner(object, DirectoryRequest::Unsubscribe, None);
        };
        if is_old {
            return;
        }
        known.lost &= !report.complete;
        // A node that reports copies to us counts us as a watcher.
        known.over = false;
        self.subscriptions.note_copy(object, node, report.clone());
        if let Some(payload) = payload {
            self.on_subscription_over(object, report.size);
            for number in self.subscriptions.reductions(object) {
                self.bring_source(number, object, &report, &payload);
            }
        }
        self.tell_watchers(object, News::Change);
    }

    /// The owner has sent the bytes, and ended our subscription with them. Other watchers here may remain.
    fn on_subscription_over(&mut self, object: ObjectId, size: u64) {
        if self.wanted_with_news(object).is_none_or(|most| size > most) {
            return self.subscribe(object);
        }
        if let Some(known) = self.subscriptions.table.get_mut(&object) {
            known.over = true;
        }
    }

    /// The owner sends all nodes that have a copy: copies of others that we know are out of date.
    pub(crate) fn on_holders(&mut self, object: ObjectId, nodes: &[NodeId]) {
        if !self.subscriptions.table.contains_key(&object) {
            // Our unsubscription was lost.
            return self.ctx.ask_owner(object, DirectoryRequest::Unsubscribe, None);
        }
        let nodes: BTreeSet<_> = nodes.iter().copied().collect();
        let known = self.subscriptions.copies(object).map(|(node, _)| node);
        let gone: Vec<_> = known.filter(|node| !nodes.contains(node)).collect();
        for &node in &gone {
            self.subscriptions.forget_copy(object, node);
        }
        if !gone.is_empty() {
            self.tell_watchers(object, News::Change);
        }
    }

    pub(crate) fn on_copy_gone(&mut self, object: ObjectId, node: NodeId) {
        if self.forget_gone_copy(object, node) {
            self.tell_watchers(object, News::Change);
        }
    }

    /// Returns whether the copy was known.
    fn forget_gone_copy(&mut self, object: ObjectId, node: NodeId) -> bool {
        let was_known = self.subscriptions.forget_copy(object, node);
        if was_known && self.subscriptions.begin_again(object) {
            self.subscribe(object);
            self.ctx.arm_refresh();
        }
        was_known
    }

    /// Notifies all watchers of the object, the first of many at once. If an earlier notification is still under way,
    /// watchers that had it are notified again after the others.
    fn tell_watchers(&mut self, object: ObjectId, news: News) {
        let left = self.subscriptions.watchers_count(object);
        match self.subscriptions.telling.get_mut(&(object, news)) {
            Some(telling) => telling.left = left,
            None => self.tell_some_watchers(object, news, None, left),
        }
    }

    /// Continues with the next of many watchers.
    pub(crate) fn tell_next_watchers(&mut self) {
        if let Some(((object, news), Telling { last, left })) = self.subscriptions.take_telling() {
            self.tell_some_watchers(object, news, Some(last), left);
        }
    }

    fn tell_some_watchers(&mut self, object: ObjectId, news: News, last: Option<Watcher>, left: usize) {
        let some = self.subscriptions.watchers_behind(object, last, left.min(WATCHERS_PER_TURN));
        let Some(&last) = some.last() else { return };
        let left = left - some.len();
        if left > 0 {
            self.subscriptions.telling.insert((object, news), Telling { last, left });
            self.ctx.work_on_calls_soon();
        }
        match news {
            News::Change => {
                let complete = self.subscriptions.is_complete(object);
                some.into_iter().for_each(|watcher| self.tell_change(watcher, object, complete));
            }
            // It may exist again by now.
            News::Lost if self.subscriptions.table.get(&object).is_some_and(|known| known.lost) => {
                some.into_iter().for_each(|watcher| self.tell_lost(watcher, object));
            }
            News::Lost => {}
            News::Deleted => some.into_iter().for_each(|watcher| self.tell_deleted(watcher, object)),
        }
    }

    fn tell_change(&mut self, watcher: Watcher, object: ObjectId, complete: bool) {
        match watcher {
            Watcher::Call(client, call, place) if complete => {
                self.on_waited_complete(client, call, place, object);
            }
            Watcher::Call(..) => {}
            Watcher::Reduction(number) => self.on_reduction_change(number, object),
            Watcher::Leave => self.on_handed_over(object),
            Watcher::Fetch => {}
        }
    }

    pub(crate) fn watched_lost(&mut self, object: ObjectId) {
        if let Some(known) = self.subscriptions.table.get_mut(&object) {
            known.lost = true;
        }
        self.tell_watchers(object, News::Lost);
    }

    fn tell_lost(&mut self, watcher: Watcher, object: ObjectId) {
        match watcher {
            Watcher::Call(client, call, place) => self.on_waited_lost(client, call, place, object),
            // A source may be put again, or appear elsewhere; the reduction's time-out reports its state.
            Watcher::Reduction(_) | Watcher::Leave | Watcher::Fetch => {}
        }
    }

    pub(crate) fn watched_deleted(&mut self, object: ObjectId) {
        self.tell_watchers(object, News::Deleted);
    }

    fn tell_deleted(&mut self, watcher: Watcher, object: ObjectId) {
        match watcher {
            Watcher::Call(client, call, place) => self.on_waited_deleted(client, call, place, object),
            Watcher::Reduction(number) => self.on_reduction_deleted(number, object),
            // Our copy is removed in a moment, which reports that itself.
            Watcher::Leave => {}
            // Calls that want the object are notified through `fail_wants`.
            Watcher::Fetch => {}
        }
    }

    pub(crate) fn subscriptions_member_down(&mut self, node: NodeId) {
        self.subscriptions.disregard_copies_of(node);
        self.work_on_the_gone();
    }

    /// Removes the next copies of dead nodes, and notifies their watchers. Takes about `most` steps.
    pub(crate) fn forget_gone_copies(&mut self, most: usize) {
        let mut left = most;
        while left > 0 {
            if let Some((object, node)) = self.subscriptions.next_gone() {
                let count = self.subscriptions.watchers_count(object);
                left = left.saturating_sub(count.clamp(1, WATCHERS_PER_TURN));
                let was_known = self.forget_gone_copy(object, node);
                if was_known && count > WATCHERS_PER_TURN {
                    self.tell_watchers(object, News::Change);
                } else if was_known {
                    let complete = self.subscriptions.is_complete(object);
                    for watcher in self.subscriptions.watchers(object).collect::<Vec<_>>() {
                        match watcher {
                            Watcher::Reduction(number) => {
                                self.subscriptions.reductions_hit.insert(number);
                            }
                            other => self.tell_change(other, object, complete),
                        }
                    }
                }
            } else if let Some(number) = self.subscriptions.reductions_hit.pop_first() {
                // Many sources may have been there: each reduction is advanced once.
                left = left.saturating_sub(1 + self.on_sources_gone(number));
            } else {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hoplite_types::{Edition, Header};

    use super::*;
    use crate::repeats::LOOKED_AT_MAX;

    #[test]
    fn a_pass_over_nothing_leaves_no_mark() {
        let mut subscriptions = Subscriptions::default();
        let count = LOOKED_AT_MAX as u128 + 10;
        for number in 0..count {
            subscriptions.table.entry(ObjectId(number.to_be_bytes())).or_default();
        }
        subscriptions.repeat(&ShardSet::default());
        assert_eq!(subscriptions.next_to_repeat(256), []);
        subscriptions.repeat(&ShardSet::all());
        let mut said = BTreeSet::new();
        while subscriptions.is_repeating() {
            let some = subscriptions.next_to_repeat(256);
            assert!(some.len() <= 256);
            said.extend(some);
        }
        assert_eq!(said.len() as u128, count);
    }

    #[test]
    fn what_a_node_says_when_it_is_back_is_not_forgotten_with_what_it_had() {
        let (mut subscriptions, node) =
            (Subscriptions::default(), NodeId { addr: ([10, 0, 0, 1], 1).into(), incarnation: 1 });
        let objects = [1, 2].map(|number: u128| ObjectId(number.to_be_bytes()));
        let report = |seq| CopyReport {
            seq,
            edition: Edition { writing: 1, attempt: 0 },
            size: 1,
            header: Header::default(),
            complete: true,
            pinned: true,
            upstream: None,
            leaving: false,
            stamp: None,
            claim: None,
        };
        for object in objects {
            subscriptions.table.entry(object).or_default();
            subscriptions.note_copy(object, node, report(7));
        }
        subscriptions.disregard_copies_of(node);
        assert_eq!(subscriptions.copies(objects[1]).count(), 0);
        assert!(!subscriptions.knows_later(objects[1], node, 1));
        subscriptions.note_copy(objects[1], node, report(1));
        assert_eq!(subscriptions.next_gone(), Some((objects[0], node)));
        assert!(subscriptions.forget_copy(objects[0], node));
        assert_eq!(subscriptions.next_gone(), None);
        assert_eq!(subscriptions.copies(objects[1]).count(), 1);
        // It dies once more, and there is no watcher any more.
        subscriptions.disregard_copies_of(node);
        assert!(subscriptions.has_gone());
        objects.into_iter().for_each(|object| drop(subscriptions.remove(object)));
        assert!(!subscriptions.has_gone() && subscriptions.by_node.is_empty());
    }
}

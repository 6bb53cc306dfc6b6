//! Objects whose copies we watch through the directory: for `wait`, for reductions, and for want of room.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_words::peer::{CopyReport, DirectoryRequest};
use hoplite_words::{Blob, NodeId, ObjectId};

use crate::io::ClientId;
use crate::repeats::Repeats;
use crate::shards::ShardSet;
use crate::Core;

/// Who watches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Watcher {
    Call(ClientId, u64),
    Reduction(u64),
    /// We are leaving, and wait for the object to be kept elsewhere.
    Leave,
    /// A fetch that waits for room here has no question open with the owner: this is how it hears that
    /// the object is deleted.
    Fetch,
}

#[derive(Debug, Default)]
struct Subscription {
    watchers: BTreeSet<Watcher>,
    copies: BTreeMap<NodeId, CopyReport>,
    /// The owner said so, and nothing complete has come since.
    lost: bool,
    /// The object itself came, for which alone it was watched: its owner says nothing more.
    over: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    table: BTreeMap<ObjectId, Subscription>,
    repeats: Repeats,
    /// Pairs of an object and a watcher.
    pairs: usize,
    /// Objects of which a node has a copy.
    by_node: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    /// Objects of which a node had a copy before it died. These copies no longer count; they are forgotten, and
    /// watchers are told, in turns.
    gone: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    /// Reductions whose sources were among them.
    bereaved: BTreeSet<u64>,
}

/// Takes an object off the list of a node.
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

    /// The subscriptions to objects in these shards are to be repeated.
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

    /// Whether there are some of which their owners are to tell us more.
    pub fn has_open(&self) -> bool {
        self.table.values().any(|known| !known.over)
    }

    fn note_copy(&mut self, object: ObjectId, node: NodeId, report: CopyReport) {
        if let Some(known) = self.table.get_mut(&object) {
            known.copies.insert(node, report);
            unlist(&mut self.gone, node, object);
            self.by_node.entry(node).or_default().insert(object);
        }
    }

    /// Returns whether it was known.
    fn forget_copy(&mut self, object: ObjectId, node: NodeId) -> bool {
        let known = self.table.get_mut(&object).is_some_and(|known| known.copies.remove(&node).is_some());
        unlist(&mut self.by_node, node, object);
        unlist(&mut self.gone, node, object);
        known
    }

    /// The node is dead, and none of its copies counts from now on.
    fn disregard_copies_of(&mut self, node: NodeId) {
        if let Some(mut objects) = self.by_node.remove(&node) {
            self.gone.entry(node).or_default().append(&mut objects);
        }
    }

    fn is_disregarded(&self, object: ObjectId, node: NodeId) -> bool {
        self.gone.get(&node).is_some_and(|objects| objects.contains(&object))
    }

    /// The next copy that is to be forgotten.
    fn next_gone(&self) -> Option<(ObjectId, NodeId)> {
        let (&node, objects) = self.gone.first_key_value()?;
        objects.first().map(|&object| (object, node))
    }

    /// Whether watchers are still to be told of the deaths of nodes.
    pub fn has_gone(&self) -> bool {
        !self.gone.is_empty() || !self.bereaved.is_empty()
    }

    /// Nobody is known any more to have what came once: whether its owner is to be asked again.
    fn begin_again(&mut self, object: ObjectId) -> bool {
        let Some(known) = self.table.get_mut(&object) else { return false };
        known.copies.is_empty() && std::mem::take(&mut known.over)
    }

    fn remove(&mut self, object: ObjectId) -> Option<Subscription> {
        let nodes: Vec<_> = self.table.get(&object)?.copies.keys().copied().collect();
        for node in nodes {
            self.forget_copy(object, node);
        }
        self.table.remove(&object)
    }

    /// The copies of a watched object that their nodes have reported.
    pub fn copies(&self, object: ObjectId) -> impl Iterator<Item = (NodeId, &CopyReport)> {
        let copies = self.table.get(&object).into_iter().flat_map(|known| known.copies.iter());
        let standing = copies.filter(move |(&node, _)| !self.is_disregarded(object, node));
        standing.map(|(&node, report)| (node, report))
    }

    /// Whether the node has said something later about its copy.
    fn knows_later(&self, object: ObjectId, node: NodeId, seq: u64) -> bool {
        let known = self.table.get(&object).and_then(|known| known.copies.get(&node));
        known.is_some_and(|known| known.seq > seq) && !self.is_disregarded(object, node)
    }

    fn watchers(&self, object: ObjectId) -> Vec<Watcher> {
        self.table.get(&object).map(|known| known.watchers.iter().copied().collect()).unwrap_or_default()
    }
}

impl Core {
    /// Starts watching. What is known already is there to be read at once; the rest is pushed.
    pub(crate) fn watch(&mut self, object: ObjectId, watcher: Watcher) {
        let known = self.subscriptions.table.entry(object).or_default();
        let first = known.watchers.is_empty() || std::mem::take(&mut known.over);
        self.subscriptions.pairs += usize::from(known.watchers.insert(watcher));
        if known.lost {
            self.tell_lost(watcher, object);
        }
        if first {
            self.subscribe(object);
            self.arm_refresh();
        }
    }

    /// Asks the owner to tell us of its copies.
    pub(crate) fn subscribe(&mut self, object: ObjectId) {
        let bytes_max = self.wanted_with_news(object);
        self.ask_owner(object, DirectoryRequest::Subscribe { bytes_max }, None);
    }

    /// Up to how many bytes an object is wanted with the news of it, after which there need be no more: where
    /// sums are made in one place, and nobody else watches.
    fn wanted_with_news(&self, object: ObjectId) -> Option<u64> {
        let limit = |watcher| match watcher {
            Watcher::Reduction(number) => Some(self.reductions.get(&number)?.small_bytes_max),
            Watcher::Call(..) | Watcher::Leave | Watcher::Fetch => None,
        };
        let limits: Option<Vec<_>> = self.subscriptions.watchers(object).into_iter().map(limit).collect();
        limits?.into_iter().min()
    }

    pub(crate) fn unwatch(&mut self, object: ObjectId, watcher: Watcher) {
        let Some(known) = self.subscriptions.table.get_mut(&object) else { return };
        self.subscriptions.pairs -= usize::from(known.watchers.remove(&watcher));
        if known.watchers.is_empty() {
            let over = known.over;
            self.subscriptions.remove(object);
            if !over {
                self.ask_owner(object, DirectoryRequest::Unsubscribe, None);
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
        let is_old =
            self.departed.contains(&node) || self.subscriptions.knows_later(object, node, report.seq);
        let Some(known) = self.subscriptions.table.get_mut(&object) else {
            // Our word that we watch it no more was lost.
            return self.ask_owner(object, DirectoryRequest::Unsubscribe, None);
        };
        if is_old {
            return;
        }
        known.lost &= !report.complete;
        // Who speaks of copies takes us for a watcher.
        known.over = false;
        self.subscriptions.note_copy(object, node, report.clone());
        if let Some(payload) = payload {
            self.on_subscription_over(object, report.size);
            for watcher in self.subscriptions.watchers(object) {
                if let Watcher::Reduction(number) = watcher {
                    self.bring_source(number, object, &report, &payload);
                }
            }
        }
        self.tell_watchers(object);
    }

    /// The owner has sent the bytes, and ended our subscription with them. Others here may watch on.
    fn on_subscription_over(&mut self, object: ObjectId, size: u64) {
        if self.wanted_with_news(object).is_none_or(|most| size > most) {
            return self.subscribe(object);
        }
        if let Some(known) = self.subscriptions.table.get_mut(&object) {
            known.over = true;
        }
    }

    /// All who have a copy, says the owner: what others have told is out of date.
    pub(crate) fn on_holders(&mut self, object: ObjectId, nodes: &[NodeId]) {
        if !self.subscriptions.table.contains_key(&object) {
            // Our word that we watch it no more was lost.
            return self.ask_owner(object, DirectoryRequest::Unsubscribe, None);
        }
        let nodes: BTreeSet<_> = nodes.iter().copied().collect();
        let known = self.subscriptions.copies(object).map(|(node, _)| node);
        let gone: Vec<_> = known.filter(|node| !nodes.contains(node)).collect();
        for &node in &gone {
            self.subscriptions.forget_copy(object, node);
        }
        if !gone.is_empty() {
            self.tell_watchers(object);
        }
    }

    pub(crate) fn on_copy_gone(&mut self, object: ObjectId, node: NodeId) {
        if self.forget_gone_copy(object, node) {
            self.tell_watchers(object);
        }
    }

    /// Returns whether it was known.
    fn forget_gone_copy(&mut self, object: ObjectId, node: NodeId) -> bool {
        let was_known = self.subscriptions.forget_copy(object, node);
        if was_known && self.subscriptions.begin_again(object) {
            self.subscribe(object);
            self.arm_refresh();
        }
        was_known
    }

    fn tell_watchers(&mut self, object: ObjectId) {
        for watcher in self.subscriptions.watchers(object) {
            self.tell_watcher(watcher, object);
        }
    }

    fn tell_watcher(&mut self, watcher: Watcher, object: ObjectId) {
        match watcher {
            Watcher::Call(client, call) => self.on_waited_change(client, call, object),
            Watcher::Reduction(number) => self.on_reduction_change(number, object),
            Watcher::Leave => self.on_handed_over(object),
            Watcher::Fetch => {}
        }
    }

    pub(crate) fn watched_lost(&mut self, object: ObjectId) {
        if let Some(known) = self.subscriptions.table.get_mut(&object) {
            known.lost = true;
        }
        for watcher in self.subscriptions.watchers(object) {
            self.tell_lost(watcher, object);
        }
    }

    fn tell_lost(&mut self, watcher: Watcher, object: ObjectId) {
        match watcher {
            Watcher::Call(client, call) => self.on_waited_lost(client, call, object),
            // A source may be put again, or come elsewhere; its time-out tells how it stands.
            Watcher::Reduction(_) | Watcher::Leave | Watcher::Fetch => {}
        }
    }

    pub(crate) fn watched_deleted(&mut self, object: ObjectId) {
        for watcher in self.subscriptions.watchers(object) {
            match watcher {
                Watcher::Call(client, call) => self.on_waited_deleted(client, call, object),
                Watcher::Reduction(number) => self.on_reduction_deleted(number, object),
                // It goes from here in a moment, and says so itself.
                Watcher::Leave => {}
                // Whoever wanted it has been told.
                Watcher::Fetch => {}
            }
        }
    }

    pub(crate) fn subscriptions_member_down(&mut self, node: NodeId) {
        self.subscriptions.disregard_copies_of(node);
        self.work_on_the_gone();
    }

    /// Forgets the next copies of dead nodes, and tells their watchers. Takes about `most` steps.
    pub(crate) fn forget_gone_copies(&mut self, most: usize) {
        let mut left = most;
        while left > 0 {
            if let Some((object, node)) = self.subscriptions.next_gone() {
                let watchers = self.subscriptions.watchers(object);
                left = left.saturating_sub(watchers.len().max(1));
                if self.forget_gone_copy(object, node) {
                    for watcher in watchers {
                        match watcher {
                            Watcher::Reduction(number) => drop(self.subscriptions.bereaved.insert(number)),
                            other => self.tell_watcher(other, object),
                        }
                    }
                }
            } else if let Some(number) = self.subscriptions.bereaved.pop_first() {
                // Many sources may have been there: each reduction looks once at what is left.
                left = left.saturating_sub(1 + self.on_sources_gone(number));
            } else {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use hoplite_words::{Edition, Header};

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
        // It dies once more, and nobody watches any longer.
        subscriptions.disregard_copies_of(node);
        assert!(subscriptions.has_gone());
        objects.into_iter().for_each(|object| drop(subscriptions.remove(object)));
        assert!(!subscriptions.has_gone() && subscriptions.by_node.is_empty());
    }
}

//! Copies that went with their nodes. They count no longer; in turns they are removed, and watchers notified.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::{NodeId, ObjectId};

use super::telling::WATCHERS_PER_TURN;
use super::{unlist, Subscriptions};
use crate::ctx::{Ctx, STEPS_PER_TURN};
use crate::keys::Watcher;
use crate::notices::{News, Notice};
use crate::timers::Timer;

#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Objects of which a node had a copy before it died.
    by_node: BTreeMap<NodeId, BTreeSet<ObjectId>>,
    /// Reductions that have sources among those that were removed.
    reductions_hit: BTreeSet<u64>,
}

impl Gone {
    pub fn has(&self, node: NodeId, object: ObjectId) -> bool {
        self.by_node.get(&node).is_some_and(|objects| objects.contains(&object))
    }

    pub fn forget(&mut self, node: NodeId, object: ObjectId) {
        unlist(&mut self.by_node, node, object);
    }

    /// The next copy of a dead node to be removed.
    pub fn next(&self) -> Option<(ObjectId, NodeId)> {
        let (&node, objects) = self.by_node.first_key_value()?;
        objects.first().map(|&object| (object, node))
    }

    /// Whether watchers have yet to be notified of the deaths of nodes.
    pub fn is_left(&self) -> bool {
        !self.by_node.is_empty() || !self.reductions_hit.is_empty()
    }
}

impl Subscriptions {
    /// A node died. The first watchers of its copies are notified now, unless other work waits for its turn.
    pub fn on_node_down(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.disregard_copies_of(node);
        if !ctx.timers.is_set(Timer::LongWork) {
            self.forget_gone_copies(ctx, STEPS_PER_TURN);
        }
        if self.gone.is_left() {
            ctx.work_on_calls_soon();
        }
    }

    /// The node is dead: none of its copies counts from now on.
    pub(super) fn disregard_copies_of(&mut self, node: NodeId) {
        if let Some(mut objects) = self.by_node.remove(&node) {
            self.gone.by_node.entry(node).or_default().append(&mut objects);
        }
    }

    /// Removes the next copies of dead nodes, and notifies their watchers. Takes about `most` steps.
    pub fn forget_gone_copies(&mut self, ctx: &mut Ctx, most: usize) {
        let mut left = most;
        while left > 0 {
            if let Some((object, node)) = self.gone.next() {
                let count = self.watchers_count(object);
                left = left.saturating_sub(count.clamp(1, WATCHERS_PER_TURN));
                if self.forget_gone_copy(ctx, object, node) {
                    self.on_gone(ctx, object, count);
                }
            } else if let Some(number) = self.gone.reductions_hit.pop_first() {
                // Many sources may have been there: each reduction is advanced once.
                let sources = self.reductions.get(&number).map_or(0, |sources| sources.count);
                left = left.saturating_sub(1 + sources);
                ctx.notices.push_back(Notice::SourcesGone(number));
            } else {
                return;
            }
        }
    }

    fn on_gone(&mut self, ctx: &mut Ctx, object: ObjectId, watchers: usize) {
        if watchers > WATCHERS_PER_TURN {
            return self.tell(ctx, object, News::Change);
        }
        let complete = self.is_complete(object);
        for watcher in self.watchers(object).collect::<Vec<_>>() {
            match watcher {
                Watcher::Reduction(number) => drop(self.gone.reductions_hit.insert(number)),
                other => super::telling::tell_change(ctx, other, object, complete),
            }
        }
    }
}

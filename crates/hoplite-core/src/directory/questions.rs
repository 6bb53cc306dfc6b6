//! What others ask of an entry: a sender, to be told of changes, where the copies are.

use std::time::Duration;

use hoplite_words::client::Location;
use hoplite_words::peer::{CopyReport, DirectoryAnswer, PeerMessage};
use hoplite_words::{Edition, NodeId, ObjectId};

use super::entry::{Ask, Entry};
use crate::Core;

/// Holders that an asker is told of who waits for long: enough for a story.
const EXPLAINED_MAX: usize = 4;

/// How long an asker is kept from a sender that just failed it, if there is no other.
const DISTRUST: Duration = Duration::from_millis(100);

impl Core {
    pub(super) fn on_ask(
        &mut self,
        origin: NodeId,
        id: ObjectId,
        ask: u64,
        have: Option<Edition>,
        failed: Option<NodeId>,
    ) {
        let now = self.now;
        self.on_not_taken(origin, id, ask);
        let entry = self.entry_mut(id);
        if entry.buried_until.is_some() {
            self.tell_deleted(origin, id);
            return;
        }
        if let Some(sender) = entry.answered_with(origin, ask) {
            return self.answer_lend(id, origin, ask, sender);
        }
        let distrust = failed.map(|sender| (sender, now + DISTRUST));
        let fresh = entry.add_ask(Ask { node: origin, ask, have, distrust });
        if let Some(gone) = failed.filter(|&node| !self.shards.contains(node)) {
            // It died, or did before we knew it: nobody will withdraw what it said. If it lives, it says
            // so again when it comes up.
            self.forget_holder(id, gone);
        }
        if fresh {
            self.tell_if_lost(id, Some(origin));
        }
        self.serve_asks(id);
        if !fresh {
            self.explain(origin, id, ask);
        }
    }

    /// Someone has waited for a while: if it still does, it may tell its caller why.
    fn explain(&mut self, origin: NodeId, id: ObjectId, ask: u64) {
        let Some(entry) = self.directory.entries.get(&id) else { return };
        if entry.asks.iter().any(|waiting| (waiting.node, waiting.ask) == (origin, ask)) {
            let others = entry.reported().filter(|(node, _)| *node != origin);
            let copies = others.take(EXPLAINED_MAX).map(location).collect();
            self.answer(origin, id, DirectoryAnswer::NotYet { ask, copies });
        }
    }

    pub(super) fn on_subscribe(&mut self, origin: NodeId, id: ObjectId, bytes_max: Option<u64>) {
        let now = self.now;
        let entry = self.entry_mut(id);
        if entry.buried_until.is_some() {
            self.tell_deleted(origin, id);
            return;
        }
        let fresh = entry.subscribers.insert(origin, bytes_max).is_none();
        let known: Vec<_> = entry.reported().map(|(node, report)| (node, report.clone())).collect();
        let all = entry.trusted_from.is_none_or(|from| from <= now);
        let nodes = known.iter().map(|(node, _)| *node).collect();
        for (node, report) in known {
            if self.tell_copy(origin, id, node, report, bytes_max.filter(|_| fresh)) {
                return self.end_subscription(id, origin);
            }
        }
        if all && !fresh {
            // It may have heard otherwise from an owner that has died since.
            self.answer(origin, id, DirectoryAnswer::Holders { nodes });
        }
        if fresh {
            self.tell_if_lost(id, Some(origin));
        }
    }

    /// Who asks gets the object without being told to, and who was sent it counts as a holder.
    pub(super) fn on_bring(&mut self, id: ObjectId, nodes: Vec<NodeId>) {
        let entry = self.directory.entries.get(&id);
        let has_or_asks = |node: &NodeId| entry.is_some_and(|entry| entry.has_or_asks(*node));
        let others: Vec<_> = nodes.into_iter().filter(|node| !has_or_asks(node)).collect();
        for node in others {
            self.send(node, PeerMessage::Prefetch { id }, None);
        }
    }

    pub(super) fn on_locate(&mut self, origin: NodeId, id: ObjectId, token: u64) {
        let entry = self.directory.entries.get(&id);
        let answer = DirectoryAnswer::Located {
            token,
            size: entry.and_then(Entry::size),
            copies: entry.map(|entry| entry.held().map(location).collect()).unwrap_or_default(),
            deleted: entry.is_some_and(|entry| entry.buried_until.is_some()),
        };
        self.answer(origin, id, answer);
    }
}

fn location((node, report): (NodeId, &CopyReport)) -> Location {
    Location { node, complete: report.complete, pinned: report.pinned, edition: report.edition }
}

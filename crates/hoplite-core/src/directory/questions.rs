//! Requests about one entry: asks for a sender, subscriptions to changes, locations of copies.

use std::time::Duration;

use hoplite_types::client::Location;
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{limits, Edition, NodeId, ObjectId, Shard};

use super::asks::Ask;
use super::entry::Entry;
use super::holders::Held;
use super::Directory;
use crate::copies::Copies;
use crate::ctx::Ctx;

/// Limit of holders that are reported to an asker that has waited for long: enough to explain its wait.
const EXPLAINED_MAX: usize = 4;

/// How long an asker is kept from a sender that just failed it, if there is no other.
const DISTRUST: Duration = Duration::from_millis(100);

impl Directory {
    #[expect(clippy::too_many_arguments, reason = "what a question consists of")]
    pub(super) fn on_ask(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        origin: NodeId,
        id: ObjectId,
        ask: u64,
        have: Option<Edition>,
        failed: Option<NodeId>,
    ) {
        let Some(fresh) = self.take_ask(ctx, local, origin, id, ask, have, failed) else { return };
        self.serve_asks(ctx, local, id);
        if !fresh {
            self.explain(ctx, origin, id, ask);
        }
    }

    /// Adds an ask. Returns whether it is a new one, or `None` if it has been answered.
    #[expect(clippy::too_many_arguments, reason = "what a question consists of")]
    fn take_ask(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        origin: NodeId,
        id: ObjectId,
        ask: u64,
        have: Option<Edition>,
        failed: Option<NodeId>,
    ) -> Option<bool> {
        if self.may_be_taken(local, origin, id, ask) {
            self.answer(ctx, origin, id, DirectoryAnswer::NotYet { ask, copies: Vec::new() });
            return None;
        }
        self.on_not_taken(ctx, local, origin, id, ask);
        if self.deleted_at(id).is_some() {
            self.tell_deleted(ctx, origin, id);
            return None;
        }
        let entry = self.entry_mut(id);
        if let Some(sender) = entry.answered_with(origin, ask) {
            self.answer_lend(ctx, id, origin, ask, sender);
            return None;
        }
        if let Some(gone) = failed.filter(|&node| !ctx.shards.contains(node)) {
            // It died, perhaps before we knew it: nobody will withdraw its reports. If it lives, it repeats them
            // when it comes up. This comes first, because the asker's part may be all that is left of the object.
            self.forget_node(ctx, local, id, gone);
        }
        let distrust = failed.map(|sender| (sender, ctx.now + DISTRUST));
        let fresh = self.entry_mut(id).add_ask(Ask { node: origin, ask, have, distrust });
        self.reindex(id, origin);
        // Even if it was notified before: that message may have been lost.
        self.tell_if_lost(ctx, id, Some(origin));
        if let Some(edition) = have {
            self.tell_if_orphaned(ctx, id, origin, edition);
        }
        Some(fresh)
    }

    /// Adds asks for one object that were held, and answers them together: one by one, each would look at all those
    /// before it.
    pub(super) fn on_held_asks(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        id: ObjectId,
        asks: Vec<(NodeId, DirectoryRequest)>,
    ) {
        let (mut any, mut repeated) = (false, Vec::new());
        for (origin, request) in asks {
            let DirectoryRequest::Ask { ask, have, failed } = request else { continue };
            self.note_origin(ctx, local, origin, id);
            match self.take_ask(ctx, local, origin, id, ask, have, failed) {
                Some(true) => any = true,
                Some(false) => repeated.push((origin, ask)),
                None => {}
            }
        }
        if any || !repeated.is_empty() {
            self.serve_asks(ctx, local, id);
        }
        for (origin, ask) in repeated {
            self.explain(ctx, origin, id, ask);
        }
        self.infer_loss(ctx, id);
    }

    pub(super) fn on_cancel_ask(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        origin: NodeId,
        id: ObjectId,
        ask: u64,
    ) {
        self.on_not_taken(ctx, local, origin, id, ask);
        let Some(entry) = self.known_entry_mut(id) else { return };
        if entry.asks.of(origin).is_some_and(|waiting| waiting.ask == ask) {
            entry.asks.remove(origin);
            self.reindex(id, origin);
            self.drop_if_empty(id);
        }
    }

    /// An asker has waited for a while: if it still does, it gets an explanation for its caller.
    fn explain(&self, ctx: &mut Ctx, origin: NodeId, id: ObjectId, ask: u64) {
        let Some(entry) = self.entry(id) else { return };
        if entry.asks.of(origin).is_some_and(|waiting| waiting.ask == ask) {
            let others = entry.holders.reported().filter(|(node, _)| *node != origin);
            let copies = others.take(EXPLAINED_MAX).map(location).collect();
            self.answer(ctx, origin, id, DirectoryAnswer::NotYet { ask, copies });
        }
    }

    pub(super) fn on_subscribe(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        origin: NodeId,
        id: ObjectId,
        bytes_max: Option<u64>,
    ) {
        if self.deleted_at(id).is_some() {
            return self.tell_deleted(ctx, origin, id);
        }
        let entry = self.entry_mut(id);
        let fresh = entry.subscribe(origin, bytes_max);
        let reported = entry.holders.reported();
        let known: Vec<_> = reported.map(|(node, held)| (node, entry.report_of(held))).collect();
        self.reindex(id, origin);
        let nodes = known.iter().map(|(node, _)| *node).collect();
        for (node, report) in known {
            let edition = report.edition;
            if self.tell_copy(ctx, local, origin, id, node, report, bytes_max.filter(|_| fresh)) {
                self.note_shown(id, edition);
                return self.end_subscription(id, origin);
            }
        }
        if !fresh {
            // An owner that has died since may have reported otherwise.
            self.answer(ctx, origin, id, DirectoryAnswer::Holders { nodes });
        }
        self.tell_if_lost(ctx, id, Some(origin));
    }

    /// Ends the subscription of a node that has got the bytes it watched for, or no longer watches.
    pub(super) fn end_subscription(&mut self, id: ObjectId, subscriber: NodeId) {
        let Some(entry) = self.known_entry_mut(id) else { return };
        entry.unsubscribe(subscriber);
        self.reindex(id, subscriber);
        self.drop_if_empty(id);
    }

    /// `node` may have cancelled questions about this shard, and the cancellations may have been lost. It is sent the
    /// state of its questions, and cancels them again if need be. Returns the number of entries looked at.
    pub(super) fn repeat_state_of_questions(&self, ctx: &mut Ctx, shard: Shard, node: NodeId) -> usize {
        let owned = self.owned.get(shard).filter(|owned| owned.is_active() && ctx.shards.contains(node));
        let Some(owned) = owned else { return 0 };
        for id in owned.of_node(node) {
            let Some(entry) = owned.entry(id) else { continue };
            if let Some(ask) = entry.asks.of(node) {
                self.explain(ctx, node, id, ask.ask);
            }
            if entry.subscribers.iter().any(|&(subscriber, _)| subscriber == node) {
                let nodes = entry.holders.reported().map(|(holder, _)| holder).collect();
                self.answer(ctx, node, id, DirectoryAnswer::Holders { nodes });
            }
        }
        owned.count_of(node)
    }

    /// Tells these nodes to fetch the object, except those that have it or have asked for it.
    pub(super) fn on_bring(&self, ctx: &mut Ctx, id: ObjectId, nodes: Vec<NodeId>) {
        let entry = self.entry(id);
        let has_or_asks = |node: &NodeId| entry.is_some_and(|entry| entry.has_or_asks(*node));
        for node in nodes.into_iter().filter(|node| !has_or_asks(node)) {
            if ctx.shards.contains(node) {
                ctx.send(node, PeerMessage::Prefetch { id }, None);
            }
        }
    }

    pub(super) fn on_locate(&self, ctx: &mut Ctx, origin: NodeId, id: ObjectId, token: u64) {
        let entry = self.entry(id);
        let holders = entry.into_iter().flat_map(|entry| entry.holders.iter());
        let answer = DirectoryAnswer::Located {
            token,
            size: entry.filter(|entry| !entry.holders.is_empty()).and_then(Entry::size),
            copies: holders.take(limits::MEMBERS_MAX).map(location).collect(),
            deleted: self.deleted_at(id).is_some(),
        };
        self.answer(ctx, origin, id, answer);
    }
}

fn location((node, held): (NodeId, &Held)) -> Location {
    Location { node, complete: held.complete, pinned: held.pinned, edition: held.edition }
}

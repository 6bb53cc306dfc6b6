//! Chooses a sender for each receiver; these choices make the broadcast tree [paper 3.4.1, 3.5.1].
//!
//! - The owner sends small objects with its answer, while its link has less than a limit of them to carry.
//! - Otherwise a receiver gets one sender, never one whose upstream chain leads back to it.
//! - Senders that have served the fewest come first, then those nearest to a source. A sender serves one receiver of
//!   the object at a time, or a few where a hop costs more than a copy.
//!
//! Cost of a choice: one step for each unusable copy that is lent to nobody, and one for each hop from the chosen
//! copy to a source, or to a copy chosen in the same turn.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::peer::{CopyReport, DirectoryAnswer, PeerMessage};
use hoplite_types::{limits, CopyId, NodeId, ObjectId};

use super::asks::Ask;
use super::entry::Entry;
use super::holders::Held;
use super::Directory;
use crate::copies::Copies;
use crate::cost;
use crate::ctx::Ctx;
use crate::timers::Timer;

/// Limit on the time that the owner's link needs for the small objects that it sends with answers. Beyond it, askers
/// are lent other holders. Being lent a sender takes about as long.
const INLINE_LINK_TIME: Duration = Duration::from_millis(1);

/// The answer to an ask.
enum Choice {
    Inline(CopyId),
    Lend(NodeId),
    /// We have the object that we asked for ourselves; our cancellation is on its way.
    Drop,
    /// No answer now; perhaps at that time.
    Wait(Option<Duration>),
}

/// Facts found while the asks for one object are answered, so that they are not computed again for each ask.
#[derive(Default)]
struct Turn {
    /// Copies that are known to lead to a source, however long the chain.
    sound: BTreeSet<NodeId>,
    /// Copies that may be lent to more receivers, where several are allowed.
    open: Option<Open>,
}

struct Open {
    fanout: usize,
    /// The best first.
    ranks: BTreeSet<Rank>,
}

type Rank = (usize, usize, usize, NodeId);

/// Considers this object only. All objects of a node share its link, but the owner knows nothing of the others
/// (docs/decisions/0015).
fn rank(node: NodeId, held: &Held, fanout: usize) -> Option<Rank> {
    let lent = held.lent.len();
    (lent < fanout).then(|| ((held.served + lent) / fanout, held.depth, lent, node))
}

impl Turn {
    fn lend(&mut self, entry: &mut Entry, sender: NodeId, ask: &Ask) {
        let both = [sender, ask.node];
        let ranks = |entry: &Entry, fanout| {
            both.map(|node| entry.holders.get(node).and_then(|held| rank(node, held, fanout)))
        };
        let fanout = self.open.as_ref().map_or(1, |open| open.fanout);
        let before = ranks(entry, fanout);
        entry.lend(sender, ask);
        let after = ranks(entry, fanout);
        if let Some(open) = &mut self.open {
            for rank in before.iter().flatten() {
                open.ranks.remove(rank);
            }
            open.ranks.extend(after.into_iter().flatten());
        }
        self.sound.insert(sender);
        if entry.holders.get(ask.node).is_some_and(|held| held.upstream == Some(sender)) {
            self.sound.insert(ask.node);
        }
    }
}

impl Directory {
    /// Answers every ask for `id` that can be answered now.
    pub fn serve_asks(&mut self, ctx: &mut Ctx, local: &Copies, id: ObjectId) {
        if !self.is_active(id.shard()) {
            return;
        }
        if self.entry(id).is_none_or(|entry| entry.holders.is_empty()) {
            return self.drop_if_empty(id);
        }
        let inline = self.small_to_send(local, id);
        let mut turn = Turn::default();
        let mut passed = 0;
        let mut next_try: Option<Duration> = None;
        while let Some((number, ask)) = self.entry(id).and_then(|entry| entry.asks.next_behind(passed)) {
            let ask = ask.clone();
            let choice = self.choose(ctx, id, inline, &ask, &mut turn);
            if let Choice::Wait(due) = choice {
                let earlier = [due, next_try].into_iter().flatten().min();
                next_try = earlier.filter(|&due| due > ctx.now);
                passed = number;
                continue;
            }
            let entry = self.known_entry_mut(id).expect("it has an ask");
            entry.asks.remove(ask.node);
            match choice {
                Choice::Inline(copy) => {
                    turn = Turn::default();
                    self.answer_inline(ctx, local, id, ask.node, ask.ask, copy);
                }
                Choice::Lend(sender) => {
                    turn.lend(entry, sender, &ask);
                    self.answer_lend(ctx, id, ask.node, ask.ask, sender);
                    // Asks passed over before it may now stream from it.
                    passed = 0;
                }
                Choice::Drop | Choice::Wait(_) => {}
            }
            self.reindex(id, ask.node);
        }
        if let Some(due) = next_try {
            ctx.timers.set(due, Timer::Asks(id));
        }
        self.drop_if_empty(id);
    }

    fn choose(&self, ctx: &Ctx, id: ObjectId, inline: Option<CopyId>, ask: &Ask, turn: &mut Turn) -> Choice {
        if inline.is_some() && ask.node == ctx.me {
            return Choice::Drop;
        }
        let link_free_at = ctx.links.answers_until.saturating_sub(INLINE_LINK_TIME);
        if let Some(copy) = inline.filter(|_| link_free_at <= ctx.now) {
            return Choice::Inline(copy);
        }
        let Some(entry) = self.entry(id) else { return Choice::Wait(None) };
        let fanout = fanout_of(ctx, entry);
        // Our own link is the one that has too much to carry.
        let besides = inline.map(|_| ctx.me);
        match entry.choose_sender(ctx, ask, fanout, besides, turn) {
            Some(sender) => Choice::Lend(sender),
            None => {
                let link_free = inline.map(|_| link_free_at);
                let distrust = ask.distrust.map(|(_, until)| until).filter(|&until| until > ctx.now);
                Choice::Wait([distrust, link_free].into_iter().flatten().min())
            }
        }
    }

    /// Sends an asker the object itself. The asker need not report its copy: the copy counts from now on, as if it had
    /// been reported with the ask. An asker that does not keep it withdraws it.
    fn answer_inline(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        id: ObjectId,
        asker: NodeId,
        ask: u64,
        copy: CopyId,
    ) {
        let held = &local[copy];
        let (edition, size, header, stamp) =
            (held.edition, held.extent.size, held.header.clone(), held.stamp);
        ctx.links.on_answer(ctx.now, size);
        let payload = Default::default();
        let answer = DirectoryAnswer::Inline { ask, edition, header: header.clone(), payload, stamp };
        ctx.send(asker, PeerMessage::Answer { id, answer }, Some(copy));
        self.note_shown(id, edition);
        let report = CopyReport {
            seq: ask,
            edition,
            size,
            header,
            complete: true,
            pinned: false,
            upstream: None,
            leaving: false,
            stamp,
            claim: None,
        };
        // The id sent to the backup still counts: the answer may get lost.
        if self.entry_mut(id).take_report(asker, report.clone()) {
            self.reindex(id, asker);
            self.tell_subscribers(ctx, local, id, asker, &report);
        }
    }

    /// Sends an asker the sender that it is lent.
    pub(super) fn answer_lend(&self, ctx: &mut Ctx, id: ObjectId, asker: NodeId, ask: u64, sender: NodeId) {
        let entry = self.entry(id).expect("it has holders");
        let held = entry.holders.get(sender).expect("chosen from them");
        let CopyReport { edition, size, header, stamp, .. } = entry.report_of(held);
        self.answer(ctx, asker, id, DirectoryAnswer::Lend { ask, sender, edition, size, header, stamp });
    }

    /// Owners that knew nothing of each other may have lent senders in a cycle. If `reporter` is in one, it is told to
    /// ask for another sender.
    pub(super) fn break_cycle(&self, ctx: &mut Ctx, id: ObjectId, reporter: NodeId) {
        let Some(entry) = self.entry(id).filter(|entry| entry.holders.is_in_cycle(reporter)) else { return };
        let held = entry.holders.get(reporter).expect("it is in a ring");
        if let (edition, Some(sender)) = (held.edition, held.upstream) {
            self.answer(ctx, reporter, id, DirectoryAnswer::AskAgain { edition, sender });
        }
    }
}

/// How many receivers a copy may be lent to at once.
fn fanout_of(ctx: &Ctx, entry: &Entry) -> usize {
    let (latency_s, bytes_per_s) = ctx.links.typical();
    entry.size().map_or(1, |size| cost::fanout(size, latency_s, bytes_per_s))
}

impl Entry {
    /// The best sender for an ask, if one is free; never the node in `besides`.
    fn choose_sender(
        &self,
        ctx: &Ctx,
        ask: &Ask,
        fanout: usize,
        besides: Option<NodeId>,
        turn: &mut Turn,
    ) -> Option<NodeId> {
        let Turn { sound, open } = turn;
        let distrusted = ask.distrust.filter(|&(_, until)| until > ctx.now).map(|(sender, _)| sender);
        // Continuing an edition saves the asker's bytes; any other means starting over. One that leads
        // to no source any more is no reason to wait.
        let continues = |held: &Held| Some(held.edition) == ask.have;
        let source = |(node, held): (NodeId, &Held)| {
            node != ask.node && continues(held) && self.holders.leads_to_source(node, ask.node, sound)
        };
        let any_continues = ask.have.is_some() && self.holders.iter().any(source);
        // Streaming behind a small object is not worth it: either all of it is there, or it cannot be lent.
        let is_large = self.size().is_some_and(|size| size > limits::INLINE_BYTES_MAX);
        let is_eligible = |&(node, held): &(NodeId, &Held)| {
            node != ask.node
                && ![distrusted, besides].contains(&Some(node))
                && (!any_continues || continues(held))
                && (held.complete || is_large)
                && self.holders.leads_to_source(node, ask.node, sound)
        };
        if fanout == 1 {
            return self.holders.free().find(is_eligible).map(|(node, _)| node);
        }
        let open = open.get_or_insert_with(|| {
            let ranks = self.holders.iter().filter_map(|(node, held)| rank(node, held, fanout));
            Open { fanout, ranks: ranks.collect() }
        });
        let by_rank = open.ranks.iter().filter_map(|&(.., node)| Some((node, self.holders.get(node)?)));
        by_rank.into_iter().find(is_eligible).map(|(node, _)| node)
    }

    /// Records that `sender` now sends to the asker, whose copy counts as a partial one at once, so that the next
    /// asker can stream behind it.
    fn lend(&mut self, sender: NodeId, ask: &Ask) {
        let receiver = ask.node;
        let from = self.holders.get(sender).expect("chosen from the holders");
        let partial = Held {
            seq: 0,
            edition: from.edition,
            complete: false,
            pinned: false,
            upstream: Some(sender),
            leaving: false,
            stamp: from.stamp,
            claim: None,
            presumed: true,
            doubted: false,
            answered: ask.ask,
            lent: Default::default(),
            served: 0,
            depth: 0,
        };
        match self.holders.get(receiver) {
            // An old ask of a node that has its own copy by now: its own report counts.
            Some(known) if known.is_alive() => {}
            Some(_) => {
                self.holders.change(receiver, |known| {
                    let (seq, presumed) = (known.seq, known.presumed);
                    let (lent, served) = (std::mem::take(&mut known.lent), known.served);
                    *known = Held { seq, presumed, lent, served, ..partial };
                });
            }
            None => self.holders.insert(receiver, partial),
        }
        self.holders.note_lent(sender, receiver);
    }
}

//! Whom to send to whom: the broadcast tree grows by these choices [paper 3.4.1, 3.5.1].
//!
//! Small objects go with the owner's answer, as long as its link has not too much of that to carry.
//! A receiver gets one sender; a sender serves one receiver of the object at a time (a few, where a
//! hop costs more than a copy), and no more before all others have served as many; complete copies come
//! before partial ones, near the source before far; and never a sender whose own upstream chain contains
//! the asker.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_words::peer::{CopyReport, DirectoryAnswer, PeerMessage};
use hoplite_words::{limits, CopyId, NodeId, ObjectId};

use super::entry::{Ask, Entry, Held};
use crate::cost;
use crate::timers::Timer;
use crate::Core;

/// How much the owner's link may have to carry of small objects that it sends for an answer; those who ask
/// then get them from others who have them. To be lent one takes about as long.
const INLINE_LINK_TIME: Duration = Duration::from_millis(1);

impl Core {
    /// Answers every ask on `id` that can be answered now.
    pub(crate) fn serve_asks(&mut self, id: ObjectId) {
        let inline = self.inline_copy(id);
        let mut waiting = 0;
        let mut next_try = None;
        let fanout = self.directory.entries.get(&id).map_or(1, |entry| self.fanout_of(entry));
        while let Some(entry) = self.directory.entries.get_mut(&id) {
            if entry.asks.len() <= waiting {
                break;
            }
            let ask = entry.asks[waiting].clone();
            let link_free_at = self.links.answers_until.saturating_sub(INLINE_LINK_TIME);
            if inline.is_some() && ask.node == self.me {
                // We have what we asked for; our Unask is on its way.
                entry.asks.remove(waiting);
                continue;
            }
            let at_once = inline.filter(|_| link_free_at <= self.now);
            // Our own link is the one that has too much to carry.
            let besides = inline.map(|_| self.me);
            let choice =
                if at_once.is_some() { None } else { choose(entry, &ask, fanout, self.now, besides) };
            match (at_once, choice) {
                (Some(copy), _) => {
                    entry.asks.remove(waiting);
                    self.answer_inline(id, ask.node, ask.ask, copy);
                }
                (None, Some(sender)) => {
                    entry.asks.remove(waiting);
                    lend(entry, sender, &ask);
                    self.answer_lend(id, ask.node, ask.ask, sender);
                    // Those before it may now stream behind it.
                    waiting = 0;
                }
                (None, None) => {
                    let trusted = entry.trusted_from.filter(|_| ask.have.is_some());
                    let link_free = inline.map(|_| link_free_at);
                    let due = [ask.distrust.map(|(_, until)| until), trusted, link_free, next_try];
                    next_try = due.into_iter().flatten().filter(|&due| due > self.now).min();
                    waiting += 1;
                }
            }
        }
        if let Some(due) = next_try {
            self.timers.set(due, Timer::Asks(id));
        }
        self.change_entry(id, |_| ());
    }

    /// Sends an asker the object itself. It need not report its copy: that counts from now on, as if it had been
    /// reported with the question. If the asker does not keep it, it says so.
    fn answer_inline(&mut self, id: ObjectId, asker: NodeId, ask: u64, copy: CopyId) {
        let held = &self.copies.table[&copy];
        let (edition, size, header) = (held.edition, held.extent.size, held.header.clone());
        self.links.on_answer(self.now, size);
        let answer =
            DirectoryAnswer::Inline { ask, edition, header: header.clone(), payload: Default::default() };
        self.send(asker, PeerMessage::Answer { id, answer }, Some(copy));
        let report = CopyReport {
            seq: ask,
            edition,
            size,
            header,
            complete: true,
            pinned: false,
            upstream: None,
            leaving: false,
        };
        // Its witness still counts: the answer may get lost.
        let entry = self.directory.entries.get_mut(&id).expect("it had the ask");
        if entry.accept(asker, report.clone()) {
            self.tell_subscribers(id, asker, &report);
        }
    }

    /// Tells an asker which sender it is lent.
    pub(super) fn answer_lend(&mut self, id: ObjectId, asker: NodeId, ask: u64, sender: NodeId) {
        let report = &self.directory.entries[&id].copies()[&sender].report;
        let CopyReport { edition, size, header, .. } = report.clone();
        self.answer(asker, id, DirectoryAnswer::Lend { ask, sender, edition, size, header });
    }

    /// An owner that is new hears of transfers only little by little, and may have lent a sender that was
    /// lent before. If `reporter` turns out to sit in a ring, or somebody to share a sender although another
    /// is free, that receiver is to ask for another one. The rest follow when it has reported that.
    pub(super) fn part_receivers(&mut self, id: ObjectId, reporter: NodeId) {
        let Some(entry) = self.directory.entries.get(&id) else { return };
        let parted = if entry.is_in_cycle(reporter) {
            Some(reporter)
        } else if entry.trusted_from.is_some_and(|from| from > self.now) {
            let fanout = self.fanout_of(entry);
            let sharing =
                entry.copies().iter().filter(|&(&node, _)| shares_in_vain(entry, node, fanout, self.now));
            // Rather whom we sent there ourselves: who was there before us may be far ahead.
            sharing.max_by_key(|(_, held)| held.answered > 0).map(|(&receiver, _)| receiver)
        } else {
            None
        };
        let Some(receiver) = parted else { return };
        let report = &entry.copies()[&receiver].report;
        if let (edition, Some(sender)) = (report.edition, report.upstream) {
            self.answer(receiver, id, DirectoryAnswer::AskAgain { edition, sender });
        }
    }

    /// How many receivers a copy may be lent to at once.
    fn fanout_of(&self, entry: &Entry) -> usize {
        let (latency_s, bytes_per_s) = self.links.typical();
        entry.size().map_or(1, |size| cost::fanout(size, latency_s, bytes_per_s))
    }

    /// Our own sealed copy of a small object: asks are answered with its bytes.
    pub(super) fn inline_copy(&self, id: ObjectId) -> Option<CopyId> {
        let copy = self.copies.sealed(id)?;
        (self.copies.table[&copy].extent.size <= limits::INLINE_BYTES_MAX).then_some(copy)
    }
}

/// The best sender for an ask, if one is free, `besides` this one.
fn choose(entry: &Entry, ask: &Ask, fanout: usize, now: Duration, besides: Option<NodeId>) -> Option<NodeId> {
    let distrusted = ask.distrust.filter(|&(_, until)| until > now).map(|(sender, _)| sender);
    // Continuing an edition spares the bytes we have; any other means starting over. One that leads
    // to no source any more is no reason to wait.
    let continues = |held: &Held| Some(held.report.edition) == ask.have;
    let leads = |node: NodeId| depth(entry, node, ask.node).is_some();
    let any_continues =
        entry.copies().iter().any(|(&node, held)| node != ask.node && continues(held) && leads(node));
    let eligible = |node: NodeId, held: &Held| {
        node != ask.node
            && ![distrusted, besides].contains(&Some(node))
            && held.lent.len() < fanout
            && (!any_continues || continues(held))
            // Streaming behind a small object is not worth it: it is there in one piece or not.
            && (held.report.complete || held.report.size > limits::INLINE_BYTES_MAX)
    };
    if !any_continues && ask.have.is_some_and(|have| entry.may_hear_of(have, now)) {
        return None;
    }
    let candidates = entry.copies().iter().filter(|(&node, held)| eligible(node, held));
    candidates
        .filter_map(|(&node, held)| {
            // Its link is that of all its objects, of which we know nothing (docs/decisions/0015).
            let turns = (held.served + held.lent.len()) / fanout;
            depth(entry, node, ask.node).map(|depth| (turns, depth, held.lent.len(), node))
        })
        .min()
        .map(|(.., node)| node)
}

/// Whether `receiver` has a sender that serves too many, and could have one to itself.
fn shares_in_vain(entry: &Entry, receiver: NodeId, fanout: usize, now: Duration) -> bool {
    let report = &entry.copies()[&receiver].report;
    let sender = report.upstream.filter(|_| !report.complete).and_then(|sender| entry.copies().get(&sender));
    let shared = sender.is_some_and(|held| held.lent.len() > fanout);
    let ask = Ask { node: receiver, ask: 0, have: Some(report.edition), distrust: None };
    shared && choose(entry, &ask, fanout, now, None).is_some()
}

/// Hops from a source to `node`; `None` if `asker` is among them, or the chain leads nowhere: to a
/// copy that is gone, of another edition, or itself without a sender.
fn depth(entry: &Entry, node: NodeId, asker: NodeId) -> Option<usize> {
    let edition = entry.copies().get(&node)?.report.edition;
    let mut hops = 0;
    let mut at = node;
    loop {
        if at == asker {
            return None;
        }
        let report = &entry.copies().get(&at).filter(|held| held.report.edition == edition)?.report;
        match report.upstream {
            Some(upstream) if !report.complete => at = upstream,
            // Only what is written or reduced there is pinned before it is complete.
            None if !report.complete && !report.pinned => return None,
            _ => return Some(hops),
        }
        hops += 1;
        if hops > entry.copies().len() {
            return None;
        }
    }
}

/// Notes that `sender` now sends to `receiver`, and counts the receiver as a partial copy at once,
/// so that the next asker can stream behind it.
fn lend(entry: &mut Entry, sender: NodeId, ask: &Ask) {
    let receiver = ask.node;
    let held = entry.copies_mut().get_mut(&sender).expect("chosen from the entry");
    held.lent.insert(receiver);
    let report = held.report.clone();
    let partial = CopyReport {
        seq: 0,
        complete: false,
        pinned: false,
        upstream: Some(sender),
        leaving: false,
        ..report
    };
    match entry.copies_mut().get_mut(&receiver) {
        // An old ask of a node that has its own copy by now: what it reported itself stands.
        Some(known) if known.report.complete || known.report.pinned => {}
        Some(known) => {
            let seq = known.report.seq;
            known.report = CopyReport { seq, ..partial };
            known.answered = ask.ask;
        }
        None => {
            let held =
                Held { report: partial, presumed: true, answered: ask.ask, lent: BTreeSet::new(), served: 0 };
            entry.copies_mut().insert(receiver, held);
        }
    }
}

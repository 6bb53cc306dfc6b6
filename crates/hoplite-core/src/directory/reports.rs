//! Copies come and go, as their holders say.

use hoplite_words::peer::{CopyReport, DirectoryAnswer, PeerMessage, Verdict};
use hoplite_words::{Blob, CopyId, Edition, NodeId, ObjectId};

use super::entry::Entry;
use crate::again::REANNOUNCE_AFTER;
use crate::copies::{NewCopy, Phase};
use crate::io::Output;
use crate::Core;

impl Core {
    pub(super) fn on_announce(
        &mut self,
        origin: NodeId,
        id: ObjectId,
        report: CopyReport,
        payload: Option<Blob>,
        wants_verdict: bool,
    ) {
        let (stranger, settled) = (!self.shards.contains(origin), self.now + REANNOUNCE_AFTER);
        let entry = self.entry_mut(id);
        if stranger {
            // We are new to each other: there is more to be heard.
            entry.trusted_from = Some(settled);
        }
        let edition = report.edition;
        let verdict = entry.judge(origin, &report);
        if verdict == Verdict::Deleted && !wants_verdict {
            self.tell_deleted(origin, id);
        } else if verdict != Verdict::Accepted || wants_verdict {
            self.answer(origin, id, DirectoryAnswer::Verdict { edition, verdict });
        }
        if verdict != Verdict::Accepted {
            self.change_entry(id, |_| ());
            return;
        }
        let entry = self.directory.entries.get_mut(&id).expect("judged a moment ago");
        if !entry.accept(origin, report.clone()) {
            return;
        }
        if let Some(payload) = payload.filter(|payload| payload.0.len() as u64 == report.size) {
            self.keep_inline(id, &report, payload);
        }
        self.tell_subscribers(id, origin, &report);
        self.part_receivers(id, origin);
        if report.leaving {
            self.secure(id);
        }
        if !report.complete && !report.pinned {
            self.drop_orphans_once_trusted(id);
        }
        self.tell_witness(id);
        self.serve_asks(id);
    }

    /// Tells all who watch the object of the copy of `node`.
    pub(super) fn tell_subscribers(&mut self, id: ObjectId, node: NodeId, report: &CopyReport) {
        let subscribers = self.directory.entries.get(&id).map(|entry| entry.subscribers.clone());
        for (subscriber, bytes_max) in subscribers.into_iter().flatten() {
            if self.tell_copy(subscriber, id, node, report.clone(), bytes_max) {
                self.end_subscription(id, subscriber);
            }
        }
    }

    /// Who watches an object for its bytes has them.
    pub(super) fn end_subscription(&mut self, id: ObjectId, subscriber: NodeId) {
        self.change_entry(id, |entry| entry.subscribers.remove(&subscriber));
    }

    /// Tells a subscriber of the copy of `node`; with the bytes, if it wants so many and they are here. Returns
    /// whether they went with it.
    pub(super) fn tell_copy(
        &mut self,
        subscriber: NodeId,
        id: ObjectId,
        node: NodeId,
        report: CopyReport,
        bytes_max: Option<u64>,
    ) -> bool {
        // With one of the reports is enough: that of the copy which was put. Whose it is has the bytes.
        let wanted = bytes_max.is_some_and(|most| report.size <= most);
        let carries = wanted && report.complete && report.pinned && ![node, self.me].contains(&subscriber);
        let is_it = |copy: &CopyId| self.copies.table[copy].edition == report.edition;
        let attach = self.inline_copy(id).filter(|copy| carries && is_it(copy));
        let answer = DirectoryAnswer::Copy { node, report, payload: None };
        self.send(subscriber, PeerMessage::Answer { id, answer }, attach);
        attach.is_some()
    }

    /// Keeps an evictable copy of a small object beside its entry, so that asks are answered with
    /// the bytes at once. Without room it is left out: asks then lead to its holder.
    fn keep_inline(&mut self, id: ObjectId, report: &CopyReport, payload: Blob) {
        if self.copies.live(id).is_some() {
            return;
        }
        let new = NewCopy {
            object: id,
            edition: report.edition,
            size: report.size,
            header: report.header.clone(),
            phase: Phase::Received(None),
            pinned: false,
            public: true,
        };
        if let Some(copy) = self.open_copy(new) {
            self.out.push_back(Output::Write { copy, bytes: payload.0 });
            self.seal_copy(copy, Default::default());
        }
    }

    /// A put was given up after its bytes had come with its announcement: they go at once, so that nobody
    /// takes the object for one that was complete here.
    fn drop_inline(&mut self, id: ObjectId, edition: Edition) {
        let Some(copy) = self.copies.live(id) else { return };
        let known = &self.copies.table[&copy];
        if known.edition == edition && known.is_sealed() && !known.pinned {
            let (me, seq) = (self.me, self.next_number());
            self.withdraw(copy);
            self.doom(copy);
            let entry = self.directory.entries.get_mut(&id);
            if entry.is_some_and(|entry| entry.withdraw(me, seq, edition)) {
                self.tell_subscribers_gone(id, me);
            }
        }
    }

    pub(super) fn on_withdraw(&mut self, origin: NodeId, id: ObjectId, seq: u64, edition: Edition) {
        let Some(entry) = self.directory.entries.get_mut(&id) else { return };
        let given_up = entry.copies().get(&origin).is_some_and(|held| held.report.pinned);
        if entry.withdraw(origin, seq, edition) {
            if given_up {
                self.drop_inline(id, edition);
                self.directory.entries.get_mut(&id).expect("it had a copy").take_back(edition);
                // Its writer lives and says so: no need to wait for what others may still report.
                self.drop_orphans(id);
            }
            self.copy_gone(id, origin);
        }
    }

    /// Who asks, or asks no more, had nothing complete when it asked: what it was sent for an answer, and counts
    /// as a holder for, it has not taken.
    pub(super) fn on_not_taken(&mut self, origin: NodeId, id: ObjectId, ask: u64) {
        let held = self.directory.entries.get(&id).and_then(|entry| entry.copies().get(&origin));
        let Some(report) = held.map(|held| &held.report) else { return };
        if report.complete && !report.pinned && report.seq <= ask {
            self.on_withdraw(origin, id, ask, report.edition);
        }
    }

    /// `node` has said everything it holds: what it reported before and not again, it holds no more.
    pub(crate) fn on_all_said(&mut self, node: NodeId, since: u64, members: u64) {
        if members != self.shards.fingerprint() {
            return;
        }
        let stale = |entry: &Entry| {
            let held = entry.copies().get(&node)?;
            (!held.presumed && held.report.seq < since).then_some(held.report.edition)
        };
        let entries = self.directory.entries.iter();
        let stale: Vec<_> = entries.filter_map(|(&id, entry)| Some((id, stale(entry)?))).collect();
        for (id, edition) in stale {
            self.on_withdraw(node, id, since, edition);
        }
    }

    /// After the copy of `node` has been taken out of the entry of `id`.
    pub(super) fn copy_gone(&mut self, id: ObjectId, node: NodeId) {
        self.tell_subscribers_gone(id, node);
        self.drop_orphans_once_trusted(id);
        self.tell_if_lost(id, None);
        self.secure(id);
        self.tell_witness(id);
        self.change_entry(id, |_| ());
        self.serve_asks(id);
    }

    pub(super) fn tell_subscribers_gone(&mut self, id: ObjectId, node: NodeId) {
        let subscribers = self.directory.entries.get(&id).map(|entry| entry.subscribers.clone());
        for subscriber in subscribers.into_iter().flatten().map(|(node, _)| node) {
            self.answer(subscriber, id, DirectoryAnswer::CopyGone { node });
        }
    }
}

//! The slice of the directory this node owns [design §4]: who has how much of which object, who
//! waits for it, and whom to send to whom.

mod entry;
mod graves;
mod lend;
mod loss;
mod passed_on;

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_words::client::Location;
use hoplite_words::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_words::{limits, Blob, CopyId, Edition, NodeId, ObjectId};

use crate::again::REANNOUNCE_AFTER;
use crate::copies::{NewCopy, Phase};
use crate::io::Output;
use crate::timers::Timer;
use crate::Core;
use entry::{Ask, Entry};
pub(crate) use graves::Graves;
pub(crate) use passed_on::PassedOn;

/// The owned slice.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    entries: BTreeMap<ObjectId, Entry>,
}

impl Directory {
    /// Entries of objects that exist or are waited for, and tombstones.
    pub fn counts(&self) -> (u64, u64) {
        let tombstones = self.entries.values().filter(|entry| entry.is_memory()).count() as u64;
        (self.entries.len() as u64 - tombstones, tombstones)
    }
}

/// Holders that an asker is told of who waits for long: enough for a story.
const EXPLAINED_MAX: usize = 4;

fn location((node, report): (NodeId, &CopyReport)) -> Location {
    Location { node, complete: report.complete, pinned: report.pinned, edition: report.edition }
}

/// How long an asker is kept from a sender that just failed it, if there is no other.
const DISTRUST: Duration = Duration::from_millis(100);

impl Core {
    /// Sends a request to the shard owner of `id` as we see it.
    pub(crate) fn ask_owner(&mut self, id: ObjectId, request: DirectoryRequest, attach: Option<CopyId>) {
        let message = PeerMessage::Directory { origin: self.me, hops: 0, id, request };
        self.send(self.shards.owner(id), message, attach);
    }

    /// A directory request arrived: serve it if we own the id, pass it on if another does.
    pub(crate) fn on_directory(&mut self, origin: NodeId, hops: u8, id: ObjectId, request: DirectoryRequest) {
        if self.departed.contains(&origin) {
            // It came by way of others, and news of the death was faster.
            return;
        }
        let owner = self.shards.owner(id);
        if owner != self.me && hops < limits::FORWARD_HOPS_MAX {
            self.remember_passed_on(owner, origin, hops, id, &request);
            self.send(owner, PeerMessage::Directory { origin, hops: hops + 1, id, request }, None);
            return;
        }
        match request {
            DirectoryRequest::Announce { report, payload, wants_verdict } => {
                self.on_announce(origin, id, report, payload, wants_verdict);
            }
            DirectoryRequest::Withdraw { seq, edition } => self.on_withdraw(origin, id, seq, edition),
            DirectoryRequest::Ask { ask, have, failed } => self.on_ask(origin, id, ask, have, failed),
            DirectoryRequest::Unask { ask } => {
                self.change_entry(id, |entry| {
                    entry.asks.retain(|waiting| (waiting.node, waiting.ask) != (origin, ask));
                });
            }
            DirectoryRequest::Subscribe => self.on_subscribe(origin, id),
            DirectoryRequest::Unsubscribe => {
                self.change_entry(id, |entry| entry.subscribers.remove(&origin));
            }
            DirectoryRequest::Delete { token } => {
                self.bury(id, limits::TOMBSTONE_TTL);
                self.answer(origin, id, DirectoryAnswer::DeleteDone { token });
            }
            DirectoryRequest::Locate { token } => self.on_locate(origin, id, token),
            DirectoryRequest::Bury { ttl_ms } => {
                self.bury(id, Duration::from_millis(ttl_ms).min(limits::TOMBSTONE_TTL));
            }
            DirectoryRequest::Mourn { ttl_ms } => self.on_mourn(id, ttl_ms),
        }
    }

    fn answer(&mut self, to: NodeId, id: ObjectId, answer: DirectoryAnswer) {
        self.send(to, PeerMessage::Answer { id, answer }, None);
    }

    /// The entry of `id`, new if need be. While members come and go a new one does not know all yet.
    fn entry_mut(&mut self, id: ObjectId) -> &mut Entry {
        let unsettled = self.now < self.reannounce_until;
        let trusted_from = unsettled.then_some(self.now + REANNOUNCE_AFTER);
        self.directory.entries.entry(id).or_insert_with(|| Entry::new(trusted_from))
    }

    /// Changes an entry if there is one, and drops it when nothing is left in it.
    fn change_entry<T>(&mut self, id: ObjectId, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let entry = self.directory.entries.get_mut(&id)?;
        let result = change(entry);
        if entry.is_empty() {
            self.directory.entries.remove(&id);
        }
        Some(result)
    }

    fn on_announce(
        &mut self,
        origin: NodeId,
        id: ObjectId,
        report: CopyReport,
        payload: Option<Blob>,
        wants_verdict: bool,
    ) {
        let entry = self.entry_mut(id);
        let edition = report.edition;
        let verdict = entry.judge(origin, &report);
        if verdict == Verdict::Deleted && !wants_verdict {
            self.answer(origin, id, DirectoryAnswer::Deleted);
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
        let subscribers: Vec<_> = entry.subscribers.iter().copied().collect();
        for subscriber in subscribers {
            let answer = DirectoryAnswer::Copy { node: origin, report: report.clone() };
            self.answer(subscriber, id, answer);
        }
        if self.would_stream_better(id, origin) {
            self.answer(origin, id, DirectoryAnswer::AskAgain { edition });
        }
        if report.leaving {
            self.secure(id);
        }
        if report.upstream.is_some() {
            self.drop_orphans_once_trusted(id);
        }
        if let Some(payload) = payload.filter(|payload| payload.0.len() as u64 == report.size) {
            self.keep_inline(id, report, payload);
        }
        self.serve_asks(id);
    }

    /// Keeps an evictable copy of a small object beside its entry, so that asks are answered with
    /// the bytes at once. Without room it is left out: asks then lead to its holder.
    fn keep_inline(&mut self, id: ObjectId, report: CopyReport, payload: Blob) {
        if self.copies.live(id).is_some() {
            return;
        }
        let new = NewCopy {
            object: id,
            edition: report.edition,
            size: report.size,
            header: report.header,
            phase: Phase::Received(None),
            pinned: false,
            public: true,
        };
        if let Some(copy) = self.open_copy(new) {
            self.out.push_back(Output::Write { copy, bytes: payload.0 });
            self.seal_copy(copy, Default::default());
        }
    }

    /// A put was given up after its bytes had come with its announcement.
    fn drop_inline(&mut self, id: ObjectId, edition: Edition) {
        let Some(copy) = self.copies.live(id) else { return };
        let known = &self.copies.table[&copy];
        if known.edition == edition && known.is_sealed() && !known.pinned {
            self.withdraw(copy);
            self.doom(copy);
        }
    }

    fn on_withdraw(&mut self, origin: NodeId, id: ObjectId, seq: u64, edition: Edition) {
        let Some(entry) = self.directory.entries.get_mut(&id) else { return };
        let given_up = entry.copies().get(&origin).is_some_and(|held| held.report.pinned);
        if entry.withdraw(origin, seq, edition) {
            if given_up {
                self.drop_inline(id, edition);
            }
            // Its holder lives and says so: no need to wait for what others may still report.
            self.drop_orphans(id);
            self.copy_gone(id, origin);
        }
    }

    /// After the copy of `node` has been taken out of the entry of `id`.
    fn copy_gone(&mut self, id: ObjectId, node: NodeId) {
        self.tell_subscribers_gone(id, node);
        self.drop_orphans_once_trusted(id);
        self.tell_if_lost(id, None);
        self.secure(id);
        self.change_entry(id, |_| ());
        self.serve_asks(id);
    }

    fn tell_subscribers_gone(&mut self, id: ObjectId, node: NodeId) {
        let subscribers = self.directory.entries.get(&id).map(|entry| entry.subscribers.clone());
        for subscriber in subscribers.into_iter().flatten() {
            self.answer(subscriber, id, DirectoryAnswer::CopyGone { node });
        }
    }

    fn on_subscribe(&mut self, origin: NodeId, id: ObjectId) {
        let entry = self.entry_mut(id);
        if entry.buried_until.is_some() {
            self.answer(origin, id, DirectoryAnswer::Deleted);
            return;
        }
        let fresh = entry.subscribers.insert(origin);
        let known: Vec<_> = entry.reported().map(|(node, report)| (node, report.clone())).collect();
        for (node, report) in known {
            self.answer(origin, id, DirectoryAnswer::Copy { node, report });
        }
        if fresh {
            self.tell_if_lost(id, Some(origin));
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

    fn on_locate(&mut self, origin: NodeId, id: ObjectId, token: u64) {
        let entry = self.directory.entries.get(&id);
        let answer = DirectoryAnswer::Located {
            token,
            size: entry.and_then(Entry::size),
            copies: entry.map(|entry| entry.held().map(location).collect()).unwrap_or_default(),
            deleted: entry.is_some_and(|entry| entry.buried_until.is_some()),
        };
        self.answer(origin, id, answer);
    }

    /// The id is deleted: everyone who has it or waits for it is told, a tombstone stands.
    fn bury(&mut self, id: ObjectId, ttl: Duration) {
        let until = self.now + ttl;
        let me = self.me;
        let heir = self.shards.owner_among(id, |node| node != me);
        let entry = self.entry_mut(id);
        let known = std::mem::take(entry);
        let until = known.buried_until.map_or(until, |old| old.max(until));
        let mut everyone = known.everyone();
        // Who would own it without us remembers it too, or it might rise again if we died now.
        everyone.extend(heir);
        entry.buried_until = Some(until);
        entry.told_deleted = known.told_deleted;
        entry.told_deleted.extend(everyone.iter().copied());
        self.timers.set(until, Timer::Tombstone(id));
        self.timers.clear(Timer::Loss(id));
        for node in everyone {
            self.answer(node, id, DirectoryAnswer::Deleted);
        }
    }

    pub(crate) fn on_tombstone_over(&mut self, id: ObjectId) {
        let now = self.now;
        self.change_entry(id, |entry| {
            for until in [&mut entry.buried_until, &mut entry.mourned_until] {
                *until = until.filter(|&until| until > now);
            }
        });
    }

    /// Our word to `node` that something is deleted may be lost.
    pub(crate) fn repeat_deletions(&mut self, node: NodeId) {
        let told = self.directory.entries.iter().filter(|(_, entry)| entry.told_deleted.contains(&node));
        for id in told.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.answer(node, id, DirectoryAnswer::Deleted);
        }
    }

    /// A member died: what it held, lent, asked and watched goes.
    pub(crate) fn directory_member_down(&mut self, node: NodeId) {
        let ids: Vec<_> = self.directory.entries.keys().copied().collect();
        for id in ids {
            self.forget_holder(id, node);
        }
    }

    /// A node that is gone holds, asks and watches nothing.
    fn forget_holder(&mut self, id: ObjectId, node: NodeId) {
        let Some(entry) = self.directory.entries.get_mut(&id) else { return };
        if entry.forget(node) {
            self.copy_gone(id, node);
        } else {
            self.change_entry(id, |_| ());
            self.serve_asks(id);
        }
    }

    /// Membership changed: entries that are no longer ours go to their new owners, with all that is
    /// known and waiting in them.
    pub(crate) fn hand_over_entries(&mut self) {
        let (me, now) = (self.me, self.now);
        let shards = &self.shards;
        let leaving = |id: &ObjectId| shards.owner(*id) != me;
        let ids: Vec<_> = self.directory.entries.keys().copied().filter(leaving).collect();
        for id in ids {
            let entry = self.directory.entries.remove(&id).expect("listed a moment ago");
            self.timers.clear(Timer::Tombstone(id));
            self.timers.clear(Timer::Asks(id));
            self.timers.clear(Timer::Loss(id));
            let owner = self.shards.owner(id);
            for (origin, request) in entry.into_requests(now, me) {
                self.send(owner, PeerMessage::Directory { origin, hops: 1, id, request }, None);
            }
        }
    }

    fn on_ask(
        &mut self,
        origin: NodeId,
        id: ObjectId,
        ask: u64,
        have: Option<Edition>,
        failed: Option<NodeId>,
    ) {
        let now = self.now;
        let entry = self.entry_mut(id);
        if entry.buried_until.is_some() {
            self.answer(origin, id, DirectoryAnswer::Deleted);
            return;
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
}

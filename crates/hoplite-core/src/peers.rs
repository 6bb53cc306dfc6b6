//! Messages from other nodes, their comings and goings, and saying again what may have been lost.

use std::time::Duration;

use hoplite_words::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_words::{ErrorKind, NodeId, ObjectId};

use crate::fetch::Want;
use crate::io::{Event, Output};
use crate::members::Change;
use crate::serve::PullKey;
use crate::timers::Timer;
use crate::Core;

/// How often open questions are asked again. Answers normally come in a round trip; this only
/// mends what a broken connection or a change of owner swallowed.
const REFRESH_PERIOD: Duration = Duration::from_secs(1);

/// How soon after its connection broke a peer is told again what it may have missed.
const RESYNC_AFTER: Duration = Duration::from_millis(50);

/// How soon after a change of membership everything is said once more: what went to, or through, a
/// node whose view still differed may be lost or forgotten.
const REANNOUNCE_AFTER: Duration = Duration::from_secs(2);

/// How often round trips are measured.
const PING_PERIOD: Duration = Duration::from_secs(10);

/// Departed members that are remembered. Forgetting one costs its askers some vain tries at worst.
const DEPARTED_MAX: usize = 1024;

impl Core {
    pub(crate) fn on_message(&mut self, from: NodeId, message: PeerMessage) {
        match message {
            PeerMessage::Directory { origin, hops, id, request } => {
                self.on_directory(origin, hops, id, request)
            }
            PeerMessage::Answer { id, answer } => self.on_answer(id, answer),
            PeerMessage::Pull { transfer, id, edition, offset, patient } => {
                self.on_pull(PullKey { to: from, transfer }, id, edition, offset, patient);
            }
            PeerMessage::Unpull { transfer } => self.on_unpull(PullKey { to: from, transfer }),
            PeerMessage::PullRefused { transfer } => self.on_pull_refused(transfer),
            PeerMessage::Seat { reduction, seat } => self.on_seat(reduction, seat),
            PeerMessage::SeatRefused { reduction, slot, attempt } => {
                self.on_seat_refused(from, reduction.number, slot, attempt);
            }
            PeerMessage::SeatFailed { reduction, slot, attempt, input } => {
                self.on_seat_failed(reduction.number, slot, attempt, input);
            }
            PeerMessage::RootDone { reduction, attempt } => {
                self.on_root_done(from, reduction.number, attempt)
            }
            PeerMessage::Commit { reduction, attempt, sources } => {
                self.on_commit(reduction, attempt, sources)
            }
            PeerMessage::Disband { reduction } => self.on_disband(reduction),
            PeerMessage::Prefetch { id } => self.want(id, Want::Prefetch),
            PeerMessage::Ping { sent_ns } => self.send(from, PeerMessage::Pong { sent_ns }, None),
            PeerMessage::Pong { sent_ns } => {
                let round_trip = self.now.saturating_sub(Duration::from_nanos(sent_ns));
                self.links.on_round_trip(from, round_trip.as_secs_f64());
            }
        }
    }

    fn on_answer(&mut self, id: ObjectId, answer: DirectoryAnswer) {
        match answer {
            DirectoryAnswer::Verdict { edition, verdict } => self.on_verdict(edition, verdict),
            DirectoryAnswer::Lend { ask, sender, edition, size, header } => {
                self.on_lend(id, ask, sender, edition, size, header);
            }
            DirectoryAnswer::Inline { ask, edition, header, payload } => {
                self.on_inline(id, ask, edition, header, payload);
            }
            DirectoryAnswer::Deleted => self.on_deleted(id),
            DirectoryAnswer::Lost => self.on_lost(id),
            DirectoryAnswer::Copy { node, report } => self.on_copy_reported(id, node, report),
            DirectoryAnswer::CopyGone { node } => self.on_copy_gone(id, node),
            DirectoryAnswer::DeleteDone { token } => self.on_delete_done(token),
            DirectoryAnswer::Located { token, size, copies, deleted } => {
                if !self.on_barrier_reached(token) {
                    self.on_located(token, size, copies, deleted);
                }
            }
        }
    }

    /// The object is deleted: nothing of it stays here, and nobody waits for it any longer.
    fn on_deleted(&mut self, id: ObjectId) {
        self.drop_fetch(id);
        let message = format!("{}: {id} was deleted", self.me);
        self.fail_wants(id, ErrorKind::Deleted, &message);
        self.watched_deleted(id);
        match (self.write_of(id), self.copies.live(id)) {
            (Some(writing), _) => self.judge_write(writing, Verdict::Deleted),
            (None, Some(copy)) => self.doom(copy),
            (None, None) => {}
        }
    }

    pub(crate) fn on_member_changes(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Datagram { to, bytes } => self.out.push_back(Output::Datagram { to, bytes }),
                Change::Up(node) => {
                    self.departed.remove(&node);
                    if self.shards.insert(node) {
                        self.out.push_back(Output::Event(Event::MemberUp { node }));
                        self.on_owners_changed();
                        self.reannounce_later();
                        self.ping(node);
                    }
                }
                Change::Rejoined => {
                    self.announce_everything();
                    self.reannounce_later();
                }
                Change::Down(node) => {
                    if self.shards.remove(node) {
                        self.out.push_back(Output::Event(Event::MemberDown { node }));
                        self.on_member_down(node);
                        self.reannounce_later();
                    }
                }
            }
        }
    }

    /// The daemon is to end.
    pub(crate) fn on_leave(&mut self, _within: Duration) {
        let changes = self.members.leave(self.now);
        self.on_member_changes(changes);
        self.out.push_back(Output::Left);
    }

    fn on_member_down(&mut self, node: NodeId) {
        self.departed.insert(node);
        if self.departed.len() > DEPARTED_MAX {
            self.departed.pop_first();
        }
        self.links.forget(node);
        self.timers.clear(Timer::Resync(node));
        self.sends_member_down(node);
        self.seats_member_down(node);
        self.directory_member_down(node);
        self.subscriptions_member_down(node);
        self.on_owners_changed();
        self.seats_peer_broken(node);
        for transfer in self.fetches.transfers_from(node) {
            self.on_pull_refused(transfer);
        }
    }

    /// Directory entries move to their new owners: ours are handed over, and what we said to an
    /// owner that is none any more is said to the new one.
    fn on_owners_changed(&mut self) {
        self.hand_over_entries();
        let moved = self.copies.table.iter().filter(|(_, copy)| {
            copy.public
                && !copy.doomed
                && copy.told.is_some_and(|told| told != self.shards.owner(copy.object))
        });
        let moved: Vec<_> = moved.map(|(&id, _)| id).collect();
        for id in moved {
            self.announce_again(id);
        }
        self.repeat_questions();
    }

    pub(crate) fn announce_again(&mut self, id: hoplite_words::CopyId) {
        let sealed = self.copies.table[&id].is_sealed();
        let complete = sealed || self.writes.is_written(id);
        let unjudged = self.writes.unjudged().contains(&id);
        self.announce(
            id,
            complete && (sealed || self.shards.owner(self.copies.table[&id].object) != self.me),
            unjudged,
        );
    }

    /// Asks everything that is unanswered again; owners take repetitions as what they are.
    fn repeat_questions(&mut self) {
        for object in self.open_asks() {
            self.repeat_ask(object);
        }
        for object in self.subscriptions.objects() {
            self.ask_owner(object, DirectoryRequest::Subscribe, None);
        }
        for (id, request) in self.open_questions() {
            self.ask_owner(id, request, None);
        }
        for copy in self.writes.unjudged() {
            if !self.copies.table[&copy].doomed {
                self.announce_again(copy);
            }
        }
    }

    /// Makes sure that open questions are repeated until they are answered.
    pub(crate) fn arm_refresh(&mut self) {
        if !self.timers.is_set(Timer::Refresh) {
            self.timers.set(self.now + REFRESH_PERIOD, Timer::Refresh);
        }
    }

    pub(crate) fn on_refresh(&mut self) {
        self.repeat_questions();
        let open = !self.open_asks().is_empty()
            || !self.subscriptions.objects().is_empty()
            || !self.open_questions().is_empty()
            || !self.writes.unjudged().is_empty();
        if open {
            self.arm_refresh();
        }
    }

    /// The control connection to a peer broke: what we said last may not have arrived.
    pub(crate) fn on_peer_broken(&mut self, node: NodeId) {
        // A sender we were lent may be no member any more, or not yet.
        if self.shards.contains(node) && !self.timers.is_set(Timer::Resync(node)) {
            self.timers.set(self.now + RESYNC_AFTER, Timer::Resync(node));
            // So that the driver dials at once: whoever refuses is gone, not only cut off.
            self.ping(node);
        }
        self.seats_peer_broken(node);
        for transfer in self.fetches.transfers_from(node) {
            // Our pull may be lost; the directory names the same sender again if it is well.
            self.on_pull_refused(transfer);
        }
    }

    /// Not put off by further changes: after the last one it comes once more.
    fn reannounce_later(&mut self) {
        self.reannounce_until = self.now + REANNOUNCE_AFTER;
        if !self.timers.is_set(Timer::Reannounce) {
            self.timers.set(self.now + REANNOUNCE_AFTER, Timer::Reannounce);
        }
    }

    pub(crate) fn on_reannounce(&mut self) {
        self.announce_everything();
        if self.now < self.reannounce_until {
            self.timers.set(self.reannounce_until, Timer::Reannounce);
        }
    }

    /// Says everything to its owner again; reports carry numbers, so repeating them is harmless.
    fn announce_everything(&mut self) {
        let public = self.copies.table.iter().filter(|(_, copy)| copy.public && !copy.doomed);
        let public: Vec<_> = public.map(|(&id, _)| id).collect();
        for id in public {
            self.announce_again(id);
        }
        self.repeat_questions();
    }

    pub(crate) fn on_resync(&mut self, node: NodeId) {
        let told = self
            .copies
            .table
            .iter()
            .filter(|(_, copy)| copy.public && !copy.doomed && copy.told == Some(node));
        let told: Vec<_> = told.map(|(&id, _)| id).collect();
        for id in told {
            self.announce_again(id);
        }
        self.repeat_questions();
    }

    fn ping(&mut self, node: NodeId) {
        let sent_ns = self.now.as_nanos() as u64;
        self.send(node, PeerMessage::Ping { sent_ns }, None);
        if !self.timers.is_set(Timer::Ping) {
            self.timers.set(self.now + PING_PERIOD, Timer::Ping);
        }
    }

    pub(crate) fn on_ping_timer(&mut self) {
        let peers: Vec<_> = self.shards.iter().filter(|&node| node != self.me).collect();
        for node in peers {
            self.ping(node);
        }
    }
}

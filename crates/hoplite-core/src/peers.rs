//! Messages from other nodes, and their comings and goings.

use std::time::Duration;

use hoplite_words::peer::{DirectoryAnswer, PeerMessage, Verdict};
use hoplite_words::{ErrorKind, NodeId, ObjectId};

use crate::fetch::Want;
use crate::io::{Event, Output};
use crate::members::Change;
use crate::serve::PullKey;
use crate::timers::Timer;
use crate::Core;

/// How often round trips are measured.
const PING_PERIOD: Duration = Duration::from_secs(10);

/// The first few follow each other soon: a new peer is busy, and so is whoever welcomes it.
const PINGS_SOON: u32 = 5;
const PING_SOON: Duration = Duration::from_millis(200);

/// Departed members that are remembered. Forgetting one costs its askers some vain tries at worst.
const DEPARTED_MAX: usize = 1024;

impl Core {
    pub(crate) fn on_message(&mut self, from: NodeId, message: PeerMessage) {
        if self.departed.contains(&from) {
            // News of its death was faster, or it lives and will be asked to say it again.
            return;
        }
        match message {
            PeerMessage::Directory { origin, hops, id, request } => {
                self.on_directory(origin, hops, id, request)
            }
            PeerMessage::Answer { id, answer } => self.on_answer(from, id, answer),
            PeerMessage::DeletionHeard { id } => self.on_deletion_heard(from, id),
            PeerMessage::Pull { transfer, id, edition, offset, patient } => {
                self.on_pull(PullKey { to: from, transfer }, id, edition, offset, patient);
            }
            PeerMessage::Unpull { transfer } => self.on_unpull(PullKey { to: from, transfer }),
            PeerMessage::PullRefused { transfer } => self.on_pull_refused(transfer),
            PeerMessage::Seat { reduction, seat } => self.on_seat(reduction, seat),
            PeerMessage::SeatFailed { reduction, slot, attempt, trouble } => {
                self.on_seat_failed(from, reduction.number, slot, attempt, trouble);
            }
            PeerMessage::SeatHeld { reduction, slot, attempt } => {
                self.on_seat_held(from, reduction, slot, attempt);
            }
            PeerMessage::SeatCrowded { reduction, slot, attempt } => {
                self.on_seat_crowded(from, reduction, slot, attempt);
            }
            PeerMessage::MakeWay { reduction, slot, attempt } => self.on_make_way((reduction, slot), attempt),
            PeerMessage::RootDone { reduction, slot, attempt } => {
                self.on_root_done(from, reduction.number, slot, attempt)
            }
            PeerMessage::Commit { reduction, id, edition, sources, .. } => {
                self.on_commit(reduction, id, edition, sources);
            }
            PeerMessage::Committed { reduction, sealed } => self.on_committed(from, reduction.number, sealed),
            PeerMessage::Disband { reduction } => self.on_disband(reduction),
            PeerMessage::Prefetch { id } => self.want(id, Want::Prefetch),
            PeerMessage::Ping { sent_ns } => self.send(from, PeerMessage::Pong { sent_ns }, None),
            // Of the connection, not of the node.
            PeerMessage::Goodbye => {}
            PeerMessage::SayAgain => self.resync_soon(from),
            PeerMessage::Remember { ids } => self.on_remember(from, ids),
            PeerMessage::AllSaid { since, members } => self.on_all_said(from, since, members),
            PeerMessage::Check { transfer } => self.on_check(PullKey { to: from, transfer }),
            PeerMessage::Checked { transfer, watermark } => self.on_checked(transfer, watermark),
            PeerMessage::Pong { sent_ns } => {
                let round_trip = self.now.saturating_sub(Duration::from_nanos(sent_ns));
                let measured = self.links.on_round_trip(from, round_trip.as_secs_f64());
                if measured < PINGS_SOON && self.shards.contains(from) {
                    self.timers.set(self.now + PING_SOON, Timer::Ping(from));
                }
            }
        }
    }

    fn on_answer(&mut self, from: NodeId, id: ObjectId, answer: DirectoryAnswer) {
        match answer {
            DirectoryAnswer::Verdict { edition, verdict } => self.on_verdict(edition, verdict),
            DirectoryAnswer::Lend { ask, sender, edition, size, header } => {
                self.on_lend(id, ask, sender, edition, size, header);
            }
            DirectoryAnswer::Inline { ask, edition, header, payload } => {
                self.on_inline(from, id, ask, edition, header, payload);
            }
            DirectoryAnswer::Deleted { ttl_ms } => self.on_deleted(from, id, Duration::from_millis(ttl_ms)),
            DirectoryAnswer::Lost => self.on_lost(id),
            DirectoryAnswer::Copy { node, report, payload } => {
                self.on_copy_reported(id, node, report, payload);
            }
            DirectoryAnswer::CopyGone { node } => self.on_copy_gone(id, node),
            DirectoryAnswer::Holders { nodes } => self.on_holders(id, &nodes),
            DirectoryAnswer::NotYet { ask, copies } => self.on_not_yet(id, ask, copies),
            DirectoryAnswer::Pin => self.on_pin(id),
            DirectoryAnswer::AskAgain { edition, sender } => self.on_ask_again(id, edition, sender),
            DirectoryAnswer::DeleteDone { token } => self.on_delete_done(token),
            DirectoryAnswer::Located { token, size, copies, deleted } => {
                if !self.on_barrier_reached(id, token, &copies) {
                    self.on_located(token, size, copies, deleted);
                }
            }
        }
    }

    /// The object is deleted: nothing of it stays here, and nobody waits for it any longer.
    fn on_deleted(&mut self, owner: NodeId, id: ObjectId, ttl: Duration) {
        self.remember_grave(id, ttl);
        self.remembered.remove(id);
        self.drop_fetch(id);
        let message = format!("{}: {id} was deleted", self.me);
        self.fail_wants(id, ErrorKind::Deleted, &message);
        self.watched_deleted(id);
        match (self.write_of(id), self.copies.live(id)) {
            (Some(writing), _) => self.judge_write(writing, Verdict::Deleted),
            (None, Some(copy)) => self.doom(copy),
            (None, None) => {}
        }
        self.send(owner, PeerMessage::DeletionHeard { id }, None);
    }

    pub(crate) fn on_member_changes(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Datagram { to, bytes } => self.out.push_back(Output::Datagram { to, bytes }),
                Change::Up(node) => {
                    if self.departed.remove(&node) {
                        self.unheard.insert(node);
                    }
                    if self.shards.insert(node) {
                        self.out.push_back(Output::Event(Event::MemberUp { node }));
                        self.on_owners_changed();
                        self.directory_member_up();
                        self.reannounce_later();
                        self.resync_soon(node);
                        self.ping(node);
                    }
                }
                Change::Rejoined => {
                    self.announce_everything();
                    self.reannounce_later();
                    let others: Vec<_> = self.shards.iter().filter(|&node| node != self.me).collect();
                    others.into_iter().for_each(|node| self.resync_soon(node));
                }
                Change::Down(node) => {
                    if self.shards.remove(node) {
                        self.out.push_back(Output::Event(Event::MemberDown { node }));
                        // First: entries that are new because of it do not know all yet.
                        self.reannounce_later();
                        self.on_member_down(node);
                    }
                }
            }
        }
    }

    pub(crate) fn on_member_down(&mut self, node: NodeId) {
        self.departed.insert(node);
        if self.departed.len() > DEPARTED_MAX {
            self.departed.pop_first();
        }
        self.links.forget(node);
        self.connections.forget(node);
        self.timers.clear(Timer::Resync(node));
        self.timers.clear(Timer::Ping(node));
        self.unheard.remove(&node);
        self.sends_member_down(node);
        self.let_seats_go(node);
        self.commits_member_down(node);
        self.directory_member_down(node);
        self.subscriptions_member_down(node);
        self.on_owners_changed();
        self.handle_passed_on(node);
        self.seats_peer_broken(node);
        for transfer in self.fetches.transfers_from(node) {
            self.on_pull_refused(transfer);
        }
    }

    pub(crate) fn ping(&mut self, node: NodeId) {
        let sent_ns = self.now.as_nanos() as u64;
        self.send(node, PeerMessage::Ping { sent_ns }, None);
        self.timers.set(self.now + PING_PERIOD, Timer::Ping(node));
    }
}

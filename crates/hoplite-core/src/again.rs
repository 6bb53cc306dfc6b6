//! Saying again what a broken connection, a moment apart or a change of owners may have swallowed.
//!
//! | when | what is said again |
//! |---|---|
//! | owners change | entries are handed over; copies, graves and open questions go to the new owners |
//! | a connection broke, a node came (back) | to that node: copies it owns, graves, open questions, seats; and it is asked to do the same |
//! | a little after the last change of members | every copy, every open question |
//! | a question stays open | that question, ever more rarely |
//!
//! Who has said every copy says that too: what its owner knows of older reports is out of date.

use std::time::Duration;

use hoplite_words::peer::PeerMessage;
use hoplite_words::{NodeId, ObjectId};

use crate::timers::Timer;
use crate::Core;

/// How soon open questions are asked again. Answers normally come in a round trip; this only mends
/// what was lost without anyone noticing, so it doubles each time up to the longest.
pub(crate) const REFRESH_MIN: Duration = Duration::from_secs(1);
const REFRESH_MAX: Duration = Duration::from_secs(8);

/// How soon after its connection broke a peer is told again what it may have missed.
const RESYNC_AFTER: Duration = Duration::from_millis(50);

/// How soon after a change of membership everything is said once more: what went to, or through, a
/// node whose view still differed may be lost or forgotten.
pub(crate) const REANNOUNCE_AFTER: Duration = Duration::from_secs(2);

impl Core {
    /// Directory entries move to their new owners: ours are handed over, and what we said to an
    /// owner that is none any more is said to the new one.
    pub(crate) fn on_owners_changed(&mut self) {
        self.hand_over_entries();
        self.move_graves();
        self.tell_heirs();
        let moved = self.copies.table.iter().filter(|(_, copy)| {
            copy.public
                && !copy.doomed
                && copy.told.is_some_and(|told| told != self.shards.owner(copy.object))
        });
        let moved: Vec<_> = moved.map(|(&id, _)| id).collect();
        for id in moved {
            self.announce_again(id);
        }
        self.repeat_questions(None);
        self.move_memories();
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

    /// Asks everything that is unanswered again, or what `owner` owes us; owners take repetitions as what
    /// they are.
    fn repeat_questions(&mut self, owner: Option<NodeId>) {
        let mut asks = self.open_asks();
        let mut watched = self.subscriptions.open();
        let mut questions = self.open_questions();
        let mut unjudged = self.writes.unjudged();
        unjudged.retain(|copy| !self.copies.table[copy].doomed);
        if let Some(owner) = owner {
            let owned = |id: ObjectId| self.shards.owner(id) == owner;
            asks.retain(|&id| owned(id));
            watched.retain(|&id| owned(id));
            questions.retain(|&(id, _)| owned(id));
            unjudged.retain(|copy| owned(self.copies.table[copy].object));
        }
        for object in asks {
            self.repeat_ask(object);
        }
        for object in watched {
            self.subscribe(object);
        }
        for (id, request) in questions {
            self.ask_owner(id, request, None);
        }
        for copy in unjudged {
            self.announce_again(copy);
        }
    }

    /// Makes sure that open questions are repeated until they are answered.
    pub(crate) fn arm_refresh(&mut self) {
        if !self.timers.is_set(Timer::Refresh) {
            self.refresh_period = REFRESH_MIN;
            self.timers.set(self.now + REFRESH_MIN, Timer::Refresh);
        }
    }

    pub(crate) fn on_refresh(&mut self) {
        self.repeat_questions(None);
        self.repeat_commits();
        self.repeat_seat_reports(None);
        let open = !self.open_asks().is_empty()
            || !self.subscriptions.open().is_empty()
            || !self.open_questions().is_empty()
            || !self.writes.unjudged().is_empty()
            || self.has_commits()
            || self.seats.has_reports();
        if open {
            self.refresh_period = (self.refresh_period * 2).min(REFRESH_MAX);
            self.timers.set(self.now + self.refresh_period, Timer::Refresh);
        }
    }

    /// Something was lost, or may have been: open questions do not wait as long as they last did.
    fn hasten_refresh(&mut self) {
        if self.timers.is_set(Timer::Refresh) {
            self.timers.clear(Timer::Refresh);
            self.arm_refresh();
        }
    }

    /// The control connection to a peer broke: what we said last may not have arrived.
    pub(crate) fn on_peer_broken(&mut self, node: NodeId) {
        // A sender we were lent may be no member any more, or not yet.
        if self.shards.contains(node) {
            // That we asked it to say everything again may be lost with the rest.
            self.unheard.insert(node);
            if !self.timers.is_set(Timer::Resync(node)) {
                self.resync_soon(node);
                // So that the driver dials at once: whoever refuses is gone, not only cut off.
                self.ping(node);
            }
        }
        self.seats_peer_broken(node);
        for transfer in self.fetches.transfers_from(node) {
            // Our pull may be lost; the directory names the same sender again if it is well.
            self.on_pull_refused(transfer);
        }
    }

    /// Tells a node again what it may have missed, once the connection to it has settled.
    pub(crate) fn resync_soon(&mut self, node: NodeId) {
        self.timers.set(self.now + RESYNC_AFTER, Timer::Resync(node));
        self.hasten_refresh();
    }

    /// Not put off by further changes: after the last one it comes once more.
    pub(crate) fn reannounce_later(&mut self) {
        self.reannounce_until = self.now + REANNOUNCE_AFTER;
        if !self.timers.is_set(Timer::Reannounce) {
            self.timers.set(self.now + REANNOUNCE_AFTER, Timer::Reannounce);
        }
    }

    pub(crate) fn on_reannounce(&mut self) {
        if self.now >= self.reannounce_until {
            self.forget_strangers();
            // Requests that went round among nodes that did not agree may have left some that are not ours.
            self.hand_over_entries();
        }
        self.announce_everything();
        self.secure_entries();
        self.hasten_refresh();
        if self.now < self.reannounce_until {
            self.timers.set(self.reannounce_until, Timer::Reannounce);
        }
    }

    /// Says everything to its owner again; reports carry numbers, so repeating them is harmless.
    pub(crate) fn announce_everything(&mut self) {
        let everyone: Vec<_> = self.shards.iter().collect();
        everyone.into_iter().for_each(|node| self.say_all(node));
        self.repeat_questions(None);
    }

    /// Reports every copy that `node` is to know of, and says that these are all.
    fn say_all(&mut self, node: NodeId) {
        let since = self.next_number();
        self.all_said = since;
        let owned = self
            .copies
            .table
            .iter()
            .filter(|(_, copy)| copy.public && !copy.doomed && self.shards.owner(copy.object) == node);
        for id in owned.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.announce_again(id);
        }
        if self.copies.has_dropped {
            let members = self.shards.fingerprint();
            self.send(node, PeerMessage::AllSaid { since, members }, None);
        }
    }

    pub(crate) fn on_resync(&mut self, node: NodeId) {
        if self.unheard.remove(&node) {
            self.send(node, PeerMessage::SayAgain, None);
        }
        self.say_all(node);
        self.repeat_questions(Some(node));
        self.repeat_graves(node);
        self.repeat_deletions(node);
        self.repeat_to_witnesses(|witness| witness == node);
        self.repeat_seats(node);
        self.repeat_seat_reports(Some(node));
    }
}

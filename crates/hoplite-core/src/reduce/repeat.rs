//! Saying again what a broken connection, or a moment of being taken for dead, may have swallowed.
//!
//! A coordinator repeats its seats and commits to a node it has a new connection to. A seated node tells
//! its coordinators now and then how its slots stand, and is answered by whatever it missed. So neither
//! side has to know what the other has heard.

use std::time::Duration;

use hoplite_words::peer::{PeerMessage, Seat, SeatTrouble};
use hoplite_words::{NodeId, ReductionId};

use super::seats::{Key, LetGo};
use crate::Core;

/// How long a slot that was let go is remembered: its coordinator, if it lives, is back by then.
const LET_GO_FOR: Duration = Duration::from_secs(60);

impl Core {
    /// What `node` must know of the reductions called here.
    pub(crate) fn repeat_seats(&mut self, node: NodeId) {
        let numbers: Vec<_> = self.reductions.keys().copied().collect();
        for number in numbers {
            self.repeat_commit(number, node);
            let reduction = &self.reductions[&number];
            let mut messages = Vec::new();
            if reduction.prefetched.contains(&node) {
                messages.push(PeerMessage::Prefetch { id: reduction.request.target });
            }
            if reduction.commitment.is_none() {
                let seats = reduction.told().filter(|(at, _)| *at == node).map(|(_, seat)| seat.clone());
                let reduction = ReductionId { coordinator: self.me, number };
                messages.extend(seats.map(|seat| PeerMessage::Seat { reduction, seat }));
            }
            messages.into_iter().for_each(|message| self.send(node, message, None));
        }
    }

    /// Commits that are not answered yet, to their roots.
    pub(crate) fn repeat_commits(&mut self) {
        let roots = self.reductions.iter().filter_map(|(&number, reduction)| {
            reduction.commitment.as_ref().map(|commitment| (number, commitment.root))
        });
        for (number, root) in roots.collect::<Vec<_>>() {
            self.repeat_commit(number, root);
        }
    }

    /// How the slots seated here stand, to their coordinators; only to one of them if that is given.
    pub(crate) fn repeat_seat_reports(&mut self, to: Option<NodeId>) {
        self.seats.let_go.retain(|_, let_go| let_go.until > self.now);
        let let_go = self.seats.let_go.iter();
        let abandoned = let_go.filter(|((id, _), _)| to == Some(id.coordinator));
        for (out, edition) in abandoned.map(|(_, let_go)| (let_go.out, let_go.edition)).collect::<Vec<_>>() {
            // An owner that was taken for dead as well has not heard that it is withdrawn.
            self.withdraw_edition(out, edition);
        }
        for (key, message) in self.seats.reports() {
            let coordinator = key.0.coordinator;
            // Who is no member hears it when it comes back.
            if self.shards.contains(coordinator) && to.is_none_or(|node| node == coordinator) {
                self.send(coordinator, message, None);
            }
        }
    }

    /// A seated node says that it is still at it.
    pub(crate) fn on_seat_held(&mut self, from: NodeId, reduction: ReductionId, slot: u32, attempt: u32) {
        let Some(known) = self.reductions.get(&reduction.number).filter(|_| reduction.coordinator == self.me)
        else {
            return self.send(from, PeerMessage::Disband { reduction }, None);
        };
        match &known.commitment {
            Some(commitment) if commitment.is_for(from) => self.repeat_commit(reduction.number, from),
            Some(_) => self.send(from, PeerMessage::Disband { reduction }, None),
            None => {
                let told =
                    known.slots.iter().find(|(id, _)| *id == slot).and_then(|(_, slot)| slot.told.clone());
                if let Some((_, seat)) = told.filter(|(at, seat)| *at == from && seat.attempt > attempt) {
                    self.send(from, PeerMessage::Seat { reduction, seat }, None);
                }
            }
        }
    }

    /// A coordinator is dead, as far as we can tell: its slots are let go, and if it lives after all it
    /// will be told so.
    pub(crate) fn let_seats_go(&mut self, coordinator: NodeId) {
        let until = self.now + LET_GO_FOR;
        let let_go =
            |seat: &Seat| LetGo { attempt: seat.attempt, until, out: seat.out, edition: seat.edition };
        let of_node: Vec<_> = self.seats.of(coordinator).map(|(key, seat)| (key, let_go(seat))).collect();
        for (key, let_go) in of_node {
            self.seats.let_go.insert(key, let_go);
            self.drop_seat(key);
            self.arm_refresh();
        }
    }

    /// Whether this attempt of the slot must not be begun (again) here; says so if that is so. What it
    /// had summed up before may have been read, and would not be the same bytes.
    pub(super) fn declines_seat(&mut self, key: Key, attempt: u32) -> bool {
        let (reduction, slot) = key;
        let let_go = self.seats.let_go.get(&key).is_some_and(|let_go| let_go.attempt >= attempt);
        let declined = let_go || !self.shards.contains(reduction.coordinator);
        if declined {
            let trouble = SeatTrouble::LetGo;
            let failed = PeerMessage::SeatFailed { reduction, slot, attempt, trouble };
            self.send(reduction.coordinator, failed, None);
        } else {
            self.seats.let_go.remove(&key);
        }
        declined
    }
}

//! How many connections carry a transfer: in many networks a single flow gets only a part of the link.
//!
//! The sender learns the number for each receiver from its transfers that are large, alone here, and limited by the
//! network:
//!
//! ```text
//!           ┌──────────────────── still faster: 2m ────────────────────┐
//!           ▼                                                          │
//!   m, measured ──(next large transfer)──▶ trying 2m ──faster──▶ m again, to be sure
//!           ▲                                  │                       │
//!           └─────── not: m, no trial for a while ◀── not any more ────┘
//! ```
//!
//! - A faster trial is checked with m again, because the transfers before it may have been slow for other reasons:
//!   memory touched for the first time, other traffic on the link.
//! - A trial without a result (its transfer waited for its own upstream, or broke) is repeated with the next large
//!   transfer.
//! - Transfers to the same receiver at the same time share the connections.
//! - The number never decreases: more connections than needed have no cost that shows on a link.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_types::{Connections, NodeId};

/// Smaller transfers go by one connection: there is little to gain, and further ones may have to be made first.
pub(crate) const LARGE_BYTES_MIN: u64 = 1 << 20;

/// Smaller transfers are no measurement: bytes that fit into the sockets' buffers count as sent.
const MEASURED_BYTES_MIN: u64 = 8 << 20;

/// Twice as many connections must be so many times as fast; a smaller gain may be chance.
const FASTER: f64 = 1.25;

/// Pause after a trial without gain: others may just have used the receiver's link. Doubled after each further one,
/// since links seldom change.
const TRIAL_PERIOD: Duration = Duration::from_secs(10);
const TRIAL_DOUBLINGS_MAX: u32 = 5;

/// For a group of transfers to a receiver without measurements. All bytes that a node sends go by these connections.
/// One would be costly where flows are capped, and four cost little where they are not (measured in decision 8).
const UNTAUGHT_GROUP: Connections = Connections::new(4).expect("it is allowed");

/// The choices for all receivers.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// The setting that overrides all choices.
    fixed: Option<Connections>,
    peers: BTreeMap<NodeId, Choice>,
}

#[derive(Debug, Clone, Copy)]
struct Choice {
    connections: Connections,
    /// The best rate measured with them: other traffic on the link only ever reduces it.
    bytes_per_s: u64,
    /// The rate of twice as many, if that was faster: to be compared with another measurement of these.
    doubled_bytes_per_s: Option<u64>,
    /// The number of trials in a row that were not faster.
    failed_trials: u32,
    no_trial_before: Duration,
}

impl Choice {
    fn new(connections: Connections, bytes_per_s: u64) -> Self {
        Choice {
            connections,
            bytes_per_s,
            doubled_bytes_per_s: None,
            failed_trials: 0,
            no_trial_before: Duration::ZERO,
        }
    }

    /// Whether twice as many were tried, without gain.
    fn is_taught(&self) -> bool {
        self.failed_trials > 0
    }

    fn is_beaten_by(&self, doubled_bytes_per_s: u64) -> bool {
        doubled_bytes_per_s as f64 >= FASTER * self.bytes_per_s as f64
    }

    /// Ends a trial, in which twice as many had this rate.
    fn decide(&mut self, now: Duration, doubled_bytes_per_s: u64) {
        match self.connections.doubled() {
            Some(doubled) if self.is_beaten_by(doubled_bytes_per_s) => {
                *self = Choice::new(doubled, doubled_bytes_per_s);
            }
            _ => {
                self.no_trial_before =
                    now + TRIAL_PERIOD * (1 << self.failed_trials.min(TRIAL_DOUBLINGS_MAX));
                self.failed_trials += 1;
            }
        }
    }
}

impl Choices {
    pub fn new(fixed: Option<Connections>) -> Self {
        Choices { fixed, peers: BTreeMap::new() }
    }

    /// The choice for a transfer of `bytes` to `peer`, one of `sharers` large ones that go there at the same time.
    pub fn choose(&self, now: Duration, peer: NodeId, bytes: u64, sharers: usize) -> Connections {
        if let Some(fixed) = self.fixed {
            return fixed;
        }
        // Over loopback there is no link to fill, only memory: a trial costs, and can win only by chance.
        if bytes < LARGE_BYTES_MIN || peer.addr.ip().is_loopback() {
            return Connections::ONE;
        }
        let Some(choice) = self.peers.get(&peer) else { return self.usual().shared_by(sharers) };
        let is_due = choice.doubled_bytes_per_s.is_none() && now >= choice.no_trial_before;
        let is_trial = is_due && sharers == 1 && bytes >= MEASURED_BYTES_MIN;
        let tried = choice.connections.doubled().filter(|_| is_trial);
        tried.unwrap_or(choice.connections.shared_by(sharers))
    }

    /// The choice for all transfers of a group to `peer`, which share the connections. They do not measure the link:
    /// until single transfers have shown for some receiver how many are enough, it is [`UNTAUGHT_GROUP`] at least.
    pub fn for_group(&self, peer: NodeId) -> Connections {
        if let Some(fixed) = self.fixed {
            return fixed;
        }
        if peer.addr.ip().is_loopback() {
            return Connections::ONE;
        }
        let least = match self.peers.values().any(Choice::is_taught) {
            true => Connections::ONE,
            false => UNTAUGHT_GROUP,
        };
        match self.peers.get(&peer) {
            Some(choice) if choice.is_taught() => choice.connections,
            Some(choice) => choice.connections.max(self.usual()).max(least),
            None => self.usual().max(least),
        }
    }

    /// A transfer of `bytes` to `peer`, the only large one from here, had this rate with `used` connections.
    pub fn on_measured(
        &mut self,
        now: Duration,
        peer: NodeId,
        used: Connections,
        bytes: u64,
        bytes_per_s: u64,
    ) {
        if bytes < MEASURED_BYTES_MIN || self.fixed.is_some() {
            return;
        }
        let choice = self.peers.entry(peer).or_insert_with(|| Choice::new(used, bytes_per_s));
        if used == choice.connections {
            choice.bytes_per_s = choice.bytes_per_s.max(bytes_per_s);
            if let Some(doubled) = choice.doubled_bytes_per_s.take() {
                choice.decide(now, doubled);
            }
        } else if Some(used) == choice.connections.doubled() {
            if choice.is_beaten_by(bytes_per_s) {
                choice.doubled_bytes_per_s = Some(bytes_per_s);
            } else {
                choice.decide(now, bytes_per_s);
            }
        }
        // Otherwise it was an older trial, or shared its connections with another transfer.
    }

    pub fn forget(&mut self, peer: NodeId) {
        self.peers.remove(&peer);
    }

    /// The median of the choices for all receivers: mostly all links of a network are alike.
    fn usual(&self) -> Connections {
        let mut known: Vec<_> = self.peers.values().map(|choice| choice.connections).collect();
        known.sort_unstable();
        known.get(known.len() / 2).copied().unwrap_or(Connections::ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 32 << 20;
    const START: Duration = Duration::ZERO;

    fn peer(n: u16) -> NodeId {
        NodeId { addr: ([10, 0, 0, 1], n).into(), incarnation: 0 }
    }

    fn connections(count: u8) -> Connections {
        Connections::new(count).unwrap()
    }

    /// Sends large objects one after the other over a link of 800 where one flow gets 200; returns the choices.
    fn send(choices: &mut Choices, now: Duration, to: NodeId, times: usize) -> Vec<u8> {
        let mut chosen = Vec::new();
        for _ in 0..times {
            let used = choices.choose(now, to, LARGE, 1);
            choices.on_measured(now, to, used, LARGE, (200 * u64::from(used.get())).min(800));
            chosen.push(used.get());
        }
        chosen
    }

    #[test]
    fn more_are_tried_while_they_are_faster_and_again_after_a_while() {
        let mut choices = Choices::default();
        assert_eq!(send(&mut choices, START, peer(1), 8), [1, 2, 1, 4, 2, 8, 4, 4]);
        assert_eq!(send(&mut choices, START + TRIAL_PERIOD, peer(1), 3), [8, 4, 4]);
        assert_eq!(
            send(&mut choices, START + TRIAL_PERIOD * 2, peer(1), 1),
            [4],
            "the second pause is longer"
        );
        assert_eq!(send(&mut choices, START + TRIAL_PERIOD * 3, peer(1), 2), [8, 4]);
    }

    #[test]
    fn a_new_receiver_begins_with_what_is_usual() {
        let mut choices = Choices::default();
        send(&mut choices, START, peer(1), 6);
        assert_eq!(send(&mut choices, START, peer(2), 3), [4, 8, 4]);
        choices.forget(peer(1));
        choices.forget(peer(2));
        assert_eq!(choices.choose(START, peer(1), LARGE, 1), Connections::ONE);
    }

    #[test]
    fn a_trial_that_says_nothing_is_made_again() {
        let mut choices = Choices::default();
        send(&mut choices, START, peer(1), 1);
        for _ in 0..3 {
            assert_eq!(choices.choose(START, peer(1), LARGE, 1), connections(2));
        }
        // By chance it went by as many as before.
        choices.on_measured(START, peer(1), connections(1), LARGE, 190);
        assert_eq!(choices.choose(START, peer(1), LARGE, 1), connections(2));
    }

    #[test]
    fn a_trial_is_held_to_the_best_that_fewer_brought() {
        let mut choices = Choices::default();
        for rate in [800, 300] {
            choices.on_measured(START, peer(1), connections(1), LARGE, rate);
        }
        choices.on_measured(START, peer(1), connections(2), LARGE, 900);
        assert_eq!(choices.choose(START, peer(1), LARGE, 1), connections(1));
    }

    #[test]
    fn what_was_faster_only_than_a_slow_start_is_no_more_than_chance() {
        let mut choices = Choices::default();
        let mut chosen = Vec::new();
        for rate in [100, 800, 800, 800] {
            let used = choices.choose(START, peer(1), LARGE, 1);
            choices.on_measured(START, peer(1), used, LARGE, rate);
            chosen.push(used.get());
        }
        assert_eq!(chosen, [1, 2, 1, 1]);
    }

    #[test]
    fn small_transfers_go_by_one_and_teach_nothing() {
        let mut choices = Choices::default();
        send(&mut choices, START, peer(1), 7);
        assert_eq!(choices.choose(START, peer(1), LARGE_BYTES_MIN - 1, 1), connections(1));
        assert_eq!(choices.choose(START, peer(1), LARGE_BYTES_MIN, 1), connections(4));
        choices.on_measured(START, peer(2), connections(4), MEASURED_BYTES_MIN - 1, 1 << 40);
        assert_eq!(choices.choose(START, peer(2), LARGE, 1), connections(4), "unknown as before: no trial");
    }

    #[test]
    fn there_is_nothing_to_try_over_loopback() {
        let mut choices = Choices::default();
        let here = NodeId { addr: ([127, 0, 0, 1], 1).into(), incarnation: 0 };
        assert_eq!(send(&mut choices, START, here, 3), [1, 1, 1]);
    }

    #[test]
    fn transfers_side_by_side_share() {
        let mut choices = Choices::default();
        send(&mut choices, START, peer(1), 7);
        let chosen = [1, 2, 3, 9].map(|sharers| choices.choose(START, peer(1), LARGE, sharers).get());
        assert_eq!(chosen, [4, 2, 1, 1]);
    }

    #[test]
    fn a_group_goes_by_several_until_fewer_are_known_to_be_enough() {
        let mut choices = Choices::default();
        let group = |choices: &Choices, to| choices.for_group(peer(to)).get();
        assert_eq!(group(&choices, 1), 4);
        choices.on_measured(START, peer(1), connections(1), LARGE, 800);
        assert_eq!(group(&choices, 1), 4, "perhaps two are faster");
        choices.on_measured(START, peer(1), connections(2), LARGE, 800);
        assert_eq!((group(&choices, 1), group(&choices, 2)), (1, 1));
        send(&mut choices, START, peer(2), 6);
        assert_eq!((group(&choices, 1), group(&choices, 2), group(&choices, 3)), (1, 4, 4));
        let here = NodeId { addr: ([127, 0, 0, 1], 1).into(), incarnation: 0 };
        assert_eq!(Choices::default().for_group(here), Connections::ONE);
        assert_eq!(Choices::new(Some(connections(3))).for_group(peer(1)), connections(3));
    }

    #[test]
    fn a_number_that_is_set_is_all_there_is() {
        let mut choices = Choices::new(Some(connections(3)));
        assert_eq!(send(&mut choices, START, peer(1), 2), [3, 3]);
        assert_eq!(choices.choose(START, peer(1), 1, 6), connections(3));
    }
}

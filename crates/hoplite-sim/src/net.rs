//! Links: how long a message is under way, and how long a node's line is busy with bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_words::NodeId;

use crate::dice::Dice;
use crate::names::index_of;
use crate::world::Place;

/// The shape of the network, drawn once per run.
#[derive(Clone, Debug)]
pub struct NetPlan {
    /// One way, by sender and receiver.
    pub latency: Vec<Vec<Duration>>,
    /// Up to this much is added to each message on its own: control, bulk and gossip overtake
    /// each other, while one connection stays in order.
    pub jitter: Duration,
    /// What a node can send, and receive, per second.
    pub bytes_per_s: Vec<u64>,
    pub datagram_loss_percent: u64,
}

impl NetPlan {
    pub fn uniform(nodes: usize, latency: Duration, bytes_per_s: u64) -> Self {
        NetPlan {
            latency: vec![vec![latency; nodes]; nodes],
            jitter: Duration::ZERO,
            bytes_per_s: vec![bytes_per_s; nodes],
            datagram_loss_percent: 0,
        }
    }
}

/// The state of all links.
pub struct Net {
    plan: NetPlan,
    /// Control connections that are up, with the arrival of the last message on them.
    lines: BTreeMap<(Place, NodeId), Duration>,
    egress_free: Vec<Duration>,
    ingress_free: Vec<Duration>,
}

impl Net {
    pub fn new(plan: NetPlan) -> Self {
        let nodes = plan.bytes_per_s.len();
        Net {
            plan,
            lines: BTreeMap::new(),
            egress_free: vec![Duration::ZERO; nodes],
            ingress_free: vec![Duration::ZERO; nodes],
        }
    }

    pub fn latency(&self, from: usize, to: usize) -> Duration {
        self.plan.latency[from][to]
    }

    pub fn under_way(&self, from: usize, to: usize, dice: &mut Dice) -> Duration {
        self.latency(from, to) + dice.time(Duration::ZERO, self.plan.jitter)
    }

    pub fn loses_datagram(&self, dice: &mut Dice) -> bool {
        dice.percent(self.plan.datagram_loss_percent)
    }

    /// When a control message sent now arrives; dials first if there is no connection.
    pub fn control_arrival(&mut self, now: Duration, from: Place, to: NodeId, dice: &mut Dice) -> Duration {
        let there = index_of(to.addr);
        let one_way = self.under_way(from.index, there, dice);
        let round_trip = self.latency(from.index, there) + self.latency(there, from.index);
        let last = self.lines.entry((from, to)).or_insert(now + round_trip);
        *last = (*last + Duration::from_nanos(1)).max(now + one_way);
        *last
    }

    pub fn drop_line(&mut self, from: Place, to: NodeId) {
        self.lines.remove(&(from, to));
    }

    /// Everybody who has a control connection to `to`.
    pub fn callers_of(&self, to: NodeId) -> Vec<Place> {
        self.lines.keys().filter(|(_, callee)| *callee == to).map(|(caller, _)| *caller).collect()
    }

    /// Sends `bytes` of bulk: when the sender's line is free again, and when they have arrived.
    pub fn bulk(
        &mut self,
        now: Duration,
        from: usize,
        to: usize,
        bytes: u64,
        dice: &mut Dice,
    ) -> (Duration, Duration) {
        let out = transmission(bytes, self.plan.bytes_per_s[from]);
        let sent = self.egress_free[from].max(now) + out;
        self.egress_free[from] = sent;
        let landing = sent + self.under_way(from, to, dice);
        let arrived = landing.max(self.ingress_free[to] + transmission(bytes, self.plan.bytes_per_s[to]));
        self.ingress_free[to] = arrived;
        (sent, arrived)
    }

    /// The rate a lone transfer between the two moves at.
    pub fn bytes_per_s(&self, from: usize, to: usize) -> u64 {
        self.plan.bytes_per_s[from].min(self.plan.bytes_per_s[to])
    }
}

fn transmission(bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_nanos(bytes * 1_000_000_000 / bytes_per_s)
}

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

/// One control connection, from its dial to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineId(u64);

#[derive(Debug)]
struct Line {
    id: LineId,
    last_arrival: Duration,
    /// Its end is already on its way to the caller.
    breaking: bool,
}

/// The state of all links.
pub struct Net {
    plan: NetPlan,
    /// Control connections that are up.
    lines: BTreeMap<(Place, NodeId), Line>,
    dials: u64,
    egress_free: Vec<Duration>,
    ingress_free: Vec<Duration>,
}

impl Net {
    pub fn new(plan: NetPlan) -> Self {
        let nodes = plan.bytes_per_s.len();
        Net {
            plan,
            lines: BTreeMap::new(),
            dials: 0,
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

    /// When a control message sent now arrives, and on which connection; dials first if there is
    /// none.
    pub fn control_arrival(
        &mut self,
        now: Duration,
        from: Place,
        to: NodeId,
        dice: &mut Dice,
    ) -> (Duration, LineId) {
        let there = index_of(to.addr);
        let one_way = self.under_way(from.index, there, dice);
        let round_trip = self.latency(from.index, there) + self.latency(there, from.index);
        let dials = &mut self.dials;
        let line = self.lines.entry((from, to)).or_insert_with(|| {
            *dials += 1;
            Line { id: LineId(*dials), last_arrival: now + round_trip, breaking: false }
        });
        line.last_arrival = (line.last_arrival + Duration::from_nanos(1)).max(now + one_way);
        (line.last_arrival, line.id)
    }

    /// Notes that a connection will be found broken; true the first time.
    pub fn break_line(&mut self, from: Place, to: NodeId) -> bool {
        self.lines.get_mut(&(from, to)).is_some_and(|line| !std::mem::replace(&mut line.breaking, true))
    }

    /// Forgets a broken connection, unless it has been dialled anew since.
    pub fn drop_line(&mut self, from: Place, to: NodeId, id: LineId) -> bool {
        let is_same = self.lines.get(&(from, to)).is_some_and(|line| line.id == id);
        if is_same {
            self.lines.remove(&(from, to));
        }
        is_same
    }

    /// Everybody who has a control connection to `to`.
    pub fn callers_of(&self, to: NodeId) -> Vec<(Place, LineId)> {
        let callers = self.lines.iter().filter(|((_, callee), _)| *callee == to);
        callers.map(|((caller, _), line)| (*caller, line.id)).collect()
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

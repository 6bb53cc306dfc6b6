//! Links: the latency of messages, the time for which bytes occupy a link, and cuts between nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fault::Lane;
use crate::rng::SimRng;

/// The shape of the network, drawn once per run.
#[derive(Clone, Debug)]
pub struct NetPlan {
    /// Latency one way, by sender and receiver.
    pub latency: Vec<Vec<Duration>>,
    /// The largest latency that is added to each message at random. So control, bulk and gossip overtake each other,
    /// while each connection keeps its order.
    pub jitter: Duration,
    /// Bytes per second that each node can send, and receive.
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

/// The number of a temporary trouble of the network, by which it is ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TroubleId(pub u64);

/// One kind of connection between two nodes takes longer in one direction.
#[derive(Debug)]
pub struct Spike {
    pub from: usize,
    pub to: usize,
    pub lane: Lane,
    pub extra: Duration,
}

#[derive(Debug)]
struct Cut {
    /// Whether each node is on the marked side.
    side: Vec<bool>,
    /// Messages from the marked side get through to the others.
    one_way: bool,
}

impl Cut {
    fn stops(&self, from: usize, to: usize) -> bool {
        self.side[from] != self.side[to] && !(self.one_way && self.side[from])
    }
}

/// The state of all links.
pub struct Net {
    plan: NetPlan,
    /// Random choices by sender and receiver, so that one pair's choices do not depend on the traffic of other pairs.
    rng: Vec<Vec<SimRng>>,
    egress_free: Vec<Duration>,
    ingress_free: Vec<Duration>,
    cuts: BTreeMap<TroubleId, Cut>,
    spikes: BTreeMap<TroubleId, Spike>,
    /// Hosts without power.
    dark: Vec<bool>,
    /// The factor by which each node's link is slower than planned.
    slowness: Vec<u64>,
}

impl Net {
    pub fn new(plan: NetPlan, rng: &mut SimRng) -> Self {
        let nodes = plan.bytes_per_s.len();
        Net {
            rng: (0..nodes).map(|_| (0..nodes).map(|_| rng.split()).collect()).collect(),
            egress_free: vec![Duration::ZERO; nodes],
            ingress_free: vec![Duration::ZERO; nodes],
            cuts: BTreeMap::new(),
            spikes: BTreeMap::new(),
            dark: vec![false; nodes],
            slowness: vec![1; nodes],
            plan,
        }
    }

    /// The random choices of the link between two nodes.
    pub fn rng(&mut self, from: usize, to: usize) -> &mut SimRng {
        &mut self.rng[from][to]
    }

    pub fn latency(&self, from: usize, to: usize) -> Duration {
        self.plan.latency[from][to]
    }

    pub fn round_trip(&self, from: usize, to: usize) -> Duration {
        self.latency(from, to) + self.latency(to, from)
    }

    pub fn under_way(&mut self, from: usize, to: usize, lane: Lane) -> Duration {
        let here = |spike: &&Spike| (spike.from, spike.to, spike.lane) == (from, to, lane);
        let extra: Duration = self.spikes.values().filter(here).map(|spike| spike.extra).sum();
        let jitter = self.rng[from][to].time(Duration::ZERO, self.plan.jitter);
        self.latency(from, to) + jitter + extra
    }

    pub fn loses_datagram(&mut self, from: usize, to: usize) -> bool {
        self.rng[from][to].percent(self.plan.datagram_loss_percent)
    }

    /// Sends `bytes` of bulk. Returns when the sender's link is free again, and when the bytes arrive.
    pub fn bulk(&mut self, now: Duration, from: usize, to: usize, bytes: u64) -> (Duration, Duration) {
        let out = transmission(bytes, self.rate(from));
        let sent = self.egress_free[from].max(now) + out;
        self.egress_free[from] = sent;
        let landing = sent + self.under_way(from, to, Lane::Bulk);
        let arrived = landing.max(self.ingress_free[to] + transmission(bytes, self.rate(to)));
        self.ingress_free[to] = arrived;
        (sent, arrived)
    }

    /// Frees the sender's link of a closed stream, whose last bytes would occupy it until `until`. Returns how many of
    /// them have not left.
    pub fn keep_back(&mut self, now: Duration, from: usize, until: Duration, bytes: u64) -> u64 {
        let rate = self.rate(from);
        let unsent = until.saturating_sub(now).min(transmission(bytes, rate));
        self.egress_free[from] = self.egress_free[from].saturating_sub(unsent);
        (unsent.as_nanos() * u128::from(rate) / 1_000_000_000) as u64
    }

    /// Frees the receiver's link of the `bytes` of a closed stream that are under way.
    pub fn take_back(&mut self, to: usize, bytes: u64) {
        let busy = transmission(bytes, self.rate(to));
        self.ingress_free[to] = self.ingress_free[to].saturating_sub(busy);
    }

    /// The rate of a single transfer between two nodes.
    pub fn bytes_per_s(&self, from: usize, to: usize) -> u64 {
        self.rate(from).min(self.rate(to))
    }

    /// The longest latency and the fastest link. With these, sending to several receivers at a time gains most.
    pub fn best_case(&self) -> (Duration, u64) {
        let longest = self.plan.latency.iter().flatten().max().copied().unwrap_or_default();
        let fastest = self.plan.bytes_per_s.iter().max().copied().unwrap_or(1);
        (longest + self.plan.jitter, fastest)
    }

    fn rate(&self, node: usize) -> u64 {
        (self.plan.bytes_per_s[node] / self.slowness[node]).max(1)
    }

    /// Whether messages from one node to the other are held up.
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.dark[from] || self.dark[to] || self.cuts.values().any(|cut| cut.stops(from, to))
    }

    /// Whether two nodes cannot reach each other in at least one direction.
    pub fn is_apart(&self, one: usize, other: usize) -> bool {
        self.is_cut(one, other) || self.is_cut(other, one)
    }

    pub fn cut(&mut self, id: TroubleId, side: Vec<bool>, one_way: bool) {
        self.cuts.insert(id, Cut { side, one_way });
    }

    /// Whether this cut still exists and separates the two nodes.
    pub fn separates(&self, id: TroubleId, one: usize, other: usize) -> bool {
        self.cuts.get(&id).is_some_and(|cut| cut.side[one] != cut.side[other])
    }

    pub fn delay(&mut self, id: TroubleId, spike: Spike) {
        self.spikes.insert(id, spike);
    }

    /// Ends a cut or a delay; false if it had ended before.
    pub fn end(&mut self, id: TroubleId) -> bool {
        self.cuts.remove(&id).is_some() | self.spikes.remove(&id).is_some()
    }

    pub fn set_dark(&mut self, node: usize, dark: bool) {
        self.dark[node] = dark;
    }

    pub fn is_dark(&self, node: usize) -> bool {
        self.dark[node]
    }

    pub fn set_slowness(&mut self, node: usize, times: u64) {
        self.slowness[node] = times;
    }

    /// Ends all temporary troubles. Hosts without power stay so.
    pub fn heal(&mut self) {
        self.cuts.clear();
        self.spikes.clear();
        self.slowness.fill(1);
    }
}

fn transmission(bytes: u64, bytes_per_s: u64) -> Duration {
    Duration::from_nanos(bytes * 1_000_000_000 / bytes_per_s)
}

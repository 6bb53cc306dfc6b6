//! The cost of schedules, and the choices that follow from it [design §6, paper 3.4.2].
//!
//! With n nodes, S bytes, one-way latency L (seconds, software included) and bandwidth B (bytes per
//! second and direction), a pipelined reduction tree of degree d takes about
//!
//! - d = 1 (chain): `n·L + S/B`
//! - d = 2 (binary): `L·log2(n) + 2·S/B`
//! - d = n (star):  `L + (n-1)·S/B`
//!
//! An allreduce of large objects takes about `2·S/B` as a chain whose result streams back to everyone, and
//! `2·(n-1)/n·S/B` in stripes.

use hoplite_types::{client::Link, limits, NodeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// The shape of a reduction tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Degree {
    Chain,
    Binary,
    Star,
}

/// Assumed for links without measurements. The bandwidth is a low one: a chain where a tree were
/// better costs a few latencies, a tree where a chain were better costs the whole object's time.
const LATENCY_ASSUMED_S: f64 = 100e-6;
const BANDWIDTH_ASSUMED: f64 = 125e6;

/// One receiver is best for large objects; more only while sending a copy costs less than a hop.
const FANOUT_MAX: u64 = 8;

/// The degree with the least time for `nodes` participants.
pub fn best_degree(nodes: usize, bytes: u64, latency_s: f64, bytes_per_s: f64) -> Degree {
    let n = nodes.max(1) as f64;
    let wire = bytes as f64 / bytes_per_s;
    let times = [
        (n * latency_s + wire, Degree::Chain),
        (latency_s * n.log2().max(1.0) + 2.0 * wire, Degree::Binary),
        (latency_s + (n - 1.0) * wire, Degree::Star),
    ];
    let best = times.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    best.expect("three candidates").1
}

/// The extra cost of a tree of small objects, compared with sending them all to one node, without the time on the wire:
/// slots are assigned, connections woken, partial sums reported.
const SMALL_TREE_S: f64 = 2e-3;

/// The size up to which each of `sources` objects is sent to one node that sums them up: so small that its link has
/// carried them before a tree is set up.
pub fn small_sum_bytes_max(sources: usize, bytes_per_s: f64) -> u64 {
    let others = sources.max(2) - 1;
    limits::INLINE_BYTES_MAX.min((SMALL_TREE_S * bytes_per_s / others as f64) as u64)
}

/// The cost of a slot at its coordinator and its node: a few of these, as measured. Stripes need n·(n+1) slots.
const SLOT_S: f64 = 20e-6;

/// Whether an allreduce on `nodes` nodes ends earlier in stripes, when it starts `waited_s` after a chain could have
/// started. The last stripe's last byte takes 2·(n-1) hops.
pub fn stripes_pay(nodes: usize, bytes: u64, waited_s: f64, latency_s: f64, bytes_per_s: f64) -> bool {
    let n = nodes.max(1) as f64;
    let saved = 2.0 / n * bytes as f64 / bytes_per_s;
    saved > waited_s + 2.0 * (n - 1.0) * latency_s + n * (n + 1.0) * SLOT_S
}

/// How many receivers one sender may serve at once: as many as it can send to in the time of a hop.
pub fn fanout(bytes: u64, latency_s: f64, bytes_per_s: f64) -> usize {
    let per_hop = (latency_s * bytes_per_s / bytes.max(1) as f64) as u64;
    per_hop.clamp(1, FANOUT_MAX) as usize
}

/// Limit on the answers that our link is believed to have to carry, so that a bandwidth measured at a bad moment makes
/// nobody wait for long.
const ANSWERS_AHEAD_MAX: Duration = Duration::from_millis(100);

/// Measurements of the links to our peers.
#[derive(Debug, Default)]
pub(crate) struct Links {
    peers: BTreeMap<NodeId, Measured>,
    latencies: Sorted,
    bandwidths: Sorted,
    /// When our link will have carried all small objects that were sent with answers.
    pub answers_until: Duration,
}

#[derive(Debug, Default, Clone, Copy)]
struct Measured {
    /// The least one-way latency measured: queues only ever add to it.
    latency_s: Option<f64>,
    round_trips: u32,
    bytes_per_s: Option<f64>,
}

/// One measurement of every peer, sorted, so that the median is at hand: it is needed for every small put.
#[derive(Debug, Default)]
struct Sorted(Vec<f64>);

impl Sorted {
    fn replace(&mut self, old: Option<f64>, new: Option<f64>) {
        if let Some(Ok(at)) = old.map(|old| self.find(old)) {
            self.0.remove(at);
        }
        if let Some(new) = new {
            let at = self.find(new).unwrap_or_else(|at| at);
            self.0.insert(at, new);
        }
    }

    fn find(&self, value: f64) -> Result<usize, usize> {
        self.0.binary_search_by(|known| known.total_cmp(&value))
    }

    fn median_or(&self, assumed: f64) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(assumed)
    }
}

/// Weight of the newest bandwidth sample: three or four samples change the estimate fully.
const BANDWIDTH_GAIN: f64 = 0.3;

impl Links {
    /// Returns how many round trips to `peer` have been measured, including this one.
    pub fn on_round_trip(&mut self, peer: NodeId, seconds: f64) -> u32 {
        let link = self.peers.entry(peer).or_default();
        let known = link.latency_s;
        link.latency_s = Some(known.map_or(seconds / 2.0, |least| least.min(seconds / 2.0)));
        if link.latency_s != known {
            self.latencies.replace(known, link.latency_s);
        }
        link.round_trips = link.round_trips.saturating_add(1);
        link.round_trips
    }

    pub fn on_bandwidth(&mut self, peer: NodeId, bytes_per_s: u64) {
        let known = &mut self.peers.entry(peer).or_default().bytes_per_s;
        let sample = bytes_per_s.max(1) as f64;
        let old = *known;
        *known = Some(old.map_or(sample, |old| old + BANDWIDTH_GAIN * (sample - old)));
        self.bandwidths.replace(old, *known);
    }

    /// A small object was sent with an answer.
    pub fn on_answer(&mut self, now: Duration, bytes: u64) {
        let (_, bytes_per_s) = self.typical();
        let carried = self.answers_until.max(now) + Duration::from_secs_f64(bytes as f64 / bytes_per_s);
        self.answers_until = carried.min(now + ANSWERS_AHEAD_MAX);
    }

    pub fn forget(&mut self, peer: NodeId) {
        if let Some(link) = self.peers.remove(&peer) {
            self.latencies.replace(link.latency_s, None);
            self.bandwidths.replace(link.bytes_per_s, None);
        }
    }

    /// Medians over the peers that were measured.
    pub fn typical(&self) -> (f64, f64) {
        (self.latencies.median_or(LATENCY_ASSUMED_S), self.bandwidths.median_or(BANDWIDTH_ASSUMED))
    }

    pub fn report(&self) -> Vec<Link> {
        let link = |(&peer, link): (&NodeId, &Measured)| Link {
            peer,
            latency_ns: (link.latency_s.unwrap_or(0.0) * 1e9) as u64,
            bytes_per_s: link.bytes_per_s.unwrap_or(0.0) as u64,
        };
        self.peers.iter().map(link).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_objects_want_a_chain_small_ones_a_tree_tiny_ones_a_star() {
        let (latency, bandwidth) = (100e-6, 1e9);
        assert_eq!(best_degree(8, 64 << 20, latency, bandwidth), Degree::Chain);
        assert_eq!(best_degree(64, 1 << 20, latency, bandwidth), Degree::Binary);
        assert_eq!(best_degree(4, 10 << 10, latency, bandwidth), Degree::Star);
        assert_eq!(best_degree(1, 1, latency, bandwidth), Degree::Star);
    }

    #[test]
    fn stripes_pay_for_large_objects_whose_sources_come_together() {
        let (latency, bandwidth) = (100e-6, 60e6);
        assert!(stripes_pay(8, 32 << 20, 0.0, latency, bandwidth));
        assert!(!stripes_pay(8, 256 << 10, 0.0, latency, bandwidth), "too small");
        assert!(!stripes_pay(200, 32 << 20, 0.0, latency, bandwidth), "too many slots");
        let saved = (32 << 20) as f64 / bandwidth / 4.0;
        assert!(!stripes_pay(8, 32 << 20, saved, latency, bandwidth), "too late");
    }

    #[test]
    fn only_objects_cheaper_than_a_hop_fan_out() {
        assert_eq!(fanout(1 << 20, 100e-6, 1e9), 1);
        assert_eq!(fanout(50_000, 100e-6, 1e9), 2);
        assert_eq!(fanout(0, 100e-6, 1e9), 8);
    }

    #[test]
    fn small_objects_fill_a_link_for_as_long_as_it_takes_and_not_for_ever() {
        let ms = Duration::from_millis;
        let mut links = Links::default();
        links.on_answer(ms(10), (BANDWIDTH_ASSUMED / 1e3) as u64);
        links.on_answer(ms(10), (BANDWIDTH_ASSUMED / 1e3) as u64);
        assert_eq!(links.answers_until, ms(12));
        links.on_answer(ms(20), 0);
        assert_eq!(links.answers_until, ms(20));
        let peer = NodeId { addr: ([127, 0, 0, 1], 1).into(), incarnation: 0 };
        links.on_bandwidth(peer, 0);
        links.on_answer(ms(20), 1 << 16);
        assert_eq!(links.answers_until, ms(20) + ANSWERS_AHEAD_MAX);
    }

    #[test]
    fn many_small_sources_are_too_much_for_one_link() {
        let bandwidth = 125e6;
        assert_eq!(small_sum_bytes_max(2, bandwidth), limits::INLINE_BYTES_MAX);
        assert!(small_sum_bytes_max(8, bandwidth) >= 32 << 10);
        assert!(small_sum_bytes_max(12, bandwidth) < 32 << 10);
        assert!(small_sum_bytes_max(64, bandwidth) >= 1 << 10);
        assert_eq!(small_sum_bytes_max(0, bandwidth), limits::INLINE_BYTES_MAX);
    }

    #[test]
    fn latency_keeps_the_least_bandwidth_the_recent() {
        let peer = NodeId { addr: ([127, 0, 0, 1], 1).into(), incarnation: 0 };
        let mut links = Links::default();
        links.on_round_trip(peer, 200e-6);
        links.on_round_trip(peer, 900e-6);
        links.on_bandwidth(peer, 1000);
        links.on_bandwidth(peer, 2000);
        assert_eq!(links.typical(), (100e-6, 1300.0));
        links.forget(peer);
        assert_eq!(links.typical(), (LATENCY_ASSUMED_S, BANDWIDTH_ASSUMED));
    }

    #[test]
    fn what_is_typical_is_the_median_whoever_comes_and_goes() {
        let peer = |n: u8| NodeId { addr: ([10, 0, 0, n], 1).into(), incarnation: 0 };
        let mut links = Links::default();
        for (n, seconds, bytes_per_s) in [(1, 4e-3, 100), (2, 2e-3, 900), (3, 8e-3, 500), (2, 6e-3, 900)] {
            links.on_round_trip(peer(n), seconds);
            links.on_bandwidth(peer(n), bytes_per_s);
        }
        assert_eq!(links.typical(), (2e-3, 500.0));
        links.forget(peer(2));
        links.on_bandwidth(peer(1), 1100);
        assert_eq!(links.typical(), (4e-3, 500.0), "of 4 and 2 ms; of 500 and 400 bytes per second");
        links.forget(peer(1));
        links.forget(peer(3));
        assert_eq!(links.typical(), (LATENCY_ASSUMED_S, BANDWIDTH_ASSUMED));
    }
}

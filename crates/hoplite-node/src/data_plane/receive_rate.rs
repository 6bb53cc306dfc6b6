//! Measures the rate of an incoming transfer, without the time that its sender waited for its own upstream.

use std::time::{Duration, Instant};

use hoplite_core::io::Input;
use hoplite_types::NodeId;

/// Shorter transfers tell more about latency than about rate.
const MEASURED_BYTES_MIN: u64 = 256 << 10;

/// A longer gap means that the sender had nothing to send. So links whose grains take longer than this (13 MB/s and
/// slower) are measured as too fast. Otherwise every relayed transfer would be measured as too slow.
const FLOW_GAP_MAX: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct ReceiveRate {
    last: Option<Instant>,
    flowing: Duration,
    bytes: u64,
}

impl ReceiveRate {
    pub(super) fn new() -> Self {
        ReceiveRate { last: None, flowing: Duration::ZERO, bytes: 0 }
    }

    /// `bytes` were read at `now`. The bytes that end a gap are not counted either, since they may have piled up
    /// during it.
    pub(super) fn on_read(&mut self, now: Instant, bytes: usize) {
        if let Some(gap) = self.last.map(|last| now.duration_since(last)) {
            if gap <= FLOW_GAP_MAX {
                self.flowing += gap;
                self.bytes += bytes as u64;
            }
        }
        self.last = Some(now);
    }

    /// The measurement of the link from `peer` so far.
    pub(super) fn measured(&self, peer: NodeId) -> Option<Input> {
        if self.bytes < MEASURED_BYTES_MIN || self.flowing.is_zero() {
            return None;
        }
        let bytes_per_s = (self.bytes as f64 / self.flowing.as_secs_f64()) as u64;
        Some(Input::Measured { peer, bytes_per_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> NodeId {
        NodeId { addr: "127.0.0.1:1".parse().unwrap(), incarnation: 1 }
    }

    #[test]
    fn silences_do_not_count() {
        let start = Instant::now();
        let mut receive_rate = ReceiveRate::new();
        let mut now = start;
        receive_rate.on_read(now, 1 << 20);
        for _ in 0..10 {
            now += Duration::from_millis(10);
            receive_rate.on_read(now, 1 << 20);
        }
        now += Duration::from_secs(5);
        receive_rate.on_read(now, 1 << 20);
        let Some(Input::Measured { bytes_per_s, .. }) = receive_rate.measured(peer()) else {
            panic!("{receive_rate:?}")
        };
        assert_eq!(bytes_per_s, 100 << 20);
    }

    #[test]
    fn a_short_transfer_is_no_measurement() {
        let mut receive_rate = ReceiveRate::new();
        let start = Instant::now();
        receive_rate.on_read(start, 1000);
        receive_rate.on_read(start + Duration::from_millis(1), 1000);
        assert_eq!(receive_rate.measured(peer()), None);
    }
}

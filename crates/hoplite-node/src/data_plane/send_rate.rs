//! Measures the rate of an outgoing transfer, where the network limited it.

use std::time::{Duration, Instant};

use hoplite_core::io::{Input, SendId};

/// A transfer that waited for its own upstream for more than this share of its time tells nothing about the network
/// behind it. Its bytes went straight into the socket's buffer.
const WAITED_SHARE_MAX: f64 = 0.125;

#[derive(Debug)]
pub(super) struct SendRate {
    began: Instant,
    waited: Duration,
}

impl SendRate {
    pub(super) fn new(now: Instant) -> Self {
        SendRate { began: now, waited: Duration::ZERO }
    }

    /// Adds time in which there were no bytes to send.
    pub(super) fn on_waited(&mut self, time: Duration) {
        self.waited += time;
    }

    /// The measurement for the core, when the kernel has taken `bytes`.
    pub(super) fn measured(&self, now: Instant, send: SendId, bytes: u64) -> Option<Input> {
        let took = now.duration_since(self.began);
        if took.is_zero() || self.waited > took.mul_f64(WAITED_SHARE_MAX) {
            return None;
        }
        let bytes_per_s = (bytes as f64 / (took - self.waited).as_secs_f64()) as u64;
        Some(Input::SendMeasured { send, bytes, bytes_per_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send_rate(waited_ms: u64) -> Option<Input> {
        let began = Instant::now();
        let mut send_rate = SendRate::new(began);
        send_rate.on_waited(Duration::from_millis(waited_ms));
        send_rate.measured(began + Duration::from_millis(1000), SendId(1), 9000)
    }

    #[test]
    fn waiting_does_not_count_and_too_much_of_it_is_no_measurement() {
        let measured = |bytes_per_s| Some(Input::SendMeasured { send: SendId(1), bytes: 9000, bytes_per_s });
        assert_eq!(send_rate(0), measured(9000));
        assert_eq!(send_rate(100), measured(10_000));
        assert_eq!(send_rate(500), None);
    }
}

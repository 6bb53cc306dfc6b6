//! Busy-polling for a short time after an event, if the next one usually follows soon.
//!
//! Waking a thread on a sleeping processor can take longer than a message's round trip. So the control thread checks
//! its sockets repeatedly before it sleeps, and yields the processor after each check. It polls only while that pays:
//! not across longer gaps, and never on an idle node.

use std::time::{Duration, Instant};

/// Decides when the thread polls instead of sleeping.
#[derive(Debug)]
pub(crate) struct Polling {
    /// Longest time to poll for the next event; zero turns polling off.
    longest: Duration,
    last: Option<Instant>,
    awake_until: Option<Instant>,
}

impl Polling {
    pub(crate) fn new(longest: Duration) -> Self {
        Polling { longest, last: None, awake_until: None }
    }

    /// Records an event that another one may follow.
    pub(crate) fn happened(&mut self, now: Instant) {
        let soon = self.last.is_some_and(|last| now.saturating_duration_since(last) < self.longest);
        self.awake_until = soon.then(|| now + self.longest);
        self.last = Some(now);
    }

    /// Whether to poll again rather than sleep.
    pub(crate) fn pays(&mut self) -> bool {
        self.awake_until = self.awake_until.filter(|&until| Instant::now() < until);
        self.awake_until.is_some()
    }
}

/// Yields the processor to other threads, then lets the runtime check its sockets.
pub(crate) async fn look_again() {
    std::thread::yield_now();
    tokio::task::yield_now().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(100);

    #[test]
    fn polling_goes_on_while_events_follow_each_other() {
        let mut polling = Polling::new(LONGEST);
        assert!(!polling.pays());
        let mut now = Instant::now();
        polling.happened(now);
        assert!(!polling.pays(), "nothing says yet that more follows");
        now += LONGEST / 2;
        polling.happened(now);
        assert!(polling.pays());
        now += LONGEST;
        polling.happened(now);
        assert!(!polling.pays(), "it came too late to be waited for");
    }

    #[test]
    fn polling_can_be_turned_off() {
        let mut polling = Polling::new(Duration::ZERO);
        polling.happened(Instant::now());
        polling.happened(Instant::now());
        assert!(!polling.pays());
    }
}

//! Busy-polling for a short time after an event, if the next one usually follows soon.
//!
//! Waking a thread on a sleeping processor can take longer than a message's round trip. So the control thread checks
//! its sockets repeatedly before it sleeps, and yields the processor after each check. It polls only while that pays:
//! not across longer gaps, and never on an idle node.

use std::time::{Duration, Instant};

/// When the thread should stay awake.
#[derive(Debug)]
pub(crate) struct Polling {
    /// Longest time to stay awake for what follows; zero is not at all.
    longest: Duration,
    last: Option<Instant>,
    awake_until: Option<Instant>,
}

impl Polling {
    pub(crate) fn new(longest: Duration) -> Self {
        Polling { longest, last: None, awake_until: None }
    }

    /// Something happened that more of its kind may follow.
    pub(crate) fn happened(&mut self, now: Instant) {
        let soon = self.last.is_some_and(|last| now.saturating_duration_since(last) < self.longest);
        self.awake_until = soon.then(|| now + self.longest);
        self.last = Some(now);
    }

    /// Whether to look again rather than to sleep.
    pub(crate) fn pays(&mut self) -> bool {
        self.awake_until = self.awake_until.filter(|&until| Instant::now() < until);
        self.awake_until.is_some()
    }
}

/// Lets others have the processor, then has the runtime look at its sockets.
pub(crate) async fn look_again() {
    std::thread::yield_now();
    tokio::task::yield_now().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(100);

    #[test]
    fn it_polls_while_one_thing_follows_the_other() {
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
    fn it_can_be_turned_off() {
        let mut polling = Polling::new(Duration::ZERO);
        polling.happened(Instant::now());
        polling.happened(Instant::now());
        assert!(!polling.pays());
    }
}

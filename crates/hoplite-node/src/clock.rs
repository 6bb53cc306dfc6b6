//! The core's clock: time since the start of the daemon. It can be held back.

use std::time::{Duration, Instant};

/// Time since the start of the daemon. The clock can be held: then the core gets queued datagrams and messages with a
/// time just before the deadline that has come. The core runs its due timers at every input, so without this it would
/// act before it has all of those messages.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// The last time that the core was given. The time never goes back.
    told: Duration,
    held: Option<Duration>,
    /// The last reported pause: the deadline since which this process did not run, and the length.
    stood_still: (Duration, Duration),
}

impl Clock {
    pub(crate) fn new() -> Self {
        Clock { started: Instant::now(), told: Duration::ZERO, held: None, stood_still: Default::default() }
    }

    /// The time to give to the core.
    pub(crate) fn now(&mut self) -> Duration {
        let now = self.held.unwrap_or_else(|| self.started.elapsed());
        self.told = self.told.max(now);
        self.told
    }

    /// Whether `deadline` has come and the core may learn of it.
    pub(crate) fn has_come(&self, deadline: Duration) -> bool {
        self.held.is_none() && deadline <= self.started.elapsed()
    }

    /// How long this process has not run since `deadline` came, for a report to the core. Zero if about the same
    /// pause was reported before: the core learns only afterwards that the deadline has come.
    pub(crate) fn stood_still(&mut self, deadline: Duration) -> Duration {
        let time = self.started.elapsed().saturating_sub(deadline);
        let (of, told) = self.stood_still;
        if of == deadline && time < told * 2 {
            return Duration::ZERO;
        }
        self.stood_still = (deadline, time);
        time
    }

    /// Holds the clock just before `deadline`, or now if that has not come, until [`Clock::go_on`].
    pub(crate) fn hold_before(&mut self, deadline: Duration) {
        let before = deadline.saturating_sub(Duration::from_nanos(1));
        self.held = Some(before.min(self.started.elapsed()));
    }

    pub(crate) fn go_on(&mut self) {
        self.held = None;
    }

    /// Converts `at` to the system's clock.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        self.started + at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_clock_stays_before_the_deadline_and_never_goes_back() {
        let mut clock = Clock::new();
        let before = clock.now();
        let deadline = before + Duration::from_nanos(1);
        while !clock.has_come(deadline) {}
        clock.hold_before(deadline);
        assert!(!clock.has_come(deadline));
        assert_eq!(clock.now(), before);
        clock.hold_before(Duration::ZERO);
        assert_eq!(clock.now(), before);
        clock.hold_before(Duration::MAX);
        let now = clock.now();
        assert!(now >= deadline && now < Duration::from_secs(3600), "{now:?}");
        assert_eq!(clock.now(), now);
        clock.go_on();
        assert!(clock.now() >= deadline);
    }

    #[test]
    fn one_pause_is_reported_once() {
        let mut clock = Clock::new();
        std::thread::sleep(Duration::from_millis(20));
        let first = clock.stood_still(Duration::from_millis(1));
        assert!(first >= Duration::from_millis(19), "{first:?}");
        clock.stood_still = (Duration::from_millis(1), first * 100);
        assert_eq!(clock.stood_still(Duration::from_millis(1)), Duration::ZERO);
        // It continued while it was catching up.
        clock.stood_still = (Duration::from_millis(1), first / 2);
        assert!(clock.stood_still(Duration::from_millis(1)) >= first);
        assert!(clock.stood_still(Duration::from_millis(2)) > Duration::ZERO, "of another pause");
    }
}

//! The cluster's clock. Its stamps order the decisions of owners that know nothing of each other.
//!
//! Each node counts on from its own wall clock at its start, and jumps forward whenever it receives a later time. So
//! all members soon agree on the fastest clock among them, and a step back of one does no harm.

use std::time::Duration;

use hoplite_types::Stamp;

/// A stamp further ahead than this, a year, is not credible.
const AHEAD_MAX_MS: u64 = 366 * 24 * 3600 * 1000;

#[derive(Debug)]
pub(crate) struct Clock {
    /// Cluster time at `Duration::ZERO` of this core.
    base_ms: u64,
    last: Stamp,
}

impl Clock {
    pub fn new(wall_ms: u64) -> Self {
        Clock { base_ms: wall_ms, last: Stamp::from_ms(0) }
    }

    fn now_ms(&self, now: Duration) -> u64 {
        self.base_ms + now.as_millis() as u64
    }

    /// A stamp later than every other that was taken or received here.
    pub fn tick(&mut self, now: Duration) -> Stamp {
        self.last = Stamp(self.last.0 + 1).max(Stamp::from_ms(self.now_ms(now)));
        self.last
    }

    /// The current time, without taking a stamp.
    pub fn read(&self, now: Duration) -> Stamp {
        self.last.max(Stamp::from_ms(self.now_ms(now)))
    }

    /// Takes note of a stamp received from another node.
    pub fn observe(&mut self, now: Duration, stamp: Stamp) {
        let ahead = stamp.ms().saturating_sub(self.now_ms(now));
        if ahead <= AHEAD_MAX_MS {
            self.base_ms += ahead;
            self.last = self.last.max(stamp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn every_stamp_is_later_than_the_last() {
        let mut clock = Clock::new(1_000_000);
        let first = clock.tick(SECOND);
        assert_eq!(first.ms(), 1_001_000);
        assert!(clock.tick(SECOND) > first);
    }

    #[test]
    fn a_clock_that_lags_behind_catches_up() {
        let mut clock = Clock::new(1_000);
        let theirs = Stamp::from_ms(3_600_000);
        clock.observe(SECOND, theirs);
        assert!(clock.tick(SECOND) > theirs);
        assert_eq!(clock.tick(2 * SECOND).ms(), 3_601_000, "and goes on at its own rate");
        clock.observe(2 * SECOND, Stamp::from_ms(0));
        assert_eq!(clock.read(2 * SECOND).ms(), 3_601_000);
    }

    #[test]
    fn absurd_times_are_not_believed() {
        let mut clock = Clock::new(1_000);
        clock.observe(SECOND, Stamp(u64::MAX));
        assert_eq!(clock.tick(SECOND).ms(), 2_000);
    }
}

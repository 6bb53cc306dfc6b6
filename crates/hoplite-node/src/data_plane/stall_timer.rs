//! Measures how long a stream has brought nothing.

use std::future::Future;
use std::pin::{pin, Pin};
use std::time::{Duration, Instant};

use tokio::time::{sleep, Sleep};

/// Watches one stream. It is checked when a timer fires, and updated at each read, so that it costs nothing per byte.
#[derive(Debug)]
pub(super) struct StallTimer {
    since: Instant,
    reports: u32,
}

impl StallTimer {
    /// Starts now.
    pub(super) fn new(now: Instant) -> Self {
        StallTimer { since: now, reports: 0 }
    }

    /// Bytes came, or could not have come before `now`.
    pub(super) fn restart(&mut self, now: Instant) {
        *self = StallTimer::new(now);
    }

    /// When to check again.
    pub(super) fn due(&self, after: Duration) -> Instant {
        self.since + after.saturating_mul(self.reports + 1)
    }

    /// Whether another `after` has passed without bytes. A late check proves nothing: this thread did not run
    /// (paused, starved), and perhaps the sender's did not either. Then the timer restarts.
    pub(super) fn is_reportable(&mut self, now: Instant, after: Duration) -> bool {
        let Some(late) = now.checked_duration_since(self.due(after)) else { return false };
        if late > after / 2 {
            self.restart(now);
            return false;
        }
        self.reports += 1;
        true
    }
}

/// The stall timer of a stream that has a task of its own.
#[derive(Debug)]
pub(super) struct StallWatch {
    stall_timer: StallTimer,
    after: Duration,
    /// Set again only after it has fired, so at most once per `after`, however many bytes come.
    alarm: Pin<Box<Sleep>>,
}

impl StallWatch {
    /// Starts now. Must be called inside the runtime that will wait.
    pub(super) fn new(after: Duration) -> Self {
        StallWatch { stall_timer: StallTimer::new(Instant::now()), after, alarm: Box::pin(sleep(after)) }
    }

    pub(super) fn on_read(&mut self, now: Instant) {
        self.stall_timer.restart(now);
    }

    /// Waits for `brought`. Calls `report` each time that another `after` has passed without bytes.
    pub(super) async fn over<T>(&mut self, brought: impl Future<Output = T>, report: impl Fn()) -> T {
        let mut brought = pin!(brought);
        loop {
            tokio::select! {
                biased;
                brought = &mut brought => return brought,
                () = &mut self.alarm => {
                    if self.stall_timer.is_reportable(Instant::now(), self.after) {
                        report();
                    }
                    self.alarm.as_mut().reset(self.stall_timer.due(self.after).into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: Duration = Duration::from_secs(1);

    #[test]
    fn a_stall_is_reported_once_each_period_until_a_byte_comes() {
        let start = Instant::now();
        let mut stall_timer = StallTimer::new(start);
        let ms = |ms| start + Duration::from_millis(ms);
        assert!(!stall_timer.is_reportable(ms(999), AFTER));
        assert!(stall_timer.is_reportable(ms(1010), AFTER));
        assert!(!stall_timer.is_reportable(ms(1999), AFTER));
        assert!(stall_timer.is_reportable(ms(2010), AFTER));
        stall_timer.restart(ms(2500));
        assert!(!stall_timer.is_reportable(ms(3499), AFTER));
        assert!(stall_timer.is_reportable(ms(3500), AFTER));
    }

    #[test]
    fn time_without_a_look_does_not_count() {
        let start = Instant::now();
        let mut stall_timer = StallTimer::new(start);
        let woken = start + Duration::from_secs(60);
        assert!(!stall_timer.is_reportable(woken, AFTER));
        assert!(!stall_timer.is_reportable(woken + AFTER / 2, AFTER));
        assert!(stall_timer.is_reportable(woken + AFTER, AFTER));
    }
}

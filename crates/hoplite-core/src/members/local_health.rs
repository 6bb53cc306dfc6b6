//! Extends the deadlines of other members by the time that this process did not run, or heard nobody.

use std::time::Duration;

use super::Members;

/// Timers that come this late mean that we did not run (paused, starved): what we did not hear meanwhile
/// is nobody else's silence. Above what a busy scheduler does to a thread that sleeps most of the time.
const LATE_AFTER: Duration = Duration::from_millis(20);

/// Probe periods without a word from anybody after which it is we who are isolated: what we thought of the others
/// meanwhile is worth nothing once we hear one of them again.
pub(super) const ISOLATED_AFTER: u32 = 2;

impl Members {
    /// Puts every timer off by the time that we did not run: probes and suspects get the whole of theirs
    /// from when we can hear their answers again. That time does not count as isolation either, or it would be excused
    /// twice, and who runs only now and then would never come to an end with anybody.
    pub(super) fn excuse_pause(&mut self, now: Duration) {
        let Some((&(due, _), _)) = self.timers.first_key_value() else { return };
        let late = now.saturating_sub(due);
        if late >= LATE_AFTER {
            self.last_heard = (self.last_heard + late).min(now);
            self.postpone(late);
        }
    }

    pub(super) fn postpone(&mut self, by: Duration) {
        let timers = std::mem::take(&mut self.timers);
        self.timers = timers.into_iter().map(|((due, number), timer)| ((due + by, number), timer)).collect();
    }
}

//! Extends the deadlines of other members by the time that this process did not run, or heard nobody.

use std::time::Duration;

use super::Members;

/// A timer this late means that this process did not run (paused, starved): messages that it missed meanwhile are no
/// evidence against other members. Longer than a busy scheduler delays a thread that sleeps most of the time.
const LATE_AFTER: Duration = Duration::from_millis(20);

/// Probe periods without any message after which this node counts as isolated. Its opinions of other members from
/// that time are void once it receives a message again.
pub(super) const ISOLATED_AFTER: u32 = 2;

impl Members {
    /// Postpones every timer by the time that this process did not run. So probed members and suspects get their full
    /// time from when their answers can be received again. That time does not count as isolation either. Otherwise it
    /// would be excused twice, and a process that runs only from time to time would never declare any member dead.
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

//! A caller's deadline, and its interrupt, which is polled while it waits.

use std::time::{Duration, Instant};

use hoplite_types::limits::TIMEOUT_MAX;
use hoplite_types::Result;

/// Longest time between two checks of the interrupt. A signal may come between a check and the sleep after it, or be
/// meant for a thread in a sleep that signals do not end. Nobody notices 50 ms after Ctrl-C, and twenty checks a
/// second cost nothing.
pub const INTERRUPT_EVERY: Duration = Duration::from_millis(50);

/// How much longer than the time-out the client waits. The node answers `TimedOut` itself, with diagnostics; this is
/// for a node that does not answer at all. A node on a host under full load still answers within it.
const NODE_GRACE: Duration = Duration::from_secs(2);

/// A check that a waiting call runs repeatedly. Its error ends the wait and is returned.
pub type Interrupt<'a> = &'a mut dyn FnMut() -> Result<()>;

pub(crate) struct Deadline<'a> {
    started: Instant,
    looked: Instant,
    at: Option<Instant>,
    interrupt: Interrupt<'a>,
}

impl<'a> Deadline<'a> {
    pub(crate) fn new(deadline: Option<Instant>, interrupt: Interrupt<'a>) -> Self {
        let now = Instant::now();
        Deadline { started: now, looked: now, at: deadline, interrupt }
    }

    /// The length of the next part of the wait; `None` once the time is up.
    pub(crate) fn stretch(&self) -> Option<Duration> {
        let Some(left) = self.left() else { return Some(INTERRUPT_EVERY) };
        (!left.is_zero()).then(|| left.min(INTERRUPT_EVERY))
    }

    /// The time left; `None` means no limit.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    /// Checks the interrupt if the last check was long ago.
    pub(crate) fn check_interrupt(&mut self) -> Result<()> {
        match self.is_check_due() {
            true => self.check_interrupt_now(),
            false => Ok(()),
        }
    }

    pub(crate) fn is_check_due(&self) -> bool {
        self.looked.elapsed() >= INTERRUPT_EVERY
    }

    /// Checks the interrupt: a signal arrived.
    pub(crate) fn check_interrupt_now(&mut self) -> Result<()> {
        self.looked = Instant::now();
        (self.interrupt)()
    }

    /// Lends the interrupt to a call within the call.
    pub(crate) fn interrupt(&mut self) -> Interrupt<'_> {
        self.interrupt
    }
}

/// The time at which `timeout` is over; `None` means no limit.
pub(crate) fn deadline_after(timeout: Option<Duration>) -> Option<Instant> {
    // A time-out beyond the range of the clock means no limit.
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// The time at which an answer is overdue, from a node that was given `timeout`; `None` means never.
pub fn overdue_at(timeout: Option<Duration>) -> Option<Instant> {
    deadline_after(timeout.and_then(|timeout| timeout.checked_add(NODE_GRACE)))
}

/// Converts a time-out for the wire: rounded up, and limited to what a node accepts.
pub fn milliseconds(timeout: Option<Duration>) -> Option<u64> {
    timeout.map(|timeout| {
        let timeout = timeout.min(TIMEOUT_MAX);
        u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).expect("TIMEOUT_MAX fits")
    })
}

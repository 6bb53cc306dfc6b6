//! A caller's deadline, and its interrupt, which is polled while it waits.

use std::time::{Duration, Instant};

use hoplite_types::Result;

/// Longest time between two looks at the interrupt: a signal may come between a look and the sleep
/// after it, or be meant for a thread that sleeps on something signals do not end. Nobody notices
/// 50 ms after Ctrl-C, and twenty looks a second cost nothing.
pub const INTERRUPT_EVERY: Duration = Duration::from_millis(50);

/// What a waiting call looks at: an error ends the wait and is returned.
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

    /// The next stretch of waiting; `None` once the time is up.
    pub(crate) fn stretch(&self) -> Option<Duration> {
        let Some(left) = self.left() else { return Some(INTERRUPT_EVERY) };
        (!left.is_zero()).then(|| left.min(INTERRUPT_EVERY))
    }

    /// What is left of the time; `None` is for ever.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    /// Looks at the interrupt if the last look was long ago.
    pub(crate) fn check_interrupt(&mut self) -> Result<()> {
        match self.is_check_due() {
            true => self.check_interrupt_now(),
            false => Ok(()),
        }
    }

    pub(crate) fn is_check_due(&self) -> bool {
        self.looked.elapsed() >= INTERRUPT_EVERY
    }

    /// A signal arrived.
    pub(crate) fn check_interrupt_now(&mut self) -> Result<()> {
        self.looked = Instant::now();
        (self.interrupt)()
    }

    /// Lends the interrupt to a call within the call.
    pub(crate) fn interrupt(&mut self) -> Interrupt<'_> {
        self.interrupt
    }
}

/// When `timeout` is over; `None` is for ever.
pub(crate) fn deadline_after(timeout: Option<Duration>) -> Option<Instant> {
    // A time-out beyond what the clock can say is no time-out.
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

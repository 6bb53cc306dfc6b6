//! A ticket: the right to the answer of one call.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hoplite_client::{Client, INTERRUPT_EVERY};
use hoplite_types::{Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::answer::{Answer, Question};
use crate::convert::timeout;
use crate::errors::{bad_argument, interruptible, to_py, Ended, Stop};

/// ```text
///            ┌───────────────┐ (time up: back)
/// Open ──wait──▶ Busy ──answer──▶ Settled ──wait──▶ Gone
///   └──────────────┴────cancel───────┴──────────────▶ Gone
/// ```
enum Phase {
    Open(hoplite_client::Ticket),
    /// A thread has taken the ticket to wait for it. If `awaited`, another thread waits for that to end.
    Busy {
        awaited: bool,
    },
    Settled(Result<Answer>),
    Gone,
}

/// A call under way. If it is dropped (or cancelled) before its answer was taken, the call is given up.
#[pyclass(frozen, module = "hoplite._hoplite")]
pub struct Ticket {
    client: Arc<Client>,
    question: Question,
    phase: Mutex<Phase>,
    /// Notified when `Busy` ends.
    bell: Condvar,
    limit: Option<Instant>,
    cancelled: Stop,
    closed: Stop,
}

/// The result of a limited wait.
enum Waited {
    Settled,
    /// The time was up first; the call goes on.
    Late(Error),
}

impl Ticket {
    pub fn new(
        ticket: hoplite_client::Ticket,
        question: Question,
        timeout: Option<Duration>,
        closed: Stop,
    ) -> Self {
        Ticket {
            client: ticket.client().clone(),
            question,
            phase: Mutex::new(Phase::Open(ticket)),
            bell: Condvar::new(),
            limit: hoplite_client::overdue_at(timeout),
            cancelled: Stop::default(),
            closed,
        }
    }

    // Never held while something needs the interpreter.
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_back(&self, phase: Phase) {
        // Notified only if a thread waits for it: each notification is a system call.
        if let Phase::Busy { awaited: true } = std::mem::replace(&mut *self.phase(), phase) {
            self.bell.notify_all();
        }
    }

    fn adopt(&self, reply: hoplite_types::client::Reply) -> Result<Answer> {
        Answer::adopt(&self.client, self.question, reply)
    }

    /// The phase of `ticket` now, whether it was waited for or not.
    fn looked_at(&self, mut ticket: hoplite_client::Ticket) -> Phase {
        match ticket.try_take() {
            Ok(None) => Phase::Open(ticket),
            Ok(Some(outcome)) => Phase::Settled(outcome.and_then(|reply| self.adopt(reply))),
            Err(error) => Phase::Settled(Err(error)),
        }
    }

    fn settle(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<Waited> {
        loop {
            let mut phase = self.phase();
            match std::mem::replace(&mut *phase, Phase::Busy { awaited: false }) {
                Phase::Open(ticket) => {
                    drop(phase);
                    return self.wait_for(py, ticket, deadline);
                }
                Phase::Busy { .. } => *phase = Phase::Busy { awaited: true },
                settled @ Phase::Settled(_) => {
                    *phase = settled;
                    return Ok(Waited::Settled);
                }
                Phase::Gone => {
                    *phase = Phase::Gone;
                    return Err(bad_argument("the answer was taken before, or the call cancelled"));
                }
            }
            drop(phase);
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(Waited::Late(Error::new(
                    ErrorKind::TimedOut,
                    "another thread still waits for it",
                )));
            }
            py.check_signals()?;
            py.detach(|| drop(self.bell.wait_timeout(self.phase(), INTERRUPT_EVERY)));
        }
    }

    fn wait_for(
        &self,
        py: Python<'_>,
        mut ticket: hoplite_client::Ticket,
        deadline: Option<Instant>,
    ) -> PyResult<Waited> {
        let outcome =
            interruptible(py, &[&self.cancelled, &self.closed], |interrupt| ticket.wait(deadline, interrupt));
        let error = match outcome {
            Ok(reply) => {
                self.put_back(Phase::Settled(self.adopt(reply)));
                return Ok(Waited::Settled);
            }
            Err(Ended::Raised(error)) => {
                self.put_back(self.looked_at(ticket));
                return Err(error);
            }
            Err(Ended::Failed(error)) => error,
        };
        // Is it the call's own error, or the wait's? After the latter the call is still open.
        match self.looked_at(ticket) {
            Phase::Open(ticket) => {
                self.put_back(Phase::Open(ticket));
                match error.kind {
                    ErrorKind::TimedOut => Ok(Waited::Late(error)),
                    _ => Err(to_py(error)),
                }
            }
            Phase::Settled(Err(taken)) if taken.kind == ErrorKind::BadArgument => {
                self.put_back(Phase::Settled(Err(error)));
                Ok(Waited::Settled)
            }
            settled => {
                self.put_back(settled);
                Ok(Waited::Settled)
            }
        }
    }
}

#[pymethods]
impl Ticket {
    /// Seconds from now after which `wait` gives up; None: never.
    #[getter]
    fn limit(&self) -> Option<f64> {
        self.limit.map(|limit| limit.saturating_duration_since(Instant::now()).as_secs_f64())
    }

    /// Whether `wait` would return or raise at once. Does not read the socket; `pump` does that.
    fn done(&self) -> bool {
        let mut phase = self.phase();
        let next = match std::mem::replace(&mut *phase, Phase::Gone) {
            Phase::Open(ticket) => self.looked_at(ticket),
            other => other,
        };
        let done = matches!(next, Phase::Settled(_) | Phase::Gone);
        *phase = next;
        done
    }

    /// Waits for the answer without taking it. False if it has not come within `timeout`.
    #[pyo3(signature = (timeout))]
    fn ready_within(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = self::timeout(timeout)?.and_then(|timeout| Instant::now().checked_add(timeout));
        Ok(matches!(self.settle(py, deadline)?, Waited::Settled))
    }

    /// Waits for the answer and takes it. If it raises, the call is over.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.settle(py, self.limit) {
            Ok(Waited::Settled) => {}
            Ok(Waited::Late(error)) => {
                self.cancel();
                return Err(to_py(error));
            }
            Err(error) => {
                self.cancel();
                return Err(error);
            }
        }
        let phase = std::mem::replace(&mut *self.phase(), Phase::Gone);
        match phase {
            Phase::Settled(Ok(answer)) => answer.into_py(py, &self.closed),
            Phase::Settled(Err(error)) => Err(to_py(error)),
            _ => Err(bad_argument("another thread took the answer, or cancelled the call")),
        }
    }

    /// Gives up the call. A thread that waits for it raises.
    fn cancel(&self) {
        self.cancelled.set();
        let mut phase = self.phase();
        if !matches!(*phase, Phase::Busy { .. }) {
            let given_up = std::mem::replace(&mut *phase, Phase::Gone);
            drop(phase);
            drop(given_up);
        }
    }
}

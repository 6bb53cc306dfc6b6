//! One call under way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_types::client::{Reply, Request};
use hoplite_types::{Error, ErrorKind, Result};

use crate::calls::{Lead, Step, StillOpen};
use crate::deadline::{Deadline, Interrupt};
use crate::link::Polled;
use crate::request::Subject;
use crate::Client;

/// The right to the answer of one call. Dropping it before the answer has come cancels the call; cancelling a seal
/// withdraws the object.
#[derive(Debug)]
pub struct Ticket {
    client: Arc<Client>,
    call: u64,
    subject: Subject,
    taken: bool,
}

impl Ticket {
    pub(crate) fn new(client: Arc<Client>, call: u64, subject: Subject) -> Self {
        Ticket { client, call, subject, taken: false }
    }

    /// Waits for the answer, until `deadline` (`None`: for ever). After an error of the wait itself (`TimedOut`, or
    /// the interrupt's) the call goes on, and may be waited for again.
    ///
    /// A [`Reply::View`] or [`Reply::Created`] taken here must go through [`crate::View::adopt`] or
    /// [`crate::Created::adopt`]. Otherwise it is never given back.
    ///
    /// # Errors
    /// The node's own error (`Reply::Failed`), `TimedOut`, `NodeUnreachable`, the interrupt's error.
    pub fn wait(&mut self, deadline: Option<Instant>, interrupt: Interrupt<'_>) -> Result<Reply> {
        self.client.check_process()?;
        self.check_untaken()?;
        let mut deadline = Deadline::new(deadline, interrupt);
        loop {
            let Some(stretch) = deadline.stretch() else {
                // An answer that arrived at the last moment still counts.
                return self.try_take()?.unwrap_or_else(|| Err(self.timed_out(deadline.waited())));
            };
            let unsent = self.client.link().has_unsent();
            match self.client.calls().step(self.call, stretch, unsent) {
                Step::Answered(reply) => {
                    self.taken = true;
                    return outcome(reply);
                }
                Step::Broken(error) => return Err(error),
                Step::Lead(lead) => {
                    if self.lead(&lead, &deadline) == Polled::Interrupted {
                        // The interrupt may run anything that a signal handler does, calls included.
                        drop(lead);
                        deadline.check_interrupt_now()?;
                    }
                }
                Step::Quiet if unsent => {
                    if self.client.link().poll_room(stretch) == Polled::Interrupted {
                        deadline.check_interrupt_now()?;
                    }
                    self.client.link().flush();
                }
                Step::Quiet => {}
            }
            deadline.check_interrupt()?;
        }
    }

    /// Reads for all threads until this call's answer is there, or until it is time to check the interrupt. Passing
    /// on the lead after each answer would wake a thread without need.
    fn lead(&self, lead: &Lead<'_>, deadline: &Deadline<'_>) -> Polled {
        while let Some(stretch) = deadline.stretch() {
            let polled = self.client.poll_socket(lead, stretch);
            if polled != Polled::Ready || self.client.calls().is_settled(self.call) || deadline.is_check_due()
            {
                return polled;
            }
        }
        Polled::Quiet
    }

    /// Takes the answer if it is there, without reading the socket ([`Client::pump`] does that). Otherwise as `wait`.
    pub fn try_take(&mut self) -> Result<Option<Result<Reply>>> {
        self.client.check_process()?;
        self.check_untaken()?;
        Ok(self.client.calls().take(self.call).map(|answer| {
            let reply = answer?;
            self.taken = true;
            outcome(reply)
        }))
    }

    /// The connection of the call.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    fn check_untaken(&self) -> Result<()> {
        match self.taken {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::BadArgument,
                format!("the answer to {} was taken before", self.subject),
            )),
        }
    }

    fn timed_out(&self, waited: Duration) -> Error {
        let message = format!(
            "{}: no answer from node {} in {:.1} s",
            self.subject,
            self.client.node(),
            waited.as_secs_f64()
        );
        Error { object: self.subject.id, ..Error::new(ErrorKind::TimedOut, message) }
    }
}

fn outcome(reply: Reply) -> Result<Reply> {
    match reply {
        Reply::Failed(error) => Err(error),
        reply => Ok(reply),
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.taken || self.client.check_process().is_err() {
            return;
        }
        match self.client.calls().forget(self.call) {
            Ok(Some(reply)) => self.client.discard(reply),
            Ok(None) => {}
            Err(StillOpen) => self.client.tell(Request::Cancel { call: self.call }),
        }
    }
}

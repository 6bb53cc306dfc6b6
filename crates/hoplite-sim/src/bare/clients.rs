//! One client per host, and its calls.

use std::time::Duration;

use hoplite_core::io::{ClientId, Input};
use hoplite_types::client::{Reply, Request};
use hoplite_types::CopyId;

use super::{Bare, BareEvent};

/// A call that was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call(u64);

pub(super) struct Answer {
    began: Duration,
    /// The time of the answer, and its copy or error.
    ended: Option<(Duration, Result<Option<CopyId>, String>)>,
}

/// Longest simulated time that calls may take.
const WITHIN: Duration = Duration::from_secs(600);

impl Bare {
    pub fn ask(&mut self, host: usize, request: Request) -> Call {
        self.calls += 1;
        let call = self.calls;
        self.answers.insert(call, Answer { began: self.now(), ended: None });
        self.feed(host, Input::Client { client: ClientId(host as u64), call, request });
        Call(call)
    }

    /// Runs until all calls are answered. Returns the time and the copy of each. An error if one failed.
    pub fn finish(&mut self, calls: &[Call]) -> Result<Vec<(Duration, Option<CopyId>)>, String> {
        let until = self.now() + WITHIN;
        let mut done = Vec::with_capacity(calls.len());
        for Call(call) in calls {
            while self.answers[call].ended.is_none() {
                self.step()?;
                if self.now() > until {
                    return Err(format!("a call is not answered within {WITHIN:?}"));
                }
            }
            let Answer { began, ended } = self.answers.remove(call).expect("just seen");
            let (at, outcome) = ended.expect("just seen");
            done.push((at - began, outcome?));
        }
        Ok(done)
    }

    /// Runs until this call is answered. Returns its time.
    pub fn call(&mut self, host: usize, request: Request) -> Result<Duration, String> {
        let call = self.ask(host, request);
        Ok(self.finish(&[call])?[0].0)
    }

    pub(super) fn on_reply(&mut self, index: usize, client: ClientId, call: u64, reply: Reply) {
        let outcome = match reply {
            Reply::Failed(error) => Err(error.to_string()),
            Reply::Created { copy, .. } => Ok(Some(copy)),
            Reply::View { copy, .. } => {
                // Clients release their views at once.
                let request = Request::Release { copy };
                let input = Input::Client { client, call: 0, request };
                self.queue.push(self.now(), BareEvent::Report(index, Box::new(input)));
                Ok(Some(copy))
            }
            _ => Ok(None),
        };
        let now = self.now();
        if let Some(answer) = self.answers.get_mut(&call) {
            answer.ended = Some((now, outcome));
        }
    }
}

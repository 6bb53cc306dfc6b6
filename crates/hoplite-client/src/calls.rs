//! The table of calls under way: it wakes the thread that waits for an answer, and lets one thread read the socket
//! for all.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_types::client::{Answer, Reply};
use hoplite_types::Error;

/// ```text
/// register ──▶ Waiting ──deliver──▶ Answered ──take──▶ (gone)
///                 └───────────forget──────┴──────────▶ (gone)
/// ```
#[derive(Debug)]
enum Slot {
    /// `bell` wakes the thread that sleeps on this call, if there is one.
    Waiting {
        bell: Option<Arc<Condvar>>,
    },
    Answered(Reply),
}

#[derive(Debug, Default)]
struct Table {
    slots: BTreeMap<u64, Slot>,
    last: u64,
    /// A thread reads the socket and delivers the answers of all threads.
    led: bool,
    /// The reason why no answer will ever come again.
    broken: Option<Error>,
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    table: Mutex<Table>,
}

/// The next step of a waiting thread.
pub(crate) enum Step<'a> {
    Answered(Reply),
    Broken(Error),
    /// Read the socket until the thread's own answer is there, then drop this.
    Lead(Lead<'a>),
    /// No answer yet; another thread reads the socket.
    Quiet,
}

/// The right to read the socket. Dropping it passes the right to the next waiting thread.
pub(crate) struct Lead<'a> {
    calls: &'a Calls,
}

impl Calls {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a call whose answer a thread will wait for. Returns its number.
    pub(crate) fn register(&self) -> Result<u64, Error> {
        let mut table = self.table();
        if let Some(error) = &table.broken {
            return Err(error.clone());
        }
        table.last += 1;
        let call = table.last;
        table.slots.insert(call, Slot::Waiting { bell: None });
        Ok(call)
    }

    /// The number of a call whose answer is ignored.
    pub(crate) fn number(&self) -> u64 {
        let mut table = self.table();
        table.last += 1;
        table.last
    }

    /// Passes the reply to the thread that waits for it. Returns it if there is none.
    pub(crate) fn deliver(&self, answer: Answer) -> Option<Reply> {
        let mut table = self.table();
        let Some(slot @ Slot::Waiting { .. }) = table.slots.get_mut(&answer.call) else {
            return Some(answer.reply);
        };
        if let Slot::Waiting { bell: Some(bell) } = std::mem::replace(slot, Slot::Answered(answer.reply)) {
            bell.notify_one();
        }
        None
    }

    /// Takes the answer, if it is there.
    pub(crate) fn take(&self, call: u64) -> Option<Result<Reply, Error>> {
        self.table().take(call)
    }

    /// Whether `take` would return something.
    pub(crate) fn is_settled(&self, call: u64) -> bool {
        let table = self.table();
        table.broken.is_some() || matches!(table.slots.get(&call), Some(Slot::Answered(_)))
    }

    /// The answer is no longer awaited. Returns it if it has come already, or `Err` if not.
    pub(crate) fn forget(&self, call: u64) -> Result<Option<Reply>, StillOpen> {
        match self.table().slots.remove(&call) {
            Some(Slot::Answered(reply)) => Ok(Some(reply)),
            Some(Slot::Waiting { .. }) => Err(StillOpen),
            None => Ok(None),
        }
    }

    /// Fails every call from now on. The first reason stays.
    pub(crate) fn on_broken(&self, error: Error) {
        let mut table = self.table();
        table.broken.get_or_insert(error);
        for slot in table.slots.values() {
            if let Slot::Waiting { bell: Some(bell) } = slot {
                bell.notify_one();
            }
        }
    }

    pub(crate) fn broken(&self) -> Option<Error> {
        self.table().broken.clone()
    }

    /// The right to read the socket, if no thread has it.
    pub(crate) fn try_lead(&self) -> Option<Lead<'_>> {
        let mut table = self.table();
        let free = !std::mem::replace(&mut table.led, true);
        // Created only if it is returned: dropping one takes the lock that is held here.
        free.then(|| Lead { calls: self })
    }

    /// Returns the answer or the lead; or sleeps up to `stretch` (not at all if `awake`) while another thread leads.
    pub(crate) fn step(&self, call: u64, stretch: Duration, awake: bool) -> Step<'_> {
        let mut table = self.table();
        if let Some(step) = table.settled(call) {
            return step;
        }
        if !std::mem::replace(&mut table.led, true) {
            return Step::Lead(Lead { calls: self });
        }
        if awake {
            return Step::Quiet;
        }
        let bell = Arc::new(Condvar::new());
        table.slots.insert(call, Slot::Waiting { bell: Some(bell.clone()) });
        let (mut table, _) = bell.wait_timeout(table, stretch).unwrap_or_else(PoisonError::into_inner);
        if let Some(step) = table.settled(call) {
            return step;
        }
        table.slots.insert(call, Slot::Waiting { bell: None });
        match std::mem::replace(&mut table.led, true) {
            false => Step::Lead(Lead { calls: self }),
            true => Step::Quiet,
        }
    }
}

/// The call has no answer yet.
pub(crate) struct StillOpen;

impl Table {
    fn take(&mut self, call: u64) -> Option<Result<Reply, Error>> {
        match self.slots.get(&call) {
            Some(Slot::Answered(_)) => match self.slots.remove(&call) {
                Some(Slot::Answered(reply)) => Some(Ok(reply)),
                _ => unreachable!("it was answered a line ago"),
            },
            _ => self.broken.clone().map(Err),
        }
    }

    fn settled(&mut self, call: u64) -> Option<Step<'static>> {
        self.take(call).map(|outcome| match outcome {
            Ok(reply) => Step::Answered(reply),
            Err(error) => Step::Broken(error),
        })
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut table = self.calls.table();
        table.led = false;
        let sleeper = table.slots.values().find_map(|slot| match slot {
            Slot::Waiting { bell } => bell.as_ref(),
            Slot::Answered(_) => None,
        });
        if let Some(bell) = sleeper {
            bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Calls;

    #[test]
    fn only_one_thread_has_the_lead() {
        let calls = Calls::default();
        let lead = calls.try_lead();
        assert!(lead.is_some());
        assert!(calls.try_lead().is_none());
        assert!(calls.try_lead().is_none());
        drop(lead);
        assert!(calls.try_lead().is_some());
    }
}

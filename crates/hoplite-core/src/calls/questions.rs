//! Calls answered by the owners of their ids: delete and locate.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hoplite_types::client::{Location, Reply};
use hoplite_types::peer::DirectoryRequest;
use hoplite_types::{ErrorKind, ObjectId};

use super::{CallHandler, Calls, Pending};
use crate::io::ClientId;
use crate::timers::Timer;

/// Limit of questions asked in one turn, and the pause before the next turn.
const QUESTIONS_PER_TURN: usize = 256;
const QUESTIONS_PAUSE: Duration = Duration::from_micros(100);

/// Limit of one delete's unanswered questions; the rest of its ids wait.
const UNANSWERED_MAX: usize = 1024;

/// The state of a delete.
#[derive(Debug)]
pub(crate) struct Deletion {
    unasked: VecDeque<ObjectId>,
    /// The open questions, by their tokens.
    unanswered: BTreeMap<u64, ObjectId>,
}

impl Deletion {
    /// One of the ids that are not confirmed yet, and their number.
    pub fn unconfirmed(&self) -> (Option<ObjectId>, usize) {
        let first = self.unanswered.values().chain(&self.unasked).next().copied();
        (first, self.unanswered.len() + self.unasked.len())
    }

    pub fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.unanswered.keys().copied()
    }

    fn may_ask(&self) -> bool {
        !self.unasked.is_empty() && self.unanswered.len() < UNANSWERED_MAX
    }
}

impl CallHandler<'_> {
    pub fn on_delete(&mut self, client: ClientId, call: u64, ids: Vec<ObjectId>, timeout_ms: Option<u64>) {
        if ids.is_empty() {
            return self.reply(client, call, Reply::Done);
        }
        let deletion = Deletion { unasked: ids.into(), unanswered: BTreeMap::new() };
        self.open_call(client, call, timeout_ms, Pending::Delete(deletion));
        self.calls.deleting.push_back((client, call));
        self.ask_due_questions();
        self.ctx.arm_refresh();
    }

    /// Asks the next few of the questions that are due. Any number of ids may be deleted, and any number of gets may
    /// wait: asking for all of them at once would delay everything else.
    pub fn ask_due_questions(&mut self) {
        self.fetcher().repeat_some_asks(QUESTIONS_PER_TURN);
        let mut left = QUESTIONS_PER_TURN;
        while left > 0 {
            let Some(token) = self.calls.due.pop_first() else { break };
            left -= 1;
            if let Some((id, request)) = self.calls.question(token) {
                self.ctx.ask_owner(id, request, None);
            }
        }
        // Calls take turns: a short one does not wait for a long one.
        while left > 0 {
            let Some((client, call)) = self.calls.deleting.pop_front() else { break };
            left -= 1;
            if self.delete_next(client, call) {
                self.calls.deleting.push_back((client, call));
            }
        }
        if self.fetches.has_asks_to_repeat() || !self.calls.due.is_empty() || !self.calls.deleting.is_empty()
        {
            self.ctx.timers.set(self.ctx.now + QUESTIONS_PAUSE, Timer::Questions);
        }
    }

    /// Asks for the next id of the call; returns whether it may ask for more.
    fn delete_next(&mut self, client: ClientId, call: u64) -> bool {
        let token = self.ctx.next_number();
        let Some(deletion) = self.calls.deletion(client, call) else { return false };
        let Some(id) = deletion.unasked.pop_front() else { return false };
        deletion.unanswered.insert(token, id);
        let more = deletion.may_ask();
        self.calls.tokens.insert(token, (client, call));
        self.ctx.ask_owner(id, DirectoryRequest::Delete { token }, None);
        more
    }

    pub fn on_delete_done(&mut self, token: u64) {
        let Some((client, call)) = self.calls.tokens.remove(&token) else {
            // The call is over.
            return;
        };
        let Some(deletion) = self.calls.deletion(client, call) else {
            // The call is over.
            return;
        };
        let could_ask = deletion.may_ask();
        deletion.unanswered.remove(&token);
        if deletion.unconfirmed().1 == 0 {
            self.finish_call(client, call, Reply::Done);
        } else if !could_ask && deletion.may_ask() {
            self.calls.deleting.push_back((client, call));
            if !self.ctx.timers.is_set(Timer::Questions) {
                self.ctx.timers.set(self.ctx.now + QUESTIONS_PAUSE, Timer::Questions);
            }
        }
    }

    pub fn on_located(&mut self, token: u64, size: Option<u64>, copies: Vec<Location>, deleted: bool) {
        let Some((client, call)) = self.calls.tokens.remove(&token) else {
            // The call is over.
            return;
        };
        let id = match self.calls.pending(client, call) {
            Some(&Pending::Locate { id, .. }) => id,
            Some(Pending::Wait { .. }) => return self.on_poll_answered(client, call, token),
            _ => return,
        };
        if deleted {
            let message = format!("{}: {id} was deleted", self.ctx.me);
            return self.fail_call(client, call, ErrorKind::Deleted, &message);
        }
        self.finish_call(client, call, Reply::Located { size, copies });
    }
}

impl Calls {
    fn deletion(&mut self, client: ClientId, call: u64) -> Option<&mut Deletion> {
        match &mut self.table.get_mut(&(client, call))?.pending {
            Pending::Delete(deletion) => Some(deletion),
            _ => None,
        }
    }

    /// The object and request behind this token, if its call still waits.
    fn question(&self, token: u64) -> Option<(ObjectId, DirectoryRequest)> {
        match &self.table.get(self.tokens.get(&token)?)?.pending {
            Pending::Delete(deletion) => {
                Some((*deletion.unanswered.get(&token)?, DirectoryRequest::Delete { token }))
            }
            &Pending::Locate { id, token: own } if own == token => {
                Some((id, DirectoryRequest::Locate { token }))
            }
            _ => None,
        }
    }

    pub fn has_questions(&self) -> bool {
        self.tokens.keys().any(|&token| self.question(token).is_some())
    }

    /// Schedules the unanswered questions about these objects to be asked again.
    pub fn repeat_questions(&mut self, of: impl Fn(ObjectId) -> bool) {
        let is_open = |token: &u64| self.question(*token).is_some_and(|(id, _)| of(id));
        let open: Vec<_> = self.tokens.keys().copied().filter(is_open).collect();
        self.due.extend(open);
    }
}

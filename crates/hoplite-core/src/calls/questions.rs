//! Calls that the owners of their ids answer: delete and locate.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::client::{Location, Reply};
use hoplite_words::peer::DirectoryRequest;
use hoplite_words::{ErrorKind, ObjectId};

use super::{Calls, Pending};
use crate::io::ClientId;
use crate::timers::Timer;
use crate::Core;

/// Questions that one turn asks, and the pause before the next.
const QUESTIONS_PER_TURN: usize = 256;
const QUESTIONS_PAUSE: Duration = Duration::from_micros(100);

impl Core {
    pub(super) fn on_delete(
        &mut self,
        client: ClientId,
        call: u64,
        ids: Vec<ObjectId>,
        timeout_ms: Option<u64>,
    ) {
        if ids.is_empty() {
            return self.reply(client, call, Reply::Done);
        }
        let ids: BTreeSet<_> = ids.into_iter().collect();
        let tokens: BTreeMap<_, _> = ids.into_iter().map(|id| (self.next_number(), id)).collect();
        for &token in tokens.keys() {
            self.calls.tokens.insert(token, (client, call));
        }
        self.calls.due.extend(tokens.keys());
        self.open_call(client, call, timeout_ms, Pending::Delete { tokens });
        self.ask_due_questions();
        self.arm_refresh();
    }

    /// Asks the next few of the questions that are due: one call may delete as many ids as it likes, and nothing else
    /// is to wait for that.
    pub(crate) fn ask_due_questions(&mut self) {
        for _ in 0..QUESTIONS_PER_TURN {
            let Some(token) = self.calls.due.pop_first() else { return };
            if let Some((id, request)) = self.calls.question(token) {
                self.ask_owner(id, request, None);
            }
        }
        if !self.calls.due.is_empty() {
            self.ctx.timers.set(self.ctx.now + QUESTIONS_PAUSE, Timer::Questions);
        }
    }

    pub(crate) fn on_delete_done(&mut self, token: u64) {
        let Some((client, call)) = self.calls.tokens.remove(&token) else { return };
        let Some(state) = self.calls.table.get_mut(&(client, call)) else { return };
        let Pending::Delete { tokens } = &mut state.pending else { return };
        tokens.remove(&token);
        if tokens.is_empty() {
            self.finish_call(client, call, Reply::Done);
        }
    }

    pub(crate) fn on_located(&mut self, token: u64, size: Option<u64>, copies: Vec<Location>, deleted: bool) {
        let Some((client, call)) = self.calls.tokens.remove(&token) else { return };
        let id = match self.pending(client, call) {
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
    /// What the call behind this token wants to know of an owner, if it waits still.
    fn question(&self, token: u64) -> Option<(ObjectId, DirectoryRequest)> {
        match &self.table.get(self.tokens.get(&token)?)?.pending {
            Pending::Delete { tokens } => Some((*tokens.get(&token)?, DirectoryRequest::Delete { token })),
            &Pending::Locate { id, token: own } if own == token => {
                Some((id, DirectoryRequest::Locate { token }))
            }
            _ => None,
        }
    }

    pub fn has_questions(&self) -> bool {
        self.tokens.keys().any(|&token| self.question(token).is_some())
    }

    /// All that is unanswered of these objects is to be asked again.
    pub fn repeat_questions(&mut self, of: impl Fn(ObjectId) -> bool) {
        let is_open = |token: &u64| self.question(*token).is_some_and(|(id, _)| of(id));
        let open: Vec<_> = self.tokens.keys().copied().filter(is_open).collect();
        self.due.extend(open);
    }
}

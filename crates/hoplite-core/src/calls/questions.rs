//! Calls that the owners of their ids answer: delete and locate.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_words::client::{Location, Reply};
use hoplite_words::peer::DirectoryRequest;
use hoplite_words::{ErrorKind, ObjectId};

use super::Pending;
use crate::io::ClientId;
use crate::Core;

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
        let requests = tokens.clone();
        self.open_call(client, call, timeout_ms, Pending::Delete { tokens });
        for (token, id) in requests {
            self.ask_owner(id, DirectoryRequest::Delete { token }, None);
        }
        self.arm_refresh();
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

    /// Directory questions without an answer yet, to be asked again.
    pub(crate) fn open_questions(&self) -> Vec<(ObjectId, DirectoryRequest)> {
        let mut questions = Vec::new();
        for call in self.calls.table.values() {
            match &call.pending {
                Pending::Delete { tokens } => questions
                    .extend(tokens.iter().map(|(&token, &id)| (id, DirectoryRequest::Delete { token }))),
                &Pending::Locate { id, token } => questions.push((id, DirectoryRequest::Locate { token })),
                _ => {}
            }
        }
        questions
    }
}

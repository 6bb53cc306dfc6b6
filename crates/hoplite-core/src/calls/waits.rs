//! `wait`: the first few of many objects that are complete anywhere.

use std::collections::BTreeSet;

use hoplite_words::client::Reply;
use hoplite_words::{limits, ErrorKind, ObjectId};

use super::Pending;
use crate::io::ClientId;
use crate::subscriptions::Watcher;
use crate::Core;

impl Core {
    pub(super) fn on_wait(
        &mut self,
        client: ClientId,
        call: u64,
        ids: Vec<ObjectId>,
        count: u32,
        known_lost: Option<BTreeSet<ObjectId>>,
        timeout_ms: Option<u64>,
    ) {
        let distinct: BTreeSet<_> = ids.iter().copied().collect();
        let count = count as usize;
        if ids.len() > limits::IDS_MAX || distinct.len() < ids.len() || count > ids.len() {
            let message = format!("wait for {count} of {} ids ({} distinct)", ids.len(), distinct.len());
            return self.reply_error(client, call, ErrorKind::BadArgument, message);
        }
        let ready: BTreeSet<_> = ids.iter().copied().filter(|&id| self.copies.sealed(id).is_some()).collect();
        self.open_call(
            client,
            call,
            timeout_ms,
            Pending::Wait { ids: ids.clone(), count, ready, known_lost },
        );
        if self.answer_wait_if_enough(client, call) {
            return;
        }
        for id in ids {
            if self.pending(client, call).is_none() {
                // Answered by what others here watch already.
                return;
            }
            self.watch(id, Watcher::Call(client, call));
            self.on_waited_change(client, call, id);
        }
    }

    fn answer_wait_if_enough(&mut self, client: ClientId, call: u64) -> bool {
        let Some(Pending::Wait { ids, count, ready, .. }) = self.pending(client, call) else { return true };
        if ready.len() < *count {
            return false;
        }
        let ids = ids.iter().copied().filter(|id| ready.contains(id)).collect();
        self.finish_call(client, call, Reply::Ready { ids });
        true
    }

    /// A copy of a waited-for object came, grew complete or went.
    pub(crate) fn on_waited_change(&mut self, client: ClientId, call: u64, object: ObjectId) {
        let complete = self.subscriptions.copies(object).any(|(_, report)| report.complete);
        let Some(state) = self.calls.table.get_mut(&(client, call)) else { return };
        let Pending::Wait { ready, known_lost, .. } = &mut state.pending else { return };
        if complete {
            // Should it be lost once more, that is news.
            if let Some(known) = known_lost {
                known.remove(&object);
            }
            ready.insert(object);
            self.answer_wait_if_enough(client, call);
        }
    }

    /// The last complete copy of a waited-for object is gone, whether or not it was ready before.
    pub(crate) fn on_waited_lost(&mut self, client: ClientId, call: u64, object: ObjectId) {
        let Some(state) = self.calls.table.get_mut(&(client, call)) else { return };
        let Pending::Wait { ready, known_lost, .. } = &mut state.pending else { return };
        ready.remove(&object);
        if known_lost.as_ref().is_some_and(|known| !known.contains(&object)) {
            self.fail_lost(client, call, object);
        }
    }

    pub(crate) fn on_waited_deleted(&mut self, client: ClientId, call: u64, object: ObjectId) {
        let message = format!("{}: {object} was deleted while waited for", self.me);
        self.fail_call(client, call, ErrorKind::Deleted, &message);
    }
}

//! Calls of local clients that are not answered yet, and their time-outs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::client::{Location, Reply, Request};
use hoplite_words::peer::{DirectoryRequest, PeerMessage};
use hoplite_words::{limits, CopyId, Error, ErrorKind, ObjectId};

use crate::fetch::Want;
use crate::io::ClientId;
use crate::puts::Creation;
use crate::subscriptions::Watcher;
use crate::timers::Timer;
use crate::Core;

/// What a call waits for.
#[derive(Debug)]
pub(crate) enum Pending {
    /// Room, or the end of another writing of the object here.
    Create(Creation),
    /// The directory's verdict.
    Seal,
    Get {
        id: ObjectId,
        partial: bool,
        fail_if_lost: bool,
    },
    /// The owners' acknowledgements.
    Delete {
        tokens: BTreeMap<u64, ObjectId>,
    },
    Wait {
        ids: Vec<ObjectId>,
        count: usize,
        ready: BTreeSet<ObjectId>,
        /// Fails if another object than these is lost; `None`: waits on.
        known_lost: Option<BTreeSet<ObjectId>>,
    },
    Locate {
        id: ObjectId,
        token: u64,
    },
    Reduce {
        number: u64,
    },
}

#[derive(Debug)]
struct Call {
    since: Duration,
    pending: Pending,
}

/// What the core knows of a client connection.
#[derive(Debug, Default)]
pub(crate) struct Client {
    pub views: BTreeMap<CopyId, u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    table: BTreeMap<(ClientId, u64), Call>,
    /// Directory questions by token: which call asked.
    tokens: BTreeMap<u64, (ClientId, u64)>,
}

impl Core {
    pub(crate) fn on_request(&mut self, client: ClientId, call: u64, request: Request) {
        self.clients.entry(client).or_default();
        if self.calls.table.contains_key(&(client, call)) {
            let message = format!("call {call} is still open");
            return self.reply_error(client, call, ErrorKind::BadArgument, message);
        }
        match request {
            Request::Hello { .. } => {
                self.reply_error(client, call, ErrorKind::BadArgument, "a second Hello".to_owned());
            }
            Request::Create { id, size, header, timeout_ms } => {
                self.on_create(client, call, Creation { id, size, header, payload: None }, timeout_ms);
            }
            Request::PutSmall { id, header, payload, timeout_ms } => {
                let size = payload.0.len() as u64;
                let creation = Creation { id, size, header, payload: Some(payload) };
                self.on_create(client, call, creation, timeout_ms);
            }
            Request::Progress { copy, watermark } => self.on_progress(client, copy, watermark),
            Request::Seal { copy, timeout_ms } => self.on_seal(client, call, copy, timeout_ms),
            Request::Abort { copy } => self.on_abort(client, call, copy),
            Request::Get { id, timeout_ms, partial, fail_if_lost } => {
                self.open_call(client, call, timeout_ms, Pending::Get { id, partial, fail_if_lost });
                self.want(id, Want::Call(client, call));
                self.serve_partial_gets(id);
            }
            Request::Release { copy } => self.release_view(client, copy),
            Request::Delete { ids, timeout_ms } => self.on_delete(client, call, ids, timeout_ms),
            Request::Reduce { target, sources, num_objects, op, order, timeout_ms, to_sources } => {
                let ask = crate::reduce::Request { target, sources, k: num_objects, op, order, to_sources };
                self.on_reduce(client, call, ask, timeout_ms);
            }
            Request::Wait { ids, count, timeout_ms, fail_if_lost, known_lost } => {
                let known_lost = fail_if_lost.then(|| known_lost.into_iter().collect());
                self.on_wait(client, call, ids, count, known_lost, timeout_ms);
            }
            Request::Prefetch { ids, nodes } => {
                let nodes = if nodes.is_empty() { vec![self.me] } else { nodes };
                for &id in &ids {
                    // To ourselves too: messages to ourselves are handled like any other.
                    nodes.iter().for_each(|&node| self.send(node, PeerMessage::Prefetch { id }, None));
                }
                self.reply(client, call, Reply::Done);
            }
            Request::Locate { id, timeout_ms } => {
                let token = self.next_number();
                self.open_call(client, call, timeout_ms, Pending::Locate { id, token });
                self.calls.tokens.insert(token, (client, call));
                self.ask_owner(id, DirectoryRequest::Locate { token }, None);
                self.arm_refresh();
            }
            Request::Status => {
                let status = self.status();
                self.reply(client, call, Reply::Status(status));
            }
            Request::Cancel { call } => self.cancel_call(client, call),
        }
    }

    pub(crate) fn reply(&mut self, client: ClientId, call: u64, reply: Reply) {
        self.out.push_back(crate::Output::Reply { client, call, reply });
    }

    pub(crate) fn reply_error(&mut self, client: ClientId, call: u64, kind: ErrorKind, message: String) {
        self.reply(client, call, Reply::Failed(Error::new(kind, message)));
    }

    pub(crate) fn open_call(
        &mut self,
        client: ClientId,
        call: u64,
        timeout_ms: Option<u64>,
        pending: Pending,
    ) {
        if let Some(ms) = timeout_ms {
            let due = self.now + Duration::from_millis(ms).min(limits::TIMEOUT_MAX);
            self.timers.set(due, Timer::Call(client, call));
        }
        self.calls.table.insert((client, call), Call { since: self.now, pending });
    }

    pub(crate) fn pending(&self, client: ClientId, call: u64) -> Option<&Pending> {
        self.calls.table.get(&(client, call)).map(|call| &call.pending)
    }

    pub(crate) fn replace_pending(&mut self, client: ClientId, call: u64, pending: Pending) {
        if let Some(call) = self.calls.table.get_mut(&(client, call)) {
            call.pending = pending;
        }
    }

    /// Answers a call and forgets it; nothing happens if it was answered or cancelled before.
    pub(crate) fn finish_call(&mut self, client: ClientId, call: u64, reply: Reply) {
        if self.forget_call(client, call) {
            self.reply(client, call, reply);
        }
    }

    pub(crate) fn fail_call(&mut self, client: ClientId, call: u64, kind: ErrorKind, message: &str) {
        self.finish_call(client, call, Reply::Failed(Error::new(kind, message)));
    }

    fn forget_call(&mut self, client: ClientId, call: u64) -> bool {
        self.timers.clear(Timer::Call(client, call));
        let Some(Call { pending, .. }) = self.calls.table.remove(&(client, call)) else { return false };
        match pending {
            Pending::Create(Creation { id, .. }) => {
                self.unwant(id, Want::Call(client, call));
                self.room.retain(|what| *what != crate::room::RoomFor::Create { client, call });
            }
            Pending::Get { id, .. } => self.unwant(id, Want::Call(client, call)),
            Pending::Delete { tokens } => {
                for token in tokens.keys() {
                    self.calls.tokens.remove(token);
                }
            }
            Pending::Locate { token, .. } => {
                self.calls.tokens.remove(&token);
            }
            Pending::Wait { ids, .. } => {
                ids.into_iter().for_each(|id| self.unwatch(id, Watcher::Call(client, call)));
            }
            // Given up before it was answered: what was put must not come to be after all.
            Pending::Seal => {
                if let Some(copy) = self.writes.sealed_by(client, call) {
                    self.abandon_write(copy);
                }
            }
            Pending::Reduce { .. } => {}
        }
        true
    }

    fn cancel_call(&mut self, client: ClientId, call: u64) {
        if let Some(&Pending::Reduce { number }) = self.pending(client, call) {
            // Only its reply is not wanted; the target is.
            self.detach_reduction(number);
        }
        self.forget_call(client, call);
    }

    pub(crate) fn on_call_timer(&mut self, client: ClientId, call: u64) {
        let Some(state) = self.calls.table.get(&(client, call)) else { return };
        let waited = format!("{:.3} s", (self.now - state.since).as_secs_f64());
        let me = self.me;
        let (kind, message) = match &state.pending {
            Pending::Create(Creation { id, .. }) if self.copies.live(*id).is_some() => (
                ErrorKind::TimedOut,
                format!("{me}: {id} was still on its way here after {waited}: {}", self.story(*id)),
            ),
            Pending::Create(Creation { id, size, .. }) if self.copies.could_make_room(*size) => (
                ErrorKind::TimedOut,
                format!("{me}: {id} was in the way of its own put for {waited}: {}", self.story(*id)),
            ),
            Pending::Create(Creation { id, size, .. }) => (
                ErrorKind::StoreFull,
                format!(
                    "{me}: no room for {id} ({size} bytes) within {waited}: {} of {} bytes in use",
                    self.copies.arena.used(),
                    self.copies.arena.bytes()
                ),
            ),
            Pending::Seal => {
                let object = self.writes.sealed_by(client, call).map(|copy| self.copies.table[&copy].object);
                let what = object.map_or("the object".to_owned(), |id| id.to_string());
                let owner = object.map_or(me, |id| self.shards.owner(id));
                let message = format!(
                    "{me}: put of {what}: all bytes are written, but its directory owner {owner} did not accept it within {waited}"
                );
                (ErrorKind::TimedOut, message)
            }
            Pending::Get { id, .. } if state.since == self.now => {
                (ErrorKind::TimedOut, format!("{me}: {id} is not complete here: {}", self.story(*id)))
            }
            Pending::Get { id, .. } => (
                ErrorKind::TimedOut,
                format!("{me}: get of {id} timed out after {waited}: {}", self.story(*id)),
            ),
            Pending::Delete { tokens } => {
                let id = tokens.values().next().copied();
                let owner = id.map(|id| self.shards.owner(id).to_string()).unwrap_or_default();
                let left = tokens.len();
                (
                    ErrorKind::TimedOut,
                    format!("{me}: {left} delete(s) not confirmed by {owner} within {waited}"),
                )
            }
            Pending::Locate { id, .. } => {
                let owner = self.shards.owner(*id);
                (ErrorKind::TimedOut, format!("{me}: {owner} did not locate {id} within {waited}"))
            }
            Pending::Wait { ids, ready, .. } => {
                // Not an error: the caller learns what is ready.
                let ids = ids.iter().copied().filter(|id| ready.contains(id)).collect();
                return self.finish_call(client, call, Reply::Ready { ids });
            }
            &Pending::Reduce { number } => return self.on_reduction_timed_out(number, &waited),
        };
        self.fail_call(client, call, kind, &message);
    }

    /// An object a call waits for is sealed here.
    pub(crate) fn on_call_object_here(&mut self, client: ClientId, call: u64, object: ObjectId) {
        match self.pending(client, call) {
            Some(Pending::Get { .. }) => {
                let copy = self.copies.sealed(object).expect("told because it is sealed");
                let view = self.view(client, copy);
                self.finish_call(client, call, view);
            }
            Some(Pending::Create(_)) => self.try_create(client, call),
            _ => {}
        }
    }

    /// Calls that wait for `object` to be here.
    pub(crate) fn waiting_calls(&self, object: ObjectId) -> Vec<(ClientId, u64)> {
        self.fetches.waiting_calls(object)
    }

    /// Gets that are content with a copy in the making.
    pub(crate) fn serve_partial_gets(&mut self, object: ObjectId) {
        let Some(copy) = self.copies.live(object) else { return };
        for (client, call) in self.waiting_calls(object) {
            if matches!(self.pending(client, call), Some(Pending::Get { partial: true, .. })) {
                let view = self.view(client, copy);
                self.finish_call(client, call, view);
            }
        }
    }

    pub(crate) fn call_fails_if_lost(&self, client: ClientId, call: u64) -> bool {
        matches!(self.pending(client, call), Some(Pending::Get { fail_if_lost: true, .. }))
    }

    fn on_delete(&mut self, client: ClientId, call: u64, ids: Vec<ObjectId>, timeout_ms: Option<u64>) {
        if ids.len() > limits::IDS_MAX {
            let message = format!("{} ids in one delete, at most {}", ids.len(), limits::IDS_MAX);
            return self.reply_error(client, call, ErrorKind::BadArgument, message);
        }
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
        let deleted = tokens.remove(&token);
        if tokens.is_empty() {
            self.finish_call(client, call, Reply::Done);
        }
        if let Some(id) = deleted {
            self.remember_grave(id);
        }
    }

    pub(crate) fn on_located(&mut self, token: u64, size: Option<u64>, copies: Vec<Location>, deleted: bool) {
        let Some((client, call)) = self.calls.tokens.remove(&token) else { return };
        let Some(Pending::Locate { id, .. }) = self.pending(client, call) else { return };
        if deleted {
            let message = format!("{}: {id} was deleted", self.me);
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

    fn on_wait(
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

    pub(crate) fn fail_lost(&mut self, client: ClientId, call: u64, object: ObjectId) {
        let message = format!(
            "{}: {object} is lost: the node with its last complete copy died; a put under the same id completes those who wait",
            self.me
        );
        let error = Error::new(ErrorKind::Lost, message).about(object);
        self.finish_call(client, call, Reply::Failed(error));
    }

    pub(crate) fn on_waited_deleted(&mut self, client: ClientId, call: u64, object: ObjectId) {
        let message = format!("{}: {object} was deleted while waited for", self.me);
        self.fail_call(client, call, ErrorKind::Deleted, &message);
    }

    /// The connection is gone: nothing of the client's stays behind.
    pub(crate) fn on_client_gone(&mut self, client: ClientId) {
        let calls: Vec<_> =
            self.calls.table.range((client, 0)..=(client, u64::MAX)).map(|(&(_, call), _)| call).collect();
        for call in calls {
            self.forget_call(client, call);
        }
        self.abandon_reductions_of(client);
        for copy in self.writes.of_client(client) {
            self.abandon_write(copy);
        }
        let views = self.clients.remove(&client).map(|client| client.views).unwrap_or_default();
        for (copy, count) in views {
            let object = self.copies.with(copy, |copy| {
                copy.views -= count;
                copy.object
            });
            self.try_free(copy);
            self.drop_unwanted_fetch(object);
        }
    }
}

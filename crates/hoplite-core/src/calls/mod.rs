//! Calls of local clients that are not answered yet.
//!
//! - here: dispatches requests, sends replies, and cleans up after a call
//! - `gets`, `waits`: calls answered when objects are here, or complete somewhere
//! - `questions`: calls that the directory answers: delete, locate
//! - `timeouts`: the answer to a call whose time is up; `long_work`: work for clients in short turns

mod gets;
mod long_work;
mod questions;
mod timeouts;
mod waits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hoplite_types::client::{Gauge, Reply, Request};
use hoplite_types::peer::DirectoryRequest;
use hoplite_types::{limits, Blob, Error, ErrorKind, Header, NodeId, ObjectId};

pub(crate) use long_work::LongWork;

use crate::copies::SpaceWaiter;
use crate::fetch::Early;
use crate::io::ClientId;
use crate::keys::Want;
use crate::keys::Watcher;
use crate::puts::Creation;
use crate::timers::Timer;
use crate::Core;
use questions::Deletion;
use waits::{Poll, Ready};

/// The state of a call, by what it waits for.
#[derive(Debug)]
pub(crate) enum Pending {
    /// Space, or the end of another writing of the object here.
    Create(Creation),
    /// The directory's verdict.
    Seal,
    /// The first content of an object that was put here as well.
    DuplicatePut {
        id: ObjectId,
        size: u64,
        header: Header,
    },
    Get {
        id: ObjectId,
        partial: bool,
        fail_if_lost: bool,
    },
    /// The owners' acknowledgements.
    Delete(Deletion),
    Wait {
        ids: Vec<ObjectId>,
        count: usize,
        ready: Ready,
        /// Fails if an object that is not among these is lost. `None`: continues to wait.
        known_lost: Option<BTreeSet<ObjectId>>,
        /// Set if its time-out is shorter than the owners may take to report which objects are ready.
        poll: Option<Poll>,
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

/// The state of a client connection.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// The number of its open calls.
    calls: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    table: BTreeMap<(ClientId, u64), Call>,
    /// The call behind each directory question, by token.
    tokens: BTreeMap<u64, (ClientId, u64)>,
    /// Questions that are still to be asked, or to be asked again.
    due: BTreeSet<u64>,
    /// Deletes that may ask for more of their ids now.
    deleting: VecDeque<(ClientId, u64)>,
    /// Count of calls refused because their clients had too many open.
    pub refused: u64,
    /// Bytes of small puts that wait, mostly for space.
    payload_bytes: usize,
    payloads_refused: u64,
}

/// Limit of these bytes. Each payload is small, but `CALLS_MAX` of them, of one client, are gigabytes.
const PAYLOAD_BYTES_MAX: usize = 256 << 20;

impl Calls {
    /// The first few open calls of this client.
    fn of_client(&self, client: ClientId, most: usize) -> Vec<u64> {
        let of_client = self.table.range((client, 0)..=(client, u64::MAX));
        of_client.map(|(&(_, call), _)| call).take(most).collect()
    }

    /// Takes the bytes of a put that came in one frame: from now on it only waits to be sealed.
    pub fn take_payload(&mut self, client: ClientId, call: u64) -> Option<Blob> {
        let pending = &mut self.table.get_mut(&(client, call))?.pending;
        let Pending::Create(Creation { payload, .. }) = pending else { return None };
        let payload = payload.take()?;
        *pending = Pending::Seal;
        self.payload_bytes -= payload.0.len();
        Some(payload)
    }

    /// Counts the bytes of a put that came in one frame.
    pub fn note_payload(&mut self, payload: Option<&Blob>) {
        self.payload_bytes += payload.map_or(0, |payload| payload.0.len());
    }

    /// Whether it still waits with its bytes, and too many bytes wait.
    fn is_over(&self, client: ClientId, call: u64) -> bool {
        let pending = self.table.get(&(client, call)).map(|call| &call.pending);
        let waits = matches!(pending, Some(Pending::Create(Creation { payload: Some(_), .. })));
        waits && self.payload_bytes > PAYLOAD_BYTES_MAX
    }
}

impl Core {
    pub(crate) fn on_request(&mut self, client: ClientId, call: u64, request: Request) {
        self.clients.entry(client).or_default();
        if self.calls.table.contains_key(&(client, call)) {
            let message = format!("call {call} is still open");
            return self.reply_error(client, call, ErrorKind::BadArgument, message);
        }
        if let Err(error) = request.validate() {
            return self.reply(client, call, Reply::Failed(error));
        }
        if self.clients[&client].calls >= limits::CALLS_MAX && request.may_wait() {
            let message = format!(
                "{}: {} calls of this client are open already, and no more may be",
                self.ctx.me,
                limits::CALLS_MAX
            );
            self.calls.refused += 1;
            return self.reply_error(client, call, ErrorKind::LimitReached, message);
        }
        match request {
            Request::Hello { .. } => {
                self.reply_error(client, call, ErrorKind::BadArgument, "a second Hello".to_owned());
            }
            Request::Create { id, size, header, timeout_ms, keep } => {
                let creation = Creation { id, size, header, keep, payload: None };
                self.on_create(client, call, creation, timeout_ms);
            }
            Request::PutSmall { id, header, payload, timeout_ms } => {
                let size = payload.0.len() as u64;
                let creation = Creation { id, size, header, keep: false, payload: Some(payload) };
                self.on_create(client, call, creation, timeout_ms);
            }
            Request::Progress { copy, watermark } => self.on_progress(client, copy, watermark),
            Request::Seal { copy, timeout_ms } => self.on_seal(client, call, copy, timeout_ms),
            Request::Abort { copy } => self.on_abort(client, call, copy),
            Request::Get { id, timeout_ms, partial, fail_if_lost } => {
                self.open_call(client, call, timeout_ms, Pending::Get { id, partial, fail_if_lost });
                self.fetcher().want(id, Want::Call(client, call), partial.then_some(Early::Get));
                self.serve_partial_get(client, call, id);
            }
            Request::Release { copy } => self.copies.release_view(&mut self.ctx, client, copy),
            Request::Delete { ids, timeout_ms } => self.on_delete(client, call, ids, timeout_ms),
            Request::Reduce { target, sources, num_objects, op, order, timeout_ms, to_sources } => {
                let ask = crate::reduce::Request { target, sources, k: num_objects, op, order, to_sources };
                self.on_reduce(client, call, ask, timeout_ms);
            }
            Request::Wait { ids, count, timeout_ms, fail_if_lost, known_lost } => {
                let known_lost = fail_if_lost.then(|| known_lost.into_iter().collect());
                self.on_wait(client, call, ids, count, known_lost, timeout_ms);
            }
            Request::Prefetch { ids, nodes } => self.on_prefetch_call(client, call, ids, nodes),
            Request::Locate { id, timeout_ms } => {
                let token = self.ctx.next_number();
                self.open_call(client, call, timeout_ms, Pending::Locate { id, token });
                self.calls.tokens.insert(token, (client, call));
                self.ctx.ask_owner(id, DirectoryRequest::Locate { token }, None);
                self.ctx.arm_refresh();
            }
            Request::Status => {
                let status = self.status();
                self.reply(client, call, Reply::Status(status));
            }
            Request::Cancel { call } => self.cancel_call(client, call),
        }
    }

    fn on_prefetch_call(&mut self, client: ClientId, call: u64, ids: Vec<ObjectId>, mut nodes: Vec<NodeId>) {
        if nodes.is_empty() {
            nodes.push(self.ctx.me);
        }
        // A prefetch is a hint: departed nodes have no use for it, and no stranger is dialled for it.
        nodes.retain(|&node| self.ctx.shards.contains(node));
        self.prefetch_in_turns(ids, nodes);
        self.reply(client, call, Reply::Done);
    }

    pub(crate) fn reply(&mut self, client: ClientId, call: u64, reply: Reply) {
        self.ctx.out.push_back(crate::Output::Reply { client, call, reply });
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
            let due = self.ctx.now + Duration::from_millis(ms).min(limits::TIMEOUT_MAX);
            self.ctx.timers.set(due, Timer::Call(client, call));
        }
        self.calls.table.insert((client, call), Call { since: self.ctx.now, pending });
        self.clients.entry(client).or_default().calls += 1;
    }

    /// A small put that cannot be carried out at once is refused if too many bytes wait.
    pub(crate) fn refuse_payload_if_too_many(&mut self, client: ClientId, call: u64) {
        if self.calls.is_over(client, call) {
            self.calls.payloads_refused += 1;
            let message = format!(
                "{}: {} bytes of small puts wait here already, for room above all, and no more than \
                 {PAYLOAD_BYTES_MAX} may",
                self.ctx.me, self.calls.payload_bytes
            );
            self.fail_call(client, call, ErrorKind::LimitReached, &message);
        }
    }

    pub(crate) fn calls_gauges(&self) -> [Gauge; 2] {
        let payloads = Gauge {
            name: "bytes of small puts that wait".to_owned(),
            value: self.calls.payload_bytes as u64,
            limit: PAYLOAD_BYTES_MAX as u64,
            met: self.calls.payloads_refused,
        };
        [self.calls_gauge(), payloads]
    }

    /// The open calls of the client that has the most.
    fn calls_gauge(&self) -> Gauge {
        let value = self.clients.values().map(|client| client.calls).max().unwrap_or(0) as u64;
        let (name, limit) = ("open calls of one client".to_owned(), limits::CALLS_MAX as u64);
        Gauge { name, value, limit, met: self.calls.refused }
    }

    pub(crate) fn pending(&self, client: ClientId, call: u64) -> Option<&Pending> {
        self.calls.table.get(&(client, call)).map(|call| &call.pending)
    }

    pub(crate) fn replace_pending(&mut self, client: ClientId, call: u64, pending: Pending) {
        if let Some(call) = self.calls.table.get_mut(&(client, call)) {
            call.pending = pending;
        }
    }

    /// Answers a call and forgets it. Does nothing if it was answered or cancelled before.
    pub(crate) fn finish_call(&mut self, client: ClientId, call: u64, reply: Reply) {
        if self.forget_call(client, call) {
            self.reply(client, call, reply);
        }
    }

    pub(crate) fn fail_call(&mut self, client: ClientId, call: u64, kind: ErrorKind, message: &str) {
        self.finish_call(client, call, Reply::Failed(Error::new(kind, message)));
    }

    pub(super) fn forget_call(&mut self, client: ClientId, call: u64) -> bool {
        self.ctx.timers.clear(Timer::Call(client, call));
        let Some(Call { pending, .. }) = self.calls.table.remove(&(client, call)) else { return false };
        if let Some(client) = self.clients.get_mut(&client) {
            client.calls -= 1;
        }
        match pending {
            Pending::Create(Creation { id, payload, .. }) => {
                self.calls.payload_bytes -= payload.map_or(0, |payload| payload.0.len());
                self.fetcher().unwant(id, Want::Call(client, call));
                self.copies.end_wait_for_space(SpaceWaiter::Create { object: id, client, call });
            }
            Pending::Get { id, .. } => self.fetcher().unwant(id, Want::Call(client, call)),
            Pending::DuplicatePut { id, .. } => {
                self.fetcher().unwant(id, Want::Call(client, call));
                self.copies.drop_spare(&mut self.ctx, client, call);
            }
            Pending::Delete(deletion) => {
                for token in deletion.tokens() {
                    self.calls.tokens.remove(&token);
                }
            }
            Pending::Locate { token, .. } => {
                self.calls.tokens.remove(&token);
            }
            Pending::Wait { ids, poll, .. } => {
                self.subscriptions.end_watching(&mut self.ctx, Watcher::Call(client, call, 0), ids);
                poll.into_iter().flat_map(|poll| poll.unanswered).for_each(|token| {
                    self.calls.tokens.remove(&token);
                });
            }
            // Cancelled before it was answered: the object must not come into existence after all.
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
            // Only its reply is not wanted any more; the target is.
            self.detach_reduction(number);
        }
        self.forget_call(client, call);
    }
}

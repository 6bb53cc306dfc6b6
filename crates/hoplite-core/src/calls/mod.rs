//! Calls of local clients that are not answered yet.
//!
//! - here: opens calls, sends replies, and cleans up after a call
//! - `puts`: objects that are written here; `duplicate_puts`: puts of objects that exist already
//! - `gets`, `waits`: calls answered when objects are here, or complete somewhere
//! - `questions`: calls that the directory answers: delete, locate
//! - `timeouts`: the answer to a call whose time is up; `long_work`: work for clients in short turns

mod duplicate_puts;
mod gets;
mod long_work;
mod puts;
mod questions;
mod timeouts;
mod waits;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hoplite_types::client::{Gauge, Reply, Request};
use hoplite_types::peer::DirectoryRequest;
use hoplite_types::{limits, Blob, Error, ErrorKind, Header, ObjectId};

use crate::copies::{Copies, SpaceWaiter};
use crate::ctx::Ctx;
use crate::fetch::{Early, Fetcher, Fetches};
use crate::io::ClientId;
use crate::keys::{Want, Watcher};
use crate::subscriptions::Subscriptions;
use crate::timers::Timer;
use crate::writes::Writes;
use long_work::LongWork;
pub(crate) use puts::Creation;
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

/// The arguments of a get, besides the object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Get {
    pub partial: bool,
    pub fail_if_lost: bool,
    pub timeout_ms: Option<u64>,
}

/// The state of a client connection.
#[derive(Debug, Default)]
struct Client {
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
    refused: u64,
    /// Bytes of small puts that wait, mostly for space.
    payload_bytes: usize,
    payloads_refused: u64,
    clients: BTreeMap<ClientId, Client>,
    work: LongWork,
}

/// The calls of clients, with what is lent to them.
pub(crate) struct CallHandler<'a> {
    pub calls: &'a mut Calls,
    pub writes: &'a mut Writes,
    pub fetches: &'a mut Fetches,
    pub subscriptions: &'a mut Subscriptions,
    pub copies: &'a mut Copies,
    pub ctx: &'a mut Ctx,
}

/// Limit of these bytes. Each payload is small, but `CALLS_MAX` of them, of one client, are gigabytes.
const PAYLOAD_BYTES_MAX: usize = 256 << 20;

impl Calls {
    /// The first few open calls of this client.
    fn of_client(&self, client: ClientId, most: usize) -> Vec<u64> {
        let of_client = self.table.range((client, 0)..=(client, u64::MAX));
        of_client.map(|(&(_, call), _)| call).take(most).collect()
    }

    pub fn gauges(&self) -> [Gauge; 2] {
        let payloads = Gauge {
            name: "bytes of small puts that wait".to_owned(),
            value: self.payload_bytes as u64,
            limit: PAYLOAD_BYTES_MAX as u64,
            met: self.payloads_refused,
        };
        [self.calls_gauge(), payloads]
    }

    /// The open calls of the client that has the most.
    fn calls_gauge(&self) -> Gauge {
        let value = self.clients.values().map(|client| client.calls).max().unwrap_or(0) as u64;
        let (name, limit) = ("open calls of one client".to_owned(), limits::CALLS_MAX as u64);
        Gauge { name, value, limit, met: self.refused }
    }

    fn pending_mut(&mut self, client: ClientId, call: u64) -> Option<&mut Pending> {
        self.table.get_mut(&(client, call)).map(|call| &mut call.pending)
    }

    pub fn pending(&self, client: ClientId, call: u64) -> Option<&Pending> {
        self.table.get(&(client, call)).map(|call| &call.pending)
    }

    pub fn clients_count(&self) -> usize {
        self.clients.len()
    }

    pub fn work_gauge(&self) -> Gauge {
        self.work.gauge()
    }

    /// Whether work for clients is left for the next turn.
    pub fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// Describes the state that is left, in words.
    pub fn leftovers(&self) -> Option<String> {
        let questions = !self.tokens.is_empty() || !self.due.is_empty() || !self.deleting.is_empty();
        let is_left = !self.table.is_empty() || questions || self.payload_bytes > 0 || self.has_work();
        is_left.then(|| format!("calls: {self:?}"))
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

impl CallHandler<'_> {
    fn fetcher(&mut self) -> Fetcher<'_> {
        Fetcher {
            fetches: self.fetches,
            ctx: self.ctx,
            copies: self.copies,
            subscriptions: self.subscriptions,
        }
    }

    /// Whether the request may be carried out; if not, it is answered here.
    pub fn admit(&mut self, client: ClientId, call: u64, request: &Request) -> bool {
        self.calls.clients.entry(client).or_default();
        if self.calls.table.contains_key(&(client, call)) {
            let message = format!("call {call} is still open");
            self.reply_error(client, call, ErrorKind::BadArgument, message);
            return false;
        }
        if let Err(error) = request.validate() {
            self.reply(client, call, Reply::Failed(error));
            return false;
        }
        if self.calls.clients[&client].calls >= limits::CALLS_MAX && request.may_wait() {
            let message = format!(
                "{}: {} calls of this client are open already, and no more may be",
                self.ctx.me,
                limits::CALLS_MAX
            );
            self.calls.refused += 1;
            self.reply_error(client, call, ErrorKind::LimitReached, message);
            return false;
        }
        true
    }

    pub fn on_get(&mut self, client: ClientId, call: u64, id: ObjectId, ask: Get) {
        let Get { partial, fail_if_lost, timeout_ms } = ask;
        self.open_call(client, call, timeout_ms, Pending::Get { id, partial, fail_if_lost });
        self.fetcher().want(id, Want::Call(client, call), partial.then_some(Early::Get));
        // One that is to fail at a loss hears of it in a moment.
        if !(fail_if_lost && self.fetches.is_lost(id)) {
            self.serve_partial_get(client, call, id);
        }
    }

    pub fn on_locate(&mut self, client: ClientId, call: u64, id: ObjectId, timeout_ms: Option<u64>) {
        let token = self.ctx.next_number();
        self.open_call(client, call, timeout_ms, Pending::Locate { id, token });
        self.calls.tokens.insert(token, (client, call));
        self.ctx.ask_owner(id, DirectoryRequest::Locate { token }, None);
        self.ctx.arm_refresh();
    }

    pub fn reply(&mut self, client: ClientId, call: u64, reply: Reply) {
        self.ctx.out.push_back(crate::Output::Reply { client, call, reply });
    }

    pub fn reply_error(&mut self, client: ClientId, call: u64, kind: ErrorKind, message: String) {
        self.reply(client, call, Reply::Failed(Error::new(kind, message)));
    }

    pub fn open_call(&mut self, client: ClientId, call: u64, timeout_ms: Option<u64>, pending: Pending) {
        if let Some(ms) = timeout_ms {
            let due = self.ctx.now + Duration::from_millis(ms).min(limits::TIMEOUT_MAX);
            self.ctx.timers.set(due, Timer::Call(client, call));
        }
        self.calls.table.insert((client, call), Call { since: self.ctx.now, pending });
        self.calls.clients.entry(client).or_default().calls += 1;
    }

    /// A small put that cannot be carried out at once is refused if too many bytes wait.
    pub fn refuse_payload_if_too_many(&mut self, client: ClientId, call: u64) {
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

    pub fn replace_pending(&mut self, client: ClientId, call: u64, pending: Pending) {
        if let Some(call) = self.calls.table.get_mut(&(client, call)) {
            call.pending = pending;
        }
    }

    /// Answers a call and forgets it. Does nothing if it was answered or cancelled before.
    pub fn finish_call(&mut self, client: ClientId, call: u64, reply: Reply) {
        if self.forget_call(client, call) {
            self.reply(client, call, reply);
        }
    }

    pub fn fail_call(&mut self, client: ClientId, call: u64, kind: ErrorKind, message: &str) {
        self.finish_call(client, call, Reply::Failed(Error::new(kind, message)));
    }

    pub fn forget_call(&mut self, client: ClientId, call: u64) -> bool {
        self.ctx.timers.clear(Timer::Call(client, call));
        let Some(Call { pending, .. }) = self.calls.table.remove(&(client, call)) else { return false };
        if let Some(client) = self.calls.clients.get_mut(&client) {
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
                self.copies.drop_spare(self.ctx, client, call);
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
                self.subscriptions.end_watching(self.ctx, Watcher::Call(client, call, 0), ids);
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
}

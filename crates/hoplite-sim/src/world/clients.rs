//! Client processes: their sockets, their views and writings, and their deaths.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use hoplite_core::io::{ClientId, Input};
use hoplite_types::client::{Reply, Request};
use hoplite_types::limits::INLINE_BYTES_MAX;
use hoplite_types::{CopyId, ObjectId};

use super::{note, tell, Place, World};
use crate::data_plane::Stage;
use crate::event::{SimEvent, TaskEvent};
use crate::show;
use crate::task::{Outcome, Phase, Spec, TaskId};

/// Longest delay on the Unix socket.
const SOCKET_DELAY_MAX: Duration = Duration::from_micros(30);

/// Longest time until a node hears of the end of a process that it watches.
const WATCH_DELAY_MAX: Duration = Duration::from_millis(2);

/// A client's cached copy of a small object.
#[derive(Clone, Debug)]
struct Kept {
    removals: u64,
    bytes: Rc<[u8]>,
    sources: Vec<ObjectId>,
}

/// One connection of a client process to its node.
#[derive(Debug)]
pub(crate) struct Session {
    pub place: Place,
    pub alive: bool,
    next_call: u64,
    last_to_node: Duration,
    last_to_client: Duration,
    /// Small objects from earlier gets, each with the removal counter at that time.
    kept: BTreeMap<ObjectId, Kept>,
    /// The removal counter before each get was sent.
    removals: BTreeMap<u64, u64>,
    /// The calls that will be answered, with the task of each.
    pub calls: BTreeMap<u64, TaskId>,
    /// Copies that the client holds or is about to get: views and unfinished writings.
    views: BTreeMap<CopyId, u32>,
    /// The next connection of the same process, after a restart of its node.
    successor: Option<ClientId>,
    /// Whether the process itself is dead.
    killed: bool,
}

impl World {
    /// Connects a new client to the node with this index.
    pub fn connect(&mut self, index: usize) -> ClientId {
        let client = ClientId(self.sessions.len() as u64 + 1);
        let session = Session {
            place: self.place(index),
            alive: self.nodes[index].alive,
            next_call: 1,
            last_to_node: Duration::ZERO,
            last_to_client: Duration::ZERO,
            kept: BTreeMap::new(),
            removals: BTreeMap::new(),
            calls: BTreeMap::new(),
            views: BTreeMap::new(),
            successor: None,
            killed: false,
        };
        self.sessions.insert(client, session);
        client
    }

    /// The last connection of this client's process.
    pub(super) fn latest(&self, client: ClientId) -> ClientId {
        let mut latest = client;
        while let Some(next) = self.sessions[&latest].successor {
            latest = next;
        }
        latest
    }

    /// The connection to use from now on. It is a new one if the node was restarted since.
    pub(super) fn reconnect(&mut self, client: ClientId) -> ClientId {
        let latest = self.latest(client);
        let session = &self.sessions[&latest];
        let index = session.place.index;
        if session.alive || session.killed || !self.nodes[index].alive {
            return latest;
        }
        let next = self.connect(index);
        self.sessions.get_mut(&latest).expect("looked up above").successor = Some(next);
        next
    }

    pub fn clients(&self) -> Vec<ClientId> {
        self.sessions.keys().copied().collect()
    }

    pub(crate) fn client_name(&self, client: ClientId) -> String {
        format!("{}.c{}", self.name(self.sessions[&client].place), client.0)
    }

    /// Sends a request. The answer goes to `task`.
    pub(super) fn call(&mut self, client: ClientId, request: Request, task: TaskId) -> u64 {
        let session = self.sessions.get_mut(&client).expect("connected");
        let call = session.next_call;
        session.next_call += 1;
        session.calls.insert(call, task);
        if let Request::Get { id, .. } = &request {
            let removals =
                self.nodes[session.place.index].data_plane.removals.get(id).copied().unwrap_or_default();
            session.removals.insert(call, removals);
        }
        self.send_call(client, call, request);
        call
    }

    /// Sends a request on the socket, after all earlier ones.
    pub(super) fn send_call(&mut self, client: ClientId, call: u64, request: Request) {
        let delay = self.rng.time(Duration::from_micros(1), SOCKET_DELAY_MAX);
        let now = self.queue.now();
        let session = self.sessions.get_mut(&client).expect("connected");
        if !session.alive {
            return;
        }
        session.last_to_node = (now + delay).max(session.last_to_node + Duration::from_nanos(1));
        let at = session.last_to_node;
        self.queue.push(at, SimEvent::Call { client, call, request });
    }

    pub(super) fn on_call(&mut self, client: ClientId, call: u64, request: Request) {
        tell!(self, "{} > {}", self.client_name(client), show::request(&self.names, &request));
        let place = self.sessions[&client].place;
        self.feed(place, Input::Client { client, call, request });
    }

    /// The core answers. From now on the client holds the copy in the answer.
    pub(super) fn reply(&mut self, place: Place, client: ClientId, call: u64, reply: Reply) {
        tell!(self, "{} < {}", self.client_name(client), show::reply(&self.names, &reply));
        let now = self.queue.now();
        let delay = self.rng.time(Duration::from_micros(1), SOCKET_DELAY_MAX);
        let session = self.sessions.get_mut(&client).expect("connected");
        if session.place != place {
            return self.violate(format!("{client:?} is answered by a node that is not its own"));
        }
        let said = now + self.nodes[place.index].process.turn;
        session.last_to_client = (said + delay).max(session.last_to_client + Duration::from_nanos(1));
        let (at, alive) = (session.last_to_client, session.alive);
        let held = match &reply {
            Reply::View { copy, .. } | Reply::Created { copy, .. } => Some(*copy),
            _ => None,
        };
        if let (Some(copy), true) = (held, alive) {
            self.hand_out(place, client, copy, &reply);
        }
        self.queue.push(at, SimEvent::Answer { client, call, reply });
    }

    fn hand_out(&mut self, place: Place, client: ClientId, copy: CopyId, reply: &Reply) {
        let (offset, writes, views) = match reply {
            Reply::View { offset, .. } => (*offset, false, true),
            Reply::Created { offset, kept, .. } => (*offset, true, *kept),
            _ => return,
        };
        let node = &mut self.nodes[place.index];
        let Some(held) = node.data_plane.copies.get_mut(&copy) else {
            return self.violate(format!("{client:?} is given {copy:?}, which is not open"));
        };
        if held.extent.offset != offset {
            let real = held.extent;
            return self.violate(format!("{client:?} is told {copy:?} is at {offset}, not {real:?}"));
        }
        if writes {
            held.writer = Some(client);
        }
        if views {
            held.views += 1;
            held.kept |= matches!(reply, Reply::View { sealed: true, .. });
            *self.sessions.get_mut(&client).expect("connected").views.entry(copy).or_insert(0) += 1;
        }
    }

    /// The client releases a view.
    pub(super) fn release(&mut self, client: ClientId, copy: CopyId) {
        let session = self.sessions.get_mut(&client).expect("connected");
        let place = session.place;
        let Some(count) = session.views.get_mut(&copy).filter(|count| **count > 0) else { return };
        *count -= 1;
        if let Some(held) = self.nodes[place.index].data_plane.copies.get_mut(&copy) {
            held.views -= 1;
        }
        self.send_call(client, 0, Request::Release { copy });
    }

    /// A get has returned a small object, and the client keeps its bytes.
    fn keep(&mut self, client: ClientId, call: u64, task: TaskId, reply: &Reply) {
        let session = self.sessions.get_mut(&client).expect("connected");
        let Some(removals) = session.removals.remove(&call) else { return };
        let Reply::View { copy, sealed: true, size, .. } = reply else { return };
        let Spec::Get { id, .. } = self.tasks[&task].spec else { return };
        if *size > INLINE_BYTES_MAX {
            return;
        }
        let node = &self.nodes[session.place.index];
        let Some(held) = node.data_plane.copies.get(copy) else { return };
        let Stage::Sealed(seal) = &held.stage else { return };
        let (bytes, sources) = (node.bytes(held.extent, 0, held.extent.size).into(), seal.sources.clone());
        session.kept.insert(id, Kept { removals, bytes, sources });
    }

    /// The bytes and sources that the client has kept of the object, if no complete copy has gone from its node since.
    pub(super) fn kept_by(&self, client: ClientId, id: ObjectId) -> Option<(Rc<[u8]>, Vec<ObjectId>)> {
        let session = &self.sessions[&client];
        let kept = session.kept.get(&id).filter(|_| session.alive)?;
        let removals =
            self.nodes[session.place.index].data_plane.removals.get(&id).copied().unwrap_or_default();
        (kept.removals == removals).then(|| (kept.bytes.clone(), kept.sources.clone()))
    }

    /// The client has finished to write into `copy`.
    pub(super) fn finish_writing(&mut self, client: ClientId, copy: CopyId) {
        let place = self.sessions[&client].place;
        if let Some(held) = self.nodes[place.index].data_plane.copies.get_mut(&copy) {
            held.writer = None;
        }
    }

    pub(super) fn on_answer(&mut self, client: ClientId, call: u64, reply: Reply) {
        let session = self.sessions.get_mut(&client).expect("connected");
        if !session.alive {
            return;
        }
        match session.calls.remove(&call) {
            Some(task) if self.on_member_answer(task, call, &reply) => {}
            Some(task) => {
                self.keep(client, call, task, &reply);
                self.on_task_answer(task, reply);
            }
            None => self.drop_answer(client, reply),
        }
    }

    /// A cancelled call was answered all the same. The copy in the answer is given back.
    fn drop_answer(&mut self, client: ClientId, reply: Reply) {
        note!(self, "{} drops {reply:?}", self.client_name(client));
        match reply {
            Reply::View { copy, .. } => self.release(client, copy),
            Reply::Created { copy, kept, .. } => {
                self.finish_writing(client, copy);
                self.send_call(client, 0, Request::Abort { copy });
                if kept {
                    self.release(client, copy);
                }
            }
            _ => {}
        }
    }

    /// Kills the process. Its memory is gone at once, and its node hears a little later from the closed connection. If
    /// it has `forked`, a child keeps the connection open, and the node hears from the kernel, which watches the
    /// process.
    pub fn kill_client(&mut self, client: ClientId, forked: bool) {
        self.sessions.get_mut(&client).expect("connected").killed = true;
        if !self.sessions[&client].alive {
            return;
        }
        tell!(self, "{} dies", self.client_name(client));
        self.end_session(client);
        let session = self.sessions.get_mut(&client).expect("connected");
        let delay = if forked { WATCH_DELAY_MAX } else { SOCKET_DELAY_MAX };
        let at = (self.queue.now() + delay).max(session.last_to_node);
        self.queue.push(at, SimEvent::ClientGone { client });
    }

    /// Ends a connection: the client holds nothing and waits for nothing any more.
    pub(super) fn end_session(&mut self, client: ClientId) {
        let session = self.sessions.get_mut(&client).expect("connected");
        session.alive = false;
        session.calls.clear();
        let place = session.place;
        for (copy, count) in std::mem::take(&mut session.views) {
            if let Some(held) = self.nodes[place.index].data_plane.copies.get_mut(&copy) {
                held.views -= count;
            }
        }
        for held in self.nodes[place.index].data_plane.copies.values_mut() {
            if held.writer == Some(client) {
                held.writer = None;
            }
        }
        for task in self.tasks.values_mut().filter(|task| task.client == client && !task.is_over()) {
            task.phase = Phase::Over;
            task.outcome = Some(Outcome::Vanished);
        }
    }

    pub(super) fn on_client_gone(&mut self, client: ClientId) {
        let place = self.sessions[&client].place;
        self.feed(place, Input::ClientGone { client });
    }

    pub(super) fn wake_followers(&mut self, place: Place, copy: CopyId) {
        let Some(held) = self.nodes[place.index].data_plane.copies.get(&copy) else { return };
        for task in held.followers.iter() {
            self.queue.push(self.queue.now(), SimEvent::Task { task: *task, event: TaskEvent::Step });
        }
    }
}

//! Every decision of a Hoplite node, and no I/O.
//!
//! A [`Core`] is one node's mind. It is driven through one door and one queue (see [`io`]); it
//! owns no clock, socket, thread or file, and the same inputs make the same outputs.
//!
//! The journey of a put: `calls` → `puts` (room from `copies`) → announced to the shard owner's
//! `directory`. Of a get: `calls` → `fetch` asks the owner, which lends a sender → `serve` there.
//! Of a reduce: `reduce`.
#![forbid(unsafe_code)]

mod again;
mod arena;
mod calls;
mod config;
mod connections;
mod copies;
mod cost;
mod directory;
mod fetch;
mod inspect;
pub mod io;
mod leave;
mod members;
mod peers;
mod puts;
mod reduce;
mod room;
mod serve;
mod shards;
mod subscriptions;
mod timers;
mod windows;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hoplite_words::client::Status;
use hoplite_words::peer::PeerMessage;
use hoplite_words::{CopyId, NodeId, ObjectId};

pub use config::Config;
pub use cost::{best_degree, fanout, stripes_pay, Degree};
pub use io::{Input, Output};

use calls::{Calls, Client};
use connections::Choices;
use copies::Copies;
use cost::Links;
use directory::{Directory, Graves, PassedOn, Remembered, Unsaid};
use fetch::Fetches;
use io::ClientId;
use members::Members;
use puts::Writes;
use reduce::{Reduction, Seats};
use room::RoomFor;
use serve::Sends;
use shards::Shards;
use subscriptions::Subscriptions;
use timers::{Timer, Timers};

/// One node's decisions. Drive it: `handle`, then `poll_output` until `None`, then sleep until an
/// input comes or `next_deadline`.
pub struct Core {
    me: NodeId,
    now: Duration,
    out: VecDeque<Output>,
    /// Messages to ourselves: handled before `handle` returns.
    loopback: VecDeque<PeerMessage>,
    /// One counter numbers everything: copies, transfers, reports, questions.
    last_number: u64,
    timers: Timers,

    members: Members,
    /// Until when what we say may still meet a node that sees other members than we do.
    reannounce_until: Duration,
    /// How long open questions rest before they are asked again.
    refresh_period: Duration,
    /// The number from which on some owner was last told of all that is here.
    all_said: u64,
    /// The daemon is to end by then, and hands over what only it holds.
    leaving: Option<Duration>,
    shards: Shards,
    /// Members that went down: what is still on its way from them is out of date.
    departed: BTreeSet<NodeId>,
    /// Members of whose words some may have been taken for out of date: they are to be asked for them again.
    unheard: BTreeSet<NodeId>,
    links: Links,
    connections: Choices,
    /// Instead of the degree that would cost least.
    reduce_degree: Option<Degree>,
    directory: Directory,
    graves: Graves,
    unsaid: Unsaid,
    remembered: Remembered,
    passed_on: PassedOn,
    copies: Copies,
    /// Who waits for room in the store.
    room: VecDeque<RoomFor>,
    room_changed: bool,
    /// Objects whose copy here was doomed: those who want them look again.
    vacated: BTreeSet<ObjectId>,
    clients: BTreeMap<ClientId, Client>,
    calls: Calls,
    writes: Writes,
    fetches: Fetches,
    sends: Sends,
    subscriptions: Subscriptions,
    seats: Seats,
    reductions: BTreeMap<u64, Reduction>,
    /// Questions that mark the start of a reduction, by token.
    barriers: BTreeMap<u64, u64>,
    /// See [`Config::striped_bytes_min`].
    striped_bytes_min: Option<u64>,
}

impl Core {
    /// A node that has not started yet; the first `handle` starts it (a `Tick` will do).
    pub fn new(config: Config) -> Self {
        let mut shards = Shards::default();
        shards.insert(config.node);
        Core {
            me: config.node,
            now: Duration::ZERO,
            out: VecDeque::new(),
            loopback: VecDeque::new(),
            last_number: 0,
            timers: Timers::default(),
            members: Members::new(&config),
            reannounce_until: Duration::ZERO,
            refresh_period: again::REFRESH_MIN,
            all_said: 0,
            leaving: None,
            shards,
            departed: BTreeSet::new(),
            unheard: BTreeSet::new(),
            links: Links::default(),
            connections: Choices::new(config.connections),
            reduce_degree: config.reduce_degree,
            directory: Directory::default(),
            graves: Graves::default(),
            unsaid: Unsaid::default(),
            remembered: Remembered::default(),
            passed_on: PassedOn::default(),
            copies: Copies::new(config.store_bytes),
            room: VecDeque::new(),
            room_changed: false,
            vacated: BTreeSet::new(),
            clients: BTreeMap::new(),
            calls: Calls::default(),
            writes: Writes::default(),
            fetches: Fetches::default(),
            sends: Sends::default(),
            subscriptions: Subscriptions::default(),
            seats: Seats::default(),
            reductions: BTreeMap::new(),
            barriers: BTreeMap::new(),
            striped_bytes_min: config.striped_bytes_min,
        }
    }

    /// Takes in what happened at `now` (time since any fixed moment; never goes back).
    pub fn handle(&mut self, now: Duration, input: Input) {
        debug_assert!(now >= self.now, "time went back");
        self.now = now;
        match input {
            Input::Client { client, call, request } => self.on_request(client, call, request),
            Input::ClientGone { client } => self.on_client_gone(client),
            Input::Peer { from, message } => self.on_message(from, message),
            Input::PeerBroken { node } => self.on_peer_broken(node),
            Input::PeerGone { node } => {
                let changes = self.members.on_gone(now, node);
                self.on_member_changes(changes);
                if !self.departed.contains(&node) {
                    // It died before we knew it as a member, but it may have asked and been lent things.
                    self.on_member_down(node);
                }
            }
            Input::Datagram { bytes } => {
                let changes = self.members.on_datagram(now, &bytes);
                self.on_member_changes(changes);
            }
            Input::ReceiveEnded { transfer, watermark, outcome } => {
                self.on_receive_ended(transfer, watermark, outcome);
            }
            Input::ReceiveStalled { transfer, watermark } => self.on_receive_stalled(transfer, watermark),
            Input::SendMeasured { send, bytes, bytes_per_s } => {
                self.on_send_measured(send, bytes, bytes_per_s)
            }
            Input::SendEnded { send, .. } => self.on_send_ended(send),
            Input::FoldStreamBroken { fold, transfer } => self.on_fold_stream_broken(fold, transfer),
            Input::FoldEnded { fold, outcome } => self.on_fold_ended(fold, outcome),
            Input::Measured { peer, bytes_per_s } => {
                if self.fetches.has_link_to_itself(peer) {
                    self.links.on_bandwidth(peer, bytes_per_s);
                }
            }
            Input::Leave { within } => self.on_leave(within),
            Input::Tick => {}
        }
        self.settle();
        self.on_time();
        self.settle();
    }

    /// What must be done next, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When to call `handle` with `Tick` at the latest.
    pub fn next_deadline(&self) -> Option<Duration> {
        [self.timers.next(), self.members.next_deadline()].into_iter().flatten().min()
    }

    /// Handles messages to ourselves, and gives room and ids that became free to those who wait for
    /// them, until nothing of that is left.
    fn settle(&mut self) {
        loop {
            if let Some(object) = self.vacated.pop_first() {
                self.ensure_fetch(object);
                self.retry_puts(object);
            } else if let Some(message) = self.loopback.pop_front() {
                self.on_message(self.me, message);
            } else if self.room_changed && !self.room.is_empty() {
                self.room_changed = false;
                self.retry_room();
            } else {
                self.room_changed = false;
                return;
            }
        }
    }

    fn on_time(&mut self) {
        let changes = self.members.on_time(self.now);
        self.on_member_changes(changes);
        while let Some(timer) = self.timers.pop(self.now) {
            match timer {
                Timer::Call(client, call) => self.on_call_timer(client, call),
                Timer::Asks(object) => self.serve_asks(object),
                Timer::Tombstone(object) => self.on_tombstone_over(object),
                Timer::Parked(key) => self.on_parked_timer(key),
                Timer::Prefetch(object) => self.on_prefetch_timer(object),
                Timer::Turn(object) => self.on_turn_timer(object),
                Timer::Refresh => self.on_refresh(),
                Timer::Resync(node) => self.on_resync(node),
                Timer::Reannounce => self.on_reannounce(),
                Timer::Reseat(number) => self.advance_reduction(number),
                Timer::Crowded(reduction, slot) => self.on_crowded_timer((reduction, slot)),
                Timer::Bereaved(number) => self.on_bereaved_timer(number),
                Timer::Barrier(number) => self.on_barrier_timer(number),
                Timer::Ping(node) => self.ping(node),
                Timer::Loss(object) => self.on_loss_timer(object),
                Timer::Graves => self.forget_graves(),
                Timer::Unsaid => self.say_unsaid(),
                Timer::Renewal => self.on_renewal_timer(),
                Timer::Remembered => self.forget_memories(),
                Timer::Leave => self.on_leave_timer(),
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Sends a message; to ourselves, it is handled before `handle` returns.
    fn send(&mut self, to: NodeId, message: PeerMessage, attach: Option<CopyId>) {
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            self.out.push_back(Output::Peer { to, message, attach });
        }
    }

    /// Our own account; the driver adds the bytes it moved.
    fn status(&self) -> Status {
        let (entries, tombstones) = self.directory.counts();
        Status {
            node: Some(self.me),
            members: self.shards.iter().collect(),
            store_bytes: self.copies.arena.bytes(),
            used_bytes: self.copies.arena.used(),
            copies: self.copies.table.len() as u64,
            entries,
            tombstones,
            transfers: (self.sends.count() + self.fetches.transfers.len()) as u64,
            reductions: (self.reductions.len() + self.seats.count()) as u64,
            clients: self.clients.len() as u64,
            evicted_copies: self.copies.evicted,
            links: self.links.report(),
            ..Status::default()
        }
    }
}

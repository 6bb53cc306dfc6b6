//! Many real cores in a world that simulates only times. It can hold clusters and directories that are too large for a
//! `World`, which moves all bytes and checks all rules.
//!
//! - here: the queue, the inputs of the cores, messages and datagrams; `clients`: calls and their times
//! - `streams`: when streams and folds end; `turns`: how long the turns of a core take on this machine
//!
//! All links have the same latency and rate, and processing takes no time. Nothing gets lost. A node dies with its
//! process only: its host refuses connections.

mod clients;
mod streams;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::io::{attach, Event, Input, Output, SendId};
use hoplite_core::{Config, Core};
use hoplite_types::peer::{PeerMessage, Seal};
use hoplite_types::{CopyId, NodeId, Shard, TransferId};

use crate::names::{address, incarnation, index_of};
use crate::queue::Queue;
use crate::world::WALL_MS;
use clients::Answer;
use streams::{DataPlane, Folding, Outgoing, Receiving};

pub(crate) use turns::{least, Turn};

/// The size of an arena. It is never full.
const STORE_BYTES: u64 = 1 << 42;

/// Seeds that a newcomer contacts.
const SEEDS: usize = 3;

/// About the bytes of a message on the wire without its payload.
const MESSAGE_BYTES: u64 = 100;

/// The links.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    pub latency: Duration,
    pub bytes_per_s: u64,
}

enum BareEvent {
    Tick(usize),
    Said {
        from: NodeId,
        to: NodeId,
        message: Box<PeerMessage>,
    },
    Datagram {
        to: usize,
        bytes: Vec<u8>,
    },
    Report(usize, Box<Input>),
    /// A stream's last byte and its seal have arrived, or it broke.
    Arrived {
        to: usize,
        transfer: TransferId,
        outcome: Option<Seal>,
    },
    SendOver(usize, SendId),
}

struct Host {
    id: NodeId,
    alive: bool,
    core: Core,
    data_plane: DataPlane,
    tick_at: Option<Duration>,
    members: usize,
    /// The nodes that it has a control connection to.
    lines: BTreeSet<NodeId>,
    control_free: Duration,
    egress_free: Duration,
    ingress_free: Duration,
}

/// The cluster. Hosts are numbered in the order of their starts. A number is never used again.
pub(crate) struct Bare {
    queue: Queue<BareEvent>,
    hosts: Vec<Host>,
    links: Links,
    answers: BTreeMap<u64, Answer>,
    calls: u64,
    /// The node to which the last message about each shard went.
    owners: BTreeMap<Shard, NodeId>,
    turns: Vec<Turn>,
    /// Processor time of all cores together.
    pub busy: Duration,
}

impl Bare {
    pub fn new(links: Links) -> Self {
        Bare {
            queue: Queue::default(),
            hosts: Vec::new(),
            links,
            answers: BTreeMap::new(),
            calls: 0,
            owners: BTreeMap::new(),
            turns: Vec::new(),
            busy: Duration::ZERO,
        }
    }

    pub fn now(&self) -> Duration {
        self.queue.now()
    }

    pub fn living(&self) -> Vec<usize> {
        (0..self.hosts.len()).filter(|host| self.hosts[*host].alive).collect()
    }

    /// Starts a node. Returns its number.
    pub fn start(&mut self) -> usize {
        let index = self.hosts.len();
        let wall_ms = WALL_MS + self.now().as_millis() as u64;
        let id = NodeId { addr: address(index), incarnation: incarnation(1, wall_ms, 0) };
        let mut config = Config::new(id, STORE_BYTES, index as u64 + 1);
        config.seeds = self.living().into_iter().take(SEEDS).map(address).collect();
        self.hosts.push(Host {
            id,
            alive: true,
            core: Core::new(config),
            data_plane: DataPlane::default(),
            tick_at: None,
            members: 1,
            lines: BTreeSet::new(),
            control_free: Duration::ZERO,
            egress_free: Duration::ZERO,
            ingress_free: Duration::ZERO,
        });
        self.feed(index, Input::Tick);
        index
    }

    /// Kills a node's process. Nodes with a connection from or to it see it break, dial again and are refused.
    pub fn kill(&mut self, index: usize) {
        let gone = self.hosts[index].id;
        self.hosts[index].alive = false;
        let broken = self.now() + self.links.latency;
        let refused = broken + 2 * self.links.latency;
        for other in self.living() {
            let (out, back) = (self.hosts[other].lines.remove(&gone), &self.hosts[index].lines);
            if out || back.contains(&self.hosts[other].id) {
                self.queue.push(broken, BareEvent::Report(other, Box::new(Input::PeerBroken { node: gone })));
            }
            if out {
                self.queue.push(refused, BareEvent::Report(other, Box::new(Input::PeerGone { node: gone })));
            }
        }
        self.break_streams_of(index);
    }

    /// Whether every node knows all others.
    pub fn is_whole(&self) -> bool {
        let living = self.living();
        living.iter().all(|host| self.hosts[*host].members == living.len())
    }

    /// The node to which messages about this shard go, if there was one.
    pub fn owner(&self, shard: Shard) -> Option<usize> {
        self.owners.get(&shard).map(|node| index_of(node.addr))
    }

    /// Handles the next event.
    pub fn step(&mut self) -> Result<(), String> {
        match self.queue.pop().ok_or("nothing is left to happen")? {
            BareEvent::Tick(index) => self.on_tick(index),
            BareEvent::Said { from, to, message } => self.on_sent(from, to, *message),
            BareEvent::Datagram { to, bytes } => self.feed(to, Input::Datagram { bytes }),
            BareEvent::Report(index, input) => self.feed(index, *input),
            BareEvent::Arrived { to, transfer, outcome } => self.on_arrived(to, transfer, outcome),
            BareEvent::SendOver(index, send) => self.on_send_over(index, send),
        }
        Ok(())
    }

    pub fn run_for(&mut self, time: Duration) -> Result<(), String> {
        let until = self.now() + time;
        while self.queue.next_at().is_some_and(|next| next <= until) {
            self.step()?;
        }
        self.queue.idle_until(until);
        Ok(())
    }

    /// The turns since the last call of this.
    pub fn take_turns(&mut self) -> Vec<Turn> {
        std::mem::take(&mut self.turns)
    }

    fn feed(&mut self, index: usize, input: Input) {
        let now = self.now();
        let host = &mut self.hosts[index];
        if !host.alive {
            return;
        }
        let during = turns::name(&input);
        let turn = Turn::time(during, || host.core.handle(now, input));
        self.busy += turn.took;
        self.turns.push(turn);
        while let Some(output) = self.hosts[index].core.poll_output() {
            self.carry_out(index, output);
        }
        self.arm_tick(index);
    }

    fn arm_tick(&mut self, index: usize) {
        let now = self.now();
        let host = &mut self.hosts[index];
        let Some(deadline) = host.core.next_deadline() else { return };
        let deadline = deadline.max(now);
        if host.tick_at.is_none_or(|armed| deadline < armed) {
            host.tick_at = Some(deadline);
            self.queue.push(deadline, BareEvent::Tick(index));
        }
    }

    fn on_tick(&mut self, index: usize) {
        let now = self.now();
        let host = &mut self.hosts[index];
        // This tick is out of date: an earlier one was armed since and has happened.
        if !host.alive || host.tick_at.is_none_or(|armed| armed > now) {
            return;
        }
        host.tick_at = None;
        match host.core.next_deadline().is_some_and(|deadline| deadline <= now) {
            true => self.feed(index, Input::Tick),
            false => self.arm_tick(index),
        }
    }

    fn carry_out(&mut self, index: usize, output: Output) {
        match output {
            Output::Reply { client, call, reply } => self.on_reply(index, client, call, reply),
            Output::Peer { to, message, attach } => self.send_control(index, to, message, attach),
            Output::Datagram { to, bytes } => {
                let to = index_of(to);
                if to < self.hosts.len() {
                    self.queue.push(self.now() + self.links.latency, BareEvent::Datagram { to, bytes });
                }
            }
            Output::Event(Event::MemberUp { .. }) => self.hosts[index].members += 1,
            Output::Event(Event::MemberDown { node }) => {
                self.hosts[index].members -= 1;
                self.hosts[index].lines.remove(&node);
            }
            Output::Open { copy, extent } => self.open(index, copy, extent.size),
            Output::Seal { copy, seal } => self.seal(index, copy, seal),
            Output::Abort { copy } => self.abort(index, copy),
            Output::Close { copy } => self.close(index, copy),
            Output::Receive { transfer, from, copy, offset } => {
                self.receive(index, transfer, Receiving::Copy { from, copy, offset });
            }
            Output::StopReceive { transfer } => self.stop_receive(index, transfer),
            Output::Send { send, to, transfer, copy, offset, .. } => {
                self.send(index, send, Outgoing { to, transfer, copy, offset });
            }
            Output::StopSend { send } => self.stop_send(index, send),
            Output::Fold { fold, out, rule, inputs } => {
                self.fold(index, fold, Folding::new(out, rule), inputs);
            }
            Output::AmendFold { fold, rule, added } => self.amend_fold(index, fold, rule, added),
            Output::StopFold { fold } => self.stop_fold(index, fold),
            // Bytes are not simulated, only the ends of streams.
            Output::Write { .. }
            | Output::Advance { .. }
            | Output::Filled { .. }
            | Output::Reopen { .. }
            | Output::Removed { .. }
            | Output::Event(_)
            | Output::Left => {}
        }
    }

    fn send_control(&mut self, index: usize, to: NodeId, mut message: PeerMessage, copy: Option<CopyId>) {
        let payload = copy.map_or(0, |copy| self.hosts[index].data_plane.size(copy));
        if copy.is_some() {
            attach(&mut message, vec![0; payload as usize]);
        }
        if let PeerMessage::Directory { id, .. } = &message {
            self.owners.insert(id.shard(), to);
        }
        let (now, takes) = (self.now(), self.links.takes(MESSAGE_BYTES + payload));
        let host = &mut self.hosts[index];
        host.lines.insert(to);
        host.control_free = host.control_free.max(now) + takes;
        let (from, at) = (host.id, host.control_free + self.links.latency);
        self.queue.push(at, BareEvent::Said { from, to, message: Box::new(message) });
    }

    fn on_sent(&mut self, from: NodeId, to: NodeId, message: PeerMessage) {
        let there = index_of(to.addr);
        if self.hosts[there].alive {
            return self.feed(there, Input::Peer { from, message });
        }
        // The dead node's host refuses the connection.
        let (back, sender) = (self.now() + self.links.latency, index_of(from.addr));
        if self.hosts[sender].lines.remove(&to) {
            self.queue.push(back, BareEvent::Report(sender, Box::new(Input::PeerGone { node: to })));
        }
    }

    fn report(&mut self, index: usize, input: Input) {
        self.queue.push(self.now(), BareEvent::Report(index, Box::new(input)));
    }
}

impl Links {
    fn takes(&self, bytes: u64) -> Duration {
        Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s)) as u64)
    }
}

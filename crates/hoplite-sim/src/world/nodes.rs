//! Start and death of nodes, their clocks, and the inputs of their cores.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use hoplite_core::io::{Input, Output};
use hoplite_core::{Config, Core};
use hoplite_types::client::Request;
use hoplite_types::{CopyId, NodeId};

use super::deferral::Process;
use super::{note, tell, Node, Place, World};
use crate::data_plane::DataPlane;
use crate::event::{FlowEvent, Relief, SimEvent};
use crate::names::{address, incarnation, index_of, node as name};
use crate::rng::SimRng;

/// Most ticks of a core at one time. With more, the core spins.
const IDLE_TICKS_MAX: u32 = 1000;

/// Most outputs for one input. With more, the core is in a loop.
const OUTPUTS_MAX: u64 = 100_000;
const OUTPUTS_PER_OBJECT: u64 = 20;

/// Most messages in one turn. They take some ten milliseconds, in which everything else waits, heartbeats too.
const TURN_MESSAGES_MAX: u64 = 4096;

/// The number of objects in a call.
fn objects_of(input: &Input) -> u64 {
    let Input::Client { request, .. } = input else { return 0 };
    let count = match request {
        Request::Delete { ids, .. } | Request::Wait { ids, .. } | Request::Prefetch { ids, .. } => ids.len(),
        Request::Reduce { sources, .. } => 1 + sources.len(),
        _ => 1,
    };
    count as u64
}

impl World {
    pub(super) fn add_node(&mut self, index: usize) {
        let node = self.new_node(index, 1, 0);
        self.nodes.push(node);
        let place = self.place(index);
        let delay = self.rng.time(Duration::ZERO, self.plan.start_spread);
        self.queue.push(self.after(delay), SimEvent::Boot { place });
    }

    fn new_node(&mut self, index: usize, boot: u64, last: u64) -> Node {
        let wall_ms = self.plan.clocks.wall_ms[index] + self.queue.now().as_millis() as u64;
        let id = NodeId { addr: address(index), incarnation: incarnation(boot, wall_ms, last) };
        let seed = SimRng::new(self.seed ^ (index as u64) << 32 ^ boot).seed();
        let mut config = Config::new(id, self.plan.store_bytes, seed);
        config.stall_after = self.plan.stall_after;
        config.striped_bytes_min = self.plan.striped_bytes_min;
        config.seeds = (0..self.plan.nodes).map(address).collect();
        Node {
            id,
            boot,
            alive: true,
            core: Core::new(config),
            arena: vec![0; self.plan.store_bytes as usize],
            data_plane: DataPlane::default(),
            tick_at: None,
            last_report: Default::default(),
            idle_ticks: 0,
            members: BTreeSet::new(),
            process: Process::default(),
            leaving: None,
        }
    }

    pub(super) fn boot(&mut self, place: Place) {
        note!(self, "{} starts", name(self.nodes[place.index].id));
        self.feed(place, Input::Tick);
    }

    /// Gives an input to a core and carries out its outputs.
    pub(super) fn feed(&mut self, place: Place, input: Input) {
        let now = self.queue.now();
        let means = self.plan.means;
        let Some(node) = self.alive(place) else { return };
        let about = objects_of(&input);
        node.core.handle(now, input);
        node.process.turn = means.input_time;
        let (mut outputs, mut messages) = (0, 0);
        while let Some(output) = self.nodes[place.index].core.poll_output() {
            outputs += 1;
            if outputs > OUTPUTS_MAX + about * OUTPUTS_PER_OBJECT {
                return self.violate(format!("outputs without end, such as {output:?}"));
            }
            if matches!(output, Output::Peer { .. }) {
                messages += 1;
                self.nodes[place.index].process.turn += means.message_time;
            }
            self.carry_out(place, output);
        }
        // A call may have tens of thousands of objects, and each may need messages to all nodes.
        if messages > TURN_MESSAGES_MAX + about * (self.nodes.len() as u64 + 2) {
            return self.violate(format!("{} says {messages} things in one turn", self.name(place)));
        }
        self.nodes[place.index].process.end_turn(now);
        self.arm_tick(place);
    }

    fn arm_tick(&mut self, place: Place) {
        let now = self.queue.now();
        let Some(node) = self.alive(place) else { return };
        let Some(deadline) = node.core.next_deadline() else { return };
        let deadline = deadline.max(now);
        if node.tick_at.is_none_or(|armed| deadline < armed) {
            node.tick_at = Some(deadline);
            self.queue.push(deadline, SimEvent::Tick { place });
        }
    }

    pub(super) fn on_tick(&mut self, place: Place) {
        let now = self.queue.now();
        let Some(node) = self.alive(place) else { return };
        if node.tick_at.is_none_or(|armed| armed > now) {
            return;
        }
        node.tick_at = None;
        if node.core.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.feed(place, Input::Tick);
            self.watch_for_spinning(place);
        } else {
            self.arm_tick(place);
        }
    }

    fn watch_for_spinning(&mut self, place: Place) {
        let now = self.queue.now();
        let Some(node) = self.alive(place) else { return };
        if node.core.next_deadline().is_none_or(|deadline| deadline > now) {
            node.idle_ticks = 0;
            return;
        }
        node.idle_ticks += 1;
        if node.idle_ticks > IDLE_TICKS_MAX {
            let id = node.id;
            self.violate(format!("{} asks for ticks without end at one moment", name(id)));
        }
    }

    pub(super) fn on_report(&mut self, place: Place, input: Input, frees: &[CopyId]) {
        let Some(node) = self.alive(place) else { return };
        for copy in frees {
            if let Some(held) = node.data_plane.copies.get_mut(copy) {
                held.jobs -= 1;
            }
        }
        let id = node.id;
        note!(self, "{} {input:?}", name(id));
        self.feed(place, input);
    }

    pub(super) fn on_datagram(&mut self, from: usize, to: SocketAddr, bytes: Vec<u8>) {
        let index = index_of(to);
        if !self.net.is_cut(from, index) {
            self.feed(self.place(index), Input::Datagram { bytes });
        }
    }

    /// Kills a node's process: its memory, its connections and its clients' connections are gone. If the whole host
    /// dies (`host`), no peer is notified.
    pub fn kill_node(&mut self, index: usize, host: bool) {
        let place = self.place(index);
        let Some(node) = self.alive(place) else { return };
        node.alive = false;
        let process = std::mem::take(&mut node.process);
        let id = node.id;
        self.note_death(place);
        for event in &process.held {
            if let Some((link, message)) = event.control() {
                self.lose(link, message);
            }
        }
        tell!(self, "{} dies{}", name(id), if host { " with its host" } else { "" });
        if host {
            self.net.set_dark(index, true);
            let at = self.after(super::faults::KERNEL_PATIENCE);
            self.queue.push(at, SimEvent::Relief(Relief::HostPatience(place)));
        } else {
            self.close_all_links(place);
            for (flow, was_sender) in self.flows_of(place) {
                self.push_flow_end(flow, if was_sender { FlowEvent::Cut } else { FlowEvent::Reset });
            }
        }
        let clients: Vec<_> =
            self.sessions.iter().filter(|(_, session)| session.place == place).map(|(id, _)| *id).collect();
        for client in clients {
            self.end_session(client);
        }
    }

    /// Sets the host's clock forward or back while the node is down.
    fn step_clock(&mut self, index: usize) {
        let steps_ms = self.plan.clocks.steps_ms;
        if steps_ms > 0 && self.rng.percent(50) {
            let step = self.rng.between(0, 2 * steps_ms);
            let wall_ms = &mut self.plan.clocks.wall_ms[index];
            *wall_ms = (*wall_ms + step).saturating_sub(steps_ms);
            note!(self, "the clock of n{} is {step} ms behind {steps_ms} ms ago", index + 1);
        }
    }

    pub fn restart_node(&mut self, index: usize) {
        if self.nodes[index].alive {
            return;
        }
        let before = self.place(index);
        if self.net.is_dark(index) {
            self.net.set_dark(index, false);
            // The new kernel resets connections to the old process.
            self.relieve(Relief::HostPatience(before));
        }
        let (boot, last) = (before.boot + 1, self.nodes[index].id.incarnation);
        self.step_clock(index);
        self.nodes[index] = self.new_node(index, boot, last);
        tell!(self, "{} starts", name(self.nodes[index].id));
        self.boot(self.place(index));
    }
}

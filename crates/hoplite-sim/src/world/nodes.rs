//! Birth and death of nodes, their clock, and the way into their cores.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use hoplite_core::io::Input;
use hoplite_core::{Config, Core};
use hoplite_words::peer::PeerMessage;
use hoplite_words::{CopyId, NodeId};

use super::outputs::is_noise;
use super::{note, tell, Node, Place, World};
use crate::fault::Fault;
use crate::happening::{FlowEvent, Happening};
use crate::names::{address, index_of, node as name};
use crate::net::LineId;
use crate::plane::Plane;
use crate::show;

/// More ticks than this without the clock moving on is a core that spins.
const IDLE_TICKS_MAX: u32 = 1000;

/// More outputs than this for one input are a loop.
const OUTPUTS_MAX: u64 = 100_000;

impl World {
    pub(super) fn add_node(&mut self, index: usize) {
        let node = self.new_node(index, 1);
        self.nodes.push(node);
        let place = self.place(index);
        let delay = self.dice.time(Duration::ZERO, self.plan.start_spread);
        self.queue.push(self.after(delay), Happening::Boot { place });
    }

    fn new_node(&mut self, index: usize, boot: u64) -> Node {
        let id = NodeId { addr: address(index), incarnation: boot };
        let mut config = Config::new(id, self.plan.store_bytes, self.dice.seed());
        config.seeds = (0..self.plan.nodes).map(address).collect();
        Node {
            id,
            boot,
            alive: true,
            core: Core::new(config),
            arena: vec![0; self.plan.store_bytes as usize],
            plane: Plane::default(),
            tick_at: None,
            last_report: Default::default(),
            idle_ticks: 0,
            members: BTreeSet::new(),
        }
    }

    pub(super) fn boot(&mut self, place: Place) {
        note!(self, "{} starts", name(self.nodes[place.index].id));
        self.feed(place, Input::Tick);
    }

    /// Tells a core what happened and carries out what it wants done.
    pub(super) fn feed(&mut self, place: Place, input: Input) {
        let now = self.queue.now();
        let Some(node) = self.alive(place) else { return };
        node.core.handle(now, input);
        let mut outputs = 0;
        while let Some(output) = self.nodes[place.index].core.poll_output() {
            outputs += 1;
            if outputs > OUTPUTS_MAX {
                return self.violate(format!("outputs without end, such as {output:?}"));
            }
            self.carry_out(place, output);
        }
        self.arm_tick(place);
    }

    fn arm_tick(&mut self, place: Place) {
        let now = self.queue.now();
        let Some(node) = self.alive(place) else { return };
        let Some(deadline) = node.core.next_deadline() else { return };
        let deadline = deadline.max(now);
        if node.tick_at.is_none_or(|armed| deadline < armed) {
            node.tick_at = Some(deadline);
            self.queue.push(deadline, Happening::Tick { place });
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
            if let Some(held) = node.plane.copies.get_mut(copy) {
                held.jobs -= 1;
            }
        }
        let id = node.id;
        note!(self, "{} {input:?}", name(id));
        self.feed(place, input);
    }

    pub(super) fn on_control(&mut self, from: NodeId, to: NodeId, message: PeerMessage) {
        let Some(place) = self.place_of(to) else { return };
        if !is_noise(&message) {
            let text = show::message(&mut self.names, &message);
            note!(self, "{} hears {} {text}", name(to), name(from));
        }
        self.feed(place, Input::Peer { from, message });
    }

    pub(super) fn on_line_broken(&mut self, place: Place, peer: NodeId, line: LineId) {
        let Some(node) = self.alive(place) else { return };
        let id = node.id;
        if !self.net.drop_line(place, peer, line) {
            return;
        }
        note!(self, "{} lost the line to {}", name(id), name(peer));
        self.feed(place, Input::PeerBroken { node: peer });
    }

    pub(super) fn on_datagram(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        let index = index_of(to);
        if index < self.nodes.len() {
            self.feed(self.place(index), Input::Datagram { bytes });
        }
    }

    pub(super) fn on_fault(&mut self, fault: Fault) {
        match fault {
            Fault::KillClient(client) => self.kill_client(client),
            Fault::KillNode(index) => self.kill_node(index),
            Fault::RestartNode(index) => self.restart_node(index),
        }
    }

    /// The process is gone: its memory, its connections, and its clients' connections with it.
    pub(super) fn kill_node(&mut self, index: usize) {
        let place = self.place(index);
        let Some(node) = self.alive(place) else { return };
        node.alive = false;
        let id = node.id;
        tell!(self, "{} dies", name(id));
        for (caller, line) in self.net.callers_of(id) {
            self.net.break_line(caller, id);
            let under_way = self.net.under_way(index, caller.index, &mut self.dice);
            let at = self.after(under_way);
            self.queue.push(at, Happening::LineBroken { place: caller, peer: id, line });
        }
        let touching: Vec<_> = self
            .flows
            .iter()
            .filter(|(_, flow)| flow.from == place || flow.to == id)
            .map(|(id, flow)| (*id, flow.from == place))
            .collect();
        for (flow, was_sender) in touching {
            self.push_flow_end(flow, if was_sender { FlowEvent::Cut } else { FlowEvent::Reset });
        }
        let clients: Vec<_> =
            self.sessions.iter().filter(|(_, session)| session.place == place).map(|(id, _)| *id).collect();
        for client in clients {
            self.end_session(client);
        }
    }

    pub(super) fn restart_node(&mut self, index: usize) {
        if self.nodes[index].alive {
            return;
        }
        let boot = self.nodes[index].boot + 1;
        self.nodes[index] = self.new_node(index, boot);
        tell!(self, "{} starts", name(self.nodes[index].id));
        self.boot(self.place(index));
    }
}

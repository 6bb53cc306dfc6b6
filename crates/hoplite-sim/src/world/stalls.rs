//! Streams that break or stall, and the reports of both to the cores.

use std::time::Duration;

use hoplite_core::io::{Broken, Input};
use hoplite_types::TransferId;

use super::control_links::RETRANSMIT_MAX;
use super::flows::Flow;
use super::{note, tell, Place, World};
use crate::data_plane::FlowId;
use crate::event::{FlowEvent, SimEvent};
use crate::names::{index_of, node as name};

impl World {
    /// Starts the stall checks of this stream.
    pub(super) fn watch_stream(&mut self, place: Place, transfer: TransferId) {
        let at = self.after(self.plan.stall_after);
        self.queue.push(at, SimEvent::StallCheck { place, transfer });
    }

    /// Reports a stream to the core if it has been silent for long enough. Schedules the next check.
    pub(super) fn on_stall_check(&mut self, place: Place, transfer: TransferId) {
        let (now, patience) = (self.queue.now(), self.plan.stall_after);
        let Some(node) = self.alive(place) else { return };
        let (last_byte, watermark) = if let Some(receive) = node.data_plane.receives.get_mut(&transfer) {
            (&mut receive.last_byte, receive.at)
        } else if let Some((fold, stream)) = node.data_plane.stream_of(transfer) {
            let stream = &mut node.data_plane.folds.get_mut(&fold).expect("just found").streams[stream];
            if stream.sealed {
                return;
            }
            let brought = stream.at + stream.pending.len() as u64;
            (&mut stream.last_byte, brought)
        } else {
            return;
        };
        let due = *last_byte + patience;
        if due > now {
            return self.queue.push(due, SimEvent::StallCheck { place, transfer });
        }
        *last_byte = now;
        let id = node.id;
        note!(self, "{} t{} stands still at {watermark} B", name(id), transfer.0);
        self.report(place, Input::ReceiveStalled { transfer, watermark }, Vec::new());
        self.watch_stream(place, transfer);
    }

    /// One of the running streams; `pick` selects it.
    pub(super) fn pick_flow(&self, pick: u64) -> Option<FlowId> {
        let count = self.flows.len() as u64;
        self.flows.keys().nth((pick % count.max(1)) as usize).copied()
    }

    /// The streams from or to a node, and whether the node is their sender.
    pub(super) fn flows_of(&self, place: Place) -> Vec<(FlowId, bool)> {
        let id = self.nodes[place.index].id;
        let touching = self.flows.iter().filter(|(_, flow)| flow.from == place || flow.to == id);
        touching.map(|(id, flow)| (*id, flow.from == place)).collect()
    }

    /// Breaks the connection at once for both ends, and with it all streams that share it.
    pub(super) fn break_flow(&mut self, id: FlowId) {
        for flow in self.bundle_of(id) {
            self.break_stream(flow);
        }
    }

    /// All streams that share their connections with this one.
    fn bundle_of(&self, id: FlowId) -> Vec<FlowId> {
        let Some(flow) = self.flows.get(&id) else { return Vec::new() };
        let (from, to, group) = (flow.from, flow.to, flow.group);
        let shares = |(other, flow): &(&FlowId, &Flow)| {
            **other == id || group.is_some() && (flow.from, flow.to, flow.group) == (from, to, group)
        };
        self.flows.iter().filter(shares).map(|(id, _)| *id).collect()
    }

    fn break_stream(&mut self, id: FlowId) {
        let Some(flow) = self.flows.remove(&id) else { return };
        let Flow { from, from_id, send, to, transfer, trailer_sent, .. } = flow;
        tell!(self, "t{} from {} to {} breaks", transfer.0, name(from_id), name(to));
        if !trailer_sent && self.alive(from).is_some() {
            self.end_send(from, send, Err(Broken));
        }
        self.on_cut(to, transfer, id);
    }

    pub(super) fn break_flows_across(&mut self, separated: impl Fn(usize, usize) -> bool) {
        let apart = |flow: &Flow| separated(flow.from.index, index_of(flow.to.addr));
        let across: Vec<_> = self.flows.iter().filter(|(_, flow)| apart(flow)).map(|(id, _)| *id).collect();
        for id in across {
            self.break_flow(id);
        }
    }

    pub(super) fn stall_flow(&mut self, id: FlowId, time: Duration) {
        for flow in self.bundle_of(id) {
            self.stall_stream(flow, time);
        }
    }

    fn stall_stream(&mut self, id: FlowId, time: Duration) {
        let until = self.after(time);
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.stalled_until = flow.stalled_until.max(until);
        let (transfer, from, to) = (flow.transfer, flow.from_id, flow.to);
        tell!(self, "t{} from {} to {} brings nothing for {time:?}", transfer.0, name(from), name(to));
        self.queue.push(until, SimEvent::FlowFreed { flow: id });
    }

    /// Frees all streams that are held up, except by a host without power.
    pub(super) fn free_flows(&mut self) {
        self.flows.values_mut().for_each(|flow| flow.stalled_until = Duration::ZERO);
    }

    pub(super) fn retransmit_flows(&mut self) {
        let held_up = |flow: &Flow| !flow.stuck.is_empty() || !flow.stuck_back.is_empty();
        let stuck: Vec<_> = self.flows.iter().filter(|(_, flow)| held_up(flow)).map(|(id, _)| *id).collect();
        for flow in stuck {
            let delay = self.rng.time(Duration::ZERO, RETRANSMIT_MAX);
            self.queue.push(self.after(delay), SimEvent::FlowFreed { flow });
        }
    }

    pub(super) fn on_flow_freed(&mut self, id: FlowId) {
        let now = self.queue.now();
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let (here, there) = (flow.from.index, index_of(flow.to.addr));
        let mut freed: Vec<FlowEvent> = Vec::new();
        if !self.net.is_cut(there, here) {
            freed.extend(flow.stuck_back.drain(..));
        }
        if flow.stalled_until <= now && !self.net.is_cut(here, there) {
            freed.extend(flow.stuck.drain(..));
        }
        for event in freed {
            self.queue.push(now, SimEvent::Flow { flow: id, event });
        }
    }
}

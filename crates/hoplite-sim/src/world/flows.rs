//! Streams between nodes: real bytes at the rates of links, with trailers, cuts and resets.

use std::collections::VecDeque;
use std::time::Duration;

use hoplite_core::io::{Broken, Input, SendId};
use hoplite_types::limits::BULK_DIAL_TIMEOUT;
use hoplite_types::peer::Seal;
use hoplite_types::{CopyId, Edition, NodeId, ObjectId, ReductionId, TransferId};

use super::{note, tell, Place, World};
use crate::data_plane::{FlowId, Send, Stage};
use crate::event::{FlowEvent, SimEvent};
use crate::fault::Lane;
use crate::names::{index_of, node as name};

/// A stream that a core wants to begin.
pub(crate) struct Outgoing {
    pub send: SendId,
    pub to: NodeId,
    pub transfer: TransferId,
    pub copy: CopyId,
    pub offset: u64,
    pub group: Option<ReductionId>,
}

/// One stream under way. The receiver knows of it when its head has arrived.
#[derive(Debug)]
pub(crate) struct Flow {
    pub from: Place,
    pub from_id: NodeId,
    pub send: SendId,
    pub to: NodeId,
    pub transfer: TransferId,
    /// The object and edition that the sender sends.
    pub identity: Option<(ObjectId, Edition)>,
    /// The stream shares its connections with all others of this group between the same two nodes.
    pub group: Option<ReductionId>,
    offset: u64,
    size: u64,
    under_way: u64,
    /// Bytes that have left the sender and not reached the receiver's host.
    in_network: u64,
    /// The time until which the last of these bytes occupy the sender's link, and their number.
    leaving: (Duration, u64),
    last_arrival: Duration,
    /// Cleared when either side closes the stream. Bytes under way are then lost.
    open: bool,
    pub trailer_sent: bool,
    /// The stream delivers nothing until then.
    pub stalled_until: Duration,
    /// Events for the receiver that a cut or a stall holds up. `stuck_back` are those for the sender.
    pub stuck: VecDeque<FlowEvent>,
    pub stuck_back: VecDeque<FlowEvent>,
}

impl World {
    pub(super) fn start_send(&mut self, place: Place, outgoing: Outgoing) {
        let Outgoing { send, to, transfer, copy, offset, group } = outgoing;
        let from_id = self.nodes[place.index].id;
        self.refresh_identity(place, copy);
        let Some(held) = self.nodes[place.index].data_plane.copies.get_mut(&copy) else {
            return self.violate(format!("{} sends c{}, which is not open", name(from_id), copy.0));
        };
        let (size, identity) = (held.extent.size, held.identity);
        held.jobs += 1;
        if offset > size {
            return self.violate(format!("{} sends c{} from {offset} of {size} B", name(from_id), copy.0));
        }
        tell!(self, "{} => {} t{} from {offset} of {size} B", name(from_id), name(to), transfer.0);
        self.stats.flows += 1;
        let flow = FlowId(self.stats.flows);
        let there = index_of(to.addr);
        if self.fails_to_dial(place, to) {
            return self.begin_in_vain(place, send, flow, copy);
        }
        let dial = self.bulk_dial_time(place.index, there);
        let under_way = self.net.under_way(place.index, there, Lane::Bulk);
        let head_at = self.after(dial + under_way);
        self.flows.insert(
            flow,
            Flow {
                from: place,
                from_id,
                send,
                to,
                transfer,
                identity,
                group,
                offset,
                size,
                under_way: 0,
                in_network: 0,
                leaving: (Duration::ZERO, 0),
                last_arrival: head_at,
                open: true,
                trailer_sent: false,
                stalled_until: Duration::ZERO,
                stuck: VecDeque::new(),
                stuck_back: VecDeque::new(),
            },
        );
        let sends = &mut self.nodes[place.index].data_plane.sends;
        sends.insert(send, Send { flow, copy, at: offset, stepping: true });
        let fanout = sends.values().filter(|other| other.copy == copy).count();
        self.stats.fanout_max = self.stats.fanout_max.max(fanout);
        if self.place_of(to).is_some() {
            self.queue.push(head_at, SimEvent::Flow { flow, event: FlowEvent::Head });
            self.queue.push(self.after(dial), SimEvent::SendStep { place, send });
        } else {
            self.queue.push(head_at, SimEvent::Flow { flow, event: FlowEvent::Reset });
        }
        self.set_off_by_stream(place.index, there, 0, size);
    }

    /// How long a stream waits for its connection. Half of the streams find an idle one.
    fn bulk_dial_time(&mut self, from: usize, to: usize) -> Duration {
        match self.net.rng(from, to).percent(50) {
            true => self.net.round_trip(from, to),
            false => Duration::ZERO,
        }
    }

    /// Whether the dial for this stream fails.
    fn fails_to_dial(&mut self, place: Place, to: NodeId) -> bool {
        let there = index_of(to.addr);
        let means = self.plan.means;
        let fails = !self.faults_over() && self.net.rng(place.index, there).percent(means.failing_dials);
        fails
            || self.net.is_apart(place.index, there)
            || self.is_short_of_descriptors(place.index)
            || self.is_short_of_descriptors(there)
    }

    /// Starts a stream whose connection will not be made. It ends at its sender only, at once or after a while.
    fn begin_in_vain(&mut self, place: Place, send: SendId, flow: FlowId, copy: CopyId) {
        let there_is_none = self.is_short_of_descriptors(place.index);
        let at_once = there_is_none || self.rng.percent(50);
        let at = self.after(if at_once { Duration::ZERO } else { BULK_DIAL_TIMEOUT });
        let in_vain = Send { flow, copy, at: 0, stepping: true };
        self.nodes[place.index].data_plane.sends.insert(send, in_vain);
        self.queue.push(at, SimEvent::DialFailed { place, send });
    }

    pub(super) fn on_dial_failed(&mut self, place: Place, send: SendId) {
        if self.alive(place).is_some() {
            note!(self, "{} cannot connect for send {}", self.name(place), send.0);
            let Some(Send { copy, .. }) = self.nodes[place.index].data_plane.sends.remove(&send) else {
                return;
            };
            self.report(place, Input::SendNotBegun { send }, vec![copy]);
        }
    }

    /// Sends the next grain or the trailer, or waits until it can.
    pub(super) fn on_send_step(&mut self, place: Place, send_id: SendId) {
        let grain = self.plan.grain_bytes;
        let window = self.plan.window_bytes;
        let Some(node) = self.alive(place) else { return };
        let Some(send) = node.data_plane.sends.get_mut(&send_id) else { return };
        send.stepping = false;
        let (flow_id, copy, at) = (send.flow, send.copy, send.at);
        let held = node.data_plane.copies.get_mut(&copy).expect("a copy outlives its jobs");
        if held.stage == Stage::Aborted {
            return self.end_send(place, send_id, Err(Broken));
        }
        let (size, watermark) = (held.extent.size, held.watermark);
        let seal = match &held.stage {
            Stage::Sealed(seal) => Some(seal.clone()),
            _ => None,
        };
        if at == watermark && at < size && held.writer.is_some() {
            held.wanted = true;
            return;
        }
        let flow = self.flows.get_mut(&flow_id).expect("a send has its flow");
        let room = window.saturating_sub(flow.under_way);
        if at < watermark && room > 0 {
            let bytes = grain.min(watermark - at).min(room);
            self.send_grain(place, send_id, bytes);
        } else if let (true, Some(seal)) = (at == size, seal) {
            flow.trailer_sent = true;
            self.send_trailer(flow_id, seal);
            self.end_send(place, send_id, Ok(()));
        }
    }

    fn send_grain(&mut self, place: Place, send_id: SendId, len: u64) {
        let now = self.queue.now();
        let node = &mut self.nodes[place.index];
        let send = node.data_plane.sends.get_mut(&send_id).expect("stepping it");
        let at = send.at;
        let extent = node.data_plane.copies[&send.copy].extent;
        send.at += len;
        send.stepping = true;
        let flow_id = send.flow;
        let bytes = node.bytes(extent, at, at + len).to_vec();
        let flow = self.flows.get_mut(&flow_id).expect("a send has its flow");
        flow.under_way += len;
        flow.in_network += len;
        let there = index_of(flow.to.addr);
        let (sent, arrived) = self.net.bulk(now, place.index, there, len);
        flow.leaving = (sent, len);
        let arrived = arrived.max(flow.last_arrival);
        flow.last_arrival = arrived;
        self.stats.bulk_bytes += len;
        self.queue.push(arrived, SimEvent::Flow { flow: flow_id, event: FlowEvent::Bytes { at, bytes } });
        self.queue.push(sent, SimEvent::SendStep { place, send: send_id });
        self.set_off_by_stream(place.index, there, at + len, extent.size);
    }

    fn send_trailer(&mut self, flow_id: FlowId, seal: Seal) {
        let flow = self.flows.get_mut(&flow_id).expect("a send has its flow");
        let under_way = self.net.under_way(flow.from.index, index_of(flow.to.addr), Lane::Bulk);
        flow.last_arrival = flow.last_arrival.max(self.queue.now() + under_way);
        let at = flow.last_arrival;
        self.queue.push(at, SimEvent::Flow { flow: flow_id, event: FlowEvent::Trailer(seal) });
    }

    /// Ends a send at its node. A broken send closes the connection.
    pub(super) fn end_send(&mut self, place: Place, send_id: SendId, outcome: Result<(), Broken>) {
        let Some(send) = self.nodes[place.index].data_plane.sends.remove(&send_id) else { return };
        if outcome.is_err() {
            self.push_flow_end(send.flow, FlowEvent::Cut);
        }
        self.report(place, Input::SendEnded { send: send_id, outcome }, vec![send.copy]);
    }

    pub(super) fn stop_send(&mut self, place: Place, send: SendId) {
        note!(self, "{} stops send {}", self.name(place), send.0);
        self.end_send(place, send, Err(Broken));
    }

    /// One side closes a stream. The other side hears of it after all that is under way.
    pub(super) fn push_flow_end(&mut self, flow_id: FlowId, event: FlowEvent) {
        let Some(flow) = self.flows.get_mut(&flow_id) else { return };
        let (here, there) = match event {
            FlowEvent::Cut => (flow.from.index, index_of(flow.to.addr)),
            _ => (index_of(flow.to.addr), flow.from.index),
        };
        let mut at = self.queue.now() + self.net.under_way(here, there, Lane::Bulk);
        match event {
            FlowEvent::Cut => {
                at = at.max(flow.last_arrival);
                let (until, bytes) = flow.leaving;
                let unsent = self.net.keep_back(self.queue.now(), here, until, bytes).min(flow.in_network);
                flow.in_network -= unsent;
                self.net.take_back(there, unsent);
            }
            _ => {
                flow.open = false;
                let unwanted = std::mem::take(&mut flow.in_network);
                self.net.take_back(here, unwanted);
            }
        }
        self.queue.push(at, SimEvent::Flow { flow: flow_id, event });
    }

    /// Whether the stream's events for the receiver are held up in the network now.
    pub(super) fn is_held_up(&self, flow: &Flow) -> bool {
        let cut = self.net.is_cut(flow.from.index, index_of(flow.to.addr));
        cut || flow.stalled_until > self.queue.now() || !flow.stuck.is_empty()
    }

    pub(super) fn on_flow(&mut self, id: FlowId, event: FlowEvent) {
        let held_up = self.flows.get(&id).is_some_and(|flow| self.is_held_up(flow));
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if let FlowEvent::Bytes { bytes, .. } = &event {
            flow.in_network = flow.in_network.saturating_sub(bytes.len() as u64);
        }
        let cut_back = self.net.is_cut(index_of(flow.to.addr), flow.from.index);
        match event.is_at_sender() {
            true if cut_back || !flow.stuck_back.is_empty() => flow.stuck_back.push_back(event),
            false if held_up => flow.stuck.push_back(event),
            _ => self.on_arrival(id, event),
        }
    }

    /// An event leaves the network and reaches the process.
    pub(super) fn on_arrival(&mut self, id: FlowId, event: FlowEvent) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        match event {
            FlowEvent::Reset => {
                let (from, send) = (flow.from, flow.send);
                self.flows.remove(&id);
                if self.alive(from).is_some() {
                    self.end_send(from, send, Err(Broken));
                }
            }
            FlowEvent::Credit(bytes) => {
                flow.under_way -= bytes;
                let (from, send) = (flow.from, flow.send);
                self.nudge_send(from, send);
            }
            _ if !flow.open => {}
            FlowEvent::Head => self.on_head(id),
            FlowEvent::Bytes { at, bytes } => self.on_bytes(id, at, bytes),
            FlowEvent::Trailer(seal) => {
                let flow = self.flows.remove(&id).expect("looked up above");
                self.on_trailer(flow.to, flow.transfer, seal);
            }
            FlowEvent::Cut => {
                let flow = self.flows.remove(&id).expect("looked up above");
                if !flow.trailer_sent {
                    self.on_cut(flow.to, flow.transfer, id);
                }
            }
        }
    }

    fn on_head(&mut self, id: FlowId) {
        let flow = &self.flows[&id];
        let (to, transfer, from_id, offset, size) =
            (flow.to, flow.transfer, flow.from_id, flow.offset, flow.size);
        let Some(place) = self.place_of(to) else { return };
        let plane = &mut self.nodes[place.index].data_plane;
        let expected = if let Some(receive) = plane.receives.get_mut(&transfer) {
            receive.flow = Some(id);
            Some((receive.from, receive.at, receive.copy))
        } else if let Some((fold, stream)) = plane.stream_of(transfer) {
            let fold = plane.folds.get_mut(&fold).expect("just found");
            fold.streams[stream].flow = Some(id);
            Some((fold.streams[stream].from, 0, fold.out))
        } else {
            None
        };
        let Some((from, at, copy)) = expected else {
            note!(self, "{} does not know t{}", name(to), transfer.0);
            return self.push_flow_end(id, FlowEvent::Reset);
        };
        self.judge_head(id, place, transfer);
        let held = self.nodes[place.index].data_plane.copies.get(&copy).map(|held| held.extent.size);
        if (from, at, held) != (from_id, offset, Some(size)) {
            self.violate(format!(
                "t{} at {} expects {at} of {held:?} B from {}, but {} sends {offset} of {size} B",
                transfer.0,
                name(to),
                name(from),
                name(from_id)
            ));
        }
    }

    fn on_bytes(&mut self, id: FlowId, at: u64, bytes: Vec<u8>) {
        let flow = &self.flows[&id];
        let (to, transfer) = (flow.to, flow.transfer);
        let Some(place) = self.place_of(to) else { return };
        let now = self.queue.now();
        let node = &mut self.nodes[place.index];
        if let Some(receive) = node.data_plane.receives.get_mut(&transfer) {
            debug_assert_eq!(receive.at, at);
            receive.at += bytes.len() as u64;
            receive.last_byte = now;
            let (copy, watermark) = (receive.copy, receive.at);
            let held = node.data_plane.copies.get_mut(&copy).expect("a copy outlives its jobs");
            held.watermark = watermark;
            let extent = held.extent;
            node.bytes_mut(extent, at, watermark).copy_from_slice(&bytes);
            self.credit(id, bytes.len() as u64);
            self.wake(place, copy);
        } else if let Some((fold, stream)) = node.data_plane.stream_of(transfer) {
            let stream = &mut node.data_plane.folds.get_mut(&fold).expect("just found").streams[stream];
            stream.pending.extend(bytes);
            stream.last_byte = now;
            self.on_fold_step(place, fold);
        }
    }

    pub(super) fn credit(&mut self, id: FlowId, bytes: u64) {
        let Some(flow) = self.flows.get(&id) else { return };
        let back = self.net.latency(index_of(flow.to.addr), flow.from.index);
        let at = self.after(back);
        self.queue.push(at, SimEvent::Flow { flow: id, event: FlowEvent::Credit(bytes) });
    }

    fn on_trailer(&mut self, to: NodeId, transfer: TransferId, seal: Seal) {
        let Some(place) = self.place_of(to) else { return };
        let plane = &mut self.nodes[place.index].data_plane;
        if let Some(receive) = plane.receives.remove(&transfer) {
            let (copy, watermark) = (receive.copy, receive.at);
            tell!(self, "{} has all of t{}", name(to), transfer.0);
            self.judge_received(place, transfer, copy, &seal);
            let rate = self.net.bytes_per_s(index_of(receive.from.addr), place.index);
            self.report(place, Input::Measured { peer: receive.from, bytes_per_s: rate }, Vec::new());
            let input = Input::ReceiveEnded { transfer, watermark, outcome: Ok(seal) };
            self.report(place, input, vec![copy]);
        } else if let Some((fold, stream)) = plane.stream_of(transfer) {
            let fold_job = plane.folds.get_mut(&fold).expect("just found");
            fold_job.streams[stream].sealed = true;
            fold_job.streams[stream].flow = None;
            tell!(self, "{} has all of t{}", name(to), transfer.0);
            self.on_fold_step(place, fold);
        }
    }

    pub(super) fn on_cut(&mut self, to: NodeId, transfer: TransferId, id: FlowId) {
        let Some(place) = self.place_of(to) else { return };
        let plane = &mut self.nodes[place.index].data_plane;
        if plane.receives.get(&transfer).is_some_and(|receive| receive.flow == Some(id)) {
            self.end_receive(place, transfer);
        } else if let Some((fold, stream)) = plane.stream_of(transfer) {
            let fold_job = plane.folds.get_mut(&fold).expect("just found");
            if fold_job.streams[stream].flow == Some(id) {
                fold_job.broken = true;
                self.report(place, Input::FoldStreamBroken { fold, transfer }, Vec::new());
            }
        }
    }

    fn end_receive(&mut self, place: Place, transfer: TransferId) {
        let Some(receive) = self.nodes[place.index].data_plane.receives.remove(&transfer) else { return };
        tell!(self, "{} breaks off t{} at {} B", self.name(place), transfer.0, receive.at);
        let input = Input::ReceiveEnded { transfer, watermark: receive.at, outcome: Err(Broken) };
        self.report(place, input, vec![receive.copy]);
    }

    pub(super) fn stop_receive(&mut self, place: Place, transfer: TransferId) {
        note!(self, "{} stops receiving t{}", self.name(place), transfer.0);
        if let Some(flow) =
            self.nodes[place.index].data_plane.receives.get(&transfer).and_then(|job| job.flow)
        {
            self.push_flow_end(flow, FlowEvent::Reset);
        }
        self.end_receive(place, transfer);
    }

    /// A copy has more bytes, so its readers continue.
    pub(super) fn wake(&mut self, place: Place, copy: CopyId) {
        let (sends, folds) = self.nodes[place.index].data_plane.readers(copy);
        sends.into_iter().for_each(|send| self.nudge_send(place, send));
        for fold in folds {
            self.queue.push(self.queue.now(), SimEvent::FoldStep { place, fold });
        }
        self.wake_followers(place, copy);
    }

    fn nudge_send(&mut self, place: Place, send_id: SendId) {
        let now = self.queue.now();
        let Some(node) = self.alive(place) else { return };
        let Some(send) = node.data_plane.sends.get_mut(&send_id) else { return };
        if !send.stepping {
            send.stepping = true;
            self.queue.push(now, SimEvent::SendStep { place, send: send_id });
        }
    }
}

//! Carries out the outputs of a core.

use std::time::Duration;

use hoplite_core::io::{attach, Event, Extent, Input, Output};
use hoplite_types::peer::{DirectoryRequest, PeerMessage, Seal};
use hoplite_types::{CopyId, NodeId, ObjectId, TransferId};

use super::flows::Outgoing;
use super::{note, tell, Place, World};
use crate::data_plane::{Fold, Receive, Stage};
use crate::event::SimEvent;
use crate::fault::Lane;
use crate::names::{index_of, node as name};
use crate::show;

/// Longest delay of a report from a data thread to the control thread. Each report has its own delay.
const REPORT_DELAY_MAX: Duration = Duration::from_micros(20);

/// Time that a daemon gives its connections to flush before it ends.
const FLUSH_TIME: Duration = Duration::from_millis(20);

/// Number of data threads. Reports of one thread stay in order, reports of different threads do not.
pub(super) const DATA_THREADS: usize = 2;

pub(crate) fn is_noise(message: &PeerMessage) -> bool {
    matches!(message, PeerMessage::Ping { .. } | PeerMessage::Pong { .. })
}

impl World {
    pub(super) fn carry_out(&mut self, place: Place, output: Output) {
        match output {
            Output::Reply { client, call, reply } => self.reply(place, client, call, reply),
            Output::Peer { to, message, attach } => self.send_control(place, to, message, attach),
            Output::Datagram { to, bytes } => self.send_datagram(place, to, bytes),
            Output::Left => self.left(place),
            Output::Event(event) => self.take_note(place, event),
            Output::Open { copy, extent } => self.open(place, copy, extent),
            Output::Advance { copy, watermark } => self.advance(place, copy, watermark),
            Output::Write { copy, bytes } => self.write(place, copy, &bytes),
            Output::Filled { copy } => self.fill(place, copy),
            Output::Reopen { copy, extent } => self.reopen(place, copy, extent),
            Output::Seal { copy, seal } => self.seal(place, copy, seal),
            Output::Abort { copy } => self.abort(place, copy),
            Output::Removed { object } => self.remove(place, object),
            Output::Close { copy } => self.close(place, copy),
            Output::Receive { transfer, from, copy, offset } => {
                let last_byte = self.queue.now();
                self.receive(place, transfer, Receive { from, copy, at: offset, flow: None, last_byte });
            }
            Output::StopReceive { transfer } => self.stop_receive(place, transfer),
            Output::Send { send, to, transfer, copy, offset, group, .. } => {
                self.start_send(place, Outgoing { send, to, transfer, copy, offset, group });
            }
            Output::StopSend { send } => self.stop_send(place, send),
            Output::Fold { fold, out, rule, inputs } => {
                self.start_fold(place, fold, Fold::new(out, rule), inputs);
            }
            Output::AmendFold { fold, rule, added } => self.amend_fold(place, fold, rule, added),
            Output::StopFold { fold } => self.stop_fold(place, fold),
        }
    }

    pub(super) fn name(&self, place: Place) -> String {
        name(self.nodes[place.index].id)
    }

    /// Reports to the core after a short delay, as another thread would.
    pub(super) fn report(&mut self, place: Place, input: Input, frees: Vec<CopyId>) {
        let lane = match &input {
            Input::ReceiveEnded { transfer, .. } => transfer.0,
            Input::SendEnded { send, .. } | Input::SendNotBegun { send } => send.0,
            Input::FoldEnded { fold, .. } | Input::FoldStreamBroken { fold, .. } => fold.0,
            _ => 0,
        };
        let delay = self.rng.time(Duration::ZERO, REPORT_DELAY_MAX);
        let now = self.queue.now();
        let last = &mut self.nodes[place.index].last_report[lane as usize % DATA_THREADS];
        *last = (*last).max(now + delay);
        let at = *last;
        self.queue.push(at, SimEvent::Report { place, input, frees });
    }

    fn send_control(&mut self, place: Place, to: NodeId, mut message: PeerMessage, copy: Option<CopyId>) {
        let from = self.nodes[place.index].id;
        if to == from {
            return self.violate(format!("{} sends itself {message:?}", name(from)));
        }
        if let PeerMessage::Pull { transfer, id, edition, .. } = &message {
            self.pulls.insert((place, *transfer), (*id, *edition));
        }
        if let PeerMessage::DeletionAck { id } = message {
            self.judge_confirmation(place, id);
        }
        if let Some(copy) = copy {
            let Some(bytes) = self.whole_bytes(place, copy) else { return };
            self.judge_attachment(place, copy, &message, &bytes);
            attach(&mut message, bytes);
        }
        self.judge_payload(&message);
        if !is_noise(&message) {
            tell!(self, "{} > {} {}", name(from), name(to), show::message(&mut self.names, &message));
        }
        self.rules.loss_oracle.on_sent(from, &message);
        self.stats.messages += 1;
        self.set_off_by_message(place, to, &message);
        self.queue_control(place, to, message);
    }

    /// The bytes of a copy to attach to a message. A small put is announced with its bytes before its verdict.
    fn whole_bytes(&mut self, place: Place, copy: CopyId) -> Option<Vec<u8>> {
        let node = &self.nodes[place.index];
        match node.data_plane.copies.get(&copy) {
            Some(held) if held.stage != Stage::Aborted && held.watermark == held.extent.size => {
                Some(node.bytes(held.extent, 0, held.extent.size).to_vec())
            }
            other => {
                let what = format!("{} attaches {copy:?}, which is {other:?}", self.name(place));
                self.violate(what);
                None
            }
        }
    }

    /// Checks that a payload is the complete announced object.
    fn judge_payload(&mut self, message: &PeerMessage) {
        let PeerMessage::Directory { id, request, .. } = message else { return };
        let DirectoryRequest::Announce { report, payload: Some(payload), .. } = request else { return };
        if payload.0.len() as u64 != report.size {
            self.violate(format!("{id:?} announced as {} B with {payload:?}", report.size));
        }
    }

    fn send_datagram(&mut self, place: Place, to: std::net::SocketAddr, bytes: Vec<u8>) {
        let there = index_of(to);
        if there >= self.nodes.len() || self.net.loses_datagram(place.index, there) {
            return;
        }
        let under_way = self.net.under_way(place.index, there, Lane::Datagrams);
        let at = self.after(self.nodes[place.index].process.turn + under_way);
        self.queue.push(at, SimEvent::Datagram { from: place.index, to, bytes });
    }

    /// The core has left. The daemon flushes its messages and ends.
    fn left(&mut self, place: Place) {
        tell!(self, "{} has left", self.name(place));
        if self.nodes[place.index].leaving.is_none() {
            return self.violate(format!("{} leaves unasked", self.name(place)));
        }
        self.judge_legacy(place);
        self.queue.push(self.after(FLUSH_TIME), SimEvent::Exit { place });
    }

    fn take_note(&mut self, place: Place, event: Event) {
        note!(self, "{} {event:?}", self.name(place));
        match event {
            Event::MemberUp { node } => {
                self.nodes[place.index].members.insert(node);
                self.note_view(place, None);
            }
            Event::MemberDown { node } => {
                self.nodes[place.index].members.remove(&node);
                self.stats.false_deaths += u64::from(self.place_of(node).is_some());
                self.note_view(place, Some(node));
                self.close_link(place, node);
                self.stop_reading_link(place, node);
            }
            Event::Evicted { .. } => self.stats.evictions += 1,
            Event::TransferBroken { .. } => self.stats.broken_transfers += 1,
            Event::BadMessage { from, error } => {
                self.violate(format!("{} said to {} what cannot be: {error}", from, self.name(place)));
            }
        }
    }

    fn open(&mut self, place: Place, copy: CopyId, extent: Extent) {
        note!(
            self,
            "{} opens c{} at {}..{}",
            self.name(place),
            copy.0,
            extent.offset,
            extent.offset + extent.size
        );
        let bytes = self.plan.store_bytes;
        let node = &mut self.nodes[place.index];
        let identity = node.core.identity_of(copy);
        if let Err(what) = node.data_plane.open(copy, identity, extent, bytes) {
            let what = format!("{}: {what}", self.name(place));
            self.violate(what);
        }
    }

    /// Runs `change` on an open copy. It breaks a rule if the copy is not open.
    fn with_copy(
        &mut self,
        place: Place,
        copy: CopyId,
        doing: &str,
        change: impl FnOnce(&mut crate::data_plane::Copy) -> Result<(), String>,
    ) {
        let outcome = match self.nodes[place.index].data_plane.copies.get_mut(&copy) {
            Some(held) => change(held),
            None => Err("it is not open".to_owned()),
        };
        if let Err(why) = outcome {
            let what = format!("{} {doing} c{}: {why}", self.name(place), copy.0);
            self.violate(what);
        }
    }

    fn advance(&mut self, place: Place, copy: CopyId, watermark: u64) {
        note!(self, "{} c{} written to {watermark} B", self.name(place), copy.0);
        self.with_copy(place, copy, "advances", |held| match watermark > held.watermark {
            true => Err(format!("to {watermark} B, but only {} B are written", held.watermark)),
            false => Ok(()),
        });
        self.wake(place, copy);
    }

    fn write(&mut self, place: Place, copy: CopyId, bytes: &[u8]) {
        note!(self, "{} writes c{} {} B", self.name(place), copy.0, bytes.len());
        let mut extent = None;
        self.with_copy(place, copy, "writes", |held| {
            if held.stage != Stage::Writing || held.watermark != 0 || held.extent.size != bytes.len() as u64 {
                return Err(format!("{} B into {held:?}", bytes.len()));
            }
            held.watermark = held.extent.size;
            extent = Some(held.extent);
            Ok(())
        });
        if let Some(extent) = extent {
            self.nodes[place.index].bytes_mut(extent, 0, extent.size).copy_from_slice(bytes);
            self.wake(place, copy);
        }
    }

    fn fill(&mut self, place: Place, copy: CopyId) {
        note!(self, "{} has filled c{} through its windows", self.name(place), copy.0);
        if let Err(why) = self.nodes[place.index].data_plane.fill(copy) {
            let what = format!("{} fills c{}: {why}", self.name(place), copy.0);
            return self.violate(what);
        }
        self.stats.gathered += 1;
        self.wake(place, copy);
    }

    fn reopen(&mut self, place: Place, copy: CopyId, extent: Extent) {
        note!(self, "{} opens c{} again", self.name(place), copy.0);
        if let Err(why) = self.nodes[place.index].data_plane.reopen(copy, extent) {
            let what = format!("{} opens c{} again: {why}", self.name(place), copy.0);
            return self.violate(what);
        }
        self.refresh_identity(place, copy);
        self.wake(place, copy);
    }

    fn seal(&mut self, place: Place, copy: CopyId, seal: Seal) {
        tell!(self, "{} seals c{} {}", self.name(place), copy.0, self.names.objects(&seal.sources));
        self.refresh_identity(place, copy);
        let sealed = Stage::Sealed(seal.clone());
        self.with_copy(place, copy, "seals", |held| {
            if held.stage != Stage::Writing || held.watermark != held.extent.size {
                return Err(format!("{held:?}"));
            }
            held.stage = sealed;
            Ok(())
        });
        if self.violation.is_none() {
            self.judge_seal(place, copy, &seal);
        }
        self.wake(place, copy);
    }

    /// Updates a copy's identity from the core, as a partial sum may have become a target.
    pub(super) fn refresh_identity(&mut self, place: Place, copy: CopyId) {
        let node = &mut self.nodes[place.index];
        if let Some(identity) = node.core.identity_of(copy) {
            node.data_plane.identify(copy, identity);
        }
    }

    fn abort(&mut self, place: Place, copy: CopyId) {
        note!(self, "{} aborts c{}", self.name(place), copy.0);
        if self.nodes[place.index].data_plane.copies.contains_key(&copy) {
            self.judge_abort(place, copy);
        }
        self.with_copy(place, copy, "aborts", |held| {
            if held.stage == Stage::Aborted {
                return Err("it is aborted already".to_owned());
            }
            held.stage = Stage::Aborted;
            Ok(())
        });
        self.wake(place, copy);
    }

    fn remove(&mut self, place: Place, object: ObjectId) {
        note!(self, "{} has {} no more", self.name(place), self.names.object(object));
        self.nodes[place.index].data_plane.remove(object);
    }

    fn close(&mut self, place: Place, copy: CopyId) {
        note!(self, "{} closes c{}", self.name(place), copy.0);
        if let Err(what) = self.nodes[place.index].data_plane.close(copy) {
            let what = format!("{}: {what}", self.name(place));
            self.violate(what);
        }
    }

    fn receive(&mut self, place: Place, transfer: TransferId, receive: Receive) {
        let (copy, at, from) = (receive.copy, receive.at, name(receive.from));
        note!(self, "{} expects t{} from {from} into c{}", self.name(place), transfer.0, copy.0);
        self.with_copy(place, copy, "receives into", |held| {
            if held.stage != Stage::Writing || held.watermark != at {
                return Err(format!("from {at} B into {held:?}"));
            }
            held.jobs += 1;
            held.received = true;
            Ok(())
        });
        let plane = &mut self.nodes[place.index].data_plane;
        if plane.receives.values().any(|other| other.copy == copy) {
            let what = format!("{} receives twice into c{}", self.name(place), copy.0);
            return self.violate(what);
        }
        plane.receives.insert(transfer, receive);
        self.watch_stream(place, transfer);
        self.judge_edge(place, transfer, copy);
    }
}

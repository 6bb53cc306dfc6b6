//! What the core decided, carried out.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::io::{attach, ClientId, Event, FoldInputs, Input, Output};
use hoplite_core::Core;
use hoplite_net::{Arrival, ControlEvent, ControlLinks, Outbox};
use hoplite_store::Arena;
use hoplite_words::client::{Answer, Reply, Request};
use hoplite_words::limits::INLINE_BYTES_MAX;
use hoplite_words::peer::PeerMessage;
use hoplite_words::{CopyId, Error, ErrorKind, NodeId};
use tokio::net::UdpSocket;
use tracing::{debug, info, warn};

use crate::carry::{Carriers, Inputs};
use crate::clients::ClientEvent;
use crate::copies::Copies;

/// The core and everything it acts through.
pub(crate) struct Node {
    id: NodeId,
    core: Core,
    copies: Copies,
    carriers: Carriers,
    links: ControlLinks,
    udp: Arc<UdpSocket>,
    arena: Arc<Arena>,
    clients: HashMap<ClientId, Arc<Outbox>>,
    /// What carrying out an output brought about: the core hears of it right afterwards.
    caused: VecDeque<Input>,
    /// The core has said goodbye.
    left: bool,
}

impl Node {
    pub(crate) fn new(
        id: NodeId,
        core: Core,
        copies: Copies,
        carriers: Carriers,
        links: ControlLinks,
        udp: UdpSocket,
        arena: Arc<Arena>,
    ) -> Self {
        let (clients, caused) = (HashMap::new(), VecDeque::new());
        Node { id, core, copies, carriers, links, udp: Arc::new(udp), arena, clients, caused, left: false }
    }

    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    pub(crate) fn udp(&self) -> Arc<UdpSocket> {
        self.udp.clone()
    }

    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.core.next_deadline()
    }

    pub(crate) fn stop(self) {
        self.carriers.stop();
    }

    pub(crate) fn on_carried(&mut self, now: Duration, input: Input) {
        self.carriers.on_input(&input);
        self.on_input(now, input);
    }

    pub(crate) fn on_control(&mut self, now: Duration, event: ControlEvent) {
        match event {
            ControlEvent::Message { from, message } => {
                self.links.on_alive(from);
                self.on_input(now, Input::Peer { from, message });
            }
            // A peer that closes its own link has ended, or lost it: either way the core should
            // look after what it has going with it, sooner than gossip could tell.
            ControlEvent::Closed { from } => self.on_input(now, Input::PeerBroken { node: from }),
            ControlEvent::LinkBroken { node, generation } => {
                if self.links.on_broken(node, generation) {
                    self.on_input(now, Input::PeerBroken { node });
                }
            }
        }
    }

    pub(crate) fn on_client(&mut self, now: Duration, event: ClientEvent) {
        match event {
            ClientEvent::Joined { client, outbox } => {
                self.clients.insert(client, outbox);
            }
            ClientEvent::Called { client, call, request } => {
                if let Some(error) = self.objection(&request) {
                    self.reply(client, call, Reply::Failed(error));
                } else {
                    self.on_input(now, Input::Client { client, call, request });
                }
            }
            ClientEvent::Gone { client } => {
                self.clients.remove(&client);
                self.on_input(now, Input::ClientGone { client });
            }
        }
    }

    /// Only who sees the watermark can tell that a client seals what it has not written.
    fn objection(&self, request: &Request) -> Option<Error> {
        match request {
            Request::Hello { .. } => {
                Some(Error::new(ErrorKind::BadArgument, "Hello is the first call of a connection only"))
            }
            Request::Seal { copy } => {
                let copy = self.copies.find(*copy)?;
                // Of a writing that was given up (deleted meanwhile, say) the core knows why.
                copy.seal_if_any().ok()?;
                let (present, size) = (copy.watermark(), copy.size());
                (present < size).then(|| {
                    let message = format!("only {present} of {size} bytes are written; nothing is sealed");
                    Error::new(ErrorKind::BadArgument, message)
                })
            }
            _ => None,
        }
    }

    pub(crate) fn on_bulk(&mut self, arrival: Arrival) {
        if let Err(error) = self.carriers.arrive(arrival.from, arrival.stream) {
            warn!(peer = %arrival.from, %error, "cannot hand over a bulk connection; closed");
        }
    }

    /// Tells the core, and carries out all that it decides.
    pub(crate) fn on_input(&mut self, now: Duration, input: Input) {
        self.caused.push_back(input);
        while let Some(input) = self.caused.pop_front() {
            self.core.handle(now, input);
            while let Some(output) = self.core.poll_output() {
                self.perform(output);
            }
        }
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Reply { client, call, reply } => self.reply(client, call, reply),
            Output::Peer { to, message, attach } => self.tell(to, message, attach),
            Output::Datagram { to, bytes } => {
                // Gossip is made to be lost; a full socket buffer is no reason to wait.
                if let Err(error) = self.udp.try_send_to(&bytes, to) {
                    debug!(%to, %error, "gossip not sent");
                }
            }
            Output::Open { copy, extent } => {
                self.copies.open(copy, extent);
                // Small objects lie at the arena's far end: warming up to them would touch it all.
                if extent.size > INLINE_BYTES_MAX {
                    self.arena.warm_to(extent.offset + extent.size);
                }
            }
            Output::Advance { copy, .. } => self.copies.at(copy).wake(),
            Output::Write { copy, bytes } => self.write(copy, &bytes),
            Output::Seal { copy, seal } => self.copies.at(copy).seal(seal),
            Output::Abort { copy } => self.copies.at(copy).abort(),
            Output::Close { copy } => self.copies.close(copy),
            Output::Left => self.left = true,
            Output::Event(event) => self.on_event(event),
            job => self.order(job),
        }
    }

    /// The outputs that carry threads carry out.
    fn order(&mut self, output: Output) {
        match output {
            Output::Receive { transfer, from, copy, offset } => {
                let copy = self.copies.at(copy).clone();
                self.carriers.receive(transfer, from, copy, offset);
            }
            Output::StopReceive { transfer } => self.carriers.stop_receive(transfer),
            Output::Send { send, to, transfer, copy, offset } => {
                let copy = self.copies.at(copy).clone();
                self.carriers.send(send, to, transfer, copy, offset);
            }
            Output::StopSend { send } => self.carriers.stop_send(send),
            Output::Fold { fold, out, rule, inputs } => {
                let out = self.copies.at(out).clone();
                let inputs = self.look_up(inputs);
                self.carriers.fold(fold, out, rule, inputs);
            }
            Output::AmendFold { fold, rule, added } => {
                let added = self.look_up(added);
                self.carriers.amend_fold(fold, rule, added);
            }
            Output::StopFold { fold } => self.carriers.stop_fold(fold),
            other => unreachable!("{other:?} is carried out by the control thread"),
        }
    }

    fn look_up(&self, inputs: FoldInputs) -> Inputs {
        let sources = inputs.sources.iter().map(|&copy| self.copies.at(copy).clone()).collect();
        Inputs { sources, streams: inputs.streams }
    }

    fn reply(&mut self, client: ClientId, call: u64, mut reply: Reply) {
        if let Reply::Status(status) = &mut reply {
            // The core cannot know these: it neither moves bytes nor holds connections.
            let counters = self.carriers.counters();
            status.clients = self.clients.len() as u64;
            status.sent_bytes = counters.sent_bytes.load(Ordering::Relaxed);
            status.received_bytes = counters.received_bytes.load(Ordering::Relaxed);
            status.folded_bytes = counters.folded_bytes.load(Ordering::Relaxed);
        }
        // A client that is gone meanwhile has nobody left to tell.
        let Some(outbox) = self.clients.get(&client) else { return };
        if let Err(full) = outbox.push(&Answer { call, reply }) {
            warn!(client = client.0, %full, "the client does not read its answers; dropped");
            // Ends its connection, which is then reported like any other end.
            outbox.close();
            self.clients.remove(&client);
        }
    }

    fn tell(&mut self, to: NodeId, mut message: PeerMessage, attached: Option<CopyId>) {
        if let Some(copy) = attached {
            let reader = self.copies.at(copy).reader();
            attach(&mut message, reader.bytes(0, reader.size()).to_vec());
        }
        if self.links.send(to, &message).is_err() {
            self.caused.push_back(Input::PeerBroken { node: to });
        }
    }

    fn write(&mut self, copy: CopyId, bytes: &[u8]) {
        let size = bytes.len() as u64;
        let written = self.copies.at(copy).write(|writer| {
            writer.unpublished(0, size).copy_from_slice(bytes);
            writer.publish(size);
        });
        written.unwrap_or_else(|_| panic!("the core writes {copy:?}, which has ended"));
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::MemberUp { node } => info!(?node, "member is up"),
            Event::MemberDown { node } => {
                info!(?node, "member is down");
                self.links.forget(node);
                self.carriers.forget(node);
            }
            Event::Evicted { copy, bytes } => debug!(copy = copy.0, bytes, "evicted"),
            Event::TransferBroken { transfer, from, bytes, size } => {
                info!(transfer = transfer.0, peer = %from, bytes, size, "transfer broken");
            }
        }
    }
}

//! Carries out the core's outputs.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use hoplite_core::io::{attach, ClientId, Event, FoldInputs, Input, Output};
use hoplite_core::Core;
use hoplite_net::{ControlLinks, ControlReaders, GossipSocket, Outbox};
use hoplite_store::Arena;
use hoplite_types::client::{Answer, Reply, Request};
use hoplite_types::limits::{ANSWER_BYTES_MAX, INLINE_BYTES_MAX};
use hoplite_types::peer::PeerMessage;
use hoplite_types::{Blob, CopyId, NodeId};
use tracing::{debug, info, warn};

use crate::clients::CLIENT_TOLD_BYTES_MAX;
use crate::clock::Clock;
use crate::copies::Copies;
use crate::data_plane::{DataPlane, Inputs, Way};
use crate::gauges::Doors;

/// Limit on the datagrams that wait for space in the socket when the node leaves. Gossip sends to a few members.
const UNSENT_MAX: usize = 64;

/// The core, and everything through which it acts. The input side is in `events`.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) core: Core,
    pub(crate) clock: Clock,
    pub(crate) copies: Copies,
    pub(crate) data_plane: DataPlane,
    pub(crate) links: ControlLinks,
    pub(crate) readers: ControlReaders,
    pub(crate) gossip: Arc<GossipSocket>,
    pub(crate) clients: HashMap<ClientId, Arc<Outbox>>,
    /// The number of clients dropped because they did not read their answers.
    pub(crate) unresponsive_clients: u64,
    pub(crate) doors: Doors,
    /// Inputs that were caused by carrying out an output. The core gets them right afterwards.
    pub(crate) caused: VecDeque<Input>,
    arena: Arc<Arena>,
    /// The core was asked to leave.
    pub(crate) leaving: bool,
    /// Datagrams of the goodbye for which the kernel had no space.
    unsent: Vec<(SocketAddr, Vec<u8>)>,
    /// The core has left.
    left: bool,
}

impl Node {
    pub(crate) fn new(
        id: NodeId,
        (core, clock): (Core, Clock),
        data_plane: DataPlane,
        (links, readers): (ControlLinks, ControlReaders),
        gossip: GossipSocket,
        arena: Arc<Arena>,
    ) -> Self {
        Node {
            id,
            core,
            clock,
            copies: Copies::new(arena.mapping()),
            data_plane,
            links,
            readers,
            gossip: Arc::new(gossip),
            clients: HashMap::new(),
            unresponsive_clients: 0,
            doors: Doors::default(),
            caused: VecDeque::new(),
            arena,
            leaving: false,
            unsent: Vec::new(),
            left: false,
        }
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// Waits until everything has been sent. If a peer does not read, it waits for ever.
    pub(crate) async fn flush(&mut self) {
        for (to, bytes) in std::mem::take(&mut self.unsent) {
            if let Err(error) = self.gossip.send_patiently(&bytes, to).await {
                debug!(%to, %error, "gossip not sent");
            }
        }
        self.links.finish().await;
    }

    pub(crate) fn stop(self) {
        self.data_plane.stop();
    }

    pub(crate) fn perform(&mut self, output: Output) {
        match output {
            Output::Reply { client, call, reply } => self.reply(client, call, reply),
            Output::Peer { to, message, attach } => self.tell(to, message, attach),
            Output::Datagram { to, bytes } => self.gossip(to, bytes),
            Output::Open { copy, extent } => {
                self.copies.open(copy, extent);
                // Small objects are at the arena's far end: warming up to them would touch all of it.
                if extent.size > INLINE_BYTES_MAX {
                    self.arena.warm_to(extent.offset + extent.size);
                }
            }
            Output::Advance { copy, .. } => self.copies.at(copy).wake(),
            Output::Write { copy, bytes } => self.write(copy, &bytes),
            Output::Filled { copy } => self.fill(copy),
            Output::Reopen { copy, extent } => {
                self.copies.close(copy);
                self.copies.open(copy, extent);
                self.fill(copy);
            }
            Output::Seal { copy, seal } => self.copies.at(copy).seal(seal),
            Output::Abort { copy } => self.copies.at(copy).abort(),
            Output::Removed { object } => self.copies.count_removal(object),
            Output::Close { copy } => self.copies.close(copy),
            Output::Left => self.left = true,
            Output::Event(event) => self.on_event(event),
            job => self.order(job),
        }
    }

    /// Passes on the outputs that data threads carry out.
    fn order(&mut self, output: Output) {
        match output {
            Output::Receive { transfer, from, copy, offset } => {
                let copy = self.copies.at(copy).clone();
                self.data_plane.receive(transfer, from, copy, offset);
            }
            Output::StopReceive { transfer } => self.data_plane.stop_receive(transfer),
            Output::Send { send, to, transfer, copy, offset, connections, group } => {
                let copy = self.copies.at(copy).clone();
                let way = Way { connections, group };
                self.data_plane.send(send, to, transfer, copy, offset, way);
            }
            Output::StopSend { send } => self.data_plane.stop_send(send),
            Output::Fold { fold, out, rule, inputs } => {
                let out = self.copies.at(out).clone();
                let inputs = self.look_up(inputs);
                self.data_plane.fold(fold, out, rule, inputs);
            }
            Output::AmendFold { fold, rule, added } => {
                let added = self.look_up(added);
                self.data_plane.amend_fold(fold, rule, added);
            }
            Output::StopFold { fold } => self.data_plane.stop_fold(fold),
            other => unreachable!("{other:?} is carried out by the control thread"),
        }
    }

    fn look_up(&self, inputs: FoldInputs) -> Inputs {
        let sources = inputs.sources.iter().map(|&copy| self.copies.at(copy).clone()).collect();
        Inputs { sources, streams: inputs.streams }
    }

    pub(crate) fn reply(&mut self, client: ClientId, call: u64, mut reply: Reply) {
        match &mut reply {
            // The core cannot know these: it neither moves bytes nor holds connections.
            Reply::Status(status) => {
                let counters = self.data_plane.counters();
                status.clients = self.clients.len() as u64;
                status.sent_bytes = counters.sent_bytes.load(Ordering::Relaxed);
                status.received_bytes = counters.received_bytes.load(Ordering::Relaxed);
                status.folded_bytes = counters.folded_bytes.load(Ordering::Relaxed);
                status.gauges.extend(self.gauges());
            }
            Reply::View { copy, sealed: false, .. } => self.copies.at(*copy).show(),
            Reply::View { copy, size, header, .. }
                if *size <= ANSWER_BYTES_MAX && self.waiting_bytes(client) < CLIENT_TOLD_BYTES_MAX =>
            {
                let reader = self.copies.at(*copy).reader();
                let payload = Blob(reader.bytes(0, *size).to_vec());
                // The client gets the bytes themselves, and needs no view.
                let release = Request::Release { copy: *copy };
                self.caused.push_back(Input::Client { client, call: 0, request: release });
                reply = Reply::Small { header: std::mem::take(header), payload };
            }
            _ => {}
        }
        // The client may have gone meanwhile.
        let Some(outbox) = self.clients.get(&client) else { return };
        if let Err(full) = outbox.push(&Answer { call, reply }) {
            warn!(client = client.0, %full, "the client does not read its answers; dropped");
            // This ends its connection, which is then reported like any other end.
            outbox.close();
            self.clients.remove(&client);
            self.unresponsive_clients += 1;
        }
    }

    /// The bytes of answers that the client has not read yet.
    fn waiting_bytes(&self, client: ClientId) -> usize {
        self.clients.get(&client).map_or(0, |outbox| outbox.bytes())
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

    fn gossip(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        match self.gossip.send(&bytes, to) {
            Ok(()) => {}
            // Gossip tolerates loss: a full socket buffer is worth waiting for only when the node leaves.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.leaving => {
                self.unsent.push((to, bytes));
                self.unsent.truncate(UNSENT_MAX);
            }
            Err(error) => debug!(%to, %error, "gossip not sent"),
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

    fn fill(&mut self, copy: CopyId) {
        let filled = self.copies.at(copy).write(|writer| writer.publish(writer.size()));
        filled.unwrap_or_else(|_| panic!("the core fills {copy:?}, which has ended"));
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::MemberUp { node } => info!(?node, "member is up"),
            Event::MemberDown { node } => {
                info!(?node, "member is down");
                // Close the connections to it and from it. If the node was cut off, they would end (and count as
                // failures) only long after it is back.
                self.links.forget(node);
                self.readers.forget(node);
                self.data_plane.forget(node);
            }
            Event::Evicted { copy, bytes } => debug!(copy = copy.0, bytes, "evicted"),
            Event::BadMessage { from, error } => debug!(peer = %from, %error, "not listened to"),
            Event::TransferBroken { transfer, from, bytes, size } => {
                info!(transfer = transfer.0, peer = %from, bytes, size, "transfer broken");
            }
        }
    }
}

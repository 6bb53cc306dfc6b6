//! Turns events (time, messages, clients, arrivals) into inputs of the core.

use std::io;
use std::time::{Duration, Instant};

use hoplite_core::io::Input;
use hoplite_net::{Arrival, ControlEvent, DATAGRAM_BYTES_MAX};
use hoplite_types::client::{Reply, Request};
use hoplite_types::{Error, ErrorKind};
use tracing::{debug, warn};

use crate::clients::ClientEvent;
use crate::node::Node;

/// Limit on the datagrams taken from the socket before the core's timers. More than its buffer usually holds, so that
/// only a flood is cut short.
const WAITING_DATAGRAMS_MAX: usize = 4096;

impl Node {
    /// When to call [`Node::on_time`].
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let core = self.core.next_deadline().map(|at| self.clock.instant(at));
        [core, self.data_plane.next_look()].into_iter().flatten().min()
    }

    pub(crate) fn on_time(&mut self) {
        let now = Instant::now();
        if self.data_plane.next_look().is_some_and(|look| look <= now) {
            for input in self.data_plane.stalled(now) {
                self.on_input(input);
            }
        }
        self.links.close_idle();
        self.on_input(Input::Tick);
    }

    /// The core begins to leave, within at most `within`.
    pub(crate) fn leave(&mut self, within: Duration) {
        self.leaving = true;
        self.on_input(Input::Leave { within });
    }

    pub(crate) fn on_report(&mut self, input: Input) {
        self.data_plane.on_input(&input);
        self.on_input(input);
    }

    pub(crate) fn on_arrival(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Control { from, stream } => {
                if self.readers.admit(from, stream) {
                    self.on_input(Input::PeerBroken { node: from });
                }
            }
            Arrival::Bulk { from, bundle } => {
                if let Err(error) = self.data_plane.arrive(from, bundle) {
                    warn!(peer = %from, %error, "cannot hand over bulk connections; closed");
                }
            }
        }
    }

    pub(crate) fn on_control(&mut self, event: ControlEvent) {
        match event {
            ControlEvent::Message { from, connection, message } => {
                if self.readers.is_current(from, connection) {
                    self.links.on_alive(from);
                    self.on_input(Input::Peer { from, message });
                }
            }
            // A peer that closes its own link has ended, or has lost the link. In both cases the core should check
            // its work with that peer, before gossip detects anything.
            ControlEvent::Closed { from, connection } => {
                if self.readers.on_closed(from, connection) {
                    self.on_input(Input::PeerBroken { node: from });
                }
            }
            ControlEvent::LinkBroken(end) => {
                let known = self.links.on_broken(&end);
                if end.gone {
                    // Before `PeerBroken`: then the core does not try to repair the broken link.
                    self.on_input(Input::PeerGone { node: end.node });
                }
                if known {
                    self.on_input(Input::PeerBroken { node: end.node });
                }
            }
        }
    }

    pub(crate) fn on_client(&mut self, event: ClientEvent) {
        match event {
            ClientEvent::Joined { client, outbox } => {
                self.clients.insert(client, outbox);
            }
            ClientEvent::Called { client, call, request } => {
                if let Some(error) = self.objection(&request) {
                    self.reply(client, call, Reply::Failed(error));
                } else {
                    self.on_input(Input::Client { client, call, request });
                }
            }
            ClientEvent::Gone { client } => {
                self.clients.remove(&client);
                self.on_input(Input::ClientGone { client });
            }
        }
    }

    /// Only this crate sees the watermark, so only it can detect that a client seals bytes that it has not written.
    fn objection(&self, request: &Request) -> Option<Error> {
        match request {
            Request::Hello { .. } => {
                Some(Error::new(ErrorKind::BadArgument, "Hello is the first call of a connection only"))
            }
            Request::Seal { copy, .. } => {
                let copy = self.copies.find(*copy)?;
                // If the writing was abandoned (the object was deleted, say), the core knows why.
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

    /// Passes the input to the core, and carries out its outputs. If a deadline has come, the core first gets the
    /// queued datagrams: answers in the socket came in time, however late this process is.
    pub(crate) fn on_input(&mut self, input: Input) {
        if self.core.next_deadline().is_some_and(|deadline| self.clock.has_come(deadline)) {
            self.hold_clock();
            self.hear_waiting_datagrams();
            self.release_clock();
        }
        self.tell_core(input);
    }

    /// Used for inputs from before the core's next deadline, which has come: see [`crate::clock`].
    pub(crate) fn hold_clock(&mut self) {
        if let Some(deadline) = self.core.next_deadline() {
            let time = self.clock.stood_still(deadline);
            self.clock.hold_before(deadline);
            self.tell_core(Input::StoodStill { time });
        }
    }

    pub(crate) fn release_clock(&mut self) {
        self.clock.go_on();
    }

    fn hear_waiting_datagrams(&mut self) {
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        for _ in 0..WAITING_DATAGRAMS_MAX {
            match self.gossip.receive_waiting(&mut buffer) {
                Ok(bytes) => self.tell_core(Input::Datagram { bytes: buffer[..bytes].to_vec() }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => debug!(%error, "cannot receive gossip"),
            }
        }
        warn!("more than {WAITING_DATAGRAMS_MAX} datagrams waited; the rest must wait on");
    }

    fn tell_core(&mut self, input: Input) {
        self.caused.push_back(input);
        while let Some(input) = self.caused.pop_front() {
            let now = self.clock.now();
            self.core.handle(now, input);
            while let Some(output) = self.core.poll_output() {
                self.perform(output);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use hoplite_core::{Config, Core};
    use hoplite_net::{ControlLinks, ControlReaders, GossipSocket};
    use hoplite_store::Arena;
    use hoplite_types::NodeId;
    use tokio::sync::mpsc;

    use super::*;
    use crate::clock::Clock;
    use crate::data_plane::DataPlane;

    /// A node without peers, the socket of its seed, and the queue of messages from peers.
    pub(crate) async fn node() -> (Node, GossipSocket, mpsc::Receiver<ControlEvent>) {
        let gossip = GossipSocket::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let id = NodeId { addr: gossip.addr().unwrap(), incarnation: 1 };
        let other = GossipSocket::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let arena = Arc::new(Arena::create(1 << 20).unwrap());
        let mut config = Config::new(id, arena.bytes(), 1);
        config.seeds = vec![other.addr().unwrap()];
        let data_plane = DataPlane::start(id, 1, config.stall_after, mpsc::unbounded_channel().0).unwrap();
        let (events, said) = mpsc::channel(8);
        let connections = (ControlLinks::new(id, events.clone()), ControlReaders::new(events));
        (
            Node::new(id, (Core::new(config), Clock::new()), data_plane, connections, gossip, arena),
            other,
            said,
        )
    }

    #[tokio::test]
    async fn datagrams_that_wait_are_heard_before_a_deadline_that_has_come() {
        let (mut node, other, _said) = node().await;
        // It contacts its seed, and will do so again.
        node.on_input(Input::Tick);
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        other.receive(&mut buffer).await.unwrap();
        let contact_again = node.next_deadline().expect("nobody answered yet");
        for _ in 0..3 {
            other.send(b"no gossip", node.id.addr).unwrap();
        }
        tokio::time::sleep_until(contact_again.into()).await;
        // At any input the deadline is handled, and by then the socket is empty.
        node.on_client(ClientEvent::Gone { client: hoplite_core::io::ClientId(1) });
        other.receive(&mut buffer).await.unwrap();
        let none = node.gossip.receive_waiting(&mut buffer).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        node.stop();
    }
}

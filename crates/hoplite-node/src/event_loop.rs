//! The sources of the control loop's events, which it takes one at a time.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_core::io::Input;
use hoplite_net::{Arrival, ControlEvent, GossipSocket, DATAGRAM_BYTES_MAX};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tracing::warn;

use crate::clients::ClientEvent;
use crate::node::Node;
use crate::polling::{look_again, Polling};

/// Limit on the events taken from one source before the other sources are checked again.
const EVENTS_PER_TURN: usize = 64;

/// If the loop is this late for a deadline, it was not just busy but did not run.
const LATE_AFTER: Duration = Duration::from_millis(20);

/// Turns for the tasks that read sockets, before a late deadline is handled. In the first turn the runtime checks its
/// sockets; in the second they are read.
const CATCH_UP_TURNS: usize = 3;

/// The sources of all events of the loop.
pub(crate) struct Sources {
    reports: mpsc::UnboundedReceiver<Input>,
    control: mpsc::Receiver<ControlEvent>,
    clients: mpsc::Receiver<ClientEvent>,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    gossip: Arc<GossipSocket>,
    datagram: Vec<u8>,
    polling: Polling,
}

/// The first event of any source.
pub(crate) enum Happened {
    Reported(Input),
    Control(ControlEvent),
    Client(ClientEvent),
    Arrived(Arrival),
    /// A datagram of this many bytes is in the buffer.
    Datagram(usize),
    DeadlineCame,
}

impl Sources {
    pub(crate) fn new(
        reports: mpsc::UnboundedReceiver<Input>,
        control: mpsc::Receiver<ControlEvent>,
        clients: mpsc::Receiver<ClientEvent>,
        arrivals: mpsc::UnboundedReceiver<Arrival>,
        gossip: Arc<GossipSocket>,
        polling: Polling,
    ) -> Self {
        let datagram = vec![0; DATAGRAM_BYTES_MAX];
        Sources { reports, control, clients, arrivals, gossip, datagram, polling }
    }

    /// Waits for an event, or `deadline`. No event is lost if it is cancelled.
    pub(crate) async fn next(&mut self, deadline: Option<Instant>) -> Happened {
        while self.polling.pays() {
            tokio::select! {
                biased;
                happened = self.first(deadline) => return happened,
                () = look_again() => {}
            }
        }
        self.first(deadline).await
    }

    async fn first(&mut self, deadline: Option<Instant>) -> Happened {
        tokio::select! {
            Some(input) = self.reports.recv() => Happened::Reported(input),
            Some(event) = self.control.recv() => Happened::Control(event),
            Some(event) = self.clients.recv() => Happened::Client(event),
            Some(arrival) = self.arrivals.recv() => Happened::Arrived(arrival),
            bytes = receive(&self.gossip, &mut self.datagram) => Happened::Datagram(bytes),
            () = reached(deadline) => Happened::DeadlineCame,
        }
    }

    /// Passes the event to `node`, and the events queued behind it.
    pub(crate) async fn tell(&mut self, node: &mut Node, happened: Happened) {
        if matches!(happened, Happened::Reported(_) | Happened::Control(_) | Happened::Client(_)) {
            self.polling.happened(Instant::now());
        }
        let is_late = node.next_deadline().is_some_and(|deadline| deadline.elapsed() >= LATE_AFTER);
        let happened = match happened {
            Happened::Control(event) if is_late => return self.catch_up(node, Some(event)).await,
            other if is_late => {
                self.catch_up(node, None).await;
                other
            }
            other => other,
        };
        match happened {
            Happened::Reported(input) => turn(input, &mut self.reports, |input| node.on_report(input)),
            Happened::Control(event) => turn(event, &mut self.control, |event| node.on_control(event)),
            Happened::Client(event) => turn(event, &mut self.clients, |event| node.on_client(event)),
            Happened::Arrived(arrival) => node.on_arrival(arrival),
            Happened::Datagram(bytes) => {
                node.on_input(Input::Datagram { bytes: self.datagram[..bytes].to_vec() });
            }
            Happened::DeadlineCame => node.on_time(),
        }
    }

    /// The process was paused, or got no processor. Queued messages of peers are handled before any deadline.
    /// (Datagrams always are.) `first` comes before all queued messages.
    async fn catch_up(&mut self, node: &mut Node, first: Option<ControlEvent>) {
        node.hold_clock();
        if let Some(event) = first {
            turn(event, &mut self.control, |event| node.on_control(event));
        }
        for _ in 0..CATCH_UP_TURNS {
            yield_now().await;
            if let Ok(event) = self.control.try_recv() {
                turn(event, &mut self.control, |event| node.on_control(event));
            }
        }
        node.release_clock();
    }
}

/// Passes `first` and the items queued behind it to `handle`, up to [`EVENTS_PER_TURN`].
fn turn<T>(first: T, queue: &mut impl TryRecv<T>, mut handle: impl FnMut(T)) {
    handle(first);
    for _ in 1..EVENTS_PER_TURN {
        match queue.try_next() {
            Some(next) => handle(next),
            None => return,
        }
    }
}

/// The interface that both kinds of queue share.
trait TryRecv<T> {
    fn try_next(&mut self) -> Option<T>;
}

impl<T> TryRecv<T> for mpsc::Receiver<T> {
    fn try_next(&mut self) -> Option<T> {
        self.try_recv().ok()
    }
}

impl<T> TryRecv<T> for mpsc::UnboundedReceiver<T> {
    fn try_next(&mut self) -> Option<T> {
        self.try_recv().ok()
    }
}

/// Receives the next datagram. Returns its length.
async fn receive(gossip: &GossipSocket, buffer: &mut [u8]) -> usize {
    loop {
        match gossip.receive(buffer).await {
            Ok(bytes) => return bytes,
            // An earlier datagram of ours met a closed port. Gossip will detect that by itself.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => warn!(%error, "cannot receive gossip"),
        }
    }
}

/// Waits until `deadline`, if there is one.
pub(crate) async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use hoplite_core::io::ClientId;
    use hoplite_net::Outbox;
    use hoplite_types::client::{Answer, Reply, Request};
    use hoplite_types::peer::{CopyReport, DirectoryRequest, PeerMessage};
    use hoplite_types::{Blob, Claim, Edition, Header, NodeId, ObjectId};
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::events::tests::node;

    #[tokio::test]
    async fn a_late_node_reads_messages_in_the_order_in_which_they_were_sent() {
        let (mut node, _seed, control) = node().await;
        let peer = NodeId { addr: "127.0.0.1:1".parse().unwrap(), incarnation: 1 };
        let id = ObjectId::from_name("given up");
        node.on_input(Input::Tick);
        let contact_again = node.next_deadline().expect("nobody answered yet");

        // A put that was abandoned while this node was paused.
        let edition = Edition { writing: 1, attempt: 0 };
        let report = CopyReport {
            seq: 1,
            edition,
            size: 3,
            header: Header::default(),
            complete: true,
            pinned: true,
            upstream: None,
            leaving: false,
            stamp: None,
            claim: Some(Claim { number: 1, by: peer }),
        };
        let payload = Some(Blob(b"put".to_vec()));
        let mut said = BytesMut::new();
        for request in [
            DirectoryRequest::Announce { report, payload, wants_verdict: false },
            DirectoryRequest::Withdraw { seq: 2, edition },
        ] {
            let message = PeerMessage::Directory { origin: peer, hops: 0, id, request };
            hoplite_wire::encode(&message, &mut said);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut speaking = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        node.readers.admit(peer, listener.accept().await.unwrap().0);
        speaking.write_all(&said).await.unwrap();

        let mut sources = Sources::new(
            mpsc::unbounded_channel().1,
            control,
            mpsc::channel(1).1,
            mpsc::unbounded_channel().1,
            node.gossip.clone(),
            Polling::new(Duration::ZERO),
        );
        while sources.control.len() < 2 {
            yield_now().await;
        }
        let first = sources.control.recv().await.unwrap();
        tokio::time::sleep_until((contact_again + 2 * LATE_AFTER).into()).await;
        sources.tell(&mut node, Happened::Control(first)).await;

        let client = ClientId(1);
        let answers = Arc::new(Outbox::new(1 << 10));
        node.on_client(ClientEvent::Joined { client, outbox: answers.clone() });
        let request = Request::Locate { id, timeout_ms: None };
        node.on_client(ClientEvent::Called { client, call: 1, request });
        // It decides nothing before it gives up its seed.
        let frame = loop {
            let deadline = node.next_deadline().expect("it waits for its seed");
            tokio::select! {
                frame = answers.take() => break frame.unwrap(),
                () = tokio::time::sleep_until(deadline.into()) => node.on_input(Input::Tick),
            }
        };
        let answer: Answer = hoplite_wire::decode(&frame[hoplite_wire::FRAME_HEADER_BYTES..]).unwrap();
        assert_eq!(answer.reply, Reply::Located { size: None, copies: Vec::new() });
        node.stop();
    }
}

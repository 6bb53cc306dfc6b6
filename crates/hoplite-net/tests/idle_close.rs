//! Closing idle control connections loses nothing, and neither side takes it for a break.

use std::time::Duration;

use hoplite_net::{
    Arrival, ControlEvent, ControlLinks, ControlReaders, Listener, CONTROL_IDLE_AFTER, CONTROL_IDLE_MAX,
};
use hoplite_types::peer::PeerMessage;
use hoplite_types::{NodeId, ObjectId};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

fn caller() -> NodeId {
    NodeId { addr: "127.0.0.1:1".parse().unwrap(), incarnation: 5 }
}

fn message(n: u8) -> PeerMessage {
    PeerMessage::Prefetch { id: ObjectId([n; 16]) }
}

struct Peer {
    id: NodeId,
    arrivals: mpsc::UnboundedReceiver<Arrival>,
    readers: ControlReaders,
    events: mpsc::Receiver<ControlEvent>,
}

impl Peer {
    async fn new() -> Peer {
        let (listener, _udp) = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let id = NodeId { addr: listener.addr(), incarnation: 7 };
        let (tx, arrivals) = mpsc::unbounded_channel();
        tokio::spawn(listener.run(id, move |arrival| drop(tx.send(arrival))));
        let (tx, events) = mpsc::channel(16);
        Peer { id, arrivals, readers: ControlReaders::new(tx), events }
    }

    async fn arrival(&mut self) -> TcpStream {
        let arrived = tokio::time::timeout(NEVER, self.arrivals.recv()).await.expect("nobody dials");
        let Some(Arrival::Control { stream, .. }) = arrived else { panic!("{arrived:?}") };
        stream
    }

    async fn event(&mut self) -> ControlEvent {
        tokio::time::timeout(NEVER, self.events.recv()).await.expect("no event").unwrap()
    }

    async fn hears(&mut self, n: u8) {
        match self.event().await {
            ControlEvent::Message { from, connection, message: got } => {
                assert!(self.readers.is_current(from, connection), "message {n} would be dropped");
                assert_eq!(got, message(n));
            }
            other => panic!("{other:?}"),
        }
    }

    async fn hears_the_end(&mut self) {
        match self.event().await {
            ControlEvent::Closed { from, connection } => {
                assert!(!self.readers.on_closed(from, connection), "it was taken for a break");
            }
            other => panic!("{other:?}"),
        }
    }
}

const NEVER: Duration = Duration::from_secs(60);

/// One peer more than the limit of idle links. Each was sent one message, and the first link has been idle for longest.
async fn idle_links() -> (ControlLinks, mpsc::Receiver<ControlEvent>, Vec<Peer>) {
    let (tx, events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx);
    let mut peers = Vec::new();
    for _ in 0..=CONTROL_IDLE_MAX {
        let mut peer = Peer::new().await;
        links.send(peer.id, &message(0)).unwrap();
        let stream = peer.arrival().await;
        assert!(!peer.readers.admit(caller(), stream));
        peer.hears(0).await;
        peers.push(peer);
    }
    tokio::time::pause();
    tokio::time::advance(CONTROL_IDLE_AFTER).await;
    tokio::time::resume();
    (links, events, peers)
}

#[tokio::test]
async fn one_link_too_many_is_closed_and_does_not_count_as_broken() {
    let (mut links, mut events, mut peers) = idle_links().await;
    links.close_idle();
    peers[0].hears_the_end().await;
    let Some(ControlEvent::LinkBroken(end)) = events.recv().await else { panic!("no end") };
    assert_eq!((end.node, end.gone), (peers[0].id, false));
    assert!(!links.on_broken(&end), "it was taken for a break");
    assert_eq!(links.gauges()[0].met, 1);
    // It is not dialled again before there is something to send.
    links.send(peers[0].id, &message(1)).unwrap();
    let stream = peers[0].arrival().await;
    assert!(!peers[0].readers.admit(caller(), stream));
    peers[0].hears(1).await;
    assert!(peers[0].arrivals.try_recv().is_err());
    // The others are kept.
    links.send(peers[1].id, &message(1)).unwrap();
    peers[1].hears(1).await;
    assert!(peers[1].arrivals.try_recv().is_err());
}

#[tokio::test]
async fn messages_sent_during_a_close_arrive_after_earlier_ones() {
    let (mut links, mut events, mut peers) = idle_links().await;
    let mut peer = peers.remove(0);
    links.close_idle();
    for n in 1..4 {
        links.send(peer.id, &message(n)).unwrap();
    }
    let Some(ControlEvent::LinkBroken(end)) = events.recv().await else { panic!("no end") };
    assert!(!links.on_broken(&end), "it was taken for a break");
    // The new connection is here before the end of the old one is noticed.
    let stream = peer.arrival().await;
    assert!(!peer.readers.admit(caller(), stream), "something may be lost");
    peer.hears_the_end().await;
    for n in 1..4 {
        peer.hears(n).await;
    }
}

#[tokio::test]
async fn unread_messages_of_a_closed_connection_are_read() {
    let mut peer = Peer::new().await;
    let (tx, _events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx);
    links.send(peer.id, &message(1)).unwrap();
    links.send(peer.id, &PeerMessage::Goodbye).unwrap();
    let stream = peer.arrival().await;
    peer.readers.admit(caller(), stream);
    while peer.events.len() < 2 {
        tokio::task::yield_now().await;
    }
    let (tx, _events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx);
    links.send(peer.id, &message(2)).unwrap();
    let stream = peer.arrival().await;
    assert!(!peer.readers.admit(caller(), stream), "something may be lost");
    peer.hears(1).await;
    peer.hears_the_end().await;
    peer.hears(2).await;
}

#[tokio::test]
async fn a_link_that_breaks_without_goodbye_is_a_break_as_ever() {
    let (mut links, mut events, mut peers) = idle_links().await;
    let peer = &mut peers[0];
    peer.readers.forget(caller());
    let Some(ControlEvent::LinkBroken(end)) = events.recv().await else { panic!("no end") };
    assert!(links.on_broken(&end));
}

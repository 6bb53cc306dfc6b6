//! Connections over loopback: admission, delivery, and detection of their end.

use std::time::Duration;

use bytes::BytesMut;
use hoplite_net::{
    dial, read_frame, write_frame, Arrival, ControlEvent, ControlLinks, ControlReaders, LinkEnd, Listener,
    HELLO_BYTES_MAX,
};
use hoplite_types::peer::{PeerHello, PeerMessage, PeerRefusal, Purpose, PEER_PROTOCOL_VERSION};
use hoplite_types::{Connections, NodeId, ObjectId};
use hoplite_wire::FRAME_HEADER_BYTES;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// A listening node, and what it let in.
async fn listen(incarnation: u64) -> (NodeId, mpsc::UnboundedReceiver<Arrival>) {
    let (listener, _udp) = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let me = NodeId { addr: listener.addr(), incarnation };
    let (tx, rx) = mpsc::unbounded_channel();
    tokio::spawn(listener.run(me, move |arrival| drop(tx.send(arrival))));
    (me, rx)
}

fn caller() -> NodeId {
    NodeId { addr: "127.0.0.1:1".parse().unwrap(), incarnation: 5 }
}

/// The next control connection that was let in.
async fn control(arrivals: &mut mpsc::UnboundedReceiver<Arrival>) -> (NodeId, TcpStream) {
    match arrivals.recv().await {
        Some(Arrival::Control { from, stream }) => (from, stream),
        other => panic!("{other:?}"),
    }
}

fn message(n: u8) -> PeerMessage {
    PeerMessage::Prefetch { id: ObjectId([n; 16]) }
}

#[tokio::test]
async fn a_proper_caller_is_let_in() {
    let (node, mut arrivals) = listen(7).await;
    let _stream = dial(caller(), node, Purpose::Bulk).await.unwrap();
    let Some(Arrival::Bulk { from, bundle }) = arrivals.recv().await else { panic!("not let in") };
    assert_eq!((from, bundle.connections()), (caller(), Connections::ONE));
}

#[tokio::test]
async fn a_caller_for_an_earlier_incarnation_is_turned_away() {
    let (node, mut arrivals) = listen(7).await;
    let earlier = NodeId { incarnation: 6, ..node };
    let mut stream = dial(caller(), earlier, Purpose::Control).await.unwrap();
    let refusal: PeerRefusal = read_frame(&mut stream).await.unwrap();
    assert_eq!(refusal, PeerRefusal { version: PEER_PROTOCOL_VERSION, node });
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "the connection should be closed");
    assert!(arrivals.try_recv().is_err());
}

#[tokio::test]
async fn another_protocol_version_is_turned_away() {
    let (node, mut arrivals) = listen(7).await;
    let mut stream = TcpStream::connect(node.addr).await.unwrap();
    let hello = PeerHello {
        version: PEER_PROTOCOL_VERSION + 1,
        from: caller(),
        to: node,
        purpose: Purpose::Control,
        part: None,
    };
    write_frame(&mut stream, &hello).await.unwrap();
    let refusal: PeerRefusal = read_frame(&mut stream).await.unwrap();
    assert_eq!(refusal.version, PEER_PROTOCOL_VERSION);
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "the connection should be closed");
    assert!(arrivals.try_recv().is_err());
}

/// A hello with one more field than is known, and a long one: a stranger gets no memory for that.
#[tokio::test]
async fn a_caller_whose_hello_is_too_long_is_turned_away() {
    let (node, mut arrivals) = listen(7).await;
    let (version, purpose) = (PEER_PROTOCOL_VERSION, Purpose::Control);
    let hello = PeerHello { version, from: caller(), to: node, purpose, part: None };
    let (mut frame, mut field) = (BytesMut::new(), BytesMut::new());
    hoplite_wire::encode(&hello, &mut frame);
    hoplite_wire::encode(&"x".repeat(HELLO_BYTES_MAX), &mut field);
    // An array of one element more.
    frame[FRAME_HEADER_BYTES] += 1;
    frame.extend_from_slice(&field[FRAME_HEADER_BYTES..]);
    let length = u32::try_from(frame.len() - FRAME_HEADER_BYTES).unwrap();
    frame[..FRAME_HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    let mut stream = TcpStream::connect(node.addr).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &frame).await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0, "the connection should be closed");
    assert!(arrivals.try_recv().is_err());
}

#[tokio::test]
async fn messages_arrive_in_order_and_the_end_is_noticed() {
    let (node, mut arrivals) = listen(7).await;
    let (own, _own_events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), own);
    for n in 0..10 {
        links.send(node, &message(n)).unwrap();
    }
    let (tx, mut events) = mpsc::channel(16);
    let mut readers = ControlReaders::new(tx);
    let (_, accepted) = control(&mut arrivals).await;
    assert!(!readers.admit(caller(), accepted));
    for n in 0..10 {
        match events.recv().await.unwrap() {
            ControlEvent::Message { from, connection, message: got } => {
                assert!(readers.is_current(from, connection));
                assert_eq!((from, got), (caller(), message(n)))
            }
            other => panic!("{other:?}"),
        }
    }
    links.forget(node);
    let Some(ControlEvent::Closed { from, connection }) = events.recv().await else { panic!("not closed") };
    assert_eq!(from, caller());
    assert!(readers.on_closed(from, connection));
    assert!(!readers.on_closed(from, connection), "nobody needs to know twice");
}

/// The next event; none within a minute fails the test.
async fn next(events: &mut mpsc::Receiver<ControlEvent>) -> ControlEvent {
    let event = tokio::time::timeout(Duration::from_secs(60), events.recv()).await;
    event.expect("no event").expect("the sender lives")
}

async fn broken(events: &mut mpsc::Receiver<ControlEvent>) -> LinkEnd {
    match next(events).await {
        ControlEvent::LinkBroken(end) => end,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_connection_that_replaces_another_or_is_forgotten_leaves_nothing_of_it() {
    let (node, mut arrivals) = listen(7).await;
    let (tx, mut events) = mpsc::channel(16);
    let mut readers = ControlReaders::new(tx);
    let mut old = dial(caller(), node, Purpose::Control).await.unwrap();
    let (_, accepted) = control(&mut arrivals).await;
    assert!(!readers.admit(caller(), accepted));
    write_frame(&mut old, &message(1)).await.unwrap();
    let ControlEvent::Message { from, connection, .. } = next(&mut events).await else { panic!() };

    let mut new = dial(caller(), node, Purpose::Control).await.unwrap();
    let (_, accepted) = control(&mut arrivals).await;
    assert!(readers.admit(caller(), accepted), "it replaces the old one");
    assert!(!readers.is_current(from, connection));
    assert_eq!(old.read(&mut [0; 1]).await.unwrap_or(0), 0, "the old connection should be closed");

    write_frame(&mut new, &message(2)).await.unwrap();
    match next(&mut events).await {
        ControlEvent::Message { from, connection, message: got } => {
            assert!(readers.is_current(from, connection));
            assert_eq!(got, message(2));
        }
        other => panic!("{other:?}"),
    }
    readers.forget(caller());
    assert_eq!(new.read(&mut [0; 1]).await.unwrap_or(0), 0, "a forgotten peer's connection is closed");
}

#[tokio::test]
async fn a_link_to_an_earlier_incarnation_proves_it_gone() {
    let (node, _arrivals) = listen(7).await;
    let (tx, mut events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx);
    let earlier = NodeId { incarnation: 6, ..node };
    // Enough behind the hello that closing on it unread would reset the connection.
    for _ in 0..10_000 {
        links.send(earlier, &message(1)).unwrap();
    }
    let end = broken(&mut events).await;
    assert_eq!((end.node, end.gone), (earlier, true));
}

#[tokio::test]
async fn a_peer_that_only_closes_is_not_taken_for_gone_and_is_dialled_again() {
    let (node, mut arrivals) = listen(7).await;
    let (tx, mut events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx);
    links.send(node, &message(1)).unwrap();
    drop(arrivals.recv().await.unwrap());
    let end = broken(&mut events).await;
    assert_eq!((end.node, end.gone), (node, false));
    assert!(links.on_broken(&end));
    // There is nothing to send: only its answer shows whether it is gone.
    assert_eq!(control(&mut arrivals).await.0, caller());
}

#[tokio::test]
async fn finishing_writes_waiting_messages() {
    let (node, mut arrivals) = listen(7).await;
    let (tx, mut events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx.clone());
    let count = 1000;
    for n in 0..count {
        links.send(node, &message(n as u8)).unwrap();
    }
    tokio::spawn(async move { links.finish().await });
    let mut readers = ControlReaders::new(tx);
    let (_, accepted) = control(&mut arrivals).await;
    readers.admit(caller(), accepted);
    let mut got = 0;
    loop {
        match next(&mut events).await {
            ControlEvent::Message { .. } => got += 1,
            ControlEvent::Closed { .. } => break,
            ControlEvent::LinkBroken(_) => {}
        }
    }
    assert_eq!(got, count);
}

#[tokio::test]
async fn garbage_closes_the_connection() {
    let (node, mut arrivals) = listen(7).await;
    let mut stream = dial(caller(), node, Purpose::Control).await.unwrap();
    let (_, accepted) = control(&mut arrivals).await;
    let (tx, mut events) = mpsc::channel(16);
    ControlReaders::new(tx).admit(caller(), accepted);
    let mut frame = BytesMut::new();
    hoplite_wire::encode(&"no message", &mut frame);
    tokio::io::AsyncWriteExt::write_all(&mut stream, &frame).await.unwrap();
    assert!(matches!(events.recv().await, Some(ControlEvent::Closed { .. })));
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_link_to_nobody_proves_it_gone_and_can_be_used_again() {
    let (nobody, arrivals) = listen(7).await;
    // Once the socket is dropped, the port stays bound and refuses connections.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = NodeId { addr: socket.local_addr().unwrap(), ..nobody };
    drop((socket, arrivals));
    let (tx, mut events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx);
    for _ in 0..3 {
        links.send(gone, &message(1)).unwrap();
        let end = broken(&mut events).await;
        assert_eq!((end.node, end.gone), (gone, true), "a refused connection proves it");
        assert!(links.on_broken(&end));
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_given_up() {
    let (node, mut arrivals) = listen(7).await;
    let (tx, mut events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx);
    let big = PeerMessage::Answer {
        id: ObjectId([1; 16]),
        answer: hoplite_types::peer::DirectoryAnswer::Inline {
            ask: 0,
            stamp: Default::default(),
            edition: hoplite_types::Edition { writing: 1, attempt: 0 },
            header: Default::default(),
            payload: hoplite_types::Blob(vec![0; 64 << 10]),
        },
    };
    let _unread = {
        links.send(node, &big).unwrap();
        arrivals.recv().await.unwrap()
    };
    let limit = hoplite_net::CONTROL_OUTBOX_BYTES_MAX / (64 << 10) + 1;
    let refused = (0..limit).any(|_| links.send(node, &big).is_err());
    assert!(refused, "more than the limit was queued");
    assert!(matches!(events.recv().await, Some(ControlEvent::LinkBroken(_))));
}

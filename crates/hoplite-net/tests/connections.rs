//! Who is let in, what arrives, and what is noticed when it ends, over loopback.

use std::time::Duration;

use bytes::BytesMut;
use hoplite_net::{dial, read_control, write_frame, Arrival, ControlEvent, ControlLinks, Listener};
use hoplite_words::peer::{PeerHello, PeerMessage, Purpose, PEER_PROTOCOL_VERSION};
use hoplite_words::{NodeId, ObjectId};
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

fn message(n: u8) -> PeerMessage {
    PeerMessage::Prefetch { id: ObjectId([n; 16]) }
}

#[tokio::test]
async fn a_proper_caller_is_let_in() {
    let (node, mut arrivals) = listen(7).await;
    let _stream = dial(caller(), node, Purpose::Bulk).await.unwrap();
    let arrival = arrivals.recv().await.unwrap();
    assert_eq!((arrival.from, arrival.purpose), (caller(), Purpose::Bulk));
}

#[tokio::test]
async fn a_caller_for_an_earlier_incarnation_is_turned_away() {
    let (node, mut arrivals) = listen(7).await;
    let earlier = NodeId { incarnation: 6, ..node };
    let mut stream = dial(caller(), earlier, Purpose::Control).await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0, "the connection should be closed");
    assert!(arrivals.try_recv().is_err());
}

#[tokio::test]
async fn another_protocol_version_is_turned_away() {
    let (node, mut arrivals) = listen(7).await;
    let mut stream = TcpStream::connect(node.addr).await.unwrap();
    let hello =
        PeerHello { version: PEER_PROTOCOL_VERSION + 1, from: caller(), to: node, purpose: Purpose::Control };
    write_frame(&mut stream, &hello).await.unwrap();
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
    let arrival = arrivals.recv().await.unwrap();
    tokio::spawn(read_control(arrival.stream, arrival.from, tx));
    for n in 0..10 {
        match events.recv().await.unwrap() {
            ControlEvent::Message { from, message: got } => {
                assert_eq!((from, got), (caller(), message(n)))
            }
            other => panic!("{other:?}"),
        }
    }
    links.forget(node);
    assert!(matches!(events.recv().await, Some(ControlEvent::Closed { from }) if from == caller()));
}

#[tokio::test]
async fn garbage_closes_the_connection() {
    let (node, mut arrivals) = listen(7).await;
    let mut stream = dial(caller(), node, Purpose::Control).await.unwrap();
    let arrival = arrivals.recv().await.unwrap();
    let (tx, mut events) = mpsc::channel(16);
    tokio::spawn(read_control(arrival.stream, arrival.from, tx));
    let mut frame = BytesMut::new();
    hoplite_wire::encode(&"no message", &mut frame);
    tokio::io::AsyncWriteExt::write_all(&mut stream, &frame).await.unwrap();
    assert!(matches!(events.recv().await, Some(ControlEvent::Closed { .. })));
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_link_to_nobody_breaks_and_can_be_used_again() {
    let (nobody, arrivals) = listen(7).await;
    // Nobody listens there any more once the socket is dropped; a bound port stays refused.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = NodeId { addr: socket.local_addr().unwrap(), ..nobody };
    drop((socket, arrivals));
    let (tx, mut events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx);
    for _ in 0..3 {
        links.send(gone, &message(1)).unwrap();
        let event = tokio::time::timeout(Duration::from_secs(60), events.recv()).await;
        let Ok(Some(ControlEvent::LinkBroken { node, generation })) = event else { panic!("{event:?}") };
        assert_eq!(node, gone);
        assert!(links.on_broken(node, generation));
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_given_up() {
    let (node, mut arrivals) = listen(7).await;
    let (tx, mut events) = mpsc::channel(16);
    let mut links = ControlLinks::new(caller(), tx);
    let big = PeerMessage::Answer {
        id: ObjectId([1; 16]),
        answer: hoplite_words::peer::DirectoryAnswer::Inline {
            ask: 0,
            edition: hoplite_words::Edition { writing: 1, attempt: 0 },
            header: Default::default(),
            payload: hoplite_words::Blob(vec![0; 64 << 10]),
        },
    };
    let _unread = {
        links.send(node, &big).unwrap();
        arrivals.recv().await.unwrap()
    };
    let limit = hoplite_net::CONTROL_OUTBOX_BYTES_MAX / (64 << 10) + 1;
    let refused = (0..limit).any(|_| links.send(node, &big).is_err());
    assert!(refused, "more than the limit was queued");
    assert!(matches!(events.recv().await, Some(ControlEvent::LinkBroken { .. })));
}

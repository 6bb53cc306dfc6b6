//! Bundles end to end over loopback, and bundles that are never completed.

use std::time::Duration;

use hoplite_net::{
    dial, dial_bundle, write_frame, Arrival, Bundle, Listener, BUNDLES_FORMING_MAX, CHUNK_BYTES,
};
use hoplite_types::peer::{BundlePart, PeerHello, Purpose, PEER_PROTOCOL_VERSION};
use hoplite_types::{Connections, NodeId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Longer than anything here takes.
const NEVER: Duration = Duration::from_secs(30);

async fn listen() -> (NodeId, mpsc::UnboundedReceiver<Arrival>) {
    let (listener, _udp) = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let me = NodeId { addr: listener.addr(), incarnation: 7 };
    let (tx, rx) = mpsc::unbounded_channel();
    tokio::spawn(listener.run(me, move |arrival| drop(tx.send(arrival))));
    (me, rx)
}

fn caller() -> NodeId {
    NodeId { addr: "127.0.0.1:1".parse().unwrap(), incarnation: 5 }
}

async fn bundle(arrivals: &mut mpsc::UnboundedReceiver<Arrival>) -> Bundle {
    match arrivals.recv().await {
        Some(Arrival::Bulk { from, bundle }) => {
            assert_eq!(from, caller());
            bundle
        }
        other => panic!("{other:?}"),
    }
}

/// Bytes that differ from chunk to chunk.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ (at as u64 / CHUNK_BYTES) as u8).collect()
}

#[tokio::test]
async fn bytes_come_in_order_whatever_their_pieces() {
    for count in [1, 2, 3, 8] {
        let (node, mut arrivals) = listen().await;
        let count = Connections::new(count).unwrap();
        let mut out = dial_bundle(caller(), node, count, 1).await.unwrap();
        let mut coming = bundle(&mut arrivals).await;
        assert_eq!((out.connections(), coming.connections()), (count, count));
        let chunk = CHUNK_BYTES as usize;
        for len in [1, chunk - 1, chunk, chunk + 1, 20 * chunk + 12_345, 7] {
            let bytes = pattern(len);
            let mut got = vec![0; len];
            let (written, read) = tokio::join!(out.write_all(&bytes), coming.read_exact(&mut got));
            written.unwrap();
            read.unwrap();
            assert!(got == bytes, "{len} bytes over {count:?} arrived changed");
            // Between two transfers bundles change threads.
            out = out.detach().unwrap().attach().unwrap();
            coming = coming.detach().unwrap().attach().unwrap();
        }
        drop(out);
        assert_eq!(coming.read(&mut [0; 1]).await.unwrap(), 0, "the end is seen");
    }
}

#[tokio::test]
async fn bytes_written_together_come_in_order() {
    for count in [1, 3] {
        let (node, mut arrivals) = listen().await;
        let mut out = dial_bundle(caller(), node, Connections::new(count).unwrap(), 1).await.unwrap();
        let mut coming = bundle(&mut arrivals).await;
        let bytes = pattern(20 * CHUNK_BYTES as usize + 12_345);
        let writing = async {
            let mut at = 0;
            while at < bytes.len() {
                // Sometimes across the end of a chunk.
                let cut = (at + 999).min(bytes.len());
                out.writable().await.unwrap();
                match out.try_write_both(&bytes[at..cut], &bytes[cut..]) {
                    Ok(written) => at += written,
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
                }
            }
        };
        let mut got = vec![0; bytes.len()];
        let ((), read) = tokio::join!(writing, coming.read_exact(&mut got));
        read.unwrap();
        assert!(got == bytes, "over {count}");
    }
}

#[tokio::test]
async fn chunks_take_turns_on_the_connections() {
    let (node, mut arrivals) = listen().await;
    let mut dialled = parts(node, 2).await;
    let mut coming = bundle(&mut arrivals).await;
    let chunk = CHUNK_BYTES as usize;
    let bytes = pattern(3 * chunk);
    dialled[1].write_all(&bytes[chunk..2 * chunk]).await.unwrap();
    let first = [&bytes[..chunk], &bytes[2 * chunk..]].concat();
    dialled[0].write_all(&first).await.unwrap();
    let mut got = vec![0; 3 * chunk];
    coming.read_exact(&mut got).await.unwrap();
    assert!(got == bytes);
}

#[tokio::test]
async fn one_broken_connection_ends_the_stream() {
    let (node, mut arrivals) = listen().await;
    let mut dialled = parts(node, 3).await;
    let mut coming = bundle(&mut arrivals).await;
    dialled[0].write_all(&pattern(CHUNK_BYTES as usize)).await.unwrap();
    dialled.remove(1);
    let mut got = Vec::new();
    coming.read_to_end(&mut got).await.unwrap();
    assert_eq!(got.len() as u64, CHUNK_BYTES);
}

/// All connections of a bundle.
async fn parts(node: NodeId, of: u8) -> Vec<TcpStream> {
    let mut dialled = Vec::new();
    for number in 0..of {
        dialled.push(part(node, 1, number, of).await);
    }
    dialled
}

/// One connection of a bundle, with this number.
async fn part(node: NodeId, bundle: u64, number: u8, of: u8) -> TcpStream {
    say(node, Purpose::Bulk, BundlePart { bundle, number, of }).await
}

async fn say(node: NodeId, purpose: Purpose, part: BundlePart) -> TcpStream {
    let mut stream = TcpStream::connect(node.addr).await.unwrap();
    let version = PEER_PROTOCOL_VERSION;
    let hello = PeerHello { version, from: caller(), to: node, purpose, part: Some(part) };
    write_frame(&mut stream, &hello).await.unwrap();
    stream
}

async fn closed(mut stream: TcpStream) {
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0, "should be closed");
}

#[tokio::test]
async fn impossible_numbers_of_connections_are_turned_away() {
    let (node, mut arrivals) = listen().await;
    for (number, of) in [(0, 0), (2, 2), (255, 8), (0, 9), (0, 255)] {
        closed(part(node, 1, number, of).await).await;
    }
    closed(say(node, Purpose::Control, BundlePart { bundle: 1, number: 0, of: 2 }).await).await;
    assert!(arrivals.try_recv().is_err());
}

#[tokio::test]
async fn connections_that_do_not_fit_together_are_all_closed() {
    let (node, mut arrivals) = listen().await;
    for (number, of) in [(0, 2), (1, 3)] {
        let first = part(node, 1, 0, 2).await;
        // Accepted one after the other, but said hello to side by side: the second must come second.
        let third = part(node, 2, 0, 2).await;
        let fourth = part(node, 2, 1, 2).await;
        bundle(&mut arrivals).await;
        closed(part(node, 1, number, of).await).await;
        for stream in [first, third, fourth] {
            closed(stream).await;
        }
    }
    assert!(arrivals.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn half_a_bundle_is_closed_after_a_while() {
    let (node, mut arrivals) = listen().await;
    let halves = [part(node, 1, 0, 3).await, part(node, 1, 2, 3).await];
    for half in halves {
        closed(half).await;
    }
    assert!(arrivals.try_recv().is_err());
    // A connection that comes too late begins a new bundle, which is closed as well.
    closed(part(node, 1, 1, 3).await).await;
    assert!(arrivals.try_recv().is_err());
}

#[tokio::test]
async fn a_limited_number_of_bundles_may_form() {
    let (node, mut arrivals) = listen().await;
    let mut forming = Vec::new();
    for bundle in 0..BUNDLES_FORMING_MAX as u64 {
        forming.push(part(node, bundle, 0, 2).await);
    }
    // Each is admitted by a task of its own, so the last caller may be early.
    let mut one_more = part(node, u64::MAX, 0, 2).await;
    forming.push(part(node, u64::MAX - 1, 0, 2).await);
    let refused = async {
        let mut looked = 0;
        loop {
            let at = looked % (forming.len() + 1);
            let stream = if at == forming.len() { &mut one_more } else { &mut forming[at] };
            if stream.try_read(&mut [0; 1]).is_ok() {
                return;
            }
            looked += 1;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(NEVER, refused).await.expect("none was refused");
    drop(dial(caller(), node, Purpose::Bulk).await.unwrap());
    assert!(matches!(arrivals.recv().await, Some(Arrival::Bulk { .. })), "others are let in as before");
}

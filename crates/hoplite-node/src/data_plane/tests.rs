//! Transfers in and out of copies, over loopback.

use std::time::{Duration, Instant};

use hoplite_core::io::{Broken, Input, SendId};
use hoplite_net::{read_frame, write_frame};
use hoplite_types::limits::SOURCES_MAX;
use hoplite_types::peer::{BulkFrame, BulkHead, Seal};
use hoplite_types::{Connections, ObjectId, TransferId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::testing::*;
use super::Way;

const SIZE: usize = 3_000_001;

/// On a connection of its own.
const ALONE: Way = Way { connections: Connections::ONE, group: None };

fn received(transfer: u64, watermark: u64) -> Input {
    let outcome = Ok(Seal::default());
    Input::ReceiveEnded { transfer: TransferId(transfer), watermark, outcome }
}

fn broken(transfer: u64, watermark: u64) -> Input {
    Input::ReceiveEnded { transfer: TransferId(transfer), watermark, outcome: Err(Broken) }
}

#[tokio::test]
async fn transfers_follow_each_other_on_a_bundle() {
    for connections in [1, 3] {
        let mut bench = Bench::new();
        let mut bundle = bench.connect_bundle(peer(2), connections).await;
        for (n, size) in [SIZE, 1, 700_001, SIZE].into_iter().enumerate() {
            let (n, bytes) = (n as u64, pattern(n as u64, size));
            let copy = bench.copy(size as u64);
            bench.data_plane.receive(TransferId(n), peer(2), copy.clone(), 0);
            transfer(&mut bundle, n, &bytes).await;
            assert_eq!(bench.input().await, received(n, size as u64));
            assert!(contents(&copy) == bytes, "transfer {n} over {connections} arrived changed");
        }
        bench.finish().await;
    }
}

#[tokio::test]
async fn bytes_are_published_as_they_arrive_and_a_transfer_resumes_where_another_broke() {
    let mut bench = Bench::new();
    let bytes = pattern(1, SIZE);
    let copy = bench.copy(SIZE as u64);
    bench.data_plane.receive(TransferId(1), peer(2), copy.clone(), 0);
    let mut first = bench.connect(peer(2)).await;
    head(&mut first, 1, 0, SIZE as u64).await;
    for (from, to) in [(0, 1), (1, 70_000), (70_000, 1_000_000)] {
        first.write_all(&bytes[from..to]).await.unwrap();
        published(&copy, to as u64).await;
    }
    drop(first);
    assert_eq!(bench.input().await, broken(1, 1_000_000));

    bench.data_plane.receive(TransferId(2), peer(3), copy.clone(), 1_000_000);
    let mut second = bench.connect(peer(3)).await;
    head(&mut second, 2, 1_000_000, SIZE as u64).await;
    second.write_all(&bytes[1_000_000..]).await.unwrap();
    trailer(&mut second).await;
    assert_eq!(bench.input().await, received(2, SIZE as u64));
    assert!(contents(&copy) == bytes);
    bench.finish().await;
}

/// Sends every byte of transfer 1, but not its trailer.
async fn all_but_the_trailer(bench: &mut Bench) -> TcpStream {
    let copy = bench.copy(SIZE as u64);
    bench.data_plane.receive(TransferId(1), peer(2), copy, 0);
    let mut stream = bench.connect(peer(2)).await;
    head(&mut stream, 1, 0, SIZE as u64).await;
    stream.write_all(&pattern(1, SIZE)).await.unwrap();
    stream
}

#[tokio::test]
async fn every_byte_without_the_trailer_is_not_the_object() {
    let mut bench = Bench::new();
    let stream = all_but_the_trailer(&mut bench).await;
    drop(stream);
    assert_eq!(bench.input().await, broken(1, SIZE as u64));
    bench.finish().await;
}

#[tokio::test]
async fn a_seal_over_too_many_sources_is_none() {
    let mut bench = Bench::new();
    let mut stream = all_but_the_trailer(&mut bench).await;
    let seal = Seal { sources: vec![ObjectId::from_name("source"); SOURCES_MAX + 1] };
    write_frame(&mut stream, &seal).await.unwrap();
    assert_eq!(bench.input().await, broken(1, SIZE as u64));
    bench.finish().await;
}

#[tokio::test]
async fn a_receive_that_is_stopped_before_it_arrives_ends_once() {
    let mut bench = Bench::new();
    let copy = bench.copy(10);
    bench.data_plane.receive(TransferId(1), peer(2), copy, 0);
    bench.data_plane.stop_receive(TransferId(1));
    assert_eq!(bench.input().await, broken(1, 0));
    let mut late = bench.connect(peer(2)).await;
    head(&mut late, 1, 0, 10).await;
    closed(&late).await;
    bench.finish().await;
}

#[tokio::test]
async fn a_receive_that_is_stopped_on_its_way_closes_the_connection() {
    let mut bench = Bench::new();
    let copy = bench.copy(10);
    bench.data_plane.receive(TransferId(1), peer(2), copy.clone(), 0);
    let mut stream = bench.connect(peer(2)).await;
    head(&mut stream, 1, 0, 10).await;
    stream.write_all(b"abc").await.unwrap();
    published(&copy, 3).await;
    bench.data_plane.stop_receive(TransferId(1));
    assert_eq!(bench.input().await, broken(1, 3));
    closed(&stream).await;
    bench.finish().await;
}

#[tokio::test]
async fn a_receive_into_an_aborted_copy_breaks() {
    let mut bench = Bench::new();
    let copy = bench.copy(10);
    bench.data_plane.receive(TransferId(1), peer(2), copy.clone(), 0);
    let mut stream = bench.connect(peer(2)).await;
    head(&mut stream, 1, 0, 10).await;
    stream.write_all(b"abc").await.unwrap();
    published(&copy, 3).await;
    copy.abort();
    stream.write_all(b"def").await.unwrap();
    assert_eq!(bench.input().await, broken(1, 3));
    bench.finish().await;
}

#[tokio::test]
async fn only_the_expected_peer_can_bring_a_transfer() {
    let mut bench = Bench::new();
    let copy = bench.copy(3);
    bench.data_plane.receive(TransferId(1), peer(2), copy.clone(), 0);
    let mut stranger = bench.connect(peer(3)).await;
    head(&mut stranger, 1, 0, 3).await;
    closed(&stranger).await;
    let mut unknown = bench.connect(peer(2)).await;
    head(&mut unknown, 99, 0, 3).await;
    closed(&unknown).await;
    let mut stream = bench.connect(peer(2)).await;
    transfer(&mut stream, 1, b"abc").await;
    assert_eq!(bench.input().await, received(1, 3));
    assert_eq!(contents(&copy), b"abc");
    bench.finish().await;
}

#[tokio::test]
async fn a_transfer_of_another_size_or_offset_is_refused() {
    for (offset, size) in [(0, 11), (1, 10), (0, u64::MAX)] {
        let mut bench = Bench::new();
        let copy = bench.copy(10);
        bench.data_plane.receive(TransferId(1), peer(2), copy, 0);
        let mut stream = bench.connect(peer(2)).await;
        head(&mut stream, 1, offset, size).await;
        assert_eq!(bench.input().await, broken(1, 0));
        closed(&stream).await;
        bench.finish().await;
    }
}

fn sent(send: u64) -> Input {
    Input::SendEnded { send: SendId(send), outcome: Ok(()) }
}

fn send_broken(send: u64) -> Input {
    Input::SendEnded { send: SendId(send), outcome: Err(Broken) }
}

#[tokio::test]
async fn sends_share_a_connection_and_carry_the_seal() {
    let mut bench = Bench::new();
    let receiver = Listening::new().await;
    let seal = Seal { sources: vec![ObjectId([7; 16])] };
    let mut stream = None;
    for n in 0..3 {
        let bytes = pattern(n, SIZE);
        let copy = bench.copy(SIZE as u64);
        append(&copy, &bytes);
        copy.seal(seal.clone());
        let offset = n * 1000;
        bench.data_plane.send(SendId(n), receiver.id, TransferId(n + 10), copy, offset, ALONE);
        let stream = match &mut stream {
            Some(stream) => stream,
            empty => empty.insert(receiver.accept().await),
        };
        let head: BulkFrame = read_frame(stream).await.unwrap();
        assert_eq!(
            head,
            BulkFrame::Whole(BulkHead { transfer: TransferId(n + 10), offset, size: SIZE as u64 })
        );
        let mut got = vec![0; SIZE - offset as usize];
        stream.read_exact(&mut got).await.unwrap();
        assert!(got == bytes[offset as usize..], "send {n} arrived changed");
        assert_eq!(read_frame::<Seal>(stream).await.unwrap(), seal);
        assert_eq!(bench.input().await, sent(n));
    }
    assert!(!receiver.has_another().await);
    bench.finish().await;
}

#[tokio::test]
async fn a_send_follows_its_writer_and_waits_for_the_seal() {
    let mut bench = Bench::new();
    let receiver = Listening::new().await;
    let bytes = pattern(1, SIZE);
    let copy = bench.copy(SIZE as u64);
    bench.data_plane.send(SendId(1), receiver.id, TransferId(1), copy.clone(), 0, ALONE);
    let mut stream = receiver.accept().await;
    read_frame::<BulkFrame>(&mut stream).await.unwrap();
    let grain = hoplite_types::limits::grain_bytes(SIZE as u64) as usize;
    let mut got = Vec::new();
    // Whole grains of each piece must arrive before the next piece is written; the rest arrives before the seal.
    for from in (0..SIZE).step_by(500_000) {
        let to = (from + 500_000).min(SIZE);
        append(&copy, &bytes[from..to]);
        let due = if to == SIZE { SIZE } else { got.len() + (to - got.len()) / grain * grain };
        let mut piece = vec![0; due - got.len()];
        stream.read_exact(&mut piece).await.unwrap();
        got.append(&mut piece);
    }
    assert!(got == bytes);
    copy.seal(Seal::default());
    assert_eq!(read_frame::<Seal>(&mut stream).await.unwrap(), Seal::default());
    assert_eq!(bench.input().await, sent(1));
    bench.finish().await;
}

#[tokio::test]
async fn a_send_ends_with_its_copy_its_receiver_or_an_order() {
    for how in ["abort", "receiver", "stop"] {
        let mut bench = Bench::new();
        let receiver = Listening::new().await;
        let copy = bench.copy(10);
        append(&copy, b"abc");
        bench.data_plane.send(SendId(1), receiver.id, TransferId(1), copy.clone(), 0, ALONE);
        let mut stream = receiver.accept().await;
        read_frame::<BulkFrame>(&mut stream).await.unwrap();
        match how {
            "abort" => copy.abort(),
            "stop" => bench.data_plane.stop_send(SendId(1)),
            _ => drop(stream),
        }
        assert_eq!(bench.input().await, send_broken(1), "{how}");
        bench.finish().await;
    }
}

#[tokio::test]
async fn a_send_to_a_dead_peer_does_not_begin() {
    let mut bench = Bench::new();
    let gone = Listening::new().await.id;
    let copy = bench.sealed(b"abc");
    bench.data_plane.send(SendId(1), gone, TransferId(1), copy, 0, ALONE);
    assert_eq!(bench.input().await, Input::PeerGone { node: gone }, "its host refuses connections");
    assert_eq!(bench.input().await, Input::SendNotBegun { send: SendId(1) });
    bench.finish().await;
}

/// Short, so that tests see several of them; long enough that a busy machine keeps to it.
const STALL_AFTER: Duration = Duration::from_millis(100);

fn stalled(transfer: u64, watermark: u64) -> Input {
    Input::ReceiveStalled { transfer: TransferId(transfer), watermark }
}

#[tokio::test]
async fn a_receive_that_stands_still_is_reported_each_time_and_goes_on() {
    let mut bench = Bench::with_stall_after(STALL_AFTER);
    let copy = bench.copy(10);
    bench.data_plane.receive(TransferId(1), peer(2), copy.clone(), 0);
    let mut stream = bench.connect(peer(2)).await;
    let began = Instant::now();
    head(&mut stream, 1, 0, 10).await;
    stream.write_all(b"abc").await.unwrap();
    for n in 1..=3 {
        assert_eq!(bench.input().await, stalled(1, 3));
        assert!(began.elapsed() >= STALL_AFTER * n, "too early: {:?}", began.elapsed());
    }
    stream.write_all(b"defghij").await.unwrap();
    // Every byte is here, but a copy without its seal is not complete.
    while bench.input().await == stalled(1, 3) {}
    assert_eq!(bench.input().await, stalled(1, 10));
    trailer(&mut stream).await;
    loop {
        match bench.input().await {
            Input::ReceiveStalled { watermark: 10, .. } => {}
            ended => break assert_eq!(ended, received(1, 10)),
        }
    }
    bench.finish().await;
}

#[tokio::test]
async fn a_transfer_that_never_arrives_is_reported_each_time() {
    let mut bench = Bench::with_stall_after(STALL_AFTER);
    assert_eq!(bench.data_plane.next_look(), None);
    let copy = bench.copy(10);
    append(&copy, b"abc");
    bench.data_plane.receive(TransferId(1), peer(2), copy, 3);
    for _ in 0..3 {
        let look = bench.data_plane.next_look().expect("something is awaited");
        tokio::time::sleep_until(look.into()).await;
        assert_eq!(bench.data_plane.stalled(look), [stalled(1, 3)]);
    }
    bench.data_plane.stop_receive(TransferId(1));
    assert_eq!(bench.input().await, broken(1, 3));
    let look = bench.data_plane.next_look().expect("it has not looked since");
    assert_eq!(bench.data_plane.stalled(look), []);
    assert_eq!(bench.data_plane.next_look(), None);
    bench.finish().await;
}

#[tokio::test]
async fn idle_connections_of_a_peer_that_is_gone_are_closed() {
    let mut bench = Bench::new();
    let mut used = bench.connect(peer(2)).await;
    let fresh = bench.connect(peer(2)).await;
    let mut other = bench.connect(peer(3)).await;
    let copy = bench.copy(3);
    bench.data_plane.receive(TransferId(1), peer(2), copy, 0);
    transfer(&mut used, 1, b"abc").await;
    assert_eq!(bench.input().await, received(1, 3));
    bench.data_plane.forget(peer(2));
    closed(&used).await;
    closed(&fresh).await;
    let copy = bench.copy(3);
    bench.data_plane.receive(TransferId(2), peer(3), copy, 0);
    transfer(&mut other, 2, b"abc").await;
    assert_eq!(bench.input().await, received(2, 3), "another peer's connection works on");
    bench.finish().await;
}

#[tokio::test]
async fn sends_by_as_many_connections_share_a_bundle() {
    let mut bench = Bench::new();
    let receiver = Listening::new().await;
    let three = Connections::new(3).unwrap();
    let mut bundle = None;
    for n in 0..3 {
        let bytes = pattern(n, SIZE);
        let copy = bench.sealed(&bytes);
        bench.data_plane.send(
            SendId(n),
            receiver.id,
            TransferId(n),
            copy,
            0,
            Way { connections: three, group: None },
        );
        let bundle = match &mut bundle {
            Some(bundle) => bundle,
            empty => empty.insert(receiver.accept_bundle(3).await),
        };
        let head: BulkFrame = read_frame(bundle).await.unwrap();
        assert_eq!(
            head,
            BulkFrame::Whole(BulkHead { transfer: TransferId(n), offset: 0, size: SIZE as u64 })
        );
        let mut got = vec![0; SIZE];
        bundle.read_exact(&mut got).await.unwrap();
        assert!(got == bytes, "send {n} arrived changed");
        read_frame::<Seal>(bundle).await.unwrap();
        assert_eq!(bench.input().await, sent(n));
    }
    assert!(!receiver.has_another().await);
    bench.finish().await;
}

#[tokio::test]
async fn half_a_bundle_breaks_the_send_and_the_receive() {
    let mut bench = Bench::new();
    let copy = bench.copy(SIZE as u64);
    bench.data_plane.receive(TransferId(1), peer(2), copy.clone(), 0);
    let mut parts = bench.connect_parts(peer(2), 2).await;
    let (second, mut first) = (parts.pop().unwrap(), parts.pop().unwrap());
    head(&mut first, 1, 0, SIZE as u64).await;
    first.write_all(&[7; 1000]).await.unwrap();
    published(&copy, 1000).await;
    drop(second);
    let rest = hoplite_net::CHUNK_BYTES - 1000;
    first.write_all(&vec![7; rest as usize]).await.unwrap();
    let Input::ReceiveEnded { watermark, outcome: Err(Broken), .. } = bench.input().await else {
        panic!("it should have broken")
    };
    assert!((1000..hoplite_net::CHUNK_BYTES).contains(&watermark), "{watermark}");
    closed(&first).await;

    let receiver = Listening::new().await;
    let copy = bench.sealed(&pattern(1, SIZE));
    bench.data_plane.send(
        SendId(1),
        receiver.id,
        TransferId(2),
        copy,
        0,
        Way { connections: Connections::new(2).unwrap(), group: None },
    );
    drop(receiver.accept_bundle(2).await);
    assert_eq!(bench.input().await, send_broken(1));
    bench.finish().await;
}

#[tokio::test]
async fn a_send_tells_how_fast_the_network_took_it_unless_it_waited() {
    let mut bench = Bench::new();
    let receiver = Listening::new().await;
    let bytes = pattern(1, SIZE);
    let copy = bench.sealed(&bytes);
    bench.data_plane.send(SendId(1), receiver.id, TransferId(1), copy, 0, ALONE);
    let mut stream = receiver.accept().await;
    stream.read_exact(&mut vec![0; SIZE]).await.unwrap();
    let Input::SendMeasured { send: SendId(1), bytes: measured, .. } = bench.any_input().await else {
        panic!("nothing was measured")
    };
    assert_eq!(measured, SIZE as u64);
    assert_eq!(bench.input().await, sent(1));

    let copy = bench.copy(10);
    bench.data_plane.send(SendId(2), receiver.id, TransferId(2), copy.clone(), 0, ALONE);
    let mut rest = Vec::new();
    // The head has arrived, so the sender waits; the bytes come much later.
    while rest.len() < 20 {
        stream.read_buf(&mut rest).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    append(&copy, b"abcdefghij");
    copy.seal(Seal::default());
    assert_eq!(bench.any_input().await, sent(2));
    bench.finish().await;
}

//! Transfers that share a bundle, at both ends.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use hoplite_core::io::{Broken, FoldId, FoldRule, Input, SendId};
use hoplite_net::{read_frame, write_frame, Bundle};
use hoplite_types::limits::GRAIN_BYTES_MAX;
use hoplite_types::peer::{BulkFrame, BulkHead, Seal};
use hoplite_types::{Connections, Dtype, NodeId, ObjectId, Op, ReductionId, TransferId};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::copies::Copy;
use crate::data_plane::testing::*;
use crate::data_plane::{Inputs, Way};

const SIZE: usize = 700_001;
const FOLD: FoldId = FoldId(1);

async fn begin(stream: &mut (impl AsyncWrite + Unpin), transfer: u64, size: usize) {
    let head = BulkHead { transfer: TransferId(transfer), offset: 0, size: size as u64 };
    write_frame(stream, &BulkFrame::Begin(head)).await.unwrap();
}

async fn piece(stream: &mut (impl AsyncWrite + Unpin), transfer: u64, bytes: &[u8]) {
    let frame = BulkFrame::Piece { transfer: TransferId(transfer), bytes: bytes.len() as u32 };
    write_frame(stream, &frame).await.unwrap();
    stream.write_all(bytes).await.unwrap();
}

async fn end(stream: &mut (impl AsyncWrite + Unpin), transfer: u64) {
    let frame = BulkFrame::End { transfer: TransferId(transfer), seal: Seal::default() };
    write_frame(stream, &frame).await.unwrap();
}

fn received(transfer: u64, watermark: u64, outcome: Result<Seal, Broken>) -> Input {
    Input::ReceiveEnded { transfer: TransferId(transfer), watermark, outcome }
}

fn sum() -> FoldRule {
    FoldRule { op: Op::Sum, dtype: Dtype::I32, offset: 0, divide_by: None, open: false }
}

fn total(inputs: [&[u8]; 2]) -> Vec<u8> {
    let number = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap());
    let [first, second] = inputs.map(|input| input.chunks_exact(4).map(number));
    first.zip(second).flat_map(|(a, b)| a.wrapping_add(b).to_le_bytes()).collect()
}

fn folded(outcome: Result<(), Broken>) -> Input {
    Input::FoldEnded { fold: FOLD, outcome }
}

/// Awaits these inputs, in any order.
async fn all_of(bench: &mut Bench, mut awaited: Vec<Input>) {
    while !awaited.is_empty() {
        let input = bench.input().await;
        let at = awaited.iter().position(|other| *other == input);
        awaited.remove(at.unwrap_or_else(|| panic!("{input:?} is none of {awaited:?}")));
    }
}

#[tokio::test]
async fn pieces_come_to_their_copies_and_sums_and_the_bundle_is_free_afterwards() {
    for connections in [1, 3] {
        let mut bench = Bench::new();
        let mut bundle = bench.connect_bundle(peer(2), connections).await;
        for round in 0..2u64 {
            let inputs: Vec<_> = (0..3).map(|n| pattern(10 * round + n, SIZE - 1)).collect();
            let copies: Vec<_> = (0..3).map(|_| bench.copy(SIZE as u64 - 1)).collect();
            let source = bench.sealed(&pattern(99, SIZE - 1));
            let transfers: Vec<_> = (0..3).map(|n| 10 * round + n).collect();
            for n in 0..2 {
                bench.data_plane.receive(TransferId(transfers[n]), peer(2), copies[n].clone(), 0);
            }
            let streams = vec![(TransferId(transfers[2]), peer(2))];
            let named = Inputs { sources: vec![source.clone()], streams };
            bench.data_plane.fold(FOLD, copies[2].clone(), sum(), named);
            for &transfer in &transfers {
                begin(&mut bundle, transfer, SIZE - 1).await;
            }
            let mut at = [0; 3];
            for choice in pattern(round, 1000) {
                let n = choice as usize % 3;
                let to = (at[n] + 501 * (choice as usize + 1)).min(SIZE - 1);
                piece(&mut bundle, transfers[n], &inputs[n][at[n]..to]).await;
                at[n] = to;
            }
            assert_eq!(at, [SIZE - 1; 3], "the test wrote too few pieces");
            for &transfer in &transfers {
                end(&mut bundle, transfer).await;
            }
            let received = |n: usize| received(transfers[n], SIZE as u64 - 1, Ok(Seal::default()));
            all_of(&mut bench, vec![received(0), received(1), folded(Ok(()))]).await;
            assert!(contents(&copies[0]) == inputs[0] && contents(&copies[1]) == inputs[1]);
            assert!(contents(&copies[2]) == total([&inputs[2], &contents(&source)]));

            // A whole transfer.
            let copy = bench.copy(10);
            bench.data_plane.receive(TransferId(1000 + round), peer(2), copy.clone(), 0);
            transfer(&mut bundle, 1000 + round, b"0123456789").await;
            let whole = Input::ReceiveEnded {
                transfer: TransferId(1000 + round),
                watermark: 10,
                outcome: Ok(Seal::default()),
            };
            assert_eq!(bench.input().await, whole);
        }
        bench.finish().await;
    }
}

#[tokio::test]
async fn a_stream_that_lands_does_not_wait_for_a_late_source_and_comes_first_in_the_sum() {
    let mut bench = Bench::new();
    let floats = |n: f32| n.to_le_bytes().repeat(100_000);
    let (early, late) = (bench.sealed(&floats(-1e8)), bench.copy(400_000));
    let out = bench.copy(400_000);
    let rule = FoldRule { dtype: Dtype::F32, ..sum() };
    let sources = vec![early, late.clone()];
    bench.data_plane.fold(
        FOLD,
        out.clone(),
        rule,
        Inputs { sources, streams: vec![(TransferId(1), peer(2))] },
    );
    let mut stream = bench.connect(peer(2)).await;
    begin(&mut stream, 1, 400_000).await;
    piece(&mut stream, 1, &floats(1e8)).await;
    end(&mut stream, 1).await;
    // Later data on the connection is not delayed.
    let copy = bench.copy(3);
    bench.data_plane.receive(TransferId(2), peer(2), copy, 0);
    begin(&mut stream, 2, 3).await;
    piece(&mut stream, 2, b"abc").await;
    end(&mut stream, 2).await;
    assert_eq!(bench.input().await, received(2, 3, Ok(Seal::default())));
    assert_eq!(out.watermark(), 0);
    for _ in 0..4 {
        append(&late, &floats(1.0)[..100_000]);
    }
    published(&out, 400_000).await;
    late.seal(Seal::default());
    assert_eq!(bench.input().await, folded(Ok(())));
    // (1e8 + -1e8) + 1 is 1, 1e8 + (-1e8 + 1) is 0.
    assert!(contents(&out) == floats(1.0));
    bench.finish().await;
}

#[tokio::test]
async fn a_stopped_receive_ends_at_once_and_the_others_continue() {
    let mut bench = Bench::new();
    let (stopped, other, out) = (bench.copy(10), bench.copy(10), bench.copy(8));
    bench.data_plane.receive(TransferId(1), peer(2), stopped.clone(), 0);
    bench.data_plane.receive(TransferId(2), peer(2), other.clone(), 0);
    let named = Inputs { sources: vec![], streams: vec![(TransferId(3), peer(2))] };
    bench.data_plane.fold(FOLD, out.clone(), sum(), named);
    let mut stream = bench.connect(peer(2)).await;
    for (transfer, size) in [(1, 10), (2, 10), (3, 8)] {
        begin(&mut stream, transfer, size).await;
    }
    piece(&mut stream, 1, b"abc").await;
    piece(&mut stream, 3, b"abcd").await;
    published(&stopped, 3).await;
    published(&out, 4).await;
    bench.data_plane.stop_receive(TransferId(1));
    assert_eq!(bench.input().await, received(1, 3, Err(Broken)));
    bench.data_plane.stop_fold(FOLD);
    assert_eq!(bench.input().await, folded(Err(Broken)));
    // At first their sender does not know of the stop; then it does.
    piece(&mut stream, 1, b"def").await;
    piece(&mut stream, 3, b"abcd").await;
    end(&mut stream, 3).await;
    write_frame(&mut stream, &BulkFrame::Abort { transfer: TransferId(1) }).await.unwrap();
    piece(&mut stream, 2, b"0123456789").await;
    end(&mut stream, 2).await;
    assert_eq!(bench.input().await, received(2, 10, Ok(Seal::default())));
    assert_eq!((contents(&stopped), contents(&out)), (b"abc".to_vec(), b"abcd".to_vec()));
    bench.finish().await;
}

#[tokio::test]
async fn a_transfer_that_the_sender_aborts_breaks_no_other() {
    let mut bench = Bench::new();
    let (aborted, other, out) = (bench.copy(10), bench.copy(3), bench.copy(8));
    bench.data_plane.receive(TransferId(1), peer(2), aborted, 0);
    bench.data_plane.receive(TransferId(2), peer(2), other, 0);
    let named = Inputs { sources: vec![], streams: vec![(TransferId(3), peer(2))] };
    bench.data_plane.fold(FOLD, out, sum(), named);
    let mut stream = bench.connect(peer(2)).await;
    for (transfer, size) in [(1, 10), (2, 3), (3, 8)] {
        begin(&mut stream, transfer, size).await;
    }
    piece(&mut stream, 1, b"abc").await;
    for transfer in [1, 3] {
        write_frame(&mut stream, &BulkFrame::Abort { transfer: TransferId(transfer) }).await.unwrap();
    }
    piece(&mut stream, 2, b"abc").await;
    end(&mut stream, 2).await;
    let lost = Input::FoldStreamBroken { fold: FOLD, transfer: TransferId(3) };
    let expected = vec![received(1, 3, Err(Broken)), received(2, 3, Ok(Seal::default())), lost];
    all_of(&mut bench, expected).await;
    bench.data_plane.stop_fold(FOLD);
    assert_eq!(bench.input().await, folded(Err(Broken)));
    bench.finish().await;
}

#[tokio::test]
async fn all_transfers_break_with_the_connection_or_with_the_rules() {
    for how in [
        "closed",
        "disconnected",
        "no such transfer",
        "too much",
        "too little",
        "by itself",
        "twice",
        "unexpected",
    ] {
        let mut bench = Bench::new();
        let (copy, out) = (bench.copy(10), bench.copy(8));
        bench.data_plane.receive(TransferId(1), peer(2), copy.clone(), 0);
        let named = Inputs { sources: vec![], streams: vec![(TransferId(2), peer(2))] };
        bench.data_plane.fold(FOLD, out.clone(), sum(), named);
        let mut stream = bench.connect(peer(2)).await;
        begin(&mut stream, 1, 10).await;
        begin(&mut stream, 2, 8).await;
        piece(&mut stream, 1, b"abc").await;
        piece(&mut stream, 2, b"abcd").await;
        published(&out, 4).await;
        match how {
            "closed" => drop(stream),
            "disconnected" => bench.data_plane.forget(peer(2)),
            "no such transfer" => piece(&mut stream, 3, b"abc").await,
            "too much" => piece(&mut stream, 1, b"0123456789").await,
            "too little" => {
                end(&mut stream, 1).await;
                drop(stream);
            }
            "by itself" => head(&mut stream, 3, 0, 10).await,
            "twice" => begin(&mut stream, 1, 10).await,
            _ => {
                let other = bench.copy(3);
                bench.data_plane.receive(TransferId(3), peer(2), other, 0);
                begin(&mut stream, 3, 4).await;
            }
        }
        let lost = Input::FoldStreamBroken { fold: FOLD, transfer: TransferId(2) };
        let mut expected = vec![received(1, 3, Err(Broken)), lost];
        if how == "unexpected" {
            expected.push(received(3, 0, Err(Broken)));
        }
        all_of(&mut bench, expected).await;
        bench.data_plane.stop_fold(FOLD);
        assert_eq!(bench.input().await, folded(Err(Broken)), "{how}");
        bench.finish().await;
    }
}

#[tokio::test]
async fn a_stream_is_silent_when_its_bundle_is() {
    let after = Duration::from_millis(100);
    let mut bench = Bench::with_stall_after(after);
    let (waiting, busy) = (bench.copy(10), bench.copy(1000));
    bench.data_plane.receive(TransferId(1), peer(2), waiting, 0);
    bench.data_plane.receive(TransferId(2), peer(2), busy.clone(), 0);
    let mut stream = bench.connect(peer(2)).await;
    begin(&mut stream, 1, 10).await;
    begin(&mut stream, 2, 1000).await;
    let began = std::time::Instant::now();
    let mut sent = 0;
    while began.elapsed() < 3 * after {
        piece(&mut stream, 2, b"a").await;
        sent += 1;
        published(&busy, sent).await;
        tokio::time::sleep(after / 10).await;
    }
    let mut stalled = std::collections::BTreeSet::new();
    while stalled.len() < 2 {
        match bench.input().await {
            Input::ReceiveStalled { transfer, watermark } => {
                assert_eq!(watermark, if transfer == TransferId(1) { 0 } else { sent });
                stalled.insert(transfer);
            }
            other => panic!("{other:?}"),
        }
    }
    bench.data_plane.stop_receive(TransferId(1));
    bench.data_plane.stop_receive(TransferId(2));
    let mut ended = 0;
    while ended < 2 {
        ended += usize::from(matches!(bench.input().await, Input::ReceiveEnded { .. }));
    }
    bench.finish().await;
}

fn in_group() -> Way {
    let group = Some(ReductionId { coordinator: peer(7), number: 1 });
    Way { connections: Connections::ONE, group }
}

fn send(bench: &mut Bench, to: NodeId, number: u64, copy: &Arc<Copy>) {
    bench.data_plane.send(SendId(number), to, TransferId(number + 10), copy.clone(), 0, in_group());
}

fn sent(number: u64, outcome: Result<(), Broken>) -> Input {
    Input::SendEnded { send: SendId(number), outcome }
}

async fn next(stream: &mut Bundle) -> BulkFrame {
    tokio::time::timeout(Duration::from_secs(60), read_frame(stream)).await.expect("nothing came").unwrap()
}

async fn bytes_of_piece(stream: &mut Bundle, frame: &BulkFrame) -> Vec<u8> {
    let BulkFrame::Piece { bytes, .. } = frame else { panic!("{frame:?}") };
    let mut got = vec![0; *bytes as usize];
    stream.read_exact(&mut got).await.unwrap();
    got
}

#[tokio::test]
async fn sends_of_a_group_share_a_connection_which_is_free_afterwards() {
    let mut bench = Bench::new();
    let receiver = Listening::new().await;
    let inputs: Vec<_> = (0..3).map(|n| pattern(n, SIZE)).collect();
    let copies: Vec<_> = (0..3).map(|_| bench.copy(SIZE as u64)).collect();
    for n in 0..3 {
        send(&mut bench, receiver.id, n, &copies[n as usize]);
    }
    let mut stream = Bundle::from(receiver.accept().await);
    let seal = Seal { sources: vec![ObjectId([7; 16])] };
    for (copy, input) in copies.iter().zip(&inputs) {
        append(copy, &input[..SIZE / 2]);
        append(copy, &input[SIZE / 2..]);
        copy.seal(seal.clone());
    }
    let mut got: Vec<Option<Vec<u8>>> = vec![None; 3];
    let mut ended = 0;
    while ended < 3 {
        let frame = next(&mut stream).await;
        match &frame {
            BulkFrame::Begin(BulkHead { transfer, offset: 0, size }) => {
                assert_eq!(*size, SIZE as u64);
                assert_eq!(got[transfer.0 as usize - 10].replace(Vec::new()), None, "begun twice");
            }
            BulkFrame::Piece { transfer, .. } => {
                let bytes = bytes_of_piece(&mut stream, &frame).await;
                got[transfer.0 as usize - 10].as_mut().expect("begun").extend(bytes);
            }
            BulkFrame::End { transfer, seal: theirs } => {
                assert_eq!(*theirs, seal);
                let n = transfer.0 as usize - 10;
                assert!(got[n].as_ref() == Some(&inputs[n]), "{n} arrived changed");
                ended += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    all_of(&mut bench, (0..3).map(|n| sent(n, Ok(()))).collect()).await;
    assert_eq!(bench.data_plane.counters().sent_bytes.load(Ordering::Relaxed), 3 * SIZE as u64);

    // The same connection carries the next transfers of the group.
    let copy = bench.sealed(b"abc");
    while bench.data_plane.groups.values().any(|orders| !orders.is_closed()) {
        tokio::task::yield_now().await;
    }
    send(&mut bench, receiver.id, 3, &copy);
    let frame = tokio::select! {
        frame = next(&mut stream) => frame,
        _ = receiver.accept() => panic!("another connection"),
    };
    assert!(matches!(frame, BulkFrame::Begin(_)), "{frame:?}");
    assert_eq!(bench.input().await, sent(3, Ok(())));
    bench.finish().await;
}

#[tokio::test]
async fn the_send_that_had_bytes_first_sends_all_of_them_first() {
    let mut bench = Bench::new();
    let receiver = Listening::new().await;
    let copies: Vec<_> = (0..2).map(|_| bench.copy(64 << 20 >> 2)).collect();
    for n in 0..2 {
        send(&mut bench, receiver.id, n, &copies[n as usize]);
    }
    let mut stream = Bundle::from(receiver.accept().await);
    for _ in 0..2 {
        assert!(matches!(next(&mut stream).await, BulkFrame::Begin(_)));
    }
    // More than the sockets hold: the rest waits until the peer reads.
    append(&copies[1], &vec![1; 15 << 20]);
    let first = next(&mut stream).await;
    let mut came = bytes_of_piece(&mut stream, &first).await.len();
    append(&copies[0], &vec![0; 1 << 20]);
    let mut others = 0;
    while came + others < 16 << 20 {
        let frame = next(&mut stream).await;
        let bytes = bytes_of_piece(&mut stream, &frame).await;
        assert!(bytes.len() <= GRAIN_BYTES_MAX);
        match bytes[0] {
            1 => {
                assert_eq!(others, 0, "its turn was not over");
                came += bytes.len();
            }
            _ => others += bytes.len(),
        }
    }
    drop(stream);
    all_of(&mut bench, vec![sent(0, Err(Broken)), sent(1, Err(Broken))]).await;
    bench.finish().await;
}

#[tokio::test]
async fn a_send_that_is_stopped_or_aborted_leaves_the_others_alone() {
    for how in ["stop", "abort"] {
        let mut bench = Bench::new();
        let receiver = Listening::new().await;
        let copies: Vec<_> = (0..2).map(|_| bench.copy(10)).collect();
        for n in 0..2 {
            send(&mut bench, receiver.id, n, &copies[n as usize]);
        }
        let mut stream = Bundle::from(receiver.accept().await);
        for _ in 0..2 {
            assert!(matches!(next(&mut stream).await, BulkFrame::Begin(_)));
        }
        match how {
            "stop" => bench.data_plane.stop_send(SendId(0)),
            _ => copies[0].abort(),
        }
        assert_eq!(next(&mut stream).await, BulkFrame::Abort { transfer: TransferId(10) }, "{how}");
        assert_eq!(bench.input().await, sent(0, Err(Broken)));
        append(&copies[1], b"0123456789");
        copies[1].seal(Seal::default());
        let frame = next(&mut stream).await;
        assert_eq!(bytes_of_piece(&mut stream, &frame).await, b"0123456789");
        assert!(matches!(next(&mut stream).await, BulkFrame::End { .. }));
        assert_eq!(bench.input().await, sent(1, Ok(())));
        bench.finish().await;
    }
}

#[tokio::test]
async fn a_send_that_is_stopped_while_its_receiver_does_not_read_ends() {
    let mut bench = Bench::new();
    let receiver = Listening::new().await;
    let full = bench.sealed(&vec![1; 32 << 20]);
    let empty = bench.copy(10);
    send(&mut bench, receiver.id, 0, &full);
    send(&mut bench, receiver.id, 1, &empty);
    let _stream = receiver.accept().await;
    // Wait until the sockets are full.
    let sent_bytes = || bench.data_plane.counters().sent_bytes.load(Ordering::Relaxed);
    let (mut before, mut same) = (0, 0);
    while same < 10 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = sent_bytes();
        same = if now == before && now > 0 { same + 1 } else { 0 };
        before = now;
    }
    bench.data_plane.stop_send(SendId(0));
    all_of(&mut bench, vec![sent(0, Err(Broken)), sent(1, Err(Broken))]).await;
    bench.finish().await;
}

#[tokio::test]
async fn a_group_to_a_dead_peer_does_not_begin() {
    let mut bench = Bench::new();
    let gone = Listening::new().await.id;
    let copy = bench.sealed(b"abc");
    send(&mut bench, gone, 0, &copy);
    send(&mut bench, gone, 1, &copy);
    let mut not_begun = 0;
    while not_begun < 2 {
        match bench.input().await {
            Input::SendNotBegun { .. } => not_begun += 1,
            // One or two of them: the second may have begun when the first had ended.
            other => assert_eq!(other, Input::PeerGone { node: gone }),
        }
    }
    bench.finish().await;
}

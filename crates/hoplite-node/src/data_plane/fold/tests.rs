//! Folds of streams and sources that arrive in every order and piece by piece.

use std::sync::Arc;

use hoplite_core::io::{Broken, FoldId, FoldRule, Input};
use hoplite_types::peer::Seal;
use hoplite_types::{Dtype, Op, TransferId};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::SCRATCH_BYTES_MAX;
use crate::copies::Copy;
use crate::data_plane::testing::*;
use crate::data_plane::Inputs;

const FOLD: FoldId = FoldId(1);

fn sum(open: bool) -> FoldRule {
    FoldRule { op: Op::Sum, dtype: Dtype::I32, offset: 0, divide_by: None, open }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = i32> + '_ {
    bytes.chunks_exact(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap()))
}

/// The sum of all inputs.
fn total(inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut total = vec![0i32; inputs[0].len() / 4];
    for input in inputs {
        total.iter_mut().zip(numbers(input)).for_each(|(sum, n)| *sum = sum.wrapping_add(n));
    }
    total.iter().flat_map(|n| n.to_le_bytes()).collect()
}

fn ended() -> Input {
    Input::FoldEnded { fold: FOLD, outcome: Ok(()) }
}

fn broken() -> Input {
    Input::FoldEnded { fold: FOLD, outcome: Err(Broken) }
}

fn streams(count: u64) -> Vec<(TransferId, hoplite_types::NodeId)> {
    (0..count).map(|n| (TransferId(n), peer(10 + n as u16))).collect()
}

/// Folds `stream_count` streams and `source_count` sources; `seed` decides which input gets its next piece.
async fn fold_in_pieces(stream_count: usize, source_count: usize, size: usize, seed: u64) {
    let mut bench = Bench::new();
    let count = stream_count + source_count;
    let inputs: Vec<_> = (0..count).map(|n| pattern(seed * 100 + n as u64, size)).collect();
    let out = bench.copy(size as u64);
    let sources: Vec<_> = (0..source_count).map(|_| bench.copy(size as u64)).collect();
    let named = Inputs { sources: sources.clone(), streams: streams(stream_count as u64) };
    bench.data_plane.fold(FOLD, out.clone(), sum(false), named);

    let mut tcp: Vec<TcpStream> = Vec::new();
    for n in 0..stream_count {
        let mut stream = bench.connect(peer(10 + n as u16)).await;
        head(&mut stream, n as u64, 0, size as u64).await;
        tcp.push(stream);
    }
    let mut at = vec![0; count];
    for choice in pattern(seed, 10_000) {
        let open: Vec<_> = (0..count).filter(|&n| at[n] < size).collect();
        let Some(&n) = open.get(choice as usize % open.len().max(1)) else { break };
        let piece = (choice as usize + 1) * 1111;
        let to = (at[n] + piece).min(size);
        let bytes = &inputs[n][at[n]..to];
        match n.checked_sub(stream_count) {
            None => tcp[n].write_all(bytes).await.unwrap(),
            Some(source) => append(&sources[source], bytes),
        }
        at[n] = to;
    }
    assert!(at.iter().all(|&at| at == size), "the test wrote too few pieces");
    for stream in &mut tcp {
        trailer(stream).await;
    }
    sources.iter().for_each(|source| source.seal(Seal::default()));
    assert_eq!(bench.input().await, ended());
    assert!(contents(&out) == total(&inputs), "{stream_count} streams, {source_count} sources, seed {seed}");
    bench.finish().await;
}

#[tokio::test]
async fn every_shape_adds_up() {
    for (stream_count, source_count) in [(0, 1), (0, 3), (1, 0), (1, 1), (1, 3), (3, 0), (3, 2)] {
        for seed in 1..4 {
            fold_in_pieces(stream_count, source_count, 400_000, seed).await;
        }
    }
}

#[tokio::test]
async fn more_than_the_scratch_holds_waits_for_a_slow_source() {
    fold_in_pieces(2, 1, 3_000_000, 9).await;
}

#[tokio::test]
async fn one_element_and_a_fold_that_follows_on_the_same_connection() {
    let mut bench = Bench::new();
    let mut stream = bench.connect(peer(10)).await;
    for n in 0..3u64 {
        let (a, b) = (pattern(n, 4), pattern(n + 50, 4));
        let out = bench.copy(4);
        let inputs = Inputs { sources: vec![bench.sealed(&a)], streams: vec![(TransferId(n), peer(10))] };
        bench.data_plane.fold(FOLD, out.clone(), sum(false), inputs);
        transfer(&mut stream, n, &b).await;
        assert_eq!(bench.input().await, ended());
        assert_eq!(contents(&out), total(&[a, b]));
    }
    bench.finish().await;
}

#[tokio::test]
async fn with_one_stream_it_comes_first_and_sources_follow_in_order() {
    // Floats show the order: (1e8 + -1e8) + 1 is 1, 1e8 + (-1e8 + 1) is 0.
    let mut bench = Bench::new();
    let number = |n: f32| n.to_le_bytes().to_vec();
    let sources = vec![bench.sealed(&number(-1e8)), bench.sealed(&number(1.0))];
    let out = bench.copy(4);
    let rule = FoldRule { dtype: Dtype::F32, ..sum(false) };
    bench.data_plane.fold(FOLD, out.clone(), rule, Inputs { sources, streams: streams(1) });
    let mut stream = bench.connect(peer(10)).await;
    transfer(&mut stream, 0, &number(1e8)).await;
    assert_eq!(bench.input().await, ended());
    assert_eq!(contents(&out), number(1.0));
    bench.finish().await;
}

#[tokio::test]
async fn a_mean_is_divided_once_before_it_is_published() {
    let mut bench = Bench::new();
    let numbers = |n: f32| [n, n * 2.0, -n].iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    let sources = vec![bench.sealed(&numbers(1.0)), bench.sealed(&numbers(2.0))];
    let out = bench.copy(12);
    let rule = FoldRule { op: Op::Mean, dtype: Dtype::F32, divide_by: Some(3), ..sum(false) };
    bench.data_plane.fold(FOLD, out.clone(), rule, Inputs { sources, streams: streams(1) });
    let mut stream = bench.connect(peer(10)).await;
    transfer(&mut stream, 0, &numbers(6.0)).await;
    assert_eq!(bench.input().await, ended());
    assert_eq!(contents(&out), numbers(3.0));
    bench.finish().await;
}

#[tokio::test]
async fn a_part_of_the_sources_is_folded_as_soon_as_it_is_there() {
    let mut bench = Bench::new();
    let (size, from, to) = (1 << 20, 300_000, 700_000);
    let inputs: Vec<_> = (0..3).map(|n| pattern(n, size)).collect();
    let (whole, growing) = (bench.sealed(&inputs[0]), bench.copy(size as u64));
    let out = bench.copy((to - from) as u64);
    let rule = FoldRule { offset: from as u64, ..sum(false) };
    let sources = vec![whole, growing.clone()];
    bench.data_plane.fold(FOLD, out.clone(), rule, Inputs { sources, streams: streams(1) });
    let mut stream = bench.connect(peer(10)).await;
    transfer(&mut stream, 0, &inputs[2][from..to]).await;
    append(&growing, &inputs[1][..to]);
    published(&out, (to - from) as u64).await;
    append(&growing, &inputs[1][to..]);
    growing.seal(Seal::default());
    assert_eq!(bench.input().await, ended());
    let parts: Vec<_> = inputs.iter().map(|input| input[from..to].to_vec()).collect();
    assert_eq!(contents(&out), total(&parts));
    bench.finish().await;
}

/// A stream that has brought half of `bytes`, all of which is folded.
async fn half_folded(bench: &mut Bench, source: &Arc<Copy>, bytes: &[u8]) -> TcpStream {
    let mut stream = bench.connect(peer(10)).await;
    head(&mut stream, 0, 0, bytes.len() as u64).await;
    stream.write_all(&bytes[..bytes.len() / 2]).await.unwrap();
    append(source, &pattern(2, bytes.len())[..bytes.len() / 2]);
    while bench.data_plane.counters().folded_bytes.load(std::sync::atomic::Ordering::Relaxed)
        < bytes.len() as u64
    {
        tokio::task::yield_now().await;
    }
    stream
}

#[tokio::test]
async fn an_open_fold_publishes_nothing_and_takes_more_inputs_later() {
    let size = 800_000;
    let mut bench = Bench::new();
    let inputs: Vec<_> = (1..5).map(|n| pattern(n, size)).collect();
    let out = bench.copy(size as u64);
    let (early, late) = (bench.copy(size as u64), bench.copy(size as u64));
    let named = Inputs { sources: vec![early.clone()], streams: streams(1) };
    bench.data_plane.fold(FOLD, out.clone(), sum(true), named);
    let mut first = half_folded(&mut bench, &early, &inputs[0]).await;
    assert_eq!(out.watermark(), 0);

    let added = Inputs { sources: vec![late.clone()], streams: vec![(TransferId(7), peer(20))] };
    bench.data_plane.amend_fold(FOLD, sum(false), added);
    let mut second = bench.connect(peer(20)).await;
    transfer(&mut second, 7, &inputs[3]).await;
    append(&late, &inputs[2]);
    // Only the half that the first stream and the source have brought can be published.
    published(&out, size as u64 / 2).await;
    assert_eq!(out.watermark(), size as u64 / 2);
    first.write_all(&inputs[0][size / 2..]).await.unwrap();
    trailer(&mut first).await;
    append(&early, &inputs[1][size / 2..]);
    early.seal(Seal::default());
    late.seal(Seal::default());
    assert_eq!(bench.input().await, ended());
    assert!(contents(&out) == total(&inputs));
    bench.finish().await;
}

#[tokio::test]
async fn an_open_fold_of_sources_alone_begins_when_it_is_closed() {
    let mut bench = Bench::new();
    let (a, b) = (pattern(1, 40_000), pattern(2, 40_000));
    let sources = vec![bench.sealed(&a), bench.sealed(&b)];
    let out = bench.copy(40_000);
    bench.data_plane.fold(FOLD, out.clone(), sum(true), Inputs { sources, ..Inputs::default() });
    bench.data_plane.amend_fold(FOLD, sum(false), Inputs::default());
    assert_eq!(bench.input().await, ended());
    assert!(contents(&out) == total(&[a, b]));
    bench.finish().await;
}

#[tokio::test]
async fn a_broken_stream_is_reported_and_the_fold_waits_to_be_stopped() {
    let mut bench = Bench::new();
    let source = bench.copy(400_000);
    let out = bench.copy(400_000);
    let named = Inputs { sources: vec![source.clone()], streams: streams(2) };
    bench.data_plane.fold(FOLD, out, sum(false), named);
    let stream = half_folded(&mut bench, &source, &pattern(1, 400_000)).await;
    drop(stream);
    let reported = Input::FoldStreamBroken { fold: FOLD, transfer: TransferId(0) };
    assert_eq!(bench.input().await, reported);
    bench.data_plane.stop_fold(FOLD);
    assert_eq!(bench.input().await, broken());
    // Its other stream is no longer expected.
    let mut late = bench.connect(peer(11)).await;
    head(&mut late, 1, 0, 400_000).await;
    closed(&late).await;
    bench.finish().await;
}

#[tokio::test]
async fn a_stream_that_does_not_fit_is_a_broken_one() {
    let mut bench = Bench::new();
    let out = bench.copy(400);
    bench.data_plane.fold(FOLD, out, sum(false), Inputs { streams: streams(1), ..Inputs::default() });
    let mut stream = bench.connect(peer(10)).await;
    head(&mut stream, 0, 0, 404).await;
    let reported = Input::FoldStreamBroken { fold: FOLD, transfer: TransferId(0) };
    assert_eq!(bench.input().await, reported);
    bench.data_plane.stop_fold(FOLD);
    assert_eq!(bench.input().await, broken());
    bench.finish().await;
}

#[tokio::test]
async fn an_aborted_source_or_result_ends_the_fold() {
    for abort_source in [true, false] {
        let mut bench = Bench::new();
        let (source, out) = (bench.copy(400), bench.copy(400));
        let named = Inputs { sources: vec![source.clone()], ..Inputs::default() };
        bench.data_plane.fold(FOLD, out.clone(), sum(false), named);
        append(&source, &[1; 200]);
        published(&out, 200).await;
        if abort_source {
            source.abort();
        } else {
            out.abort();
            append(&source, &[1; 200]);
        }
        assert_eq!(bench.input().await, broken());
        bench.finish().await;
    }
}

#[tokio::test]
async fn a_fold_does_not_end_before_its_sources_are_sealed() {
    let mut bench = Bench::new();
    let (source, out) = (bench.copy(400), bench.copy(400));
    let named = Inputs { sources: vec![source.clone()], ..Inputs::default() };
    bench.data_plane.fold(FOLD, out.clone(), sum(false), named);
    append(&source, &[1; 400]);
    published(&out, 400).await;
    // If the fold ended at the last byte, its end would arrive here before that of this stopped receive.
    bench.data_plane.stop_fold(FOLD);
    assert_eq!(bench.input().await, broken());
    bench.finish().await;
}

#[tokio::test]
async fn only_a_stream_whose_bytes_would_be_taken_is_reported_as_stalled() {
    let size = 2 * SCRATCH_BYTES_MAX;
    let mut bench = Bench::with_stall_after(std::time::Duration::from_millis(100));
    // The source blocks the first stream as soon as its scratch is full. The second stream has brought no bytes yet.
    let source = bench.copy(size as u64);
    let out = bench.copy(size as u64);
    let inputs: Vec<_> = (1..4).map(|n| pattern(n, size)).collect();
    let named = Inputs { sources: vec![source.clone()], streams: streams(2) };
    bench.data_plane.fold(FOLD, out.clone(), sum(false), named);
    let mut silent = bench.connect(peer(11)).await;
    head(&mut silent, 1, 0, size as u64).await;
    let mut held_up = bench.connect(peer(10)).await;
    let bytes = inputs[0].clone();
    let writing = tokio::spawn(async move {
        transfer(&mut held_up, 0, &bytes).await;
        held_up
    });
    for _ in 0..5 {
        let reported = bench.input().await;
        assert_eq!(reported, Input::ReceiveStalled { transfer: TransferId(1), watermark: 0 });
    }
    append(&source, &inputs[2]);
    source.seal(Seal::default());
    silent.write_all(&inputs[1]).await.unwrap();
    trailer(&mut silent).await;
    writing.await.unwrap();
    let mut end = bench.input().await;
    while matches!(end, Input::ReceiveStalled { transfer: TransferId(1), .. }) {
        end = bench.input().await;
    }
    assert_eq!(end, ended());
    assert!(contents(&out) == total(&inputs));
    bench.finish().await;
}

#[tokio::test]
async fn a_stream_without_its_seal_is_reported_as_stalled_at_its_end() {
    let mut bench = Bench::with_stall_after(std::time::Duration::from_millis(100));
    let out = bench.copy(400);
    bench.data_plane.fold(FOLD, out, sum(false), Inputs { streams: streams(1), ..Inputs::default() });
    let mut stream = bench.connect(peer(10)).await;
    head(&mut stream, 0, 0, 400).await;
    stream.write_all(&pattern(1, 400)).await.unwrap();
    for _ in 0..3 {
        let reported = bench.input().await;
        assert_eq!(reported, Input::ReceiveStalled { transfer: TransferId(0), watermark: 400 });
    }
    trailer(&mut stream).await;
    assert_eq!(bench.input().await, ended());
    bench.finish().await;
}

/// An amendment is sent while the report of a broken stream (or of the fold's end) is under way. Streams that it adds
/// are awaited no longer than the fold exists.
#[tokio::test]
async fn streams_that_were_added_too_late_are_not_awaited_for_ever() {
    for ended_before in [false, true] {
        let mut bench = Bench::new();
        let out = bench.copy(400);
        bench.data_plane.fold(FOLD, out, sum(true), Inputs { sources: vec![], streams: streams(1) });
        let mut stream = bench.connect(peer(10)).await;
        head(&mut stream, 0, 0, 400).await;
        drop(stream);
        assert_eq!(bench.input().await, Input::FoldStreamBroken { fold: FOLD, transfer: TransferId(0) });
        if ended_before {
            bench.data_plane.stop_fold(FOLD);
            // Its end is queued for the core.
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        let added = Inputs { sources: vec![], streams: vec![(TransferId(1), peer(11))] };
        bench.data_plane.amend_fold(FOLD, sum(true), added);
        bench.data_plane.stop_fold(FOLD);
        assert_eq!(bench.input().await, broken());
        let mut late = bench.connect(peer(11)).await;
        assert_eq!(bench.data_plane.awaited(), 0, "ended before: {ended_before}");
        head(&mut late, 1, 0, 400).await;
        closed(&late).await;
        bench.finish().await;
    }
}

//! Frames survive any cut of the stream, and oversized ones are refused as soon as their length is read.

use bytes::BytesMut;
use hoplite_types::client::Call;
use hoplite_types::limits::FRAME_BYTES_MAX;
use hoplite_wire::{body_bytes, encode, Deframer, WireError};
use proptest::prelude::*;

use crate::draw::{Draw, Seeded};

fn collect(pieces: &[&[u8]]) -> (Vec<BytesMut>, Deframer) {
    let mut deframer = Deframer::new();
    let mut frames = Vec::new();
    for piece in pieces {
        deframer.push(piece);
        while let Some(frame) = deframer.next_frame().expect("within limits") {
            frames.push(frame);
        }
    }
    (frames, deframer)
}

#[test]
fn split_at_every_point_gives_the_same_frames() {
    let mut stream = BytesMut::new();
    let mut seeded = Seeded(1);
    (0..5).for_each(|_| encode(&Call::draw(&mut seeded), &mut stream));
    stream.extend_from_slice(&[0, 0, 0, 0]);
    let (whole, _) = collect(&[&stream]);
    assert_eq!(whole.len(), 6);
    assert!(whole[5].is_empty(), "an empty frame is a frame");
    for cut in 0..=stream.len() {
        let (frames, deframer) = collect(&[&stream[..cut], &stream[cut..]]);
        assert_eq!(frames, whole, "cut at {cut}");
        assert!(deframer.is_empty());
    }
    let bytewise: Vec<&[u8]> = stream.chunks(1).collect();
    assert_eq!(collect(&bytewise).0, whole);
}

proptest! {
    #[test]
    fn random_cuts_give_the_same_frames(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream: Vec<u8> = bodies
            .iter()
            .flat_map(|body| [&(body.len() as u32).to_le_bytes()[..], body].concat())
            .collect();
        let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        ends.extend([0, stream.len()]);
        ends.sort_unstable();
        let pieces: Vec<&[u8]> = ends.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
        let (frames, deframer) = collect(&pieces);
        prop_assert_eq!(frames, bodies);
        prop_assert!(deframer.is_empty());
    }
}

#[test]
fn a_giant_is_refused_before_its_body_comes() {
    let giant = FRAME_BYTES_MAX as u32 + 1;
    let mut deframer = Deframer::new();
    deframer.push(&giant.to_le_bytes()[..3]);
    assert!(deframer.next_frame().expect("not known yet").is_none());
    deframer.push(&giant.to_le_bytes()[3..]);
    for _ in 0..2 {
        let error = deframer.next_frame().expect_err("one byte too long");
        assert!(matches!(error, WireError::TooLong { bytes } if bytes == u64::from(giant)), "{error}");
    }
    assert!(body_bytes(u32::MAX.to_le_bytes()).is_err());
}

#[test]
fn the_longest_frame_passes() {
    let mut deframer = Deframer::new();
    deframer.push(&(FRAME_BYTES_MAX as u32).to_le_bytes());
    deframer.push(&vec![1; FRAME_BYTES_MAX - 1]);
    assert!(deframer.next_frame().expect("within limits").is_none());
    deframer.buffer_mut().extend_from_slice(&[2]);
    let frame = deframer.next_frame().expect("within limits").expect("whole");
    assert_eq!((frame.len(), frame[FRAME_BYTES_MAX - 1]), (FRAME_BYTES_MAX, 2));
}

#[test]
fn bytes_behind_a_frame_can_be_taken_raw() {
    let mut deframer = Deframer::new();
    deframer.push(&[1, 0, 0, 0, 9, 77, 78, 79, 80, 81]);
    assert_eq!(&deframer.next_frame().expect("within limits").expect("whole")[..], [9]);
    assert_eq!(&deframer.take_rest()[..], [77, 78, 79, 80, 81]);
    assert!(deframer.is_empty());
}

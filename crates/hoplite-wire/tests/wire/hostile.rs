//! Runs the fuzz target's entry on a bounded number of seeded inputs, so that every test run on a stable compiler
//! exercises it.

use bytes::BytesMut;
use hoplite_types::client::{Answer, Call};
use hoplite_types::peer::PeerMessage;
use hoplite_wire::{encode, FRAME_HEADER_BYTES};

use crate::draw::{Draw, Seeded, Source};
use crate::entry::take_anything;

/// A second or so on one core.
const INPUTS: u64 = 30_000;

#[test]
fn random_bytes_are_survived() {
    let mut seeded = Seeded(2);
    for _ in 0..INPUTS {
        let length = seeded.below(120);
        let bytes: Vec<u8> = (0..length).map(|_| seeded.number() as u8).collect();
        take_anything(&bytes);
    }
}

#[test]
fn mutated_messages_are_survived() {
    let mut read = 0;
    for seed in 0..INPUTS {
        let mut seeded = Seeded(seed);
        let mut bytes = message(&mut seeded);
        assert!(take_anything(&bytes) >= 1, "an unharmed message is read");
        for _ in 0..=seeded.below(3) {
            mutate(&mut bytes, &mut seeded);
        }
        read += take_anything(&bytes);
    }
    assert!(read > 0, "some mutations only change a number, and those must be read");
}

fn message(seeded: &mut Seeded) -> Vec<u8> {
    let mut frame = BytesMut::new();
    match seeded.below(3) {
        0 => encode(&Call::draw(seeded), &mut frame),
        1 => encode(&Answer::draw(seeded), &mut frame),
        _ => encode(&PeerMessage::draw(seeded), &mut frame),
    }
    frame[FRAME_HEADER_BYTES..].to_vec()
}

fn mutate(bytes: &mut Vec<u8>, seeded: &mut Seeded) {
    if bytes.is_empty() {
        return;
    }
    let at = seeded.below(bytes.len());
    match seeded.below(5) {
        0 => bytes[at] ^= 1 << seeded.below(8),
        1 => bytes[at] = seeded.number() as u8,
        2 => bytes.truncate(at),
        3 => {
            let piece = bytes[at..].to_vec();
            let to = seeded.below(bytes.len());
            bytes.splice(to..to, piece);
        }
        // Lists, maps, bytes and text of up to 2^64 - 1 elements, and ones without a stated end.
        _ => {
            let heads: [&[u8]; 6] = [
                &[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                &[0xbb, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                &[0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
                &[0x7a, 0xff, 0xff, 0xff, 0xff],
                &[0x9f],
                &[0x5f],
            ];
            bytes.splice(at..at, heads[seeded.below(heads.len())].iter().copied());
        }
    }
}

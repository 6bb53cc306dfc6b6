//! Decodes arbitrary bytes as a peer or client might send them. The tests here share it with the fuzz target in
//! `fuzz/`, which includes this very file.

use std::fmt::Debug;

use bytes::BytesMut;
use hoplite_types::client::{Answer, Call};
use hoplite_types::limits::FRAME_BYTES_MAX;
use hoplite_types::peer::{BulkFrame, PeerHello, PeerMessage, PeerRefusal, Seal};
use hoplite_wire::{decode, encode, Deframer, WireError, FRAME_HEADER_BYTES};
use minicbor::{Decode, Encode};

/// Reads `bytes` as every message and as a stream of frames; panics if anything is amiss. Returns
/// how many readings succeeded.
pub fn take_anything(bytes: &[u8]) -> usize {
    let read = [
        take::<Call>(bytes),
        take::<Answer>(bytes),
        take::<PeerMessage>(bytes),
        take::<PeerHello>(bytes),
        take::<PeerRefusal>(bytes),
        take::<BulkFrame>(bytes),
        take::<Seal>(bytes),
    ];
    take_stream(bytes);
    read.into_iter().filter(|&read| read).count()
}

/// A message that can be decoded is decoded to the same again after it was encoded.
fn take<T>(bytes: &[u8]) -> bool
where
    T: Debug + PartialEq + Encode<()> + for<'b> Decode<'b, ()>,
{
    let Ok(value) = decode::<T>(bytes) else {
        return false;
    };
    let mut frame = BytesMut::new();
    encode(&value, &mut frame);
    let again: T = decode(&frame[FRAME_HEADER_BYTES..]).expect("we read what we write");
    assert_eq!(again, value);
    true
}

/// Whole and in two pieces, a stream gives the same frames and the same end.
fn take_stream(bytes: &[u8]) {
    let cut = bytes.first().map_or(0, |&byte| usize::from(byte) % bytes.len());
    assert_eq!(frames([bytes, &[]]), frames([&bytes[..cut], &bytes[cut..]]));
}

fn frames(pieces: [&[u8]; 2]) -> (Vec<BytesMut>, Option<u64>) {
    let mut deframer = Deframer::new();
    let mut whole = Vec::new();
    for piece in pieces {
        deframer.push(piece);
        loop {
            match deframer.next_frame() {
                Ok(Some(frame)) => {
                    assert!(frame.len() <= FRAME_BYTES_MAX);
                    whole.push(frame);
                }
                Ok(None) => break,
                Err(WireError::TooLong { bytes }) => return (whole, Some(bytes)),
                Err(other) => panic!("framing looked into a frame: {other}"),
            }
        }
    }
    (whole, None)
}

//! Encoding and decoding give the same message.

use std::fmt::Debug;

use bytes::BytesMut;
use hoplite_types::client::{Answer, Call};
use hoplite_types::limits::FRAME_BYTES_MAX;
use hoplite_types::peer::{BulkFrame, PeerHello, PeerMessage, PeerRefusal, Seal};
use hoplite_types::ObjectId;
use hoplite_wire::{decode, encode, Deframer, WireError, FRAME_HEADER_BYTES};
use minicbor::{Decode, Encode};
use proptest::prelude::*;

use crate::draw::{Draw, Seeded};

fn there_and_back<T>(seed: u64)
where
    T: Debug + PartialEq + Draw + Encode<()> + for<'b> Decode<'b, ()>,
{
    let value = T::draw(&mut Seeded(seed));
    let mut out = BytesMut::from(&b"before"[..]);
    encode(&value, &mut out);
    assert_eq!(&out[..6], b"before", "encode appends");

    let mut deframer = Deframer::new();
    deframer.push(&out[6..]);
    let body = deframer.next_frame().expect("within limits").expect("whole");
    assert!(deframer.is_empty());
    assert_eq!(decode::<T>(&body).expect("our own message"), value);

    let mut longer = body.clone();
    longer.extend_from_slice(&[0xf6]);
    let trailing = decode::<T>(&longer).expect_err("a null behind the message");
    assert!(matches!(trailing, WireError::Trailing { trailing: 1, .. }), "{trailing}");

    for end in 0..body.len() {
        let short = decode::<T>(&body[..end]).expect_err("a message cut short");
        assert!(matches!(short, WireError::Malformed { .. }), "{short}");
    }
}

proptest! {
    #[test]
    fn every_message_round_trips(seed: u64) {
        there_and_back::<Call>(seed);
        there_and_back::<Answer>(seed);
        there_and_back::<PeerMessage>(seed);
        there_and_back::<PeerHello>(seed);
        there_and_back::<PeerRefusal>(seed);
        there_and_back::<BulkFrame>(seed);
        there_and_back::<Seal>(seed);
    }
}

#[test]
#[should_panic(expected = "does not fit a frame")]
fn a_message_over_the_limit_is_our_bug() {
    let sources = vec![ObjectId([7; 16]); FRAME_BYTES_MAX / ObjectId::LEN];
    encode(&Seal { sources }, &mut BytesMut::new());
}

#[test]
fn an_error_names_the_type_that_did_not_decode() {
    let error = decode::<BulkFrame>(&[0xff]).expect_err("a lone break");
    let text = error.to_string();
    assert!(text.contains("1 bytes") && text.contains("BulkFrame"), "{text}");
    assert_eq!(FRAME_HEADER_BYTES, 4, "the protocol says so");
}

//! Compatibility: newer peers may send more fields than we know, older ones fewer.

use std::fmt::Debug;

use bytes::BytesMut;
use hoplite_types::client::{Answer, Call, Reply, Request};
use hoplite_types::peer::{
    BulkFrame, BulkHead, CopyReport, DirectoryAnswer, DirectoryRequest, InventoryPage, PeerHello,
    PeerMessage, Seal, SlotAssignment,
};
use hoplite_wire::{decode, encode, FRAME_HEADER_BYTES};
use minicbor::{Decode, Encode};

use crate::draw::{Counter, Draw, Variants};

/// The values that future fields may hold: a number, bytes, text, nested arrays and maps, an open-ended list.
const FUTURE_FIELDS: [&[u8]; 6] = [
    &[0x18, 0xff],
    &[0x43, 1, 2, 3],
    &[0x62, b'h', b'i'],
    &[0x82, 0x81, 0x01, 0xa1, 0x01, 0x80],
    &[0x9f, 0x01, 0x9f, 0xff, 0xff],
    &[0xd8, 0x20, 0xf6],
];

/// The CBOR array at `at` in `body` gets one more element, which must be the body's last bytes.
fn with_future_field(body: &[u8], at: usize, field: &[u8]) -> Vec<u8> {
    const SHORT_ARRAY: std::ops::Range<u8> = 0x80..0x97;
    assert!(SHORT_ARRAY.contains(&body[at]), "{:#x} is no short array", body[at]);
    let mut longer = body.to_vec();
    // From 24 elements on the length takes a byte of its own; no message is near that.
    longer[at] += 1;
    longer.extend_from_slice(field);
    longer
}

fn skips_future_fields<T>(value: T, fields_at: impl Fn(&[u8]) -> usize)
where
    T: Debug + PartialEq + Encode<()> + for<'b> Decode<'b, ()>,
{
    let mut frame = BytesMut::new();
    encode(&value, &mut frame);
    let body = &frame[FRAME_HEADER_BYTES..];
    for field in FUTURE_FIELDS {
        let longer = with_future_field(body, fields_at(body), field);
        let read = decode::<T>(&longer).unwrap_or_else(|e| panic!("{value:?} with {field:x?}: {e}"));
        assert_eq!(read, value);
    }
}

fn structure<T>()
where
    T: Debug + PartialEq + Draw + Encode<()> + for<'b> Decode<'b, ()>,
{
    skips_future_fields(T::draw(&mut Counter::default()), |_| 0);
}

/// A variant is `[index, [fields…]]`. From 24 on, an index takes a byte more.
fn fields_of_variant(body: &[u8]) -> usize {
    const INDEX_FOLLOWS: u8 = 0x18;
    match body[1] {
        INDEX_FOLLOWS => 3,
        _ => 2,
    }
}

fn variants<T>()
where
    T: Debug + PartialEq + Variants + Encode<()> + for<'b> Decode<'b, ()>,
{
    for index in 0..T::NAMES.len() {
        skips_future_fields(T::nth(index, &mut Counter::default()), fields_of_variant);
    }
}

#[test]
fn unknown_last_fields_are_skipped() {
    structure::<Call>();
    structure::<Answer>();
    structure::<PeerHello>();
    structure::<BulkHead>();
    structure::<Seal>();
    structure::<CopyReport>();
    structure::<InventoryPage>();
    structure::<SlotAssignment>();
    variants::<Request>();
    variants::<Reply>();
    variants::<BulkFrame>();
    variants::<PeerMessage>();
    variants::<DirectoryRequest>();
    variants::<DirectoryAnswer>();
}

#[test]
fn missing_optional_fields_are_none() {
    let read: DirectoryRequest = decode(&[0x82, 2, 0x81, 5]).expect("an ask of only its number");
    assert_eq!(read, DirectoryRequest::Ask { ask: 5, have: None, failed: None });
}

#[test]
fn missing_mandatory_fields_and_unknown_variants_are_errors() {
    decode::<BulkHead>(&[0x82, 1, 2]).expect_err("no size");
    let unknown = Request::NAMES.len() as u8;
    decode::<Request>(&[0x82, unknown, 0x80]).expect_err("a request of the future");
}

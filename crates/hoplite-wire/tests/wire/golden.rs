//! One frame of every message and of every variant inside them, pinned in `tests/golden.txt`.
//!
//! `HOPLITE_RECORD=1 cargo test -p hoplite-wire` records them again. Added frames are fine. A changed frame means that
//! nodes of different versions misread each other: the protocol version of its connection must be bumped with it.

use std::fmt::{Debug, Write};
use std::path::PathBuf;

use bytes::BytesMut;
use hoplite_types::client::{Answer, Call, Reply, Request};
use hoplite_types::peer::{
    BulkFrame, BulkHead, DirectoryAnswer, DirectoryRequest, PeerHello, PeerMessage, PeerRefusal, Purpose,
    Scope, Seal, SlotFailure, Verdict,
};
use hoplite_types::{Dtype, Encoding, ErrorKind, FoldOrder, Op};
use hoplite_wire::{decode, encode, Deframer};
use minicbor::{Decode, Encode};

use crate::draw::{Counter, Draw, Variants};

/// Reads a frame's body back and compares.
type Check = Box<dyn Fn(&[u8])>;

/// One pinned frame: its name, its message, its bytes, and the check of bytes that are read back.
struct Frame {
    name: String,
    value: String,
    bytes: BytesMut,
    check: Check,
}

trait Word: Debug + PartialEq + Encode<()> + for<'b> Decode<'b, ()> + 'static {}
impl<T: Debug + PartialEq + Encode<()> + for<'b> Decode<'b, ()> + 'static> Word for T {}

fn frame<T: Word>(name: String, value: T) -> Frame {
    let mut bytes = BytesMut::new();
    encode(&value, &mut bytes);
    Frame {
        value: format!("{value:?}"),
        bytes,
        check: Box::new({
            let name = name.clone();
            move |body| {
                assert_eq!(decode::<T>(body).unwrap_or_else(|e| panic!("{name}: {e}")), value, "{name}")
            }
        }),
        name,
    }
}

fn short_name<T>() -> &'static str {
    std::any::type_name::<T>().rsplit("::").next().expect("rsplit yields at least once")
}

fn structure<T: Word + Draw>(frames: &mut Vec<Frame>) {
    frames.push(frame(short_name::<T>().into(), T::draw(&mut Counter::default())));
}

fn variants<T: Word + Variants>(frames: &mut Vec<Frame>) {
    for (index, variant) in T::NAMES.iter().enumerate() {
        let name = format!("{}::{variant}", short_name::<T>());
        frames.push(frame(name, T::nth(index, &mut Counter::default())));
    }
}

fn all() -> Vec<Frame> {
    let mut frames = Vec::new();
    structure::<Call>(&mut frames);
    variants::<Request>(&mut frames);
    structure::<Answer>(&mut frames);
    variants::<Reply>(&mut frames);
    structure::<PeerHello>(&mut frames);
    structure::<PeerRefusal>(&mut frames);
    structure::<BulkHead>(&mut frames);
    variants::<BulkFrame>(&mut frames);
    structure::<Seal>(&mut frames);
    variants::<PeerMessage>(&mut frames);
    variants::<DirectoryRequest>(&mut frames);
    variants::<DirectoryAnswer>(&mut frames);
    variants::<Verdict>(&mut frames);
    variants::<SlotFailure>(&mut frames);
    variants::<Purpose>(&mut frames);
    variants::<Scope>(&mut frames);
    variants::<Dtype>(&mut frames);
    variants::<Op>(&mut frames);
    variants::<FoldOrder>(&mut frames);
    variants::<Encoding>(&mut frames);
    variants::<ErrorKind>(&mut frames);
    frames
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden.txt")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("strings take everything");
        hex
    })
}

fn unhex(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
    digits.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
}

#[test]
fn every_message_looks_as_it_did() {
    let frames = all();
    if std::env::var_os("HOPLITE_RECORD").is_some() {
        let text: String =
            frames.iter().map(|f| format!("{}\n  {}\n  {}\n", f.name, f.value, hex(&f.bytes))).collect();
        std::fs::write(path(), text).expect("the golden file can be written");
    }
    let text = std::fs::read_to_string(path()).expect("tests/golden.txt");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3 * frames.len(), "golden frames and messages differ in number; see golden.rs");
    for (frame, recorded) in frames.iter().zip(lines.chunks(3)) {
        assert_eq!(recorded[0], frame.name);
        assert_eq!(recorded[1].trim(), frame.value, "{}", frame.name);
        assert_eq!(recorded[2].trim(), hex(&frame.bytes), "{}: its bytes changed", frame.name);
    }
}

#[test]
fn recorded_frames_are_read_back() {
    let text = std::fs::read_to_string(path()).expect("tests/golden.txt");
    let mut deframer = Deframer::new();
    for (index, frame) in all().iter().enumerate() {
        let recorded = text.lines().nth(3 * index + 2).expect("a third line");
        deframer.push(&unhex(recorded.trim()));
        let body = deframer.next_frame().expect("within limits").expect("whole");
        (frame.check)(&body);
        assert!(deframer.is_empty(), "{}: more than one frame", frame.name);
    }
}

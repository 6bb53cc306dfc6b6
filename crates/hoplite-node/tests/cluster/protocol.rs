//! Clients that misbehave.

use std::io::{Read, Write};

use hoplite_types::client::{Reply, Request, CLIENT_PROTOCOL_VERSION};
use hoplite_types::ErrorKind;
use hoplite_wire::Deframer;

use crate::client::{hello, next_answer, raw, send};
use crate::node::{cluster, members, status};

#[test]
fn a_client_of_another_version_is_told_so() {
    let nodes = cluster(1);
    let mut stream = raw(nodes[0].socket());
    send(&stream, 5, hello(CLIENT_PROTOCOL_VERSION + 1));
    let answer = next_answer(&stream, &mut Deframer::new());
    match answer.reply {
        Reply::Failed(error) => assert_eq!(error.kind, ErrorKind::VersionMismatch, "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn the_first_call_must_be_hello() {
    let nodes = cluster(1);
    let stream = raw(nodes[0].socket());
    send(&stream, 5, Request::Status);
    match next_answer(&stream, &mut Deframer::new()).reply {
        Reply::Failed(error) => assert_eq!(error.kind, ErrorKind::BadArgument, "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn garbage_ends_only_its_own_connection() {
    let nodes = cluster(1);
    let mut good = nodes[0].client();
    for garbage in [&[3, 0, 0, 0, 0xff, 0xff, 0xff][..], &[0xff; 8]] {
        let mut bad = raw(nodes[0].socket());
        send(&bad, 1, hello(CLIENT_PROTOCOL_VERSION));
        next_answer(&bad, &mut Deframer::new());
        bad.write_all(garbage).unwrap();
        assert_eq!(bad.read(&mut [0; 1]).unwrap_or(0), 0, "the connection should be closed");
    }
    assert_eq!(members(&mut good), 1);
    while status(&mut good).clients > 1 {
        std::thread::yield_now();
    }
}

#[test]
fn a_client_that_never_reads_is_dropped() {
    let nodes = cluster(1);
    let mut bad = raw(nodes[0].socket());
    send(&bad, 1, hello(CLIENT_PROTOCOL_VERSION));
    next_answer(&bad, &mut Deframer::new());
    let mut frame = bytes::BytesMut::new();
    let call = hoplite_types::client::Call { call: 9, request: Request::Status };
    hoplite_wire::encode(&call, &mut frame);
    let many = frame.repeat(10_000);
    // The node goes on reading calls until the answers are too many.
    while bad.write_all(&many).is_ok() {}
    assert_eq!(members(&mut nodes[0].client()), 1);
}

//! Hostile input on a daemon's sockets: absurd calls, absurd messages, broken frames and garbage harm only their
//! sender.

use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use hoplite_types::client::{Call, Request, CLIENT_PROTOCOL_VERSION};
use hoplite_types::peer::{PeerHello, Purpose, PEER_PROTOCOL_VERSION};
use hoplite_types::{Header, NodeId, ObjectId};
use hoplite_wire::{encode, Deframer};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::client::{hello, next_answer, raw, send, Client, NEVER};
use crate::draw::{message, other_node, request, Tape};
use crate::node::{cluster, status, Node};
use crate::pattern;

/// Connections that are drawn for each kind of socket.
const CASES: u32 = 150;

/// A case is answered with more than this, on the average: its calls are understood.
const ANSWERS_BYTES_MIN: usize = 50;

/// The gauge that counts the messages that a node rejects.
const REFUSED: &str = "messages of peers that cannot be right";

/// How long a node may take to answer all that a connection said.
const SOON: Duration = Duration::from_millis(20);

/// One in so many frames is broken, by one byte.
const BROKEN: usize = 12;

/// Frames drawn from the tape, one after the other. Some are broken, and the last one may be torn.
fn frames(tape: &mut Tape, mut frame: impl FnMut(&mut Tape, &mut BytesMut)) -> BytesMut {
    let mut bytes = BytesMut::new();
    while !tape.is_over() {
        let from = bytes.len();
        frame(tape, &mut bytes);
        match tape.below(BROKEN) {
            0 => {
                let at = from + tape.below(bytes.len() - from);
                bytes[at] ^= 1 << tape.below(8);
            }
            1 if tape.is_over() => bytes.truncate(from + tape.below(bytes.len() - from)),
            _ => {}
        }
    }
    bytes
}

/// Sends it all and listens for a moment. Returns the number of bytes that the node sent.
fn say(stream: &mut (impl Read + Write), bytes: &[u8]) -> usize {
    // The node may close the connection before all is sent.
    let _ = stream.write_all(bytes);
    let until = Instant::now() + SOON;
    let (mut heard, mut piece) = (0, [0; 64 << 10]);
    while Instant::now() < until {
        match stream.read(&mut piece) {
            Ok(read) if read > 0 => heard += read,
            _ => break,
        }
    }
    heard
}

fn by_client_socket(node: &Node, numbers: &[u64]) -> usize {
    let mut stream = raw(node.socket());
    send(&stream, 1, hello(CLIENT_PROTOCOL_VERSION));
    next_answer(&stream, &mut Deframer::new());
    let bytes = frames(&mut Tape::new(numbers), |tape, frame| {
        encode(&Call { call: tape.number(), request: request(tape) }, frame);
    });
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(NEVER)).unwrap();
    say(&mut stream, &bytes)
}

fn by_peer_socket(to: NodeId, purpose: Purpose, numbers: &[u64]) {
    let mut tape = Tape::new(numbers);
    let mut stream = TcpStream::connect(to.addr).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(NEVER)).unwrap();
    let from = other_node(&mut tape);
    let mut bytes = BytesMut::new();
    encode(&PeerHello { version: PEER_PROTOCOL_VERSION, from, to, purpose, part: None }, &mut bytes);
    bytes.extend(frames(&mut tape, |tape, frame| encode(&message(tape, from), frame)));
    say(&mut stream, &bytes);
}

/// The calls of a well-behaved client work on every node and across nodes. The others leave nothing behind.
fn check_serves(nodes: &[Node], clients: &mut [Client], round: usize) {
    let bytes = pattern(round as u64, 100_000);
    let id = ObjectId::from_name(&format!("well-behaved {round}"));
    clients[0].put(id, Header::default(), &bytes);
    for client in &mut *clients {
        assert!(client.get(id) == bytes, "round {round}");
    }
    let deleted = clients[0].call(Request::Delete { ids: vec![id], timeout_ms: None });
    assert_eq!(deleted, hoplite_types::client::Reply::Done, "round {round}");
    let until = Instant::now() + NEVER;
    for client in clients {
        let is_alone = |client: &mut Client| {
            let status = status(client);
            status.clients == 1 && status.members.len() == nodes.len()
        };
        while !is_alone(client) {
            assert!(Instant::now() < until, "round {round}: {:?}", status(client));
            std::thread::yield_now();
        }
    }
}

fn refused_messages(client: &mut Client) -> u64 {
    let gauges = status(client).gauges;
    gauges.iter().filter(|gauge| gauge.name == REFUSED).map(|gauge| gauge.met).sum()
}

/// The same cases on every machine.
fn draw_cases(case: impl Fn(usize, Vec<u64>)) {
    let config = ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(11),
        ..ProptestConfig::default()
    };
    let round = Cell::new(0);
    TestRunner::new(config)
        .run(&vec(any::<u64>(), 0..300), |numbers| {
            case(round.replace(round.get() + 1), numbers);
            Ok(())
        })
        .unwrap();
}

#[test]
fn hostile_bytes_on_the_client_socket_harm_no_other_client() {
    let nodes = cluster(2);
    let mut clients: Vec<Client> = nodes.iter().map(Node::client).collect();
    let (clients, heard) = (RefCell::new(&mut clients), Cell::new(0));
    draw_cases(|round, numbers| {
        heard.set(heard.get() + by_client_socket(&nodes[round % 2], &numbers));
        check_serves(&nodes, &mut clients.borrow_mut(), round);
    });
    assert!(heard.get() > CASES as usize * ANSWERS_BYTES_MIN, "only {} B of answers", heard.get());
}

#[test]
fn hostile_bytes_on_the_peer_socket_harm_no_node() {
    let nodes = cluster(2);
    let mut clients: Vec<Client> = nodes.iter().map(Node::client).collect();
    let clients = RefCell::new(&mut clients);
    draw_cases(|round, numbers| {
        let to = clients.borrow()[round % 2].node;
        let purpose = if round % 3 == 0 { Purpose::Bulk } else { Purpose::Control };
        by_peer_socket(to, purpose, &numbers);
        check_serves(&nodes, &mut clients.borrow_mut(), round);
    });
    let refused: u64 = clients.borrow_mut().iter_mut().map(refused_messages).sum();
    assert!(refused > u64::from(CASES) / 5, "only {refused} messages were refused");
}

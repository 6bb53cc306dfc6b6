//! Absurd numbers, ids, lists and orders of events, from clients and peers. A core survives them all: its tables stay
//! bounded, it comes to rest, and it continues to serve.

mod cases;
mod draw;
mod node;

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::{Blob, Header, ObjectId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use draw::{message, other_node, request, Tape};
use node::{Node, STORE_BYTES};

fn config(cases: u32) -> ProptestConfig {
    // The same cases on every machine. A failing one becomes a test of its own.
    ProptestConfig {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::default()
    }
}

/// One event.
fn happen(node: &mut Node, tape: &mut Tape) {
    match tape.below(16) {
        0..=7 => {
            // Most are of one member, so that they belong together.
            let from = if tape.below(3) == 0 { other_node(tape) } else { draw::node(2) };
            let message = message(tape, from);
            node.hear(from, message);
        }
        8..=11 => {
            let (client, call) = (ClientId(tape.below(2) as u64), tape.number());
            node.handle(Input::Client { client, call, request: request(tape) });
        }
        12 => node.end_a_job(tape),
        13 => match tape.below(4) {
            0 => node.handle(Input::PeerBroken { node: other_node(tape) }),
            1 => node.handle(Input::PeerGone { node: other_node(tape) }),
            2 => node.handle(Input::ClientGone { client: ClientId(tape.below(2) as u64) }),
            _ => node.meet(),
        },
        14 => {
            let bytes = (0..tape.below(60)).map(|_| tape.number() as u8).collect();
            node.handle(Input::Datagram { bytes });
        }
        _ => node.wait(Duration::from_millis(tape.below(100) as u64)),
    }
}

/// All clients and members leave, the remaining objects are deleted, and all records expire.
fn settle(node: &mut Node) {
    (0..2).for_each(|client| node.handle(Input::ClientGone { client: ClientId(client) }));
    // Its members have not answered, so they are dead by then.
    node.wait(Duration::from_secs(20));
    let ids = node.objects();
    assert_eq!(node.call(Request::Delete { ids, timeout_ms: None }), Some(Reply::Done));
    node.wait(Duration::from_secs(1300));
}

/// The state that is left takes no space from others, and nothing is under way.
fn check_leftovers(node: &Node) {
    // Entries that a member spoke of, and copies that may go at any time.
    let is_soft = |left: &String| {
        ["Shard(", "copies: "].iter().any(|soft| left.starts_with(soft)) || left.ends_with("of the arena")
    };
    let left: Vec<_> = node.core.leftovers().into_iter().filter(|left| !is_soft(left)).collect();
    assert!(left.is_empty(), "{left:#?}");
}

/// The whole store can be allocated, and an object that is put can be got.
fn check_serves(node: &mut Node) {
    let (id, header) = (ObjectId::from_name("all of the store"), Header::default());
    let size = STORE_BYTES - 64;
    let create = Request::Create { id, size, header: header.clone(), timeout_ms: None, keep: false };
    let created = node.call(create);
    let Some(Reply::Created { copy, .. }) = created else { panic!("{created:?}") };
    assert_eq!(node.call(Request::Abort { copy }), Some(Reply::Done));
    let id = ObjectId::from_name("a small one");
    let put = Request::PutSmall { id, header, payload: Blob(vec![7; 100]), timeout_ms: None };
    assert_eq!(node.call(put), Some(Reply::Done));
    let got = node.call(Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: true });
    assert!(matches!(got, Some(Reply::View { size: 100, sealed: true, .. })), "{got:?}");
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn absurd_inputs_do_not_harm_a_core(numbers in vec(any::<u64>(), 0..2000)) {
        let mut node = Node::new();
        let mut tape = Tape::new(&numbers);
        while !tape.is_over() {
            happen(&mut node, &mut tape);
        }
        settle(&mut node);
        check_leftovers(&node);
        check_serves(&mut node);
    }
}

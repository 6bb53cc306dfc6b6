//! Notices inside a node are handed on after the change that they tell of. Meanwhile more may have changed.

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{Child, DirectoryAnswer, PeerMessage, SlotAssignment, Verdict};
use hoplite_types::{Edition, ErrorKind, ObjectId, Stamp};

use crate::crashes::{reduction, root_assignment};
use crate::gets::lend;
use crate::node::{node, Node, ME};
use crate::puts::{announced, created, failed, put, viewed};
use crate::requests::{array, create, edition, get, get_partial, verdict, SIZE};

const WHOLE: u64 = 6 << 20;
const PART: u64 = (WHOLE / 3).next_multiple_of(64);

/// Space for the source, the partial sum, the target, and two of the three windows' progress blocks.
const TIGHT: u64 = (WHOLE + 64) + (PART + 64) + (WHOLE + 64) + 2 * 64;

fn gather_in(bytes: u64) -> Node {
    gather_at(Node::among(3, bytes))
}

fn gather_at(mut at: Node) -> Node {
    let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
    put(&mut at, source, WHOLE);
    let id = reduction(2);
    let blank =
        SlotAssignment { size: WHOLE, header: array(WHOLE), ..root_assignment(&mut at, target, source) };
    let part = |slot: u32, from: u16, id: ObjectId| {
        let edition = Edition { writing: u64::from(slot), attempt: 0 };
        Child { slot, node: node(from), id, edition }
    };
    let sum = SlotAssignment {
        slot: 1,
        out: ObjectId::partial_sum(id, 1),
        edition: Edition { writing: 1, attempt: 0 },
        root: false,
        size: PART,
        ..blank.clone()
    };
    // The ring of nodes 1, 2, 3: our own sum is the first part, that of node 2 comes by way of node 3, and node 3's is
    // its own sum.
    let whole = SlotAssignment {
        slot: 9,
        edition: Edition { writing: 9, attempt: 0 },
        root: false,
        sources: Vec::new(),
        children: vec![
            part(1, ME, sum.out),
            part(2, 3, ObjectId::target_part(id, 2)),
            part(3, 3, ObjectId::partial_sum(id, 3)),
        ],
        part_bytes: Some(PART),
        ..blank.clone()
    };
    at.take_mail();
    for assignment in [&sum, &whole] {
        at.hear(2, PeerMessage::AssignSlot { reduction: id, assignment: assignment.clone() });
    }
    at
}

#[test]
fn a_target_whose_windows_do_not_fit_waits_for_space() {
    let copies = gather_in(TIGHT).status().copies;
    assert_eq!(copies, 2, "the source and the sum");
}

#[test]
fn with_a_little_more_space_it_gathers() {
    let mut at = gather_in(TIGHT + 64);
    assert_eq!(at.status().copies, 6, "the source, the sum, the target and its windows");
}

#[test]
fn a_leaver_hands_over_what_a_second_put_keeps() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let spare = created(&at, call);
    let writing = announced(&mut at, id);
    at.answer(2, id, verdict(writing, Verdict::Exists(Stamp::from_ms(5))));
    let read = at.ask_as(ClientId(2), get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.end_receive(transfer);
    viewed(&at, read);
    at.handle(Input::Leave { within: Duration::from_secs(60) });
    at.wait(Duration::from_secs(1));
    assert!(!at.left, "a client still writes");
    let seal = at.ask(Request::Seal { copy: spare, timeout_ms: None });
    assert_eq!(at.reply(seal), Some(&Reply::Done));
    assert!(!at.left, "it was promised that the object stays, and no other node keeps it for us");
}

#[test]
fn a_get_that_fails_on_a_loss_fails_although_a_part_is_here() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.break_receive(transfer, 1000);
    at.answer(2, id, DirectoryAnswer::Lost);
    let read =
        at.ask_as(ClientId(2), Request::Get { id, timeout_ms: None, partial: true, fail_if_lost: true });
    assert_eq!(failed(&at, read), ErrorKind::Lost);
}

#[test]
fn a_target_that_is_gathered_is_not_given_to_those_who_wait_for_a_part() {
    let mut at = Node::among(3, 64 << 20);
    let target = at.id_owned_by(2);
    let read = at.ask_as(ClientId(2), get_partial(target));
    let at = gather_at(at);
    assert_eq!(at.reply(read), None, "it is not read under its own name before it is whole");
}

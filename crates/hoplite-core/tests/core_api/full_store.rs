//! A full store: eviction, and calls, fetches and slots that wait for space.

use std::time::Duration;

use hoplite_core::io::{ClientId, Event};
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryRequest, PeerMessage};
use hoplite_types::{CopyId, ErrorKind, ObjectId};

use crate::gets::{last_ask, lend};
use crate::node::{node, Node};
use crate::puts::{created, failed, put, viewed};
use crate::requests::{announce, array, create, delete, edition, get, lend_of, object, put_report, SIZE};

/// Space for two objects of `SIZE`.
const TWO: u64 = 2 * (SIZE + 64);

/// An evictable copy of an object of node 2's.
fn cache(at: &mut Node, id: ObjectId) -> CopyId {
    let call = at.ask(get(id));
    let transfer = lend(at, 2, id, 2, edition(5), SIZE);
    at.end_receive(transfer);
    let copy = viewed(at, call);
    at.ask(Request::Release { copy });
    copy
}

fn ids_owned_by(at: &mut Node, owner: u16, count: usize) -> Vec<ObjectId> {
    let mut ids = Vec::new();
    for name in 0.. {
        if ids.len() == count {
            break;
        }
        let id = object(&format!("id {name}"));
        let call = at.ask(Request::Locate { id, timeout_ms: None });
        if at.take_mail().iter().any(|(to, _)| *to == node(owner)) {
            ids.push(id);
        }
        at.ask(Request::Cancel { call });
    }
    ids
}

#[test]
fn the_least_recently_used_copy_goes_and_the_directory_hears_first() {
    let mut at = Node::among(2, TWO);
    let ids = ids_owned_by(&mut at, 2, 3);
    let old = cache(&mut at, ids[0]);
    let newer = cache(&mut at, ids[1]);
    let call = at.ask(get(ids[0]));
    assert_eq!(viewed(&at, call), old, "used again: now the other is the oldest");
    at.ask(Request::Release { copy: old });
    at.take_mail();
    let call = at.ask(create(ids[2], SIZE));
    created(&at, call);
    assert_eq!(at.events.last(), Some(&Event::Evicted { copy: newer, bytes: SIZE }));
    let said = at.take_requests(ids[1]);
    assert!(matches!(said[..], [DirectoryRequest::Withdraw { .. }]), "{said:?}");
    assert!(at.copies.contains_key(&old) && !at.copies.contains_key(&newer));
    assert_eq!(at.removed, [ids[1]], "clients that have kept it must ask again");
}

#[test]
fn an_object_deleted_under_a_view_is_removed_at_once() {
    let mut at = Node::alone(TWO);
    let id = object("a");
    put(&mut at, id, SIZE);
    let call = at.ask(get(id));
    let copy = viewed(&at, call);
    assert_eq!(at.removed, []);
    at.ask(delete(id));
    assert_eq!(at.removed, [id]);
    assert!(at.copies.contains_key(&copy), "its room stays as long as the view");
}

#[test]
fn views_sends_and_pins_hold_their_copies() {
    let mut at = Node::among(2, TWO);
    let ids = ids_owned_by(&mut at, 2, 3);
    let viewed_copy = cache(&mut at, ids[0]);
    cache(&mut at, ids[1]);
    at.ask(get(ids[0]));
    let transfer = hoplite_types::TransferId(1);
    let pull = PeerMessage::Pull { transfer, id: ids[1], edition: edition(5), offset: 0, patient: false };
    at.hear(2, pull);
    let call = at.ask(create(ids[2], SIZE));
    assert_eq!(at.reply(call), None, "everything is in use");
    at.ask(Request::Release { copy: viewed_copy });
    created(&at, call);
    assert_eq!(at.status().evicted_copies, 1);
}

#[test]
fn a_put_waits_for_space_and_fails_in_time() {
    let mut at = Node::alone(TWO);
    put(&mut at, object("a"), SIZE);
    put(&mut at, object("b"), SIZE);
    let asks = |name, timeout_ms| {
        let (id, size) = (object(name), SIZE);
        Request::Create { id, size, header: array(size), timeout_ms, keep: false }
    };
    let impatient = at.ask(asks("c", Some(100)));
    let patient = at.ask(asks("d", None));
    at.wait(Duration::from_millis(100));
    assert_eq!(failed(&at, impatient), ErrorKind::StoreFull);
    assert_eq!(at.reply(patient), None);
    at.ask(delete(object("a")));
    created(&at, patient);
    assert_eq!(at.status().copies, 2);
}

#[test]
fn a_small_object_passes_a_large_one_that_does_not_fit_yet() {
    let mut at = Node::alone(TWO);
    put(&mut at, object("a"), SIZE);
    put(&mut at, object("b"), SIZE);
    let large = at.ask(create(object("large"), 2 * SIZE));
    let small = at.ask(create(object("small"), SIZE));
    at.ask(delete(object("a")));
    created(&at, small);
    assert_eq!(at.reply(large), None);
    let copy = created(&at, small);
    at.ask(Request::Abort { copy });
    at.ask(delete(object("b")));
    created(&at, large);
}

#[test]
fn a_fetch_waits_for_space_and_asks_anew() {
    let mut at = Node::among(2, TWO);
    let ids = ids_owned_by(&mut at, 2, 1);
    let mine = at.id_owned_by(1);
    put(&mut at, mine, TWO - 64);
    let call = at.ask(get(ids[0]));
    let ask = last_ask(&mut at, ids[0]);
    at.answer(2, ids[0], lend_of(ask, 2, edition(5), SIZE));
    let said = at.take_requests(ids[0]);
    assert!(
        matches!(said[..], [DirectoryRequest::Withdraw { .. }, DirectoryRequest::Subscribe { .. }]),
        "the sender is free for others, and the object is watched: {said:?}"
    );
    at.ask(delete(mine));
    let transfer = lend(&mut at, 2, ids[0], 2, edition(5), SIZE);
    at.end_receive(transfer);
    viewed(&at, call);
}

/// Also on the owner itself, and where another node asks for the object only later.
#[test]
fn a_deletion_ends_waits_for_space() {
    let mut at = Node::among(2, TWO);
    let in_the_way = at.id_owned_by(1);
    put(&mut at, in_the_way, TWO - 64);
    let mut names = (0..).map(|number| object(&format!("object {number}")));
    let mine = names.find(|&id| id != in_the_way && at.owner_of(id) == 1).expect("one of them");
    at.request(2, mine, announce(put_report(1, edition(5), SIZE)));
    at.hear(2, PeerMessage::Prefetch { id: mine });
    assert!(at.receives.is_empty(), "there is no room");
    let before = at.ask(get(mine));
    at.ask(delete(mine));
    let after = at.ask(get(mine));
    assert_eq!(failed(&at, before), ErrorKind::Deleted);
    assert_eq!(failed(&at, after), ErrorKind::Deleted);
}

#[test]
fn an_object_larger_than_the_store_fails_its_gets() {
    let mut at = Node::among(2, TWO);
    let ids = ids_owned_by(&mut at, 2, 1);
    let call = at.ask(get(ids[0]));
    let ask = last_ask(&mut at, ids[0]);
    at.answer(2, ids[0], lend_of(ask, 2, edition(5), 4 * SIZE));
    assert_eq!(failed(&at, call), ErrorKind::StoreFull);
    at.assert_empty();
}

/// A slot without space releases its sources. That must not wake the slot itself.
#[test]
fn a_slot_waits_for_space_without_waking_itself() {
    let mut at = Node::among(2, TWO);
    let ids = ids_owned_by(&mut at, 2, 2);
    cache(&mut at, ids[0]);
    let mine = at.id_owned_by(1);
    put(&mut at, mine, SIZE);
    let mut assignment = crate::crashes::root_assignment(&mut at, ids[1], ids[0]);
    assignment.sources[0].edition = edition(5);
    at.hear(2, PeerMessage::AssignSlot { reduction: crate::crashes::reduction(2), assignment });
    assert!(at.folds.is_empty());
    let call = at.ask(delete(mine));
    assert_eq!(at.folds.len(), 1);
    at.hear(2, PeerMessage::DeletionAck { id: mine });
    assert_eq!(at.reply(call), Some(&Reply::Done));
}

/// A fetch that gave up waiting for space has lost its place in the queue.
#[test]
fn a_fetch_that_is_given_up_for_lack_of_space_leaves_nothing() {
    let mut at = Node::among(2, TWO);
    let id = ids_owned_by(&mut at, 2, 1)[0];
    let mine = at.id_owned_by(1);
    put(&mut at, mine, TWO - 64);
    let call = at.ask(get(id));
    let ask = last_ask(&mut at, id);
    at.answer(2, id, lend_of(ask, 2, edition(5), SIZE));
    at.ask(Request::Cancel { call });
    let left = at.leftovers();
    assert!(!left.iter().any(|left| left.starts_with("space waiters")), "{left:?}");
}

/// Another put of the object took the space that both waited for.
#[test]
fn a_put_that_waits_for_space_ends_when_the_object_is_here() {
    let mut at = Node::alone(SIZE + 64);
    put(&mut at, object("a"), SIZE);
    let first = at.ask_as(ClientId(1), create(object("b"), SIZE));
    let second = at.ask_as(ClientId(2), create(object("b"), SIZE));
    at.ask(delete(object("a")));
    let copy = created(&at, first);
    assert_eq!(at.reply(second), None);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(seal), Some(&Reply::Done));
    assert_eq!(at.reply(second), Some(&Reply::Done));
}

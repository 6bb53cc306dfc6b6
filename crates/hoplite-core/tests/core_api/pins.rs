//! One complete copy of each object is pinned.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{CopyId, NodeId, ObjectId};

use crate::gets::{last_ask, lend};
use crate::inventory::ids_of;
use crate::node::{node, Node, ME};
use crate::puts::{created, put};
use crate::requests::{
    announce, create, edition, get, lend_of, object, put_report, received_report, writing_report, SIZE, SMALL,
};

const STORE: u64 = 8 << 20;

/// Longer than the pause after which a peer is told again.
const SETTLED: Duration = Duration::from_millis(100);

/// The nodes that were told to pin the object since the mail was last taken.
fn told_to_keep(at: &mut Node, id: ObjectId) -> Vec<u16> {
    let answers = at.take_answers(id).into_iter();
    answers.filter(|(_, answer)| *answer == DirectoryAnswer::Pin).map(|(to, _)| to).collect()
}

/// Node 5 has put an object of ours, of which these have a copy, and is dead. Returns the nodes that are told to pin
/// it.
fn left_by_its_writer(holders: &[u16]) -> (Node, ObjectId, Vec<u16>) {
    let mut at = Node::among(5, STORE);
    let id = at.id_owned_by(ME);
    at.request(5, id, announce(put_report(1, edition(5), SIZE)));
    for &holder in holders {
        at.request(holder, id, announce(received_report(1, edition(5), SIZE, None)));
    }
    assert_eq!(told_to_keep(&mut at, id), []);
    at.crash(5);
    let keepers = told_to_keep(&mut at, id);
    (at, id, keepers)
}

fn kept() -> DirectoryRequest {
    announce(CopyReport { pinned: true, ..received_report(9, edition(5), SIZE, None) })
}

#[test]
fn another_node_pins_an_object_when_its_keeper_dies() {
    let (mut at, id, keepers) = left_by_its_writer(&[2, 3]);
    assert_eq!(keepers, [2], "one is enough");
    at.request(2, id, kept());
    at.crash(2);
    assert_eq!(told_to_keep(&mut at, id), [3]);
}

/// Its bytes had arrived there before their sender died, and the node was paused until now.
#[test]
fn a_new_copy_is_pinned_when_no_other_is() {
    let (mut at, id, keepers) = left_by_its_writer(&[]);
    assert_eq!(keepers, []);
    at.request(2, id, announce(received_report(1, edition(5), SIZE, None)));
    assert_eq!(told_to_keep(&mut at, id), [2]);
    at.request(2, id, kept());
    at.request(3, id, announce(received_report(1, edition(5), SIZE, None)));
    assert_eq!(told_to_keep(&mut at, id), [], "one is enough");
}

#[test]
fn a_copy_that_is_complete_before_its_writer_has_sealed_is_not_pinned() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(writing_report(3, 1, edition(5), SIZE)));
    at.request(2, id, announce(received_report(1, edition(5), SIZE, None)));
    assert_eq!(told_to_keep(&mut at, id), []);
}

#[test]
fn a_pin_is_repeated_on_each_new_connection_until_it_is_reported() {
    let (mut at, id, _) = left_by_its_writer(&[2, 3]);
    for _ in 0..3 {
        at.handle(Input::PeerBroken { node: node(2) });
        at.wait(SETTLED);
        assert_eq!(told_to_keep(&mut at, id), [2]);
    }
    at.handle(Input::PeerBroken { node: node(3) });
    at.wait(SETTLED);
    assert_eq!(told_to_keep(&mut at, id), []);
    at.request(2, id, kept());
    at.handle(Input::PeerBroken { node: node(2) });
    at.wait(SETTLED);
    assert_eq!(told_to_keep(&mut at, id), []);
}

/// In turns of 256: a node with ten thousand objects must not delay others.
#[test]
fn many_pins_are_repeated_a_few_at_a_time() {
    let mut at = Node::among(5, STORE);
    let shard = at.id_owned_by(ME).shard();
    let ids = ids_of(shard, 700);
    for &id in &ids {
        at.request(5, id, announce(put_report(1, edition(5), SMALL)));
        at.request(2, id, announce(received_report(1, edition(5), SMALL, None)));
    }
    at.crash(5);
    let pins = |at: &mut Node| {
        let is_pin = |(to, message): &(NodeId, PeerMessage)| {
            *to == node(2) && matches!(message, PeerMessage::Answer { answer: DirectoryAnswer::Pin, .. })
        };
        at.take_mail().iter().filter(|said| is_pin(said)).count()
    };
    at.wait(SETTLED);
    assert_eq!(pins(&mut at), ids.len());
    at.handle(Input::PeerBroken { node: node(2) });
    let mut turns = Vec::new();
    for _ in 0..1_000 {
        at.wait(Duration::from_micros(100));
        turns.push(pins(&mut at));
    }
    assert_eq!(turns.iter().sum::<usize>(), ids.len());
    assert!(turns.iter().all(|&told| told <= 256), "{:?}", turns.iter().max());
}

#[test]
fn a_keeper_that_dies_before_it_reports_its_pin_is_replaced() {
    let (mut at, id, _) = left_by_its_writer(&[2, 3]);
    at.crash(2);
    assert_eq!(told_to_keep(&mut at, id), [3]);
}

#[test]
fn a_keeper_without_a_copy_is_replaced() {
    let (mut at, id, _) = left_by_its_writer(&[2, 3]);
    at.request(2, id, DirectoryRequest::Withdraw { seq: 2, edition: edition(5) });
    assert_eq!(told_to_keep(&mut at, id), [3]);
}

#[test]
fn a_node_without_space_is_not_told_to_pin_again_while_another_is_left() {
    let (mut at, id, _) = left_by_its_writer(&[2, 3]);
    at.request(2, id, DirectoryRequest::PinRefused);
    assert_eq!(told_to_keep(&mut at, id), [3]);
    at.request(2, id, DirectoryRequest::PinRefused);
    assert_eq!(told_to_keep(&mut at, id), [], "that is old news");
    at.request(3, id, DirectoryRequest::PinRefused);
    assert_eq!(told_to_keep(&mut at, id), [], "nobody is left");
    at.wait(Duration::from_millis(5100));
    assert_eq!(told_to_keep(&mut at, id), [2], "it may have room by now");
}

#[test]
fn a_node_that_had_no_space_is_told_to_pin_again_when_the_other_dies() {
    let (mut at, id, _) = left_by_its_writer(&[2, 3]);
    at.request(2, id, DirectoryRequest::PinRefused);
    at.crash(3);
    assert_eq!(told_to_keep(&mut at, id), [3]);
    at.wait(Duration::from_millis(5100));
    assert_eq!(told_to_keep(&mut at, id), [2], "it may have room by now");
}

#[test]
fn a_node_that_leaves_is_no_keeper() {
    let (mut at, id, _) = left_by_its_writer(&[2]);
    at.request(2, id, kept());
    let leaving = CopyReport { leaving: true, pinned: true, ..received_report(10, edition(5), SIZE, None) };
    at.request(3, id, announce(received_report(1, edition(5), SIZE, None)));
    at.request(2, id, announce(leaving));
    assert_eq!(told_to_keep(&mut at, id), [3]);
}

/// Node 5 has put an object of ours, and leaves. Returns the nodes that are told to pin it.
fn left_behind(nodes: u16) -> (Node, ObjectId, Vec<u16>) {
    let mut at = Node::among(nodes, STORE);
    let id = at.id_owned_by(ME);
    at.request(5, id, announce(put_report(1, edition(5), SIZE)));
    at.request(5, id, announce(CopyReport { leaving: true, ..put_report(2, edition(5), SIZE) }));
    // We are asked first; our own answer is in no mail.
    at.request(ME, id, DirectoryRequest::PinRefused);
    let keepers = told_to_keep(&mut at, id);
    (at, id, keepers)
}

#[test]
fn a_new_copy_is_pinned_while_the_keeper_leaves() {
    let (mut at, id, keepers) = left_behind(5);
    let [told] = keepers[..] else { panic!("{keepers:?}") };
    let other = (2..5).find(|&node| node != told).expect("three could be told");
    at.request(other, id, announce(received_report(1, edition(5), SIZE, None)));
    assert_eq!(told_to_keep(&mut at, id), [other], "it has all bytes already");
}

#[test]
fn a_node_that_had_no_space_and_has_a_copy_now_pins_it() {
    let (mut at, id, keepers) = left_behind(5);
    let [told] = keepers[..] else { panic!("{keepers:?}") };
    at.request(told, id, DirectoryRequest::PinRefused);
    told_to_keep(&mut at, id);
    at.request(told, id, announce(received_report(1, edition(5), SIZE, None)));
    assert_eq!(told_to_keep(&mut at, id), [told]);
}

/// A copy that came here for a get.
fn cached(at: &mut Node, id: ObjectId) -> CopyId {
    let read = at.ask(get(id));
    let transfer = lend(at, 2, id, 3, edition(5), SIZE);
    at.end_receive(transfer);
    let Some(Reply::View { copy, .. }) = at.reply(read).cloned() else { panic!("not here") };
    at.ask(Request::Release { copy });
    at.take_mail();
    copy
}

#[test]
fn a_cached_copy_that_is_pinned_is_not_evicted() {
    let mut at = Node::among(3, 2 * SIZE);
    let (id, other) = (at.id_owned_by(2), at.id_owned_by(3));
    let copy = cached(&mut at, id);
    at.answer(2, id, DirectoryAnswer::Pin);
    let said = at.take_requests(id);
    assert!(matches!(&said[..], [DirectoryRequest::Announce { report, .. }] if report.pinned), "{said:?}");
    at.answer(2, id, DirectoryAnswer::Pin);
    assert_eq!(at.take_requests(id), [], "said once");
    at.ask(create(other, SIZE + SIZE / 2));
    assert!(at.copies.contains_key(&copy), "there is no room, but it stays");
}

#[test]
fn an_object_to_pin_that_is_not_here_is_fetched() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    at.answer(2, id, DirectoryAnswer::Pin);
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.take_mail();
    at.end_receive(transfer);
    let said = at.take_requests(id);
    let kept = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Announce { report, .. } if report.pinned && report.complete);
    assert!(said.iter().any(kept), "{said:?}");
}

#[test]
fn a_node_without_space_refuses_to_pin_an_object() {
    for store in [2 * SIZE, SIZE / 2] {
        let mut at = Node::among(3, store);
        let (id, ours) = (at.id_owned_by(2), at.id_owned_by(ME));
        if store > SIZE {
            put(&mut at, ours, SIZE + SIZE / 2);
        }
        at.answer(2, id, DirectoryAnswer::Pin);
        let ask = last_ask(&mut at, id);
        at.answer(2, id, lend_of(ask, 3, edition(5), SIZE));
        assert!(at.take_requests(id).contains(&DirectoryRequest::PinRefused));
        assert!(at.receives.is_empty());
    }
}

#[test]
fn a_node_that_refused_may_pin_when_it_is_told_again() {
    let mut at = Node::among(3, 2 * SIZE);
    let id = at.id_owned_by(2);
    let call = at.ask(create(object("in the way"), SIZE + SIZE / 2));
    let in_the_way = created(&at, call);
    at.answer(2, id, DirectoryAnswer::Pin);
    let ask = last_ask(&mut at, id);
    at.answer(2, id, lend_of(ask, 3, edition(5), SIZE));
    at.ask(Request::Abort { copy: in_the_way });
    at.answer(2, id, DirectoryAnswer::Pin);
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.take_mail();
    at.end_receive(transfer);
    let said = at.take_requests(id);
    let kept = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Announce { report, .. } if report.pinned && report.complete);
    assert!(said.iter().any(kept), "{said:?}");
}

/// It would be asked for when there is space, which may be never.
#[test]
fn a_node_that_waits_for_space_for_an_object_refuses_to_pin_it() {
    let mut at = Node::among(3, 2 * SIZE);
    let (id, ours) = (at.id_owned_by(2), at.id_owned_by(ME));
    put(&mut at, ours, SIZE + SIZE / 2);
    at.ask(get(id));
    let ask = last_ask(&mut at, id);
    at.answer(2, id, lend_of(ask, 3, edition(5), SIZE));
    at.take_mail();
    at.answer(2, id, DirectoryAnswer::Pin);
    assert!(at.take_requests(id).contains(&DirectoryRequest::PinRefused));
}

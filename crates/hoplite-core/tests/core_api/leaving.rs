//! A node that leaves in good order.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::Reply;
use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{Edition, ErrorKind, ObjectId, TransferId};

use crate::gets::lend;
use crate::inventory::digest_of;
use crate::node::{node, Node, ME};
use crate::puts::{announced, failed, put};
use crate::recovery_anew::query;
use crate::requests::{
    accepted, announce_unaccepted, create, edition, get, object, put_report, put_small, received_report, SIZE,
};

const WITHIN: Duration = Duration::from_secs(5);

fn report_of(at: &mut Node, id: ObjectId) -> CopyReport {
    let mut said = at.take_requests(id).into_iter().filter_map(|request| match request {
        DirectoryRequest::Announce { report, .. } => Some(report),
        _ => None,
    });
    said.next_back().expect("it was announced")
}

#[test]
fn a_node_without_time_to_hand_over_leaves_at_once() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    put(&mut at, id, SIZE);
    at.handle(Input::Leave { within: Duration::ZERO });
    assert!(at.left);
}

#[test]
fn only_copies_are_pinned_elsewhere_before_a_node_leaves() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let copy = crate::puts::created(&at, call);
    let call = at.ask(hoplite_types::client::Request::Seal { copy, timeout_ms: None });
    let first = report_of(&mut at, id);
    at.answer(2, id, accepted(first.edition));
    assert_eq!(at.reply(call), Some(&Reply::Done));
    at.take_mail();
    at.handle(Input::Leave { within: WITHIN });
    let report = report_of(&mut at, id);
    assert!(report.leaving && report.complete);
    let refused = at.ask(create(object("late"), SIZE));
    assert_eq!(failed(&at, refused), ErrorKind::NodeUnreachable);
    let partly = received_report(1, first.edition, SIZE, Some(node(ME)));
    at.answer(2, id, DirectoryAnswer::Copy { node: node(3), report: partly, payload: None });
    at.wait(Duration::from_secs(1));
    assert!(!at.left);
    let kept = CopyReport { pinned: true, ..received_report(2, first.edition, SIZE, None) };
    at.answer(2, id, DirectoryAnswer::Copy { node: node(3), report: kept, payload: None });
    assert!(at.left);
}

#[test]
fn a_leaver_repeats_its_earlier_reports() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    at.ask(put_small(id, 8));
    let writing = announced(&mut at, id);
    at.handle(Input::Leave { within: WITHIN });
    at.take_mail();
    at.answer(2, id, accepted(writing));
    let report = report_of(&mut at, id);
    assert!(report.leaving && report.complete);
}

/// Owners drop the subscriptions of a node that is gone.
#[test]
fn a_leaver_whose_time_is_up_reports_no_single_objects() {
    let mut at = Node::among(2, 8 << 20);
    let ids: Vec<_> = (0..300).map(|number| object(&format!("kept here {number}"))).collect();
    let theirs: Vec<_> = ids.into_iter().filter(|&id| at.owner_of(id) == 2).collect();
    for &id in &theirs {
        at.ask(put_small(id, 8));
        let writing = announced(&mut at, id);
        at.answer(2, id, accepted(writing));
    }
    at.handle(Input::Leave { within: WITHIN });
    at.wait(WITHIN - Duration::from_millis(10));
    at.take_mail();
    at.wait(Duration::from_millis(20));
    assert!(at.left && theirs.len() > 100);
    let about =
        at.take_mail().into_iter().filter(|(_, message)| matches!(message, PeerMessage::Directory { .. }));
    assert_eq!(about.count(), 0);
}

#[test]
fn a_leaver_does_not_wait_for_ever() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(ME);
    put(&mut at, id, SIZE);
    at.handle(Input::Leave { within: WITHIN });
    at.wait(WITHIN);
    assert!(at.left);
}

#[test]
fn an_owner_brings_the_copies_of_a_leaver_to_another_node() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    let mut report = put_report(1, edition(5), SIZE);
    let announce = |report| DirectoryRequest::Announce { report, payload: None, wants_verdict: false };
    at.request(3, id, announce(report.clone()));
    at.take_mail();
    (report.seq, report.leaving) = (2, true);
    at.request(3, id, announce(report));
    // The owner is the best place itself: it asks itself for a sender, and lends itself the leaver.
    let pulls = at.take_mail();
    let pulled = |(to, message): &(_, PeerMessage)| {
        *to == node(3) && matches!(message, PeerMessage::Pull { id: about, .. } if *about == id)
    };
    assert!(pulls.iter().any(pulled), "{pulls:?}");
}

/// The report that it leaves may have been lost with a connection, and no digest repeats it.
#[test]
fn a_leaver_reports_even_copies_that_their_owner_knows() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    at.ask(put_small(id, 8));
    let writing = announced(&mut at, id);
    at.answer(2, id, accepted(writing));
    at.handle(Input::Leave { within: WITHIN });
    at.take_mail();
    at.hear(2, query(id, false, Some(digest_of(id, writing, true, true))));
    let told = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Inventory { page, .. } => Some(page.copies),
        _ => None,
    });
    let told = told.expect("it is answered at once");
    assert!(matches!(&told[..], [(about, report)] if *about == id && report.leaving), "{told:?}");
}

/// A node that has put one object of node 2's, and is to get another from node 3: both, how the first was written, and
/// the transfer of the second.
fn with_a_put_and_a_get() -> (Node, [ObjectId; 2], Edition, TransferId) {
    let mut at = Node::among(3, 8 << 20);
    let mut ids = (0..).map(|number| object(&format!("theirs {number}")));
    let mut next = || ids.find(|&id| at.owner_of(id) == 2).expect("hashing is even");
    let [put_here, got] = [next(), next()];
    at.ask(put_small(put_here, 8));
    let writing = announced(&mut at, put_here);
    at.answer(2, put_here, accepted(writing));
    at.ask(get(got));
    let transfer = lend(&mut at, 2, got, 3, edition(5), SIZE);
    (at, [put_here, got], writing, transfer)
}

/// The node that kept it died meanwhile, and its owner had not heard that we leave.
#[test]
fn a_copy_pinned_while_its_node_leaves_is_handed_over() {
    let (mut at, [put_here, got], writing, transfer) = with_a_put_and_a_get();
    at.end_receive(transfer);
    at.handle(Input::Leave { within: WITHIN });
    at.answer(2, got, DirectoryAnswer::Pin);
    let elsewhere = |edition| {
        let report = CopyReport { pinned: true, ..received_report(7, edition, SIZE, None) };
        DirectoryAnswer::Copy { node: node(3), report, payload: None }
    };
    at.answer(2, put_here, elsewhere(writing));
    at.wait(Duration::from_millis(100));
    assert!(!at.left, "nobody else has the other");
    at.answer(2, got, elsewhere(edition(5)));
    assert!(at.left);
}

/// Put again, and got from a node that leaves as well.
#[test]
fn an_object_put_again_while_its_node_leaves_is_handed_over() {
    let (mut at, [put_here, again], writing, transfer) = with_a_put_and_a_get();
    let call = at.ask(create(again, SIZE));
    at.handle(Input::Leave { within: WITHIN });
    at.end_receive(transfer);
    assert_eq!(at.reply(call), Some(&Reply::Done));
    let elsewhere = CopyReport { pinned: true, ..received_report(7, writing, SIZE, None) };
    at.answer(2, put_here, DirectoryAnswer::Copy { node: node(3), report: elsewhere, payload: None });
    at.wait(Duration::from_millis(100));
    assert!(!at.left, "nobody else is to keep it");
}

/// The others were told that it is gone: they ask other owners, and would not hear of its verdicts.
#[test]
fn a_node_that_has_left_accepts_nothing() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    at.handle(Input::Leave { within: WITHIN });
    assert!(at.left);
    at.take_mail();
    at.request(2, id, announce_unaccepted(2, put_report(1, edition(5), SIZE)));
    at.wait(Duration::from_secs(1));
    assert!(at.take_mail().is_empty());
}

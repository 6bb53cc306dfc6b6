//! Small objects sent inline with an answer: the receiver counts as a holder, and reports only what the owner cannot
//! know.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::Request;
use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{Blob, NodeId, ObjectId};

use crate::gets::last_ask;
use crate::inventory::take_inventory;
use crate::node::{node, Node, ME};
use crate::puts::{created, put, viewed};
use crate::requests::{announce, ask, create, edition, get, inline_of, object, put_report, SIZE, SMALL};

const STORE: u64 = 8 << 20;

fn bytes() -> Blob {
    Blob(vec![1; SMALL as usize])
}

fn inline(ask: u64) -> DirectoryAnswer {
    inline_of(ask, edition(5), SMALL)
}

/// The reports of the object since the mail was last taken.
fn reported(at: &mut Node, id: ObjectId) -> Vec<CopyReport> {
    let said = at.take_requests(id).into_iter().filter_map(|request| match request {
        DirectoryRequest::Announce { report, .. } => Some(report),
        _ => None,
    });
    said.collect()
}

/// A get of an object that node 2 owns, and its open ask.
fn asked(at: &mut Node) -> (ObjectId, u64, u64) {
    let id = at.id_owned_by(2);
    let call = at.ask(get(id));
    let ask = last_ask(at, id);
    (id, call, ask)
}

#[test]
fn a_copy_that_the_owner_sent_is_not_reported_to_it() {
    let mut at = Node::among(3, STORE);
    let (id, call, ask) = asked(&mut at);
    at.answer(2, id, inline(ask));
    viewed(&at, call);
    assert_eq!(at.take_requests(id), []);
    // But the next owner, which pulls the inventory, is told.
    let told = take_inventory(&mut at, 3, &[id.shard()]).page.copies;
    assert!(matches!(&told[..], [(about, CopyReport { complete: true, pinned: false, .. })] if *about == id));
}

#[test]
fn a_copy_that_a_former_owner_sent_is_reported() {
    let mut at = Node::among(3, STORE);
    let (id, _, ask) = asked(&mut at);
    at.answer(3, id, inline(ask));
    assert!(matches!(reported(&mut at, id)[..], [CopyReport { complete: true, pinned: false, .. }]));
}

#[test]
fn a_copy_that_is_pinned_is_reported() {
    let mut at = Node::among(3, STORE);
    let (id, _, ask) = asked(&mut at);
    at.answer(2, id, DirectoryAnswer::Pin);
    at.answer(2, id, inline(ask));
    assert!(matches!(reported(&mut at, id)[..], [CopyReport { complete: true, pinned: true, .. }]));
}

#[test]
fn a_copy_on_a_leaving_node_is_reported() {
    let mut at = Node::among(3, STORE);
    let other = at.id_owned_by(ME);
    put(&mut at, other, SIZE);
    let (id, _, ask) = asked(&mut at);
    at.handle(Input::Leave { within: Duration::from_secs(5) });
    at.answer(2, id, inline(ask));
    assert!(matches!(reported(&mut at, id)[..], [CopyReport { complete: true, leaving: true, .. }]));
}

/// The owner dropped its record of this holder when it received the end of the inventory.
#[test]
fn a_copy_is_reported_if_an_inventory_was_sent_since_the_ask() {
    let mut at = Node::among(3, STORE);
    let (id, _, ask) = asked(&mut at);
    take_inventory(&mut at, 2, &[id.shard()]);
    at.answer(2, id, inline(ask));
    assert!(matches!(reported(&mut at, id)[..], [CopyReport { complete: true, .. }]));
}

#[test]
fn bytes_that_are_no_longer_wanted_are_given_back() {
    let mut at = Node::among(3, STORE);
    let (id, call, ask) = asked(&mut at);
    at.ask(Request::Cancel { call });
    assert_eq!(at.take_requests(id), [DirectoryRequest::CancelAsk { ask }]);
    at.answer(2, id, inline(ask));
    let said = at.take_requests(id);
    assert!(matches!(said[..], [DirectoryRequest::Withdraw { seq, .. }] if seq > ask), "{said:?}");
    at.assert_empty();
}

#[test]
fn bytes_without_space_are_given_back() {
    let mut at = Node::among(3, SIZE);
    let (id, _, ask) = asked(&mut at);
    // A writing takes all of the space, and cannot be evicted.
    let call = at.ask(create(object("large"), SIZE - 64));
    created(&at, call);
    at.take_mail();
    at.answer(2, id, inline(ask));
    let said = at.take_requests(id);
    let given_back =
        |request: &DirectoryRequest| matches!(request, DirectoryRequest::Withdraw { seq, .. } if *seq > ask);
    assert!(said.iter().any(given_back), "{said:?}");
}

/// An owner with the bytes of a small object that node 2 has put.
fn owner() -> (Node, ObjectId) {
    let mut at = Node::among(4, STORE);
    let id = at.id_owned_by(ME);
    let report = put_report(1, edition(5), SMALL);
    let payload = Some(bytes());
    at.request(2, id, DirectoryRequest::Announce { report, payload, wants_verdict: false });
    at.request(4, id, DirectoryRequest::Subscribe { bytes_max: None });
    at.take_mail();
    (at, id)
}

/// The changes that node 4, a subscriber, was told of: nodes with a new complete copy, and nodes whose copy has gone.
fn watched(at: &mut Node) -> (Vec<NodeId>, Vec<NodeId>) {
    let (mut has, mut gone) = (Vec::new(), Vec::new());
    for (to, message) in at.take_mail() {
        match message {
            PeerMessage::Answer { answer: DirectoryAnswer::Copy { node: holder, report, .. }, .. } => {
                assert!(to == node(4) && report.complete);
                has.push(holder);
            }
            PeerMessage::Answer { answer: DirectoryAnswer::CopyGone { node: holder }, .. } => {
                gone.push(holder)
            }
            _ => {}
        }
    }
    (has, gone)
}

#[test]
fn a_receiver_of_the_bytes_counts_as_a_holder_until_it_withdraws() {
    let (mut at, id) = owner();
    at.request(3, id, ask(7));
    assert_eq!(watched(&mut at), (vec![node(3)], vec![]));
    at.request(3, id, DirectoryRequest::Withdraw { seq: 6, edition: edition(5) });
    assert_eq!(watched(&mut at), (vec![], vec![]), "of before it asked");
    at.request(3, id, DirectoryRequest::Withdraw { seq: 8, edition: edition(5) });
    assert_eq!(watched(&mut at), (vec![], vec![node(3)]));
}

#[test]
fn a_receiver_that_cancels_its_ask_does_not_count_as_a_holder() {
    let (mut at, id) = owner();
    at.request(3, id, ask(7));
    at.request(3, id, DirectoryRequest::CancelAsk { ask: 7 });
    assert_eq!(watched(&mut at), (vec![node(3)], vec![node(3)]));
    at.request(3, id, announce(CopyReport { pinned: false, ..put_report(9, edition(5), SMALL) }));
    at.request(3, id, DirectoryRequest::CancelAsk { ask: 7 });
    assert_eq!(watched(&mut at), (vec![node(3)], vec![]), "it has another since");
}

#[test]
fn a_repeated_ask_is_answered_again() {
    let (mut at, id) = owner();
    for _ in 0..2 {
        at.request(3, id, ask(7));
        let sent = |(to, message): &(NodeId, PeerMessage)| {
            matches!(message, PeerMessage::Answer { id: about, answer: DirectoryAnswer::Inline { ask: 7, stamp: Some(_), .. } }
                if *about == id && *to == node(3))
        };
        assert!(at.take_mail().iter().any(sent));
    }
}

fn refuses(message: &PeerMessage) -> bool {
    let PeerMessage::Answer { answer: DirectoryAnswer::Verdict { verdict, .. }, .. } = message else {
        return false;
    };
    !matches!(verdict, Verdict::Accepted(_))
}

/// The answer was lost, and all other copies too: the asker must not count as a holder. But its first repeated ask may
/// have crossed the answer, and another content must not be accepted meanwhile.
#[test]
fn a_receiver_that_keeps_asking_is_told_of_the_loss() {
    let mut at = Node::among(4, SMALL + 128);
    at.wait(Duration::from_secs(10));
    let id = at.id_owned_by(ME);
    let report = put_report(1, edition(5), SMALL);
    let payload = Some(bytes());
    at.request(2, id, DirectoryRequest::Announce { report, payload, wants_verdict: false });
    at.request(3, id, ask(7));
    // The owner's own copy is evicted, and the writer dies.
    let call = at.ask(create(object("other"), SMALL));
    created(&at, call);
    at.kill(2);
    at.wait(Duration::from_secs(3));
    at.take_mail();
    at.request(3, id, ask(7));
    at.request(4, id, announce(CopyReport { stamp: None, ..put_report(1, edition(9), SMALL) }));
    let said = at.take_mail();
    let answer = |to: u16, answer| (node(to), PeerMessage::Answer { id, answer });
    assert!(said.contains(&answer(3, DirectoryAnswer::NotYet { ask: 7, copies: vec![] })), "{said:?}");
    assert!(said.iter().any(|(to, message)| *to == node(4) && refuses(message)), "{said:?}");
    at.request(3, id, ask(7));
    assert!(at.take_mail().contains(&answer(3, DirectoryAnswer::Lost)));
}

/// The answer was not lost, but crossed the repeated ask.
#[test]
fn a_holder_that_is_told_of_a_loss_reports_its_copy() {
    let mut at = Node::among(3, STORE);
    let (id, _, ask) = asked(&mut at);
    at.answer(2, id, inline(ask));
    at.take_mail();
    at.answer(2, id, DirectoryAnswer::Lost);
    assert!(matches!(reported(&mut at, id)[..], [CopyReport { complete: true, .. }]));
}

/// The owner's link has 60 kB in half a millisecond: three answers are all that is sent at once.
#[test]
fn a_receiver_is_lent_a_holder_when_the_owners_link_is_full() {
    let mut at = Node::alone(STORE);
    let (id, size) = (object("x"), 60_000);
    let report = put_report(1, edition(2), size);
    let payload = Some(Blob(vec![1; size as usize]));
    at.request(2, id, DirectoryRequest::Announce { report, payload, wants_verdict: false });
    at.take_mail();
    for asker in 3..=11 {
        at.request(asker, id, DirectoryRequest::Ask { ask: 1, have: None, failed: None });
    }
    let sent = |at: &mut Node| -> Vec<(NodeId, Option<NodeId>)> {
        let answers = at.take_mail().into_iter().filter_map(|(to, message)| match message {
            PeerMessage::Answer { answer: DirectoryAnswer::Inline { .. }, .. } => Some((to, None)),
            PeerMessage::Answer { answer: DirectoryAnswer::Lend { sender, .. }, .. } => {
                Some((to, Some(sender)))
            }
            _ => None,
        });
        answers.collect()
    };
    // Its own copy is not lent either, because it would use the same link.
    let lent = [(6, 2), (7, 3), (8, 4), (9, 5)].map(|(to, sender)| (node(to), Some(node(sender))));
    assert_eq!(sent(&mut at), [&[3, 4, 5].map(|to| (node(to), None))[..], &lent].concat());
    // The other askers get it as soon as the link is free, or from the nodes that were sent it last.
    at.wait(Duration::from_micros(600));
    assert_eq!(sent(&mut at), [(node(10), None), (node(11), Some(node(10)))]);
}

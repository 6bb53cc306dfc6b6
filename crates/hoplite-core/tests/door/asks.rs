//! What is said twice, and what is not said again.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_words::client::Request;
use hoplite_words::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_words::{NodeId, ObjectId};

use crate::node::{node, Node, ME};
use crate::puts::created;
use crate::requests::{announce, create, edition, object, put_report, received_report, SIZE};

fn answers(at: &mut Node, id: ObjectId) -> Vec<(NodeId, DirectoryAnswer)> {
    let mail = at.take_mail().into_iter();
    mail.filter_map(|(to, message)| match message {
        PeerMessage::Answer { id: about, answer } if about == id => Some((to, answer)),
        _ => None,
    })
    .collect()
}

fn lent(at: &mut Node, id: ObjectId) -> Vec<(NodeId, NodeId)> {
    let lends = answers(at, id).into_iter();
    lends
        .filter_map(|(to, answer)| match answer {
            DirectoryAnswer::Lend { sender, .. } => Some((to, sender)),
            _ => None,
        })
        .collect()
}

/// Part of it is here, and nobody sends the rest.
fn between(seq: u64) -> CopyReport {
    CopyReport { complete: false, ..received_report(seq, edition(5), SIZE, None) }
}

#[test]
fn a_question_asked_twice_is_answered_alike() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(put_report(1, edition(5), SIZE, true)));
    let ask = DirectoryRequest::Ask { ask: 4, have: None, failed: None };
    at.request(3, id, ask.clone());
    assert_eq!(lent(&mut at, id), [(node(3), node(2))]);
    at.request(3, id, ask);
    assert_eq!(lent(&mut at, id), [(node(3), node(2))]);
}

/// A report that was on its way when the next sender was lent must not undo the lend.
#[test]
fn a_receiver_between_two_senders_does_not_unsay_its_lend() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(put_report(1, edition(5), SIZE, true)));
    at.request(3, id, announce(between(2)));
    at.request(3, id, DirectoryRequest::Ask { ask: 4, have: Some(edition(5)), failed: None });
    assert_eq!(lent(&mut at, id), [(node(3), node(2))]);
    at.request(3, id, announce(between(6)));
    at.request(4, id, DirectoryRequest::Ask { ask: 4, have: None, failed: None });
    assert_eq!(lent(&mut at, id), [(node(4), node(3))], "it streams, so others can stream behind it");
}

#[test]
fn what_was_not_said_again_is_out_of_date() {
    let mut at = Node::among(4, 8 << 20);
    // What we say ourselves, having given something up, shows how members are told apart.
    let call = at.ask(create(object("given up"), SIZE));
    let copy = created(&at, call);
    at.ask(Request::Abort { copy });
    at.take_mail();
    at.handle(Input::PeerBroken { node: node(2) });
    at.wait(Duration::from_millis(100));
    let said = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::AllSaid { members, .. } => Some(members),
        _ => None,
    });
    let members = said.expect("everything is said again");

    let id = at.id_owned_by(ME);
    at.request(4, id, DirectoryRequest::Subscribe { bytes_max: None });
    at.request(3, id, announce(put_report(5, edition(5), SIZE, true)));
    answers(&mut at, id);
    let gone = (node(4), DirectoryAnswer::CopyGone { node: node(3) });
    at.hear(3, PeerMessage::AllSaid { since: 5, members });
    at.hear(3, PeerMessage::AllSaid { since: 9, members: members ^ 1 });
    assert!(!answers(&mut at, id).contains(&gone), "it is new, or said to who may own something else");
    at.hear(3, PeerMessage::AllSaid { since: 9, members });
    assert!(answers(&mut at, id).contains(&gone));
}

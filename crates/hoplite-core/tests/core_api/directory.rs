//! Which reports and requests a shard owner accepts.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{limits, ObjectId};

use crate::node::{node, Node, ME};
use crate::recovery::id_moving;
use crate::requests::{
    announce, announce_unaccepted, ask, edition, object, put_report, received_report, verdict,
    writing_report, SIZE,
};

fn located(at: &mut Node, id: ObjectId) -> usize {
    let call = at.ask(Request::Locate { id, timeout_ms: None });
    match at.reply(call) {
        Some(Reply::Located { copies, .. }) => copies.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_old_report_never_beats_a_newer_one() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    at.request(2, id, announce(put_report(5, edition(1), SIZE)));
    at.request(2, id, announce(writing_report(2, 4, edition(1), SIZE)));
    at.request(2, id, DirectoryRequest::Withdraw { seq: 3, edition: edition(1) });
    at.request(2, id, DirectoryRequest::Withdraw { seq: 9, edition: edition(2) });
    assert_eq!(located(&mut at, id), 1);
    at.request(3, id, ask(1));
    assert!(at.take_mail().iter().any(|(to, message)| {
        *to == node(3) && matches!(message, PeerMessage::Answer { answer: DirectoryAnswer::Lend { .. }, .. })
    }));
}

/// An abandoned put leaves partial copies behind. They do not hinder another put.
#[test]
fn a_put_of_another_size_follows_an_abandoned_one() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    at.request(2, id, announce(writing_report(2, 1, edition(1), SIZE)));
    at.request(3, id, ask(1));
    at.request(3, id, announce(received_report(1, edition(1), SIZE, Some(node(2)))));
    at.request(2, id, DirectoryRequest::Withdraw { seq: 2, edition: edition(1) });
    assert!(at.take_answers(id).contains(&(3, verdict(edition(1), Verdict::Abandoned))));
    at.request(4, id, announce_unaccepted(4, put_report(1, edition(2), 2 * SIZE)));
    let answers = at.take_answers(id);
    assert!(matches!(answers[..], [(4, DirectoryAnswer::Verdict { verdict: Verdict::Accepted(_), .. })]));
}

fn lent(at: &mut Node, id: ObjectId, to: u16, failed: Option<u16>) -> Option<u16> {
    at.take_mail();
    at.request(to, id, DirectoryRequest::Ask { ask: 1, have: None, failed: failed.map(node) });
    at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Answer { answer: DirectoryAnswer::Lend { sender, .. }, .. } => Some(sender.addr.port()),
        _ => None,
    })
}

/// The link of a node that made many objects, or is the first to get each, is no faster than others.
#[test]
fn a_node_sends_an_object_twice_only_if_no_other_can() {
    let mut at = Node::among(7, 8 << 20);
    let id = at.id_owned_by(ME);
    let whole = || received_report(1, edition(1), SIZE, None);
    at.request(2, id, announce(put_report(1, edition(1), SIZE)));
    assert_eq!(lent(&mut at, id, 3, None), Some(2));
    at.request(3, id, announce(whole()));
    assert_eq!(lent(&mut at, id, 4, None), Some(3));
    // The only whole copy that is free is that of its maker.
    assert_eq!(lent(&mut at, id, 5, None), Some(4));
    assert_eq!(lent(&mut at, id, 6, Some(5)), Some(2));
    for holder in [4, 5] {
        at.request(holder, id, announce(whole()));
    }
    assert_eq!(lent(&mut at, id, 7, None), Some(5));
}

/// A report names the actual sender of a node. A lend that it did not take is free again.
#[test]
fn a_report_gives_back_the_sender_it_does_not_name() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    for holder in [2, 3] {
        at.request(holder, id, announce(put_report(1, edition(1), SIZE)));
    }
    at.request(4, id, ask(1));
    let lent = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Answer { answer: DirectoryAnswer::Lend { sender, .. }, .. } => Some(sender),
        _ => None,
    });
    let other = if lent == Some(node(2)) { node(3) } else { node(2) };
    at.request(4, id, announce(received_report(1, edition(1), SIZE, Some(other))));
    at.request(5, id, ask(1));
    let next = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Answer { answer: DirectoryAnswer::Lend { sender, .. }, .. } => Some(sender),
        _ => None,
    });
    assert_eq!(next, lent, "the complete copy that is free");
}

/// Node 2 knows before us that node 3 is dead, or has an old view.
#[test]
fn requests_forwarded_to_a_dead_owner_are_handled_again() {
    let mut at = Node::among(3, 8 << 20);
    let id = id_moving(&mut at, 3, ME, 3);
    at.take_mail();
    let locate = DirectoryRequest::Locate { token: 7 };
    at.request(2, id, locate.clone());
    let on = PeerMessage::Directory { origin: node(2), hops: 1, id, request: locate };
    assert_eq!(at.take_mail(), [(node(3), on)]);
    at.crash(3);
    assert!(matches!(at.take_answers(id)[..], [(2, DirectoryAnswer::Located { token: 7, .. })]));
}

#[test]
fn requests_that_are_forwarded_in_a_circle_are_dropped() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(2);
    for hops in [limits::FORWARD_HOPS_MAX - 1, limits::FORWARD_HOPS_MAX] {
        at.hear(2, PeerMessage::Directory { origin: node(2), hops, id, request: ask(1) });
        let went_on = !at.take_mail().is_empty();
        assert_eq!(went_on, hops < limits::FORWARD_HOPS_MAX);
    }
}

/// It died before we heard that it was one.
#[test]
fn reports_of_a_node_that_never_becomes_a_member_are_forgotten() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(9, id, announce(put_report(1, edition(5), SIZE)));
    at.request(9, id, DirectoryRequest::Subscribe { bytes_max: None });
    assert_eq!(at.status().entries, 1);
    at.wait(Duration::from_millis(2100));
    assert_eq!((at.status().entries, at.gauge("lost ids")), (0, 1));
    at.request(9, id, announce(put_report(2, edition(5), SIZE)));
    assert_eq!(at.status().entries, 0, "its word came by way of others");
}

/// The others have to wait for their turn.
#[test]
fn no_copy_of_a_dead_node_is_lent_even_if_it_had_many() {
    let mut at = Node::alone(8 << 20);
    let ids: Vec<_> = (0..1000).map(|number| object(&format!("copy {number}"))).collect();
    at.join(2);
    let ours: Vec<_> = ids.into_iter().filter(|&id| at.owner_of(id) == ME).collect();
    at.join(3);
    let ours: Vec<_> = ours.into_iter().filter(|&id| at.owner_of(id) == ME).collect();
    assert!(ours.len() > 300, "more than one turn has time for");
    for &id in &ours {
        at.request(2, id, announce(put_report(1, edition(5), SIZE)));
    }
    at.handle(Input::PeerGone { node: node(2) });
    assert!(at.status().entries > 0);
    let last = *ours.last().expect("many");
    at.take_mail();
    at.request(3, last, ask(1));
    assert_eq!(at.take_answers(last), [(3, DirectoryAnswer::Lost)]);
    at.wait(Duration::from_millis(20));
    assert_eq!(at.status().entries, 1, "only that it is asked for");
    at.assert_consistent();
}

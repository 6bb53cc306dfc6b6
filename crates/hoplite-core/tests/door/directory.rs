//! What a shard owner takes from whom.

use hoplite_words::client::{Reply, Request};
use hoplite_words::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_words::ObjectId;

use crate::node::{node, Node, ME};
use crate::requests::{
    announce, announce_unjudged, ask, edition, object, put_report, received_report, verdict, writing_report,
    SIZE,
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

/// A put that was given up leaves half copies behind: they stand in nobody's way.
#[test]
fn a_put_of_another_size_follows_an_abandoned_one() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    at.request(2, id, announce(writing_report(2, 1, edition(1), SIZE)));
    at.request(3, id, ask(1));
    at.request(3, id, announce(received_report(1, edition(1), SIZE, Some(node(2)))));
    at.request(2, id, DirectoryRequest::Withdraw { seq: 2, edition: edition(1) });
    assert!(at.take_answers(id).contains(&(3, verdict(edition(1), Verdict::Abandoned))));
    at.request(4, id, announce_unjudged(4, put_report(1, edition(2), 2 * SIZE)));
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

/// The link of who made many objects, or is the first to get each, is no faster than another's.
#[test]
fn who_has_sent_an_object_sends_it_again_only_if_nobody_else_can() {
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

/// Whom a node really receives from is in its report; the lend it did not take is free again.
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

//! Asks that are repeated, and reports that cross their answers.

use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest};
use hoplite_types::ObjectId;

use crate::node::{node, Node, ME};
use crate::requests::{announce, ask, edition, put_report, received_report, SIZE};

/// The receivers, each with the sender that the owner has lent to it.
fn lent(at: &mut Node, id: ObjectId) -> Vec<(u16, u16)> {
    let lends = at.take_answers(id).into_iter();
    lends
        .filter_map(|(to, answer)| match answer {
            DirectoryAnswer::Lend { sender, .. } => Some((to, sender.addr.port())),
            _ => None,
        })
        .collect()
}

/// Part of it is here, and no node sends the rest.
fn between(seq: u64) -> CopyReport {
    CopyReport { complete: false, ..received_report(seq, edition(5), SIZE, None) }
}

#[test]
fn a_repeated_ask_gets_the_same_answer() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(put_report(1, edition(5), SIZE)));
    at.request(3, id, ask(4));
    assert_eq!(lent(&mut at, id), [(3, 2)]);
    at.request(3, id, ask(4));
    assert_eq!(lent(&mut at, id), [(3, 2)]);
}

/// A report that was on its way when the next sender was lent must not undo the lend.
#[test]
fn a_late_report_of_a_receiver_does_not_undo_its_lend() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(put_report(1, edition(5), SIZE)));
    at.request(3, id, announce(between(2)));
    at.request(3, id, DirectoryRequest::Ask { ask: 4, have: Some(edition(5)), failed: None });
    assert_eq!(lent(&mut at, id), [(3, 2)]);
    at.request(3, id, announce(between(6)));
    at.request(4, id, ask(4));
    assert_eq!(lent(&mut at, id), [(4, 3)], "it streams, so others can stream behind it");
}

/// Its first question may be lost, with the answer to the second on its way.
#[test]
fn a_newer_ask_of_a_node_replaces_its_older_one() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(3, id, ask(4));
    at.request(4, id, ask(5));
    at.request(3, id, ask(6));
    at.request(4, id, DirectoryRequest::CancelAsk { ask: 1 });
    at.take_mail();
    at.request(2, id, announce(put_report(1, edition(5), SIZE)));
    let answers = at.take_answers(id);
    let answered: Vec<_> = answers
        .iter()
        .filter_map(|(to, answer)| match answer {
            DirectoryAnswer::Lend { ask, sender, .. } => Some((*to, *ask, *sender)),
            _ => None,
        })
        .collect();
    assert_eq!(answered, [(3, 6, node(2)), (4, 5, node(3))], "in order of arrival, one for each");
}

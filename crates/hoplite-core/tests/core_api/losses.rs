//! Objects lost with their last node, and receivers that wait for each other in a circle.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, Verdict};
use hoplite_types::{limits, Error, ErrorKind, ObjectId};

use crate::gets::lend;
use crate::node::{node, Node, ME};
use crate::puts::{failed, put};
use crate::requests::{announce, ask, edition, get, object, put_report, received_report, verdict, SIZE};

pub fn get_or_lost(id: ObjectId) -> Request {
    Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: true }
}

#[test]
fn asks_after_a_loss_are_told_of_it_until_a_new_put() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(put_report(1, edition(5), SIZE)));
    at.kill(3);
    at.take_mail();
    at.request(2, id, ask(4));
    assert_eq!(at.take_answers(id), [(2, DirectoryAnswer::Lost)]);
    let call = at.ask(get_or_lost(id));
    let Some(Reply::Failed(Error { kind, object, .. })) = at.reply(call) else { panic!("not answered") };
    assert_eq!((*kind, *object), (ErrorKind::Lost, Some(id)));
    at.request(2, id, DirectoryRequest::CancelAsk { ask: 4 });
    put(&mut at, id, SIZE);
    let call = at.ask(get_or_lost(id));
    assert!(matches!(at.reply(call), Some(Reply::View { .. })));
}

/// The first answer may be lost, for example with the connection.
#[test]
fn repeated_asks_and_subscriptions_are_told_of_the_loss_again() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(put_report(1, edition(5), SIZE)));
    at.kill(3);
    for question in [ask(4), DirectoryRequest::Subscribe { bytes_max: None }] {
        at.take_mail();
        for _ in 0..2 {
            at.request(2, id, question.clone());
            assert!(at.take_answers(id).contains(&(2, DirectoryAnswer::Lost)));
        }
    }
}

#[test]
fn waiting_nodes_are_told_when_the_last_copy_dies() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, DirectoryRequest::Subscribe { bytes_max: None });
    at.request(4, id, announce(put_report(1, edition(5), SIZE)));
    at.request(3, id, DirectoryRequest::Ask { ask: 7, have: None, failed: Some(node(4)) });
    at.take_mail();
    at.crash(4);
    let told = at.take_answers(id);
    let lost: Vec<_> = told.iter().filter(|(_, answer)| *answer == DirectoryAnswer::Lost).collect();
    assert_eq!(lost.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [3, 2], "{told:?}");
}

/// A paused receiver was taken for dead when the writer died, so it was not told to drop its part.
#[test]
fn a_receiver_that_asks_for_the_rest_of_a_lost_edition_is_told_to_drop_its_part() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(put_report(1, edition(5), SIZE)));
    at.kill(3);
    at.take_mail();
    for _ in 0..2 {
        at.request(2, id, DirectoryRequest::Ask { ask: 7, have: Some(edition(5)), failed: Some(node(3)) });
        let told = at.take_answers(id);
        assert!(told.contains(&(2, DirectoryAnswer::Lost)), "{told:?}");
        assert!(told.contains(&(2, verdict(edition(5), Verdict::Abandoned))), "{told:?}");
    }
}

#[test]
fn a_loss_expires() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(put_report(1, edition(5), SIZE)));
    at.kill(3);
    assert_eq!((at.status().entries, at.gauge("lost ids")), (0, 1));
    at.now += limits::TOMBSTONE_TTL + Duration::from_secs(2);
    at.handle(Input::Tick);
    assert_eq!((at.status().entries, at.gauge("lost ids")), (0, 0));
}

#[test]
fn a_wait_fails_for_losses_that_its_caller_does_not_know() {
    let mut at = Node::among(2, 8 << 20);
    let ids = [at.id_owned_by(2), object("other")];
    let wait = |known_lost: &[ObjectId]| Request::Wait {
        ids: ids.to_vec(),
        count: 2,
        timeout_ms: None,
        fail_if_lost: true,
        known_lost: known_lost.to_vec(),
    };
    let first = at.ask(wait(&[]));
    let knowing = at.ask(wait(&ids[..1]));
    at.answer(2, ids[0], DirectoryAnswer::Lost);
    assert_eq!(failed(&at, first), ErrorKind::Lost);
    assert_eq!(at.reply(knowing), None);
    // Later calls are told of the reports that came before.
    let late = at.ask(wait(&[]));
    assert_eq!(failed(&at, late), ErrorKind::Lost);
}

#[test]
fn a_settled_owner_takes_part_of_an_object_for_a_put_that_was_given_up() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, DirectoryRequest::Ask { ask: 4, have: Some(edition(5)), failed: None });
    at.wait(Duration::from_secs(10));
    let told = at.take_answers(id);
    assert!(!told.contains(&(2, DirectoryAnswer::Lost)));
    assert!(
        told.contains(&(2, verdict(edition(5), Verdict::Abandoned))),
        "it waits for what never comes: {told:?}"
    );
}

#[test]
fn an_owner_breaks_a_ring_of_receivers() {
    let mut at = Node::among(5, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(5, id, announce(put_report(1, edition(5), SIZE)));
    at.request(2, id, announce(received_report(1, edition(5), SIZE, Some(node(3)))));
    at.request(3, id, announce(received_report(1, edition(5), SIZE, Some(node(4)))));
    assert_eq!(at.take_answers(id), []);
    at.request(4, id, announce(received_report(1, edition(5), SIZE, Some(node(2)))));
    assert_eq!(at.take_answers(id), [(4, ask_again(2))]);
}

/// An owner's answer that `sender` is not to be received from.
fn ask_again(sender: u16) -> DirectoryAnswer {
    DirectoryAnswer::AskAgain { edition: edition(5), sender: node(sender) }
}

#[test]
fn a_receiver_in_a_ring_asks_again() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.take_mail();
    at.answer(2, id, ask_again(4));
    assert!(at.receives.contains_key(&transfer), "old news: it receives from another by now");
    at.answer(2, id, ask_again(3));
    assert!(!at.receives.contains_key(&transfer));
    let said = at.take_requests(id);
    assert!(said.iter().any(|request| matches!(request, DirectoryRequest::Ask { .. })), "{said:?}");
}

#[test]
fn a_put_that_is_given_up_while_it_waits_for_its_verdict_stays_away() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(2);
    let Request::PutSmall { header, payload, .. } = crate::requests::put_small(id, 10) else { panic!() };
    let call = at.ask(Request::PutSmall { id, header, payload, timeout_ms: Some(100) });
    at.wait(Duration::from_millis(200));
    assert_eq!(failed(&at, call), ErrorKind::TimedOut);
    at.assert_empty();
    let said = at.take_requests(id);
    assert!(said.iter().any(|request| matches!(request, DirectoryRequest::Withdraw { .. })), "{said:?}");
}

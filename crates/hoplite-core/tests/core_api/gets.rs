//! Gets: streams that break, editions that change, time-outs, losses and deletions.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{Edition, ErrorKind, ObjectId, TransferId};

use crate::node::{node, Node, CLIENT};
use crate::puts::{failed, put, viewed};
use crate::requests::{delete, deleted, edition, get, get_partial, inline_of, lend_of, object, SIZE, SMALL};

/// The newest ask for `id` that was sent.
pub fn last_ask(at: &mut Node, id: ObjectId) -> u64 {
    let mut asks = at.take_requests(id).into_iter().filter_map(|request| match request {
        DirectoryRequest::Ask { ask, .. } => Some(ask),
        _ => None,
    });
    asks.next_back().expect("we asked")
}

/// Owner `owner` answers the last ask with this sender. Returns the transfer that begins.
pub fn lend(at: &mut Node, owner: u16, id: ObjectId, sender: u16, edition: Edition, size: u64) -> TransferId {
    let ask = last_ask(at, id);
    at.answer(owner, id, lend_of(ask, sender, edition, size));
    let pull = at.mail.iter().rev().find_map(|(to, message)| match message {
        PeerMessage::Pull { transfer, .. } if *to == node(sender) => Some(*transfer),
        _ => None,
    });
    pull.expect("a lent sender is pulled from")
}

fn offset_pulled(at: &mut Node, transfer: TransferId) -> u64 {
    let pulled = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Pull { transfer: number, offset, .. } if number == transfer => Some(offset),
        _ => None,
    });
    let offset = pulled.expect("pulled");
    assert_eq!(offset, at.receives[&transfer].offset, "both ends must agree");
    offset
}

#[test]
fn a_broken_stream_goes_on_where_it_was_with_another_sender() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(get(id));
    let first = lend(&mut at, 2, id, 3, edition(5), SIZE);
    assert_eq!(offset_pulled(&mut at, first), 0);
    at.break_receive(first, 300_001);
    let asked = at.take_requests(id);
    let failed = asked.iter().find_map(|request| match request {
        DirectoryRequest::Ask { have, failed, .. } => Some((*have, *failed)),
        _ => None,
    });
    assert_eq!(failed, Some((Some(edition(5)), Some(node(3)))));
    let DirectoryRequest::Ask { ask, .. } = asked[0] else { panic!("{asked:?}") };
    at.answer(2, id, lend_of(ask, 4, edition(5), SIZE));
    let (&second, receiving) = at.receives.iter().next().expect("it goes on");
    assert_eq!(receiving.from, node(4));
    assert_eq!(offset_pulled(&mut at, second), 300_001, "no byte is fetched twice");
    at.end_receive(second);
    viewed(&at, call);
}

#[test]
fn another_edition_starts_over_in_a_copy_of_its_own() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(get(id));
    let first = lend(&mut at, 2, id, 3, edition(5), SIZE);
    let abandoned = at.receives[&first].copy;
    at.break_receive(first, 300_001);
    let second = lend(&mut at, 2, id, 4, edition(6), SIZE / 2);
    assert_eq!(offset_pulled(&mut at, second), 0);
    assert!(!at.copies.contains_key(&abandoned));
    at.end_receive(second);
    let Some(Reply::View { size, sealed: true, .. }) = at.reply(call) else { panic!("{:?}", at.reply(call)) };
    assert_eq!(*size, SIZE / 2);
}

#[test]
fn a_partial_view_keeps_an_abandoned_copys_bytes_until_it_is_released() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(get_partial(id));
    let first = lend(&mut at, 2, id, 3, edition(5), SIZE);
    let copy = viewed(&at, call);
    assert!(matches!(at.reply(call), Some(Reply::View { sealed: false, .. })));
    at.break_receive(first, 10);
    let second = lend(&mut at, 2, id, 4, edition(6), SIZE);
    assert!(at.copies[&copy].aborted, "the follower must break off");
    at.ask(Request::Release { copy });
    assert!(!at.copies.contains_key(&copy));
    at.end_receive(second);
    assert_eq!(at.status().copies, 1);
}

#[test]
fn a_refused_pull_and_a_dead_sender_both_lead_to_a_new_ask() {
    for dies in [true, false] {
        let mut at = Node::among(4, 8 << 20);
        let id = at.id_owned_by(2);
        at.ask(get(id));
        let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
        at.take_mail();
        if dies {
            at.kill(3);
        } else {
            at.hear(3, PeerMessage::PullRefused { transfer });
        }
        assert!(at.receives.is_empty());
        let asked = at.take_requests(id);
        let asks = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Ask { failed, .. } if *failed == Some(node(3)));
        assert!(asked.iter().any(asks), "{asked:?}");
    }
}

/// The owner may not know yet that a sender is dead. Then only its broken connection shows that.
#[test]
fn a_sender_that_is_no_member_is_given_up_when_it_cannot_be_reached() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    lend(&mut at, 2, id, 9, edition(5), SIZE);
    at.take_mail();
    at.handle(Input::PeerBroken { node: node(9) });
    assert!(at.receives.is_empty());
    last_ask(&mut at, id);
}

#[test]
fn a_lend_that_is_no_longer_wanted_is_given_back() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(get(id));
    let ask = last_ask(&mut at, id);
    at.ask(Request::Cancel { call });
    assert_eq!(at.take_requests(id), [DirectoryRequest::CancelAsk { ask }]);
    at.answer(2, id, lend_of(ask, 3, edition(5), SIZE));
    assert!(at.receives.is_empty());
    let said = at.take_requests(id);
    assert!(
        matches!(said[..], [DirectoryRequest::Withdraw { edition: e, .. }] if e == edition(5)),
        "{said:?}"
    );
    at.assert_empty();
}

/// A repeated ask is answered twice. The owner must learn which sender we use, or it could lend us to our own sender.
#[test]
fn a_second_lend_is_answered_with_the_actual_sender() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    let ask = last_ask(&mut at, id);
    for sender in [3, 4] {
        at.answer(2, id, lend_of(ask, sender, edition(5), SIZE));
    }
    assert_eq!(at.receives.len(), 1);
    let said = at.take_requests(id);
    let upstream = said.iter().find_map(|request| match request {
        DirectoryRequest::Announce { report, .. } => report.upstream,
        _ => None,
    });
    assert_eq!(upstream, Some(node(3)), "{said:?}");
}

#[test]
fn a_small_object_comes_with_the_answer() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(get(id));
    let ask = last_ask(&mut at, id);
    at.answer(2, id, inline_of(ask, edition(5), SMALL));
    viewed(&at, call);
    at.answer(2, id, inline_of(ask, edition(5), SMALL));
    assert_eq!(at.status().copies, 1);
}

#[test]
fn a_time_out_reports_the_state_of_the_fetch() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    let ask =
        |timeout_ms| Request::Get { id, timeout_ms: Some(timeout_ms), partial: false, fail_if_lost: false };
    let call = at.ask(ask(300));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.break_receive(transfer, 12_345);
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.wait(Duration::from_millis(300));
    let Some(Reply::Failed(error)) = at.reply(call) else { panic!("{:?}", at.reply(call)) };
    assert_eq!(error.kind, ErrorKind::TimedOut);
    let parts = [
        node(1).to_string(),
        node(3).to_string(),
        id.to_string(),
        format!("12345 of {SIZE} bytes"),
        "0.300 s".to_owned(),
        "2 sender(s)".to_owned(),
    ];
    for part in parts {
        assert!(error.message.contains(&part), "no {part:?} in {:?}", error.message);
    }
    // No call wants it any more, but it is on its way and may serve others.
    at.end_receive(transfer);
    assert_eq!(at.status().copies, 1);
}

#[test]
fn a_time_out_of_zero_means_try() {
    let mut at = Node::alone(8 << 20);
    let ask = |id| Request::Get { id, timeout_ms: Some(0), partial: false, fail_if_lost: false };
    let here = object("x");
    put(&mut at, here, SIZE);
    let call = at.ask(ask(here));
    viewed(&at, call);
    let call = at.ask(ask(object("y")));
    assert_eq!(failed(&at, call), ErrorKind::TimedOut);
    assert_eq!(at.status().entries, 1);
}

#[test]
fn a_client_that_is_gone_leaves_nothing_behind() {
    let mut at = Node::among(3, 8 << 20);
    let (id, other) = (at.id_owned_by(2), object("written here"));
    at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.end_receive(transfer);
    at.ask(get_partial(id));
    at.ask(get(object("never comes")));
    at.ask(crate::requests::create(other, SIZE));
    at.handle(Input::ClientGone { client: CLIENT });
    let status = at.status();
    assert_eq!((status.copies, status.transfers, status.entries), (1, 0, 0), "the cached copy stays");
    at.answer(2, id, deleted(&at));
    at.assert_empty();
}

#[test]
fn an_unwanted_half_copy_goes_when_its_last_reader_has_gone() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    let pull =
        PeerMessage::Pull { transfer: TransferId(9), id, edition: edition(5), offset: 0, patient: false };
    at.hear(4, pull);
    at.ask(Request::Cancel { call });
    at.break_receive(transfer, 10);
    assert_eq!(at.status().copies, 1, "node 4 streams behind it");
    let &send = at.sends.keys().next().expect("to node 4");
    at.end_send(send);
    at.assert_empty();
}

#[test]
fn a_loss_fails_only_gets_that_ask_to_be_told() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    let patient = at.ask(get(id));
    let told = at.ask(Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: true });
    at.answer(2, id, DirectoryAnswer::Lost);
    assert_eq!(failed(&at, told), ErrorKind::Lost);
    assert_eq!(at.reply(patient), None);
}

#[test]
fn deleted_ends_every_wait_and_every_stream() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(get(id));
    lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.answer(2, id, deleted(&at));
    assert_eq!(failed(&at, call), ErrorKind::Deleted);
    assert!(at.receives.is_empty());
    at.assert_empty();
}

#[test]
fn a_delete_is_repeated_until_its_owner_confirms_it() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(delete(id));
    at.take_mail();
    at.wait(Duration::from_secs(1));
    let said = at.take_requests(id);
    let Some(&DirectoryRequest::Delete { token }) = said.last() else { panic!("{said:?}") };
    at.answer(2, id, DirectoryAnswer::DeleteDone { token, deletion: None });
    at.answer(2, id, DirectoryAnswer::DeleteDone { token, deletion: None });
    assert_eq!(at.reply(call), Some(&Reply::Done));
}

//! Objects that die with their last node, ids that stay deleted, and copies that are made to stay.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_words::client::{Reply, Request};
use hoplite_words::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_words::{limits, Error, ErrorKind, ObjectId};

use crate::gets::lend;
use crate::node::{node, Node, ME};
use crate::puts::{failed, put};
use crate::requests::{announce, delete, edition, get, object, put_report, received_report, SIZE};

fn get_or_lost(id: ObjectId) -> Request {
    Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: true }
}

fn told(at: &mut Node, id: ObjectId) -> Vec<(u16, DirectoryAnswer)> {
    let mail = at.take_mail().into_iter();
    mail.filter_map(|(to, message)| match message {
        PeerMessage::Answer { id: about, answer } if about == id => Some((to.addr.port(), answer)),
        _ => None,
    })
    .collect()
}

/// Members have come and gone long ago.
pub fn settled(last: u16) -> Node {
    let mut at = Node::among(last, 8 << 20);
    at.wait(Duration::from_secs(10));
    at.take_mail();
    at
}

#[test]
fn who_asks_after_the_loss_is_told_too_and_a_new_put_ends_it() {
    let mut at = settled(3);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(put_report(1, edition(5), SIZE, true)));
    at.kill(3);
    at.take_mail();
    at.request(2, id, DirectoryRequest::Ask { ask: 4, have: None, failed: None });
    assert_eq!(told(&mut at, id), [(2, DirectoryAnswer::Lost)]);
    let call = at.ask(get_or_lost(id));
    let Some(Reply::Failed(Error { kind, object, .. })) = at.reply(call) else { panic!("not answered") };
    assert_eq!((*kind, *object), (ErrorKind::Lost, Some(id)));
    // Repeating the question does not bring the same news again.
    at.request(2, id, DirectoryRequest::Ask { ask: 4, have: None, failed: None });
    assert!(!told(&mut at, id).contains(&(2, DirectoryAnswer::Lost)));
    at.request(2, id, DirectoryRequest::Unask { ask: 4 });
    put(&mut at, id, SIZE);
    let call = at.ask(get_or_lost(id));
    assert!(matches!(at.reply(call), Some(Reply::View { .. })));
}

#[test]
fn a_loss_is_forgotten_in_the_end() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(put_report(1, edition(5), SIZE, true)));
    at.kill(3);
    assert_eq!((at.status().entries, at.status().tombstones), (0, 1));
    at.now += limits::TOMBSTONE_TTL;
    at.handle(Input::Tick);
    assert_eq!((at.status().entries, at.status().tombstones), (0, 0));
}

#[test]
fn a_wait_fails_for_what_its_caller_does_not_know_to_be_lost() {
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
    // What this node was told of before is told to who comes later.
    let late = at.ask(wait(&[]));
    assert_eq!(failed(&at, late), ErrorKind::Lost);
}

/// The owner died together with the only holder: the new owner has only the asker's word.
#[test]
fn part_of_an_object_proves_to_a_new_owner_that_it_is_lost() {
    let mut at = Node::among(2, 8 << 20);
    at.join(3);
    let id = at.id_owned_by(ME);
    at.take_mail();
    at.request(2, id, DirectoryRequest::Ask { ask: 4, have: Some(edition(5)), failed: None });
    assert_eq!(told(&mut at, id), [], "others may hold it, and not have said so yet");
    at.wait(Duration::from_secs(3));
    assert!(told(&mut at, id).contains(&(2, DirectoryAnswer::Lost)));
}

#[test]
fn a_settled_owner_takes_part_of_an_object_for_a_put_that_was_given_up() {
    let mut at = settled(3);
    let id = at.id_owned_by(ME);
    at.request(2, id, DirectoryRequest::Ask { ask: 4, have: Some(edition(5)), failed: None });
    at.wait(Duration::from_secs(10));
    assert!(!told(&mut at, id).contains(&(2, DirectoryAnswer::Lost)));
}

#[test]
fn when_the_pinned_copy_dies_another_is_pinned() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(put_report(1, edition(5), SIZE, true)));
    at.request(2, id, announce(received_report(1, edition(5), SIZE, None)));
    at.kill(3);
    let told = told(&mut at, id);
    assert_eq!(told.iter().filter(|(to, answer)| (*to, answer) == (2, &DirectoryAnswer::Pin)).count(), 1);
}

#[test]
fn a_pinned_cached_copy_is_not_evicted() {
    let mut at = Node::among(3, 2 * SIZE);
    let (id, other) = (at.id_owned_by(2), at.id_owned_by(3));
    let read = at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.end_receive(transfer);
    let Some(Reply::View { copy, .. }) = at.reply(read).cloned() else { panic!("not here") };
    at.ask(Request::Release { copy });
    at.take_mail();
    at.answer(2, id, DirectoryAnswer::Pin);
    let said = at.take_requests(id);
    let pinned = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Announce { report, .. } if report.pinned);
    assert!(said.iter().any(pinned), "{said:?}");
    at.ask(crate::requests::create(other, SIZE + SIZE / 2));
    assert!(at.copies.contains_key(&copy), "there is no room, but it stays");
}

#[test]
fn what_is_to_stay_here_and_is_not_here_is_brought() {
    let mut at = Node::among(3, 8 << 20);
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
fn a_deletion_outlives_its_owner_at_the_one_who_asked_for_it() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(delete(id));
    let said = at.take_requests(id);
    let Some(&DirectoryRequest::Delete { token }) = said.last() else { panic!("{said:?}") };
    at.answer(2, id, DirectoryAnswer::DeleteDone { token });
    assert_eq!(at.reply(call), Some(&Reply::Done));
    at.kill(2);
    let buried = at.take_mail().iter().filter(|(_, message)| is_bury(message, id)).count();
    let here = at.status().tombstones;
    assert!(here + buried as u64 > 0, "the new owner, here or elsewhere, knows");
}

fn is_bury(message: &PeerMessage, about: ObjectId) -> bool {
    let PeerMessage::Directory { id, request: DirectoryRequest::Bury { .. }, .. } = message else {
        return false;
    };
    *id == about
}

#[test]
fn a_holder_that_may_have_missed_the_deletion_hears_it_again() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(put_report(1, edition(5), SIZE, true)));
    at.request(2, id, DirectoryRequest::Delete { token: 1 });
    at.take_mail();
    at.handle(Input::PeerBroken { node: node(3) });
    at.wait(Duration::from_millis(100));
    let is_word = |said: &(u16, DirectoryAnswer)| matches!(said, (3, DirectoryAnswer::Deleted { .. }));
    assert!(told(&mut at, id).iter().any(is_word));
}

#[test]
fn an_owner_breaks_a_ring_of_receivers() {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(received_report(1, edition(5), SIZE, Some(node(3)))));
    at.request(3, id, announce(received_report(1, edition(5), SIZE, Some(node(4)))));
    assert_eq!(told(&mut at, id), []);
    at.request(4, id, announce(received_report(1, edition(5), SIZE, Some(node(2)))));
    assert_eq!(told(&mut at, id), [(4, ask_again(2))]);
}

/// The word that `sender` is not to be received from.
fn ask_again(sender: u16) -> DirectoryAnswer {
    DirectoryAnswer::AskAgain { edition: edition(5), sender: node(sender) }
}

/// The new owner lent a sender before it heard that it serves somebody already.
#[test]
fn a_new_owner_parts_those_who_share_a_sender() {
    let mut at = Node::among(5, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(put_report(1, edition(5), SIZE, true)));
    at.request(3, id, DirectoryRequest::Ask { ask: 4, have: Some(edition(5)), failed: Some(node(5)) });
    assert!(matches!(told(&mut at, id)[..], [(3, DirectoryAnswer::Lend { .. })]));
    at.request(4, id, announce(received_report(1, edition(5), SIZE, Some(node(2)))));
    assert_eq!(told(&mut at, id), [(3, ask_again(2))], "either of the two may stream behind the other");
    at.request(3, id, DirectoryRequest::Ask { ask: 6, have: Some(edition(5)), failed: Some(node(2)) });
    let [(3, DirectoryAnswer::Lend { sender, .. })] = told(&mut at, id)[..] else { panic!() };
    assert_eq!(sender, node(4));
}

/// A chain 2 → 3 → 4 → dead → 5. Node 5 is lent node 2, because nobody else is known yet, and node 3 has to share.
#[test]
fn a_new_owner_parts_those_who_share_when_another_sender_becomes_known() {
    let mut at = Node::among(6, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(put_report(1, edition(5), SIZE, true)));
    at.request(5, id, DirectoryRequest::Ask { ask: 4, have: Some(edition(5)), failed: Some(node(6)) });
    let [(5, DirectoryAnswer::Lend { sender, .. })] = told(&mut at, id)[..] else { panic!() };
    assert_eq!(sender, node(2));
    at.request(5, id, announce(received_report(1, edition(5), SIZE, Some(node(2)))));
    at.request(4, id, announce(received_report(1, edition(5), SIZE, Some(node(3)))));
    at.take_mail();
    at.request(3, id, announce(received_report(1, edition(5), SIZE, Some(node(2)))));
    assert_eq!(told(&mut at, id), [(5, ask_again(2))], "node 3 could stream only from those behind it");
    at.request(5, id, DirectoryRequest::Ask { ask: 6, have: Some(edition(5)), failed: Some(node(2)) });
    let [(5, DirectoryAnswer::Lend { sender, .. })] = told(&mut at, id)[..] else { panic!() };
    assert_eq!(sender, node(4));
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

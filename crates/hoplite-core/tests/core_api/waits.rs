//! `wait`: order of the answers, deletions, new owners, and a wait with no time.

use std::time::Duration;

use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{ErrorKind, ObjectId};

use crate::node::{node, Node, ME};
use crate::puts::{failed, put};
use crate::requests::{announce, delete, edition, object, put_report, SIZE};

pub fn wait(ids: &[ObjectId], count: u32) -> Request {
    Request::Wait { ids: ids.to_vec(), count, timeout_ms: None, fail_if_lost: false, known_lost: Vec::new() }
}

#[test]
fn the_first_ready_ids_are_returned_in_the_order_of_the_list() {
    let mut at = Node::alone(8 << 20);
    let ids = ["a", "b", "c"].map(object);
    let call = at.ask(wait(&ids, 2));
    put(&mut at, ids[2], SIZE);
    assert_eq!(at.reply(call), None);
    let announce = announce(put_report(1, edition(5), SIZE));
    at.request(2, ids[0], announce);
    assert_eq!(at.reply(call), Some(&Reply::Ready { ids: vec![ids[0], ids[2]] }));
    at.request(2, ids[0], DirectoryRequest::Withdraw { seq: 2, edition: edition(5) });
    at.ask(delete(ids[2]));
    at.assert_empty();
}

/// The second wait is answered by what the first one knows, before it has gone through its list.
#[test]
fn an_answered_wait_watches_nothing() {
    let mut at = Node::alone(8 << 20);
    let ids = ["a", "b", "c"].map(object);
    let announce = announce(put_report(1, edition(5), SIZE));
    at.request(2, ids[0], announce);
    let first = at.ask(wait(&ids[..2], 2));
    let second = at.ask(wait(&[ids[0], ids[2]], 1));
    assert_eq!(at.reply(second), Some(&Reply::Ready { ids: vec![ids[0]] }));
    at.ask(Request::Cancel { call: first });
    at.request(2, ids[0], DirectoryRequest::Withdraw { seq: 2, edition: edition(5) });
    at.assert_empty();
}

#[test]
fn a_time_out_returns_the_ready_ids_and_a_deletion_fails() {
    let mut at = Node::alone(8 << 20);
    let ids = ["a", "b"].map(object);
    put(&mut at, ids[1], SIZE);
    let timed = Request::Wait {
        ids: ids.to_vec(),
        count: 2,
        timeout_ms: Some(50),
        fail_if_lost: false,
        known_lost: Vec::new(),
    };
    let timed = at.ask(timed);
    at.wait(Duration::from_millis(50));
    assert_eq!(at.reply(timed), Some(&Reply::Ready { ids: vec![ids[1]] }));
    let call = at.ask(wait(&ids, 2));
    at.ask(delete(ids[0]));
    assert_eq!(failed(&at, call), ErrorKind::Deleted);
    at.ask(delete(ids[1]));
    at.assert_empty();
}

#[test]
fn a_wait_follows_its_objects_to_a_new_owner() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(3);
    let call = at.ask(wait(&[id], 1));
    assert_eq!(at.take_requests(id), [DirectoryRequest::Subscribe { bytes_max: None }]);
    at.kill(3);
    let mail = at.take_mail();
    let to_two = mail.iter().any(|(to, _)| *to == node(2));
    let announce = announce(put_report(1, edition(5), SIZE));
    if to_two {
        let report = put_report(1, edition(5), SIZE);
        let answer = hoplite_types::peer::DirectoryAnswer::Copy { node: node(2), report, payload: None };
        at.answer(2, id, answer);
    } else {
        at.request(2, id, announce);
    }
    assert_eq!(at.reply(call), Some(&Reply::Ready { ids: vec![id] }));
}

fn poll(ids: &[ObjectId], count: u32) -> Request {
    Request::Wait {
        ids: ids.to_vec(),
        count,
        timeout_ms: Some(0),
        fail_if_lost: false,
        known_lost: Vec::new(),
    }
}

/// The request that each owner got behind the subscriptions.
fn polled(at: &mut Node) -> Vec<(u16, u64)> {
    let mail = at.take_mail().into_iter();
    mail.filter_map(|(to, message)| match message {
        PeerMessage::Directory { request: DirectoryRequest::Locate { token }, .. } => {
            Some((to.addr.port(), token))
        }
        _ => None,
    })
    .collect()
}

fn located(token: u64) -> DirectoryAnswer {
    DirectoryAnswer::Located { token, size: None, copies: Vec::new(), deleted: false }
}

#[test]
fn a_wait_with_no_time_hears_its_owners_first() {
    let mut at = Node::among(3, 8 << 20);
    let ids = [at.id_owned_by(2), at.id_owned_by(3), at.id_owned_by(ME)];
    put(&mut at, ids[2], SIZE);
    at.take_mail();
    let call = at.ask(poll(&ids, 3));
    let asked = polled(&mut at);
    let [(2, first), (3, second)] = asked[..] else { panic!("{asked:?}") };
    let report = put_report(1, edition(5), SIZE);
    at.answer(2, ids[0], DirectoryAnswer::Copy { node: node(2), report, payload: None });
    at.answer(2, ids[0], located(first));
    assert_eq!(at.reply(call), None, "the other owner may know more");
    at.answer(3, ids[1], located(second));
    assert_eq!(at.reply(call), Some(&Reply::Ready { ids: vec![ids[0], ids[2]] }));
    assert!(at.take_requests(ids[1]).contains(&DirectoryRequest::Unsubscribe), "it watches nothing");
}

#[test]
fn a_wait_with_no_time_does_not_wait_for_a_silent_owner() {
    let mut at = Node::among(2, 8 << 20);
    let ids = [at.id_owned_by(2), at.id_owned_by(ME)];
    put(&mut at, ids[1], SIZE);
    let call = at.ask(poll(&ids, 2));
    let asked = polled(&mut at);
    at.wait(Duration::from_millis(60));
    assert_eq!(at.reply(call), Some(&Reply::Ready { ids: vec![ids[1]] }));
    // Its answer comes too late, and finds no call.
    at.answer(2, ids[0], located(asked[0].1));
}

#[test]
fn a_wait_with_no_time_asks_no_owner_if_it_need_not() {
    let mut at = Node::among(2, 8 << 20);
    let ours = at.id_owned_by(ME);
    put(&mut at, ours, SIZE);
    let nothing = object("nothing");
    let there = at.ask(poll(&[ours], 1));
    assert_eq!(at.reply(there), Some(&Reply::Ready { ids: vec![ours] }));
    assert_eq!(polled(&mut at), []);
    let mut alone = Node::alone(8 << 20);
    let call = alone.ask(poll(&[nothing], 1));
    assert_eq!(alone.reply(call), Some(&Reply::Ready { ids: vec![] }), "the owner is here");
    alone.assert_empty();
}

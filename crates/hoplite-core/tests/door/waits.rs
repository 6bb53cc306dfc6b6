use std::time::Duration;

use hoplite_words::client::{Reply, Request};
use hoplite_words::peer::DirectoryRequest;
use hoplite_words::{ErrorKind, ObjectId};

use crate::node::{node, Node};
use crate::puts::{failed, put};
use crate::requests::{delete, edition, object, put_report, SIZE};

fn wait(ids: &[ObjectId], count: u32) -> Request {
    Request::Wait { ids: ids.to_vec(), count, timeout_ms: None, fail_if_lost: false, known_lost: Vec::new() }
}

#[test]
fn the_first_ones_ready_are_told_in_the_order_of_the_list() {
    let mut at = Node::alone(8 << 20);
    let ids = ["a", "b", "c"].map(object);
    let call = at.ask(wait(&ids, 2));
    put(&mut at, ids[2], SIZE);
    assert_eq!(at.reply(call), None);
    let announce = DirectoryRequest::Announce {
        report: put_report(1, edition(5), SIZE, true),
        payload: None,
        wants_verdict: false,
    };
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
    let announce = DirectoryRequest::Announce {
        report: put_report(1, edition(5), SIZE, true),
        payload: None,
        wants_verdict: false,
    };
    at.request(2, ids[0], announce);
    let first = at.ask(wait(&ids[..2], 2));
    let second = at.ask(wait(&[ids[0], ids[2]], 1));
    assert_eq!(at.reply(second), Some(&Reply::Ready { ids: vec![ids[0]] }));
    at.ask(Request::Cancel { call: first });
    at.request(2, ids[0], DirectoryRequest::Withdraw { seq: 2, edition: edition(5) });
    at.assert_empty();
}

#[test]
fn time_up_tells_what_is_ready_and_deletion_fails() {
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
    assert_eq!(at.take_requests(id), [DirectoryRequest::Subscribe]);
    at.kill(3);
    let mail = at.take_mail();
    let to_two = mail.iter().any(|(to, _)| *to == node(2));
    let announce = DirectoryRequest::Announce {
        report: put_report(1, edition(5), SIZE, true),
        payload: None,
        wants_verdict: false,
    };
    if to_two {
        let report = put_report(1, edition(5), SIZE, true);
        let answer = hoplite_words::peer::DirectoryAnswer::Copy { node: node(2), report };
        at.answer(2, id, answer);
    } else {
        at.request(2, id, announce);
    }
    assert_eq!(at.reply(call), Some(&Reply::Ready { ids: vec![id] }));
}

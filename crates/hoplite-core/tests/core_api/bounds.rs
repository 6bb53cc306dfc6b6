//! Limits: pages, turns and tables stay bounded however much is requested.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, Scope, ShardQuery};
use hoplite_types::{Blob, ErrorKind, FoldOrder, Header, ObjectId, Stamp};

use crate::node::{node, Node, CLIENT, ME};
use crate::puts::{failed, put};
use crate::requests::{announce, edition, get, object, put_report, reduce, SIZE};

const STORE: u64 = 8 << 20;

/// The others ask for their verdicts themselves.
#[test]
fn a_page_has_a_bounded_number_of_claims_to_one_target() {
    let mut at = Node::among(2, STORE);
    let target = at.id_owned_by(2);
    for _ in 0..1500 {
        at.ask(reduce(target, &[object("never comes")], 1, FoldOrder::Arrival));
    }
    at.take_mail();
    let shards = vec![ShardQuery { shard: target.shard(), digest: None }];
    let (round, scope, from, fresh, clock) = (1, Scope::All, None, false, Stamp::from_ms(0));
    at.hear(2, PeerMessage::InventoryRequest { round, scope, shards, from, fresh, clock });
    let told = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Inventory { page, .. } => Some(page.claims.len()),
        _ => None,
    });
    assert_eq!(told, Some(512));
}

#[test]
fn prefetches_beyond_a_bound_are_left_out() {
    const BOUND: u64 = 1 << 17;
    let mut at = Node::among(2, STORE);
    for round in 0..3 {
        let ids: Vec<_> = (0..60_000).map(|number| object(&format!("hint {round} {number}"))).collect();
        let call = at.ask(Request::Prefetch { ids, nodes: vec![] });
        assert_eq!(at.reply(call), Some(&Reply::Done));
    }
    let left = at.gauge("objects to prefetch");
    assert!((BOUND - 3 * 1024..=BOUND).contains(&left), "{left}");
    at.wait(Duration::from_secs(1));
    assert_eq!((at.gauge("objects to prefetch"), at.gauge("objects wanted") <= BOUND), (0, true));
}

/// No other call is to wait for that.
#[test]
fn a_wait_for_many_objects_watches_a_few_at_a_time() {
    let mut at = Node::among(2, STORE);
    let ids: Vec<_> = (0..5000).map(|number| object(&format!("watched {number}"))).collect();
    let wait = |ids: &[ObjectId], count, timeout_ms| Request::Wait {
        ids: ids.to_vec(),
        count,
        timeout_ms,
        fail_if_lost: false,
        known_lost: vec![],
    };
    let call = at.ask(wait(&ids, 5000, None));
    assert_eq!(at.gauge("objects watched"), 5000);
    let said = |at: &mut Node| {
        let is_it = |message: &PeerMessage| {
            matches!(message, PeerMessage::Directory { request: DirectoryRequest::Subscribe { .. }, .. })
        };
        at.take_mail().iter().filter(|(_, message)| is_it(message)).count()
    };
    let at_once = said(&mut at);
    assert!((1..=1024).contains(&at_once), "{at_once}");
    at.wait(Duration::from_millis(2));
    let in_all = at_once + said(&mut at);
    assert!(in_all > 2000, "{in_all} of about half of 5000");
    // The last of them comes.
    for &id in &ids {
        if at.owner_of(id) == ME {
            at.request(2, id, announce(put_report(1, edition(5), SIZE)));
        } else {
            at.answer(
                2,
                id,
                DirectoryAnswer::Copy {
                    node: node(2),
                    report: put_report(1, edition(5), SIZE),
                    payload: None,
                },
            );
        }
    }
    assert!(matches!(at.reply(call), Some(Reply::Ready { .. })));
    let other = at.ask(wait(&[object("never")], 1, None));
    at.wait(Duration::from_millis(2));
    assert_eq!(at.gauge("objects watched"), 1);
    // The node knows which ids are ready only when it has subscribed to all of them.
    let poll = at.ask(wait(&ids, 5000, Some(0)));
    at.wait(Duration::from_millis(100));
    assert!(at.reply(poll).is_some());
    at.handle(Input::ClientGone { client: CLIENT });
    at.wait(Duration::from_millis(100));
    assert_eq!((at.gauge("objects watched"), at.reply(other)), (0, None));
}

#[test]
fn subscriptions_beyond_a_bound_are_left_out() {
    let mut at = Node::among(2, STORE);
    let ids: Vec<_> = (0..65_536).map(|number| object(&format!("watched {number}"))).collect();
    let wait = || Request::Wait {
        ids: ids.clone(),
        count: 1,
        timeout_ms: None,
        fail_if_lost: false,
        known_lost: vec![],
    };
    for _ in 0..32 {
        at.ask(wait());
    }
    let call = at.ask(wait());
    assert_eq!(failed(&at, call), ErrorKind::LimitReached);
    let call = at.ask(reduce(object("sum"), &[object("one")], 1, FoldOrder::Arrival));
    assert_eq!(failed(&at, call), ErrorKind::LimitReached);
    // Ready ids need no subscription.
    let here = at.id_owned_by(ME);
    put(&mut at, here, SIZE);
    let ready = Request::Wait {
        ids: vec![here],
        count: 1,
        timeout_ms: None,
        fail_if_lost: false,
        known_lost: vec![],
    };
    let call = at.ask(ready);
    assert_eq!(at.reply(call), Some(&Reply::Ready { ids: vec![here] }));
}

#[test]
fn waits_that_are_cancelled_leave_no_work() {
    let mut at = Node::among(2, STORE);
    let ids: Vec<_> = (0..5000).map(|number| object(&format!("watched {number}"))).collect();
    for _ in 0..200 {
        let wait = Request::Wait {
            ids: ids.clone(),
            count: 5000,
            timeout_ms: None,
            fail_if_lost: false,
            known_lost: vec![],
        };
        let call = at.ask(wait);
        at.ask(Request::Cancel { call });
        at.take_mail();
    }
    assert_eq!(at.gauge("objects watched"), 0);
    assert_eq!(at.leftovers(), Vec::<String>::new());
}

/// Their payloads wait in the daemon's own memory.
#[test]
fn small_puts_that_wait_for_space_have_a_bounded_number_of_bytes() {
    const BOUND: usize = 256 << 20;
    const BYTES: usize = 64 << 10;
    let mut at = Node::alone(1 << 20);
    let put = |at: &mut Node, number: usize| {
        let id = object(&format!("small {number}"));
        let payload = Blob(vec![7; BYTES]);
        at.ask(Request::PutSmall { id, header: Header::default(), payload, timeout_ms: None })
    };
    let calls: Vec<_> = (0..5000).map(|number| put(&mut at, number)).collect();
    let open = calls.iter().filter(|&&call| at.reply(call).is_none()).count();
    assert!((BOUND / BYTES - 1..=BOUND / BYTES).contains(&open), "{open} wait");
    assert_eq!(failed(&at, calls[4999]), ErrorKind::LimitReached);
    // A cancelled put makes space for others; an object that is here already can be put again.
    let patient = calls.iter().copied().find(|&call| at.reply(call).is_none()).unwrap();
    at.ask(Request::Cancel { call: patient });
    let call = put(&mut at, 6000);
    assert_eq!(at.reply(call), None);
    let call = put(&mut at, 0);
    assert_eq!(at.reply(call), Some(&Reply::Done));
    at.handle(Input::ClientGone { client: CLIENT });
    at.wait(Duration::from_secs(1));
    assert_eq!(at.gauge("bytes of small puts that wait"), 0);
}

/// A delete does not wait for dead members, and other work does not wait for many deletes.
#[test]
fn deletes_that_waited_for_a_dead_member_end_a_few_at_a_time() {
    let mut at = Node::among(3, STORE);
    for number in 0..20_000 {
        let id = object(&format!("deleted {number}"));
        at.request(3, id, DirectoryRequest::Delete { token: number });
    }
    at.take_mail();
    let before = at.gauge("deletes under way");
    at.handle(Input::PeerGone { node: node(2) });
    let at_once = before - at.gauge("deletes under way");
    assert!(before > 5000 && at_once <= 256, "{at_once} of {before}");
    let mut done = BTreeSet::new();
    for _ in 0..100 {
        at.wait(Duration::from_millis(10));
        done.extend(at.take_mail().into_iter().filter_map(|(to, message)| match message {
            PeerMessage::Answer { answer: DirectoryAnswer::DeleteDone { token, .. }, .. } => {
                Some((to, token))
            }
            _ => None,
        }));
    }
    assert!(done.len() > 2000, "{}", done.len());
}

/// No other call is to wait for that.
#[test]
fn the_questions_of_many_gets_are_repeated_a_few_at_a_time() {
    let mut at = Node::among(2, STORE);
    for number in 0..5000 {
        at.ask(get(object(&format!("unknown {number}"))));
    }
    let asked = |at: &mut Node| {
        let is_it = |message: &PeerMessage| {
            matches!(message, PeerMessage::Directory { request: DirectoryRequest::Ask { .. }, .. })
        };
        at.take_mail().iter().filter(|(_, message)| is_it(message)).count()
    };
    let in_all = asked(&mut at);
    at.now += Duration::from_millis(1001);
    at.handle(Input::Tick);
    let at_once = asked(&mut at);
    assert!((1..=256).contains(&at_once), "{at_once} of {in_all}");
    at.wait(Duration::from_millis(100));
    assert_eq!(at_once + asked(&mut at), in_all);
}

#[test]
fn the_reductions_of_a_client_that_is_gone_end_a_few_at_a_time() {
    let mut at = Node::among(2, STORE);
    for number in 0..16 {
        let sources: Vec<_> = (0..4096).map(|source| object(&format!("source {number} {source}"))).collect();
        at.ask(reduce(object(&format!("sum {number}")), &sources, 1, FoldOrder::Arrival));
    }
    let watched = at.gauge("objects watched");
    at.handle(Input::ClientGone { client: CLIENT });
    let at_once = watched - at.gauge("objects watched");
    assert!((1..=4096).contains(&at_once), "{at_once} of {watched}");
    at.wait(Duration::from_millis(100));
    assert_eq!(at.gauge("objects watched"), 0);
}

fn subscribed(at: &mut Node) -> usize {
    let is_it = |message: &PeerMessage| {
        matches!(message, PeerMessage::Directory { request: DirectoryRequest::Subscribe { .. }, .. })
    };
    at.take_mail().iter().filter(|(_, message)| is_it(message)).count()
}

/// A report with the bytes of a source ends the subscription, so the owner is asked anew.
#[test]
fn the_loss_of_many_watched_copies_is_reported_a_few_at_a_time() {
    let mut at = Node::among(2, STORE);
    let sources: Vec<_> = (0..4000).map(|number| object(&format!("source {number}"))).collect();
    at.ask(reduce(object("sum"), &sources, 4000, FoldOrder::Arrival));
    at.wait(Duration::from_millis(50));
    for &id in &sources[1..] {
        let (report, payload) = (put_report(1, edition(5), 8), Some(Blob(vec![0; 8])));
        at.answer(2, id, DirectoryAnswer::Copy { node: node(3), report, payload });
    }
    at.take_mail();
    at.handle(Input::PeerGone { node: node(3) });
    let at_once = subscribed(&mut at);
    assert!((1..=1024).contains(&at_once), "{at_once}");
    at.wait(Duration::from_millis(50));
    let in_all = at_once + subscribed(&mut at);
    assert!(in_all > 1800, "{in_all} of about half of 4000");
}

#[test]
fn copies_of_a_node_that_is_gone_count_no_more_before_their_watchers_are_told() {
    let mut at = Node::among(2, STORE);
    let ids: Vec<_> = (0..5000).map(|number| object(&format!("watched {number}"))).collect();
    let wait = |ids: &[ObjectId]| Request::Wait {
        ids: ids.to_vec(),
        count: ids.len() as u32,
        timeout_ms: None,
        fail_if_lost: false,
        known_lost: vec![],
    };
    at.ask(wait(&ids));
    at.wait(Duration::from_millis(50));
    let report = || put_report(1, edition(5), SIZE);
    for &id in &ids[1..] {
        at.answer(2, id, DirectoryAnswer::Copy { node: node(3), report: report(), payload: None });
    }
    let before = at.ask(wait(&ids[1..2]));
    assert!(at.reply(before).is_some());
    at.handle(Input::PeerGone { node: node(3) });
    for &id in &ids[1..] {
        let call = at.ask(wait(&[id]));
        assert_eq!(at.reply(call), None);
        at.ask(Request::Cancel { call });
    }
    // It comes elsewhere before they are told.
    let other = *ids.iter().max().unwrap();
    at.answer(2, other, DirectoryAnswer::Copy { node: node(4), report: report(), payload: None });
    at.wait(Duration::from_millis(50));
    let call = at.ask(wait(&[other]));
    assert!(at.reply(call).is_some());
    at.handle(Input::ClientGone { client: CLIENT });
    at.wait(Duration::from_millis(50));
    assert_eq!(at.leftovers(), Vec::<String>::new());
}

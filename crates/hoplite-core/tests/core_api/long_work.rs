//! Many clients that wait for one object, or watch it, are answered in turns; events between two turns count.

use std::time::Duration;

use hoplite_core::io::{ClientId, Event};
use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, SlotAssignment, Source, Verdict};
use hoplite_types::{Blob, ErrorKind, FoldOrder, NodeId, ObjectId};

use crate::crashes::{reduction, root_assignment};
use crate::gets::{last_ask, lend};
use crate::node::{node, Node, CLIENT};
use crate::puts::{created, failed, put};
use crate::requests::{
    announce, array, create, delete, deleted, edition, get, get_partial, lend_of, object, put_report, reduce,
    stamp_of, SIZE, SMALL,
};
use crate::waits::wait;

const STORE: u64 = 8 << 20;

/// The longest waiting calls come first, and no other call waits for all of them.
#[test]
fn many_gets_of_an_object_that_is_sealed_are_answered_in_turns() {
    for deleted in [false, true] {
        let mut at = Node::alone(STORE);
        let id = object("slow");
        let call = at.ask(create(id, SIZE));
        let copy = created(&at, call);
        let mut calls: Vec<_> = (0..8000).map(|_| at.ask(get(id))).collect();
        at.ask(Request::Seal { copy, timeout_ms: None });
        let answered = |at: &Node| calls.iter().take_while(|&&call| has_view(at, call)).count();
        let at_once = answered(&at);
        assert!((1..=4000).contains(&at_once), "{at_once}");
        assert!(calls[at_once..].iter().all(|&call| !at.replies.contains_key(&(CLIENT, call))), "in order");
        // A new get is answered at once with the copy that is here, and no other get has timed out for it.
        let last = at.ask(Request::Get { id, timeout_ms: Some(0), partial: false, fail_if_lost: false });
        assert!(has_view(&at, last));
        if deleted {
            at.ask(delete(id));
        }
        at.wait(Duration::from_millis(50));
        let views = answered(&at);
        if !deleted {
            assert_eq!(views, 8000);
        } else {
            assert!(views < 8000);
            assert!(calls.split_off(views).into_iter().all(|call| failed(&at, call) == ErrorKind::Deleted));
        }
        at.handle(Input::ClientGone { client: CLIENT });
        at.wait(Duration::from_millis(50));
        if deleted {
            at.assert_empty();
        }
    }
}

fn has_view(at: &Node, call: u64) -> bool {
    matches!(at.replies.get(&(CLIENT, call)), Some(Reply::View { sealed: true, .. }))
}

#[test]
fn a_get_whose_time_is_up_gets_the_copy_that_is_here() {
    let mut at = Node::alone(STORE);
    let id = object("slow");
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let patient: Vec<_> = (0..8000).map(|_| at.ask(get(id))).collect();
    let (timeout_ms, partial, fail_if_lost) = (Some(10), false, false);
    let hasty = at.ask(Request::Get { id, timeout_ms, partial, fail_if_lost });
    at.now += Duration::from_millis(10);
    at.ask(Request::Seal { copy, timeout_ms: None });
    assert!(has_view(&at, hasty) && !has_view(&at, patient[7999]));
}

/// They are not forgotten, and get it when it comes once more.
#[test]
fn a_copy_that_goes_before_all_have_it_is_fetched_for_the_others() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let calls: Vec<_> = (0..8000).map(|_| at.ask(get(id))).collect();
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.end_receive(transfer);
    at.take_mail();
    // Its owner has another content than the one that came.
    let verdict = Verdict::Exists(stamp_of(edition(9)));
    at.answer(2, id, DirectoryAnswer::Verdict { edition: edition(5), verdict });
    let transfer = lend(&mut at, 2, id, 3, edition(9), SIZE);
    at.wait(Duration::from_millis(50));
    assert!(has_view(&at, calls[0]) && !has_view(&at, calls[7999]));
    at.end_receive(transfer);
    at.wait(Duration::from_millis(50));
    assert!(calls.into_iter().all(|call| has_view(&at, call)));
}

/// The first gets are answered first. Gets that time out meanwhile are told of the loss or deletion, too.
#[test]
fn many_gets_of_a_lost_or_deleted_object_fail_in_turns() {
    for kind in [ErrorKind::Deleted, ErrorKind::Lost] {
        let mut at = Node::among(2, STORE);
        let id = at.id_owned_by(2);
        let get = |timeout_ms| Request::Get { id, timeout_ms, partial: false, fail_if_lost: true };
        let calls: Vec<_> = (0..8000).map(|_| at.ask(get(None))).collect();
        let (hasty, cancelled) = (at.ask(get(Some(10))), at.ask(get(None)));
        at.now += Duration::from_millis(10);
        let answer = if kind == ErrorKind::Deleted { deleted(&at) } else { DirectoryAnswer::Lost };
        at.answer(2, id, answer);
        let told = |at: &Node| calls.iter().filter(|&&call| at.replies.contains_key(&(CLIENT, call))).count();
        let at_once = told(&at);
        assert!((1..=1024).contains(&at_once), "{at_once}");
        assert!(at.replies.contains_key(&(CLIENT, calls[at_once - 1])), "in order");
        if kind == ErrorKind::Deleted {
            assert_eq!(failed(&at, hasty), kind);
        }
        at.ask(Request::Cancel { call: cancelled });
        at.wait(Duration::from_millis(50));
        assert!(calls.iter().all(|&call| failed(&at, call) == kind));
        assert_eq!(at.reply(cancelled), None);
        at.handle(Input::ClientGone { client: CLIENT });
        at.wait(Duration::from_millis(50));
        assert_eq!(at.gauge("objects wanted"), 0);
    }
}

/// It comes after all, before all are told that it is lost.
#[test]
fn an_object_that_comes_after_all_is_not_reported_lost() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let get = Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: true };
    let calls: Vec<_> = (0..8000).map(|_| at.ask(get.clone())).collect();
    at.answer(2, id, DirectoryAnswer::Lost);
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.wait(Duration::from_millis(50));
    let left = calls.iter().filter(|&&call| at.reply(call).is_none()).count();
    assert!((4000..8000).contains(&left), "{left}");
    at.end_receive(transfer);
    at.wait(Duration::from_millis(50));
    assert!(has_view(&at, calls[7999]));
}

#[test]
fn many_waits_for_one_object_are_answered_in_turns() {
    let complete =
        || DirectoryAnswer::Copy { node: node(2), report: put_report(1, edition(5), SIZE), payload: None };
    for kind in [None, Some(ErrorKind::Lost), Some(ErrorKind::Deleted)] {
        let mut at = Node::among(2, STORE);
        let id = at.id_owned_by(2);
        let wait = Request::Wait {
            ids: vec![object("never"), id],
            count: 1,
            timeout_ms: None,
            fail_if_lost: true,
            known_lost: vec![],
        };
        let calls: Vec<_> = (0..8000).map(|_| at.ask(wait.clone())).collect();
        let answer = match kind {
            None => complete(),
            Some(ErrorKind::Lost) => DirectoryAnswer::Lost,
            Some(_) => deleted(&at),
        };
        // Gets that were not answered yet continue.
        let cancelled = at.ask(wait);
        at.answer(2, id, answer);
        at.ask(Request::Cancel { call: cancelled });
        let told = |at: &Node| calls.iter().filter(|&&call| at.replies.contains_key(&(CLIENT, call))).count();
        let at_once = told(&at);
        assert!((1..=1024).contains(&at_once), "{at_once}");
        at.wait(Duration::from_millis(50));
        match kind {
            None => {
                let ready = Reply::Ready { ids: vec![id] };
                assert!(calls.iter().all(|&call| at.reply(call) == Some(&ready)));
            }
            Some(kind) => assert!(calls.iter().all(|&call| failed(&at, call) == kind)),
        }
        assert_eq!(at.reply(cancelled), None);
        at.wait(Duration::from_millis(50));
        assert_eq!(at.gauge("objects watched"), 0);
        let left = at.leftovers();
        assert!(left.iter().all(|left| !left.contains("telling")), "{left:?}");
    }
}

/// The last of them get the state at their turn.
#[test]
fn events_of_an_object_that_many_watch_stay_in_order() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(2);
    let ids = vec![object("never"), id];
    let wait = Request::Wait { ids, count: 1, timeout_ms: None, fail_if_lost: true, known_lost: vec![] };
    let calls: Vec<_> = (0..8000).map(|_| at.ask(wait.clone())).collect();
    at.answer(2, id, DirectoryAnswer::Lost);
    let report = put_report(1, edition(5), SIZE);
    at.answer(2, id, DirectoryAnswer::Copy { node: node(2), report, payload: None });
    at.wait(Duration::from_millis(50));
    let lost = calls.iter().filter(|&&call| matches!(at.reply(call), Some(Reply::Failed(_)))).count();
    let ready = calls.iter().filter(|&&call| matches!(at.reply(call), Some(Reply::Ready { .. }))).count();
    assert!(lost <= 1024 && lost + ready == 8000, "{lost}, {ready}");
}

/// They take no other wait's turn, wherever they stand in the list.
#[test]
fn new_waits_do_not_delay_those_that_are_answered_in_turns() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(2);
    let wait = |count| wait(&[object("never"), id], count);
    let clients = [CLIENT, ClientId(2)];
    let calls = clients.map(|client| (0..1500).map(|_| at.ask_as(client, wait(1))).collect::<Vec<_>>());
    let report = put_report(1, edition(5), SIZE);
    at.answer(2, id, DirectoryAnswer::Copy { node: node(2), report, payload: None });
    assert_eq!(at.reply(calls[1][0]), None);
    for _ in 0..500 {
        at.ask(wait(2));
    }
    at.wait(Duration::from_millis(50));
    let ready = Reply::Ready { ids: vec![id] };
    let told = |call: &u64| at.reply(*call) == Some(&ready);
    assert_eq!(calls.iter().flatten().filter(|call| !told(call)).count(), 0);
}

/// The owner was asked long before, and sends the deletion only once.
#[test]
fn new_waits_hear_of_a_deletion_that_is_reported_in_turns() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(2);
    let wait = wait(&[object("never"), id], 1);
    let clients = [3, 4].map(ClientId);
    let mut calls: Vec<_> = (0..3000).map(|number| at.ask_as(clients[number / 1500], wait.clone())).collect();
    let gone = deleted(&at);
    at.answer(2, id, gone);
    calls.extend([2, 3, 4, 5].map(|client| at.ask_as(ClientId(client), wait.clone())));
    at.wait(Duration::from_millis(50));
    assert!(calls
        .into_iter()
        .all(|call| at.reply(call).is_some() && failed(&at, call) == ErrorKind::Deleted));
}

/// Objects of a wait that was cancelled may be watched for a while.
#[test]
fn a_wait_that_takes_the_number_of_another_one_waits_for_its_own_objects() {
    let mut at = Node::among(2, STORE);
    let ids: Vec<_> = (0..5000).map(|number| object(&format!("watched {number}"))).collect();
    let wait = |at: &mut Node, ids: Vec<ObjectId>| {
        let (count, timeout_ms, fail_if_lost, known_lost) = (1, None, false, vec![]);
        let request = Request::Wait { ids, count, timeout_ms, fail_if_lost, known_lost };
        at.handle(Input::Client { client: CLIENT, call: 1 << 40, request });
    };
    wait(&mut at, ids.clone());
    at.wait(Duration::from_millis(20));
    at.ask(Request::Cancel { call: 1 << 40 });
    wait(&mut at, vec![object("never")]);
    for &id in &ids[..100] {
        let report = put_report(1, edition(5), SIZE);
        at.answer(2, id, DirectoryAnswer::Copy { node: node(2), report, payload: None });
    }
    at.wait(Duration::from_millis(20));
    assert_eq!(at.reply(1 << 40), None);
}

/// One put waits in front of the others, or all of them continue.
#[test]
fn many_puts_of_one_object_continue_in_turns() {
    let mut at = Node::alone(STORE);
    let id = object("slow");
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let calls: Vec<_> = (0..8000).map(|_| at.ask(create(id, SIZE))).collect();
    at.ask(Request::Abort { copy });
    let copy = created(&at, calls[0]);
    at.wait(Duration::from_millis(50));
    assert!(calls[1..].iter().all(|&call| at.reply(call).is_none()));
    // It takes all space: the others wait for that.
    at.ask(Request::Abort { copy });
    let copy = created(&at, calls[1]);
    let full = object("full");
    put(&mut at, full, STORE - SIZE - 4096);
    put(&mut at, object("rest"), 3 << 10);
    at.ask(Request::Abort { copy });
    let copy = created(&at, calls[2]);
    at.ask(Request::Seal { copy, timeout_ms: None });
    at.wait(Duration::from_millis(50));
    assert!(calls[3..].iter().all(|&call| at.reply(call) == Some(&Reply::Done)));
}

/// None of them becomes a new writing, or follows one.
#[test]
fn many_puts_and_gets_of_a_deleted_object_all_fail() {
    for request in [create(object("x"), SIZE), get_partial(object("x"))] {
        let mut at = Node::alone(STORE);
        let first = match request {
            Request::Create { .. } => Some(at.ask(create(object("x"), SIZE))),
            _ => None,
        };
        let calls: Vec<_> = (0..4000).map(|_| at.ask(request.clone())).collect();
        at.ask(delete(object("x")));
        at.ask(create(object("x"), SIZE));
        at.wait(Duration::from_millis(50));
        let is_told = |call: &u64| match at.reply(*call) {
            Some(Reply::Failed(error)) => error.kind == ErrorKind::Deleted,
            _ => false,
        };
        assert_eq!(calls.iter().filter(|call| !is_told(call)).count(), 0);
        // The copies that their clients may be writing.
        assert_eq!(at.status().copies, 1 + u64::from(first.is_some()));
    }
}

#[test]
fn many_partial_gets_are_answered_in_turns() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let calls: Vec<_> = (0..8000).map(|_| at.ask(get_partial(id))).collect();
    let whole = at.ask(get(id));
    lend(&mut at, 2, id, 3, edition(5), SIZE);
    let served = |at: &Node| calls.iter().filter(|&&call| at.replies.contains_key(&(CLIENT, call))).count();
    let at_once = served(&at);
    assert!((1..=1024).contains(&at_once), "{at_once}");
    at.wait(Duration::from_millis(50));
    assert_eq!((served(&at), at.reply(whole)), (8000, None));
}

/// Of one object, or of many.
#[test]
fn many_puts_that_wait_for_space_continue_in_turns() {
    for one in [true, false] {
        let mut at = Node::alone(STORE);
        let full = object("full");
        put(&mut at, full, STORE - 4096);
        let id = |number| object(&format!("waits {}", if one { 0 } else { number }));
        let calls: Vec<_> = (0..4000).map(|number| at.ask(create(id(number), 500))).collect();
        at.wait(Duration::from_millis(10));
        let done = |at: &Node| calls.iter().filter(|&&call| at.replies.contains_key(&(CLIENT, call))).count();
        let before = done(&at);
        at.ask(delete(full));
        let at_once = done(&at);
        if one {
            let copy = created(&at, calls[0]);
            at.ask(Request::Seal { copy, timeout_ms: None });
        } else {
            assert!((1..=1024).contains(&(at_once - before)), "{at_once}");
        }
        at.wait(Duration::from_millis(50));
        assert_eq!(done(&at), 4000);
    }
}

/// Unused small copies. There is space for so many of each size.
const SMALL_COPIES: u64 = 2500;
const LARGE: u64 = 2400 * (SMALL.next_multiple_of(64) + 64);

/// Room for them, and for so many bytes besides.
fn among_with_room(more: u64) -> Node {
    Node::among(2, SMALL_COPIES * (SMALL.next_multiple_of(64) + 64) + more)
}

fn fill_with_small_copies(at: &mut Node) {
    let before = at.copies.len();
    for number in 0.. {
        if at.copies.len() - before == SMALL_COPIES as usize {
            break;
        }
        let (id, report) = (object(&format!("small {number}")), put_report(1, edition(5), SMALL));
        let payload = Some(Blob(vec![0; SMALL as usize]));
        at.request(2, id, DirectoryRequest::Announce { report, payload, wants_verdict: false });
    }
    at.take_mail();
}

fn evicted(at: &Node) -> usize {
    at.events.iter().filter(|event| matches!(event, Event::Evicted { .. })).count()
}

#[track_caller]
fn assert_evicts_some(at: &Node) {
    let at_once = evicted(at);
    assert!((1..=1024).contains(&at_once), "{at_once}");
}

/// It does not delay smaller objects that fit.
#[test]
fn space_for_a_large_put_is_made_in_turns() {
    let mut at = among_with_room(0);
    fill_with_small_copies(&mut at);
    let call = at.ask(create(object("large"), LARGE));
    assert_evicts_some(&at);
    assert_eq!(at.reply(call), None);
    let small = at.ask(create(object("another"), SMALL));
    created(&at, small);
    at.wait(Duration::from_millis(50));
    created(&at, call);
    assert!(evicted(&at) > 2000);
}

#[test]
fn space_for_several_large_puts_is_made_for_one_after_the_other() {
    let mut at = among_with_room(0);
    fill_with_small_copies(&mut at);
    let calls = ["a", "b", "c"].map(|name| at.ask(create(object(name), LARGE / 3)));
    assert_evicts_some(&at);
    let done = |at: &Node| calls.map(|call| at.reply(call).is_some());
    let mut steps = vec![done(&at)];
    for _ in 0..50 {
        at.now += Duration::from_micros(100);
        at.handle(Input::Tick);
        if steps.last() != Some(&done(&at)) {
            steps.push(done(&at));
        }
    }
    let (yes, no) = (true, false);
    assert_eq!(steps, [[no, no, no], [yes, no, no], [yes, yes, no], [yes, yes, yes]]);
}

/// It asks for a sender again once all of that space is there.
#[test]
fn space_for_a_large_fetch_is_made_in_turns() {
    let mut at = among_with_room(0);
    fill_with_small_copies(&mut at);
    let id = at.id_owned_by(2);
    let call = at.ask(get(id));
    let ask = last_ask(&mut at, id);
    at.answer(2, id, lend_of(ask, 2, edition(5), LARGE));
    assert_evicts_some(&at);
    at.take_mail();
    at.wait(Duration::from_millis(50));
    assert!(evicted(&at) > 2000);
    let asks = at.mail.iter().filter(|(_, message)| {
        matches!(message, PeerMessage::Directory { request: DirectoryRequest::Ask { .. }, .. })
    });
    assert_eq!(asks.count(), 1);
    let transfer = lend(&mut at, 2, id, 2, edition(5), LARGE);
    at.end_receive(transfer);
    assert!(has_view(&at, call));
}

/// Its own sources are not evicted for it, although they were used least recently.
#[test]
fn space_for_a_large_sum_is_made_in_turns() {
    let mut at = among_with_room(LARGE + 64);
    let source = at.id_owned_by(2);
    at.ask(get(source));
    let transfer = lend(&mut at, 2, source, 2, edition(5), LARGE);
    at.end_receive(transfer);
    at.handle(Input::ClientGone { client: CLIENT });
    fill_with_small_copies(&mut at);
    let sources = vec![Source { id: source, edition: edition(5) }];
    let assignment = root_assignment(&mut at, object("sum"), source);
    let assignment = SlotAssignment { size: LARGE, header: array(LARGE), sources, ..assignment };
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment });
    assert_evicts_some(&at);
    assert!(at.folds.is_empty());
    at.wait(Duration::from_millis(50));
    assert_eq!(at.folds.len(), 1);
}

fn sources(count: usize) -> Vec<ObjectId> {
    (0..count).map(|number| object(&format!("source {number}"))).collect()
}

fn assignments(mail: &[(NodeId, PeerMessage)]) -> usize {
    mail.iter().filter(|(_, message)| matches!(message, PeerMessage::AssignSlot { .. })).count()
}

/// No slot is assigned before the owners have answered about all sources.
#[test]
fn the_sources_of_a_large_reduction_are_watched_and_assigned_in_turns() {
    let mut at = Node::alone(STORE);
    let sources = sources(4096);
    for (&source, from) in sources.iter().zip(3..) {
        at.request(from, source, announce(put_report(1, edition(5), 700_000)));
    }
    at.take_mail();
    at.ask(reduce(object("sum"), &sources, 4096, FoldOrder::Fixed));
    assert_eq!(at.gauge("objects watched"), 4096, "also those that are to be");
    let mut told = Vec::new();
    for _ in 0..20 {
        at.now += Duration::from_micros(100);
        at.handle(Input::Tick);
        told.push(assignments(&at.take_mail()));
    }
    told.retain(|&count| count > 0);
    assert!(told.len() > 2 && told.iter().all(|&count| count <= 1024), "{told:?}");
    // The first in order is a source, and no partial sum.
    assert_eq!(told.iter().sum::<usize>(), 4095);
    assert_eq!(at.gauge("objects watched"), 4096);
}

/// It is given up before it has subscribed to all of them.
#[test]
fn a_large_reduction_that_is_given_up_at_once_watches_nothing() {
    let mut at = Node::among(2, STORE);
    let request = match reduce(object("sum"), &sources(4096), 1, FoldOrder::Arrival) {
        Request::Reduce { target, sources, num_objects, op, order, to_sources, .. } => {
            let timeout_ms = Some(0);
            Request::Reduce { target, sources, num_objects, op, order, timeout_ms, to_sources }
        }
        other => other,
    };
    let call = at.ask(request);
    assert_eq!(failed(&at, call), ErrorKind::TimedOut);
    at.wait(Duration::from_millis(50));
    assert_eq!(at.gauge("objects watched"), 0);
    let left = at.leftovers();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn many_small_sources_are_got_in_turns() {
    let mut at = Node::alone(STORE);
    at.measure(Duration::from_millis(1));
    let sources = sources(4096);
    for &source in &sources {
        at.request(3, source, announce(put_report(1, edition(5), 100)));
    }
    at.take_mail();
    at.ask(reduce(object("sum"), &sources, 4096, FoldOrder::Arrival));
    let mut wanted = vec![at.gauge("objects wanted")];
    for _ in 0..20 {
        at.now += Duration::from_micros(100);
        at.handle(Input::Tick);
        wanted.push(at.gauge("objects wanted"));
    }
    assert_eq!(wanted.last(), Some(&4096));
    assert!(wanted.windows(2).all(|turn| turn[1] - turn[0] <= 1024), "{wanted:?}");
}

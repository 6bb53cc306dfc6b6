//! Small sources of a reduction travel with the notification that they exist.

use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{limits, Blob, FoldOrder, NodeId, ObjectId};

use crate::gets::last_ask;
use crate::node::{node, Node, ME};
use crate::requests::{
    announce, edition, inline_of, object, put_report, received_report, reduce, SIZE, SMALL,
};

const STORE: u64 = 8 << 20;

fn bytes(size: u64) -> Option<Blob> {
    Some(Blob(vec![1; size as usize]))
}

/// The subscribers that the owner told of copies since the mail was last taken, with the holder, and whether the bytes
/// came with it.
fn told(at: &mut Node) -> Vec<(NodeId, NodeId, bool)> {
    let copies = at.take_mail().into_iter().filter_map(|(to, message)| match message {
        PeerMessage::Answer { answer: DirectoryAnswer::Copy { node, payload, .. }, .. } => {
            Some((to, node, payload.is_some()))
        }
        _ => None,
    });
    copies.collect()
}

fn announced(at: &mut Node, from: u16, id: ObjectId, size: u64) {
    let payload = bytes(size).filter(|_| size == SMALL);
    let report = put_report(1, edition(u64::from(from)), size);
    at.request(from, id, DirectoryRequest::Announce { report, payload, wants_verdict: false });
}

#[test]
fn a_subscriber_for_the_bytes_hears_nothing_after_them() {
    let mut at = Node::alone(STORE);
    let id = object("x");
    at.request(3, id, DirectoryRequest::Subscribe { bytes_max: Some(limits::INLINE_BYTES_MAX) });
    at.request(4, id, DirectoryRequest::Subscribe { bytes_max: None });
    at.request(2, id, DirectoryRequest::Subscribe { bytes_max: Some(limits::INLINE_BYTES_MAX) });
    announced(&mut at, 2, id, SMALL);
    let (mine, put) = (node(ME), node(2));
    // Node 2 put it, and node 4 did not ask for its bytes. The owner's own copy is reported without bytes.
    let of_the_put = [(3, true), (4, false), (2, false)].map(|(watcher, bytes)| (node(watcher), put, bytes));
    let of_mine = [4, 2].map(|watcher| (node(watcher), mine, false));
    assert_eq!(told(&mut at), [&of_the_put[..], &of_mine].concat());
    for _ in 0..2 {
        // A node that asks once more has missed them.
        at.request(5, id, DirectoryRequest::Subscribe { bytes_max: Some(limits::INLINE_BYTES_MAX) });
        assert_eq!(told(&mut at), [(node(5), mine, false), (node(5), put, true)]);
    }
    at.request(6, id, announce(received_report(1, edition(2), SMALL, None)));
    assert_eq!(told(&mut at), [4, 2].map(|watcher| (node(watcher), node(6), false)));
}

#[test]
fn an_object_is_brought_where_it_is_neither_held_nor_asked_for() {
    let mut at = Node::among(5, STORE);
    let id = at.id_owned_by(ME);
    at.request(3, id, DirectoryRequest::Ask { ask: 1, have: None, failed: None });
    announced(&mut at, 2, id, SMALL);
    at.request(4, id, DirectoryRequest::Subscribe { bytes_max: None });
    at.take_mail();
    at.request(2, id, DirectoryRequest::Bring { nodes: [ME, 2, 3, 4].map(node).to_vec() });
    assert_eq!(at.take_mail(), [(node(4), PeerMessage::Prefetch { id })]);
}

#[test]
fn the_bytes_of_large_objects_are_not_sent() {
    let mut at = Node::alone(STORE);
    let id = object("x");
    at.request(3, id, DirectoryRequest::Subscribe { bytes_max: Some(limits::INLINE_BYTES_MAX) });
    announced(&mut at, 2, id, SIZE);
    assert_eq!(told(&mut at), [(node(3), node(2), false)]);
}

/// A reduction called here over sources that node 2 owns, which reports each, with its bytes or without.
fn called(
    store: u64,
    count: usize,
    k: u32,
    told: impl Fn(usize) -> Option<Blob>,
) -> (Node, u64, Vec<ObjectId>) {
    let mut at = Node::among(2, store);
    let names = (0..).map(|index| object(&format!("source {index}")));
    let sources: Vec<_> = names.filter(|&id| at.owner_of(id) == 2).take(count).collect();
    let target = at.id_owned_by(ME);
    let call = at.ask(reduce(target, &sources, k, FoldOrder::Arrival));
    for (index, &source) in sources.iter().enumerate() {
        let answer =
            DirectoryAnswer::Copy { node: node(2), report: source_report(index), payload: told(index) };
        at.answer(2, source, answer);
    }
    at.wait(std::time::Duration::from_millis(100));
    (at, call, sources)
}

fn source_report(index: usize) -> CopyReport {
    put_report(1, edition(10 + index as u64), SMALL)
}

fn asked_for(at: &mut Node) -> Vec<ObjectId> {
    let asks = at.take_mail().into_iter().filter_map(|(_, message)| match message {
        PeerMessage::Directory { id, request: DirectoryRequest::Ask { .. }, .. } => Some(id),
        _ => None,
    });
    asks.collect()
}

fn end(at: &mut Node, call: u64) -> Vec<ObjectId> {
    let (&fold, _) = at.folds.iter().next().expect("all that is needed is there");
    at.end_fold(fold);
    match at.reply(call) {
        Some(Reply::Reduced { sources }) => sources.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sources_that_came_are_folded_and_leave_nothing_but_the_target() {
    let (mut at, call, sources) = called(STORE, 3, 3, |_| bytes(SMALL));
    let mail = at.take_mail();
    let said = |wanted: fn(&DirectoryRequest) -> bool| {
        let is_it = |(_, message): &&(NodeId, PeerMessage)| matches!(message, PeerMessage::Directory { request, .. } if wanted(request));
        mail.iter().filter(is_it).count()
    };
    assert_eq!(said(|request| matches!(request, DirectoryRequest::Ask { .. })), 0);
    assert_eq!(said(|request| matches!(request, DirectoryRequest::Announce { .. })), 0, "nobody is to know");
    assert_eq!(end(&mut at, call), sources);
    assert_eq!(at.status().copies, 1);
    assert_eq!(unsubscribed(&mut at), [], "their owner has ended that with their bytes");
}

fn unsubscribed(at: &mut Node) -> Vec<ObjectId> {
    let said = at.take_mail().into_iter().filter_map(|(_, message)| match message {
        PeerMessage::Directory { id, request: DirectoryRequest::Unsubscribe, .. } => Some(id),
        _ => None,
    });
    said.collect()
}

#[test]
fn sources_that_came_are_not_subscribed_to_again_and_others_are() {
    let (mut at, _, sources) = called(STORE, 2, 2, |index| bytes(SMALL).filter(|_| index == 0));
    at.take_mail();
    at.wait(std::time::Duration::from_secs(2));
    let mail = at.take_mail();
    let watched = |source: ObjectId| {
        let subscribes = |(_, message): &(NodeId, PeerMessage)| matches!(message, PeerMessage::Directory { id, request: DirectoryRequest::Subscribe { .. }, .. } if *id == source);
        mail.iter().any(subscribes)
    };
    assert_eq!([watched(sources[0]), watched(sources[1])], [false, true]);
}

/// A wait for the same object is still answered, whether it began before the bytes came or after.
#[test]
fn a_wait_for_a_source_is_still_answered_after_its_bytes_have_come() {
    for waits_first in [true, false] {
        let (mut at, _, sources) = called(STORE, 2, 2, |_| None);
        let ids = vec![sources[0], object("never comes")];
        let wait =
            Request::Wait { ids, count: 2, timeout_ms: None, fail_if_lost: false, known_lost: Vec::new() };
        let answer = DirectoryAnswer::Copy { node: node(2), report: source_report(0), payload: bytes(SMALL) };
        if waits_first {
            at.ask(wait);
            at.take_mail();
            at.answer(2, sources[0], answer);
        } else {
            at.answer(2, sources[0], answer);
            at.take_mail();
            at.ask(wait);
        }
        assert_eq!(at.take_requests(sources[0]), [DirectoryRequest::Subscribe { bytes_max: None }]);
    }
}

#[test]
fn a_source_that_came_without_its_bytes_is_asked_for() {
    let (mut at, call, sources) = called(STORE, 2, 2, |index| bytes(SMALL).filter(|_| index == 0));
    assert!(at.folds.is_empty());
    let other = sources[1];
    let ask = last_ask(&mut at, other);
    at.answer(2, other, inline_of(ask, edition(11), SMALL));
    assert_eq!(end(&mut at, call), sources);
}

#[test]
fn bytes_that_are_not_those_of_the_report_are_not_taken() {
    let (mut at, _, sources) = called(STORE, 2, 2, |_| bytes(SMALL / 2));
    assert_eq!(asked_for(&mut at), sources);
}

#[test]
fn the_first_k_of_many_sources_are_folded() {
    let (mut at, call, sources) = called(STORE, 5, 2, |_| bytes(SMALL));
    assert_eq!(end(&mut at, call), sources[..2]);
    assert_eq!(at.status().copies, 1, "the others are let go");
}

/// Those that are not needed must not keep the target from its space.
#[test]
fn the_target_has_space_although_more_came_than_are_needed() {
    let (mut at, call, _) = called(8 << 10, 16, 2, |_| bytes(SMALL));
    assert_eq!(end(&mut at, call).len(), 2);
}

/// Sixteen of them over one link would take longer than a tree.
#[test]
fn sources_too_large_for_one_link_are_reduced_by_a_tree() {
    let size = 20_000;
    let report = |index: usize| put_report(1, edition(10 + index as u64), size);
    let assignments = |count: usize| {
        let mut at = Node::among(3, STORE);
        let sources: Vec<_> = (0..count).map(|index| object(&format!("source {index}"))).collect();
        let target = at.id_owned_by(ME);
        at.ask(reduce(target, &sources, count as u32, FoldOrder::Arrival));
        let mail = at.take_mail();
        let wanted = mail.iter().filter_map(|(_, message)| match message {
            PeerMessage::Directory { id, request: DirectoryRequest::Subscribe { bytes_max }, .. } => {
                sources.contains(id).then_some(bytes_max.expect("a sum may want bytes") >= size)
            }
            _ => None,
        });
        let wanted: std::collections::BTreeSet<_> = wanted.collect();
        for (index, &source) in sources.iter().enumerate() {
            let holder = 2 + (index % 2) as u16;
            let copy = DirectoryAnswer::Copy { node: node(holder), report: report(index), payload: None };
            at.answer(2, source, copy);
        }
        at.wait(std::time::Duration::from_millis(100));
        let mail = at.take_mail();
        let told =
            mail.iter().filter(|(_, message)| matches!(message, PeerMessage::AssignSlot { .. })).count();
        (wanted, told > 0)
    };
    assert_eq!(assignments(16), ([false].into(), true));
    assert_eq!(assignments(8), ([true].into(), false));
}

/// A source whose bytes came for another sum, and which this one folds on its node, stays subscribed to.
#[test]
fn bytes_that_came_for_another_sum_do_not_end_the_news() {
    let mut at = Node::among(2, STORE);
    let source = at.id_owned_by(2);
    let names: Vec<_> = (0..15).map(|index| object(&format!("source {index}"))).collect();
    let size = 20_000;
    let few = [source, names[0]];
    let many = [&[source], &names[..]].concat();
    for (name, sources) in [("few", &few[..]), ("many", &many)] {
        at.ask(reduce(object(name), sources, sources.len() as u32, FoldOrder::Arrival));
    }
    at.take_mail();
    let report = put_report(1, edition(10), size);
    at.answer(2, source, DirectoryAnswer::Copy { node: node(2), report, payload: bytes(size) });
    let again = at.take_requests(source);
    let watches = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Subscribe { bytes_max: Some(most) } if *most < size);
    assert!(again.iter().any(watches), "{again:?}");
}

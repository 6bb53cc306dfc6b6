//! Reductions: calls, slots, attempts, and failures of their inputs.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{Child, PeerMessage, SlotAssignment, SlotFailure, Source};
use hoplite_types::{CopyId, Edition, ErrorKind, FoldOrder, ObjectId};

use crate::crashes::{reduction, root_assignment};
use crate::node::{node, Node, ME};
use crate::puts::{failed, put, viewed};
use crate::requests::{
    announce, delete, edition, get, get_partial, object, put_report, put_small, reduce, SIZE, SMALL,
};

fn put_by(at: &mut Node, from: u16, id: ObjectId, edition: Edition) {
    at.request(from, id, announce(put_report(1, edition, SIZE)));
}

/// The assignments sent to others since the mail was last taken.
pub fn take_assignments(at: &mut Node) -> Vec<(u16, SlotAssignment)> {
    let assignments = at.take_mail().into_iter().filter_map(|(to, message)| match message {
        PeerMessage::AssignSlot { assignment, .. } => Some((to.addr.port(), assignment)),
        _ => None,
    });
    assignments.collect()
}

fn sources_in(at: &Node, call: u64) -> Vec<ObjectId> {
    match at.reply(call) {
        Some(Reply::Reduced { sources }) => sources.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sources_that_are_all_here_are_one_fold_into_the_target() {
    for order in [FoldOrder::Arrival, FoldOrder::Fixed] {
        let mut at = Node::alone(8 << 20);
        let (target, sources) = (object("t"), ["a", "b", "c"].map(object));
        let copies = sources.map(|source| put(&mut at, source, SIZE));
        let call = at.ask(reduce(target, &sources, 3, order));
        let read = at.ask(get_partial(target));
        let (&fold, folding) = at.folds.iter().next().expect("it folds");
        assert_eq!(folding.inputs.sources, copies, "one slot, in the order of the list");
        assert!(!folding.rule.open);
        assert_eq!(viewed(&at, read), folding.out);
        assert_eq!(at.folds.len(), 1);
        at.end_fold(fold);
        assert_eq!(sources_in(&at, call), sources);
        let copy = viewed(&at, read);
        at.ask(Request::Release { copy });
        for id in sources.into_iter().chain([target]) {
            at.ask(delete(id));
        }
        at.assert_empty();
    }
}

#[test]
fn small_targets_are_folded_by_the_caller() {
    let mut at = Node::alone(8 << 20);
    let (target, sources) = (object("t"), ["a", "b", "c"].map(object));
    let call = at.ask(reduce(target, &sources, 2, FoldOrder::Fixed));
    for source in [sources[2], sources[0], sources[1]] {
        at.ask(put_small(source, SMALL));
    }
    let (&fold, folding) = at.folds.iter().next().expect("two are there");
    assert_eq!(folding.inputs.sources.len(), 2);
    at.end_fold(fold);
    assert_eq!(
        sources_in(&at, call),
        [sources[0], sources[2]],
        "the first two that came, in the list's order"
    );
    for id in sources.into_iter().chain([target]) {
        at.ask(delete(id));
    }
    at.assert_empty();
}

/// Someone here reads the target of a small reduction: their fetch must not push out the fold.
#[test]
fn a_small_target_that_is_waited_for_is_not_fetched() {
    let mut at = Node::alone(8 << 20);
    let (target, source) = (object("t"), object("a"));
    let read = at.ask(get(target));
    let call = at.ask(reduce(target, &[source], 1, FoldOrder::Arrival));
    at.ask(put_small(source, SMALL));
    let (&fold, folding) = at.folds.iter().next().expect("it folds");
    let out = folding.out;
    // Another node has put the target meanwhile, so the directory has a sender to lend.
    at.request(2, target, announce(put_report(1, edition(99), SMALL)));
    assert!(!at.copies[&out].aborted);
    at.end_fold(fold);
    assert_eq!(sources_in(&at, call), [source]);
    assert_eq!(viewed(&at, read), out);
}

#[test]
fn the_callers_node_is_the_root_if_it_has_a_source() {
    let mut at = Node::alone(8 << 20);
    let (target, sources) = (object("t"), ["a", "b", "c"].map(object));
    let mine = put(&mut at, sources[0], SIZE);
    put_by(&mut at, 2, sources[1], edition(2));
    put_by(&mut at, 3, sources[2], edition(3));
    let call = at.ask(reduce(target, &sources, 3, FoldOrder::Arrival));
    let roots: Vec<_> =
        take_assignments(&mut at).into_iter().filter(|(_, assignment)| assignment.root).collect();
    assert!(roots.is_empty(), "{roots:?}");
    let (&fold, folding) = at.folds.iter().next().expect("the root is here");
    assert_eq!(folding.inputs.sources, [mine]);
    at.end_fold(fold);
    assert_eq!(sources_in(&at, call).len(), 3);
}

/// A look at all slots for each source that arrives would take longer than the sources do.
#[test]
fn many_arrivals_are_looked_at_together() {
    let mut at = Node::alone(8 << 20);
    let sources: Vec<_> = (0..800).map(|index| object(&format!("source {index}"))).collect();
    at.ask(reduce(object("t"), &sources, sources.len() as u32, FoldOrder::Arrival));
    let mut told_of = Vec::new();
    for (index, &source) in sources.iter().enumerate() {
        put_by(&mut at, 2 + index as u16 % 2, source, edition(index as u64));
        if !take_assignments(&mut at).is_empty() {
            told_of.push(index);
        }
    }
    assert!(told_of.contains(&101), "{told_of:?}");
    assert!(told_of.iter().filter(|&&index| index > 300).count() < 3, "{told_of:?}");
    at.wait(Duration::from_millis(10));
    let assignments = take_assignments(&mut at);
    let assigned: usize = assignments.iter().map(|(_, assignment)| assignment.sources.len()).sum();
    assert!(
        assigned > 400 && assignments.len() < 5,
        "{assigned} on {} assignments: one for each node",
        assignments.len()
    );
    assert_eq!(assignments.iter().filter(|(_, assignment)| assignment.root).count(), 1, "all have arrived");
}

#[test]
fn a_target_that_exists_fails_the_reduction_even_if_it_was_watched_before() {
    for watched in [true, false] {
        let mut at = Node::alone(8 << 20);
        let (target, source, other) = (object("t"), object("a"), object("never"));
        put_by(&mut at, 2, target, edition(9));
        put_by(&mut at, 2, source, edition(8));
        if watched {
            at.ask(Request::Wait {
                ids: vec![target, other],
                count: 2,
                timeout_ms: None,
                fail_if_lost: false,
                known_lost: Vec::new(),
            });
        }
        let call = at.ask(reduce(target, &[source], 1, FoldOrder::Arrival));
        assert_eq!(failed(&at, call), ErrorKind::AlreadyExists);
        assert!(take_assignments(&mut at).is_empty());
    }
}

#[test]
fn nonsense_is_refused_before_anything_moves() {
    let mut at = Node::alone(8 << 20);
    let (a, b) = (object("a"), object("b"));
    let bad = [
        reduce(object("t"), &[a, b], 0, FoldOrder::Arrival),
        reduce(object("t"), &[a, b], 3, FoldOrder::Arrival),
        reduce(object("t"), &[a, a], 1, FoldOrder::Arrival),
        reduce(a, &[a, b], 1, FoldOrder::Arrival),
    ];
    for request in bad {
        let call = at.ask(request);
        assert_eq!(failed(&at, call), ErrorKind::BadArgument);
    }
    put(&mut at, a, SIZE);
    put(&mut at, b, SIZE / 2);
    let call = at.ask(reduce(object("t"), &[a, b], 2, FoldOrder::Arrival));
    assert_eq!(failed(&at, call), ErrorKind::Mismatch);
    for id in [a, b] {
        at.ask(delete(id));
    }
    at.assert_empty();
}

#[test]
fn a_reduction_that_times_out_names_a_missing_source() {
    let mut at = Node::alone(8 << 20);
    let sources = ["a", "b"].map(object);
    put(&mut at, sources[0], SIZE);
    let mut request = reduce(object("t"), &sources, 2, FoldOrder::Arrival);
    if let Request::Reduce { timeout_ms, .. } = &mut request {
        *timeout_ms = Some(80);
    }
    let call = at.ask(request);
    at.wait(Duration::from_millis(80));
    let Some(Reply::Failed(error)) = at.reply(call) else { panic!("{:?}", at.reply(call)) };
    assert_eq!(error.kind, ErrorKind::TimedOut);
    for part in ["1 of the 2", &sources[1].to_string(), "0.080 s"] {
        assert!(error.message.contains(part), "no {part:?} in {:?}", error.message);
    }
    assert_eq!(at.status().reductions, 0);
}

/// In fixed order, sources here that come before those already folding go in front of them.
#[test]
fn fixed_order_holds_when_sources_here_come_in_any_order() {
    let arrivals = [[0, 1, 2, 3], [2, 3, 0, 1], [3, 2, 1, 0], [1, 3, 0, 2], [2, 3, 1, 0]];
    for arrival in arrivals {
        let mut at = Node::alone(64 << 20);
        let (target, sources) = (object("t"), ["a", "b", "c", "d"].map(object));
        let call = at.ask(reduce(target, &sources, 4, FoldOrder::Fixed));
        let mut copies = [CopyId(0); 4];
        for index in arrival {
            copies[index] = put(&mut at, sources[index], SIZE);
        }
        let read: Vec<_> = at.folds.values().flat_map(|fold| fold.inputs.sources.iter()).collect();
        let root = at.folds.values().find(|fold| !read.contains(&&fold.out));
        let root = root.expect("everything is there, and nobody reads the target");
        assert!(!root.rule.open);
        assert_eq!(left_fold(&at, &root.inputs.sources, &copies), [0, 1, 2, 3], "after {arrival:?}");
        while let Some(&fold) = at.folds.keys().next() {
            at.end_fold(fold);
        }
        assert_eq!(sources_in(&at, call), sources);
        for id in sources.into_iter().chain([target]) {
            at.ask(delete(id));
        }
        at.assert_empty();
    }
}

/// The sources in the order they are folded, partial sums resolved; a partial sum may only come
/// first, or the brackets would not be those of a left fold.
fn left_fold(at: &Node, inputs: &[CopyId], copies: &[CopyId]) -> Vec<usize> {
    let mut order = Vec::new();
    for (position, input) in inputs.iter().enumerate() {
        match copies.iter().position(|copy| copy == input) {
            Some(index) => order.push(index),
            None => {
                assert_eq!(position, 0, "a partial sum behind a source");
                let fold = at.folds.values().find(|fold| fold.out == *input).expect("a partial sum");
                order.extend(left_fold(at, &fold.inputs.sources, copies));
            }
        }
    }
    order
}

/// A slot of ours with one source here and one child elsewhere.
fn assignment_with_child(at: &mut Node, target: ObjectId, source: ObjectId) -> SlotAssignment {
    let child = Child { slot: 1, node: node(3), id: object("theirs"), edition: edition(6) };
    SlotAssignment { children: vec![child], ..root_assignment(at, target, source) }
}

#[test]
fn a_broken_child_stream_is_reported_and_the_next_attempt_starts_anew() {
    let mut at = Node::among(3, 8 << 20);
    let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
    put(&mut at, source, SIZE);
    let assignment = assignment_with_child(&mut at, target, source);
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment: assignment.clone() });
    let (&fold, folding) = at.folds.iter().next().expect("it folds");
    let (transfer, from) = folding.inputs.streams[0];
    assert_eq!(from, node(3));
    at.take_mail();
    at.handle(Input::FoldStreamBroken { fold, transfer });
    let failed = PeerMessage::SlotFailed {
        reduction: reduction(2),
        slot: 0,
        attempt: 0,
        failure: SlotFailure::Child(1),
    };
    assert_eq!(at.take_mail(), [(node(2), failed)]);
    let edition = Edition { attempt: 1, ..assignment.edition };
    at.hear(
        2,
        PeerMessage::AssignSlot {
            reduction: reduction(2),
            assignment: SlotAssignment { attempt: 1, version: 2, edition, ..assignment },
        },
    );
    assert_eq!(at.folds.len(), 1, "one fold per slot");
    let mail = at.take_mail();
    assert!(mail.iter().any(|(_, message)| *message == PeerMessage::CancelPull { transfer }), "{mail:?}");
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    at.ask(delete(source));
    at.assert_empty();
}

#[test]
fn an_older_attempt_never_replaces_a_newer_one() {
    let mut at = Node::among(3, 8 << 20);
    let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
    put(&mut at, source, SIZE);
    let assignment = assignment_with_child(&mut at, target, source);
    let newer = Edition { attempt: 3, ..assignment.edition };
    let newer = SlotAssignment { attempt: 3, version: 4, edition: newer, ..assignment.clone() };
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment: newer });
    let before: Vec<_> = at.folds.keys().copied().collect();
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment });
    assert_eq!(at.folds.keys().copied().collect::<Vec<_>>(), before);
}

#[test]
fn a_slot_whose_source_is_not_here_reports_it() {
    let mut at = Node::among(3, 8 << 20);
    let target = at.id_owned_by(2);
    let missing = object("not here");
    let mut assignment = assignment_with_child(&mut at, target, missing);
    assignment.sources = vec![Source { id: missing, edition: edition(1) }];
    at.take_mail();
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment });
    let said = at.take_mail();
    let failure = SlotFailure::Source(missing);
    let expected = PeerMessage::SlotFailed { reduction: reduction(2), slot: 0, attempt: 0, failure };
    assert_eq!(said, [(node(2), expected)]);
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    at.assert_empty();
}

#[test]
fn an_aborted_source_breaks_the_fold_and_its_partial_sum_goes() {
    let mut at = Node::among(3, 8 << 20);
    let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
    let call = at.ask(crate::requests::create(source, SIZE));
    let copy = crate::puts::created(&at, call);
    let assignment = root_assignment(&mut at, target, source);
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment });
    let &fold = at.folds.keys().next().expect("it streams behind the put");
    at.take_mail();
    at.ask(Request::Abort { copy });
    // The driver sees its input aborted.
    at.folds.remove(&fold);
    at.handle(Input::FoldEnded { fold, outcome: Err(hoplite_core::io::Broken) });
    let failure = SlotFailure::Source(source);
    let failed = PeerMessage::SlotFailed { reduction: reduction(2), slot: 0, attempt: 0, failure };
    assert!(at.take_mail().contains(&(node(2), failed)));
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    at.assert_empty();
}

//! Deaths and deletions in the middle of operations.

use hoplite_core::Input;
use hoplite_types::client::Reply;
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, SlotAssignment, Source};
use hoplite_types::{Dtype, Edition, FoldOrder, ObjectId, Op, ReductionId};

use crate::node::{node, Node, ME};
use crate::puts::{failed, put};
use crate::requests::{
    accepted, announce, array, ask, delete, deleted, edition, get, object, put_report, reduce, stamp_of,
    writing_report, SIZE, SMALL,
};

pub fn reduction(coordinator: u16) -> ReductionId {
    ReductionId { coordinator: node(coordinator), number: 1 }
}

/// The assignment of a coordinator on another node: fold this one source of ours into the target.
pub fn root_assignment(at: &mut Node, target: ObjectId, source: ObjectId) -> SlotAssignment {
    at.request(7, source, DirectoryRequest::Locate { token: 1 });
    let located = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Answer { answer: DirectoryAnswer::Located { copies, .. }, .. } => Some(copies),
        _ => None,
    });
    let here = located.and_then(|copies| copies.first().map(|copy| copy.edition));
    SlotAssignment {
        slot: 0,
        attempt: 0,
        out: target,
        edition: Edition { writing: 77, attempt: 0 },
        root: true,
        size: SIZE,
        header: array(SIZE),
        dtype: Dtype::U8,
        op: Op::Sum,
        divide_by: None,
        sources: vec![Source { id: source, edition: here.unwrap_or(edition(0)) }],
        children: Vec::new(),
        open: false,
        version: 1,
        lacking: false,
        offset: 0,
        part_bytes: None,
        claim: reduction(2).claim(),
        stamp: stamp_of(edition(77)),
        epoch: 0,
    }
}

/// A root slot assigned by node 2, folding; its target's directory is at node 2 as well.
fn participant() -> (Node, ObjectId) {
    let mut at = Node::among(2, 8 << 20);
    let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
    put(&mut at, source, SIZE);
    let assignment = root_assignment(&mut at, target, source);
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment });
    assert_eq!(at.folds.len(), 1);
    at.ask(delete(source));
    (at, target)
}

fn commit(target: ObjectId, sources: Vec<ObjectId>) -> PeerMessage {
    let edition = Edition { writing: 77, attempt: 0 };
    PeerMessage::Commit { reduction: reduction(2), attempt: 0, id: target, edition, sources }
}

#[test]
fn a_target_deleted_while_it_is_folded_leaves_nothing() {
    let (mut at, target) = participant();
    at.answer(2, target, deleted(&at));
    assert!(at.folds.is_empty());
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    at.assert_empty();
}

#[test]
fn a_target_deleted_before_its_commit_is_not_sealed() {
    let (mut at, target) = participant();
    let &fold = at.folds.keys().next().expect("it folds");
    at.end_fold(fold);
    at.answer(2, target, deleted(&at));
    at.hear(2, commit(target, vec![]));
    let cannot = PeerMessage::Committed { reduction: reduction(2), sealed: false };
    assert!(at.take_mail().contains(&(node(2), cannot)));
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    at.assert_empty();
}

/// Its owner may have accepted it a moment before it was deleted. That verdict is about the failed slot, not about a
/// copy that this node has forgotten.
#[test]
fn a_verdict_on_a_deleted_target_finds_its_failed_slot() {
    let (mut at, target) = participant();
    at.answer(2, target, deleted(&at));
    assert_eq!(at.status().copies, 0);
    at.take_mail();
    at.answer(2, target, accepted(edition(77)));
    assert_eq!(at.take_mail(), [], "nothing is withdrawn");
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    at.take_mail();
    at.answer(2, target, accepted(edition(77)));
    let taken_back = |(_, message): &(_, PeerMessage)| {
        matches!(message, PeerMessage::Directory { request: DirectoryRequest::Withdraw { .. }, .. })
    };
    assert!(at.take_mail().iter().any(taken_back), "no assignment is left");
    at.assert_empty();
}

#[test]
fn a_dead_coordinator_takes_its_slots_along() {
    let (mut at, _) = participant();
    at.kill(2);
    at.assert_empty();
}

#[test]
fn a_commit_seals_the_root_and_the_release_of_slots_leaves_it() {
    let (mut at, target) = participant();
    let &fold = at.folds.keys().next().expect("it folds");
    let read = at.ask(get(target));
    at.end_fold(fold);
    at.answer(2, target, accepted(edition(77)));
    assert_eq!(at.reply(read), None, "nobody seals before the commit");
    let sources = vec![object("went in")];
    // Repeated, if its answer was lost: the answer stays the same.
    for _ in 0..2 {
        at.take_mail();
        at.hear(2, commit(target, sources.clone()));
        let done = PeerMessage::Committed { reduction: reduction(2), sealed: true };
        assert!(at.take_mail().contains(&(node(2), done)));
    }
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    let copy = crate::puts::viewed(&at, read);
    assert_eq!(at.copies[&copy].sealed.as_ref().expect("sealed").sources, sources);
}

/// A report of a dead node may arrive after the news of its death, on another connection.
#[test]
fn a_late_report_of_a_dead_node_is_no_copy() {
    let mut at = Node::among(3, 8 << 20);
    at.kill(3);
    let id = at.id_owned_by(ME);
    let message = PeerMessage::Directory {
        origin: node(3),
        hops: 1,
        id,
        request: announce(put_report(9, edition(5), SIZE)),
    };
    at.hear(2, message);
    at.assert_empty();
}

/// The new owner pulls the inventories of all members, so it gets the reports that are not forwarded now.
#[test]
fn entries_of_a_new_owner_are_forgotten_and_reports_about_them_forwarded() {
    let mut at = Node::alone(8 << 20);
    let ids: Vec<_> = (0..40).map(|i| object(&i.to_string())).collect();
    for &id in &ids {
        // Small and not complete, so it cannot be lent yet.
        at.request(2, id, announce(writing_report(2, 3, edition(5), SMALL)));
        at.request(3, id, DirectoryRequest::Subscribe { bytes_max: None });
        at.request(4, id, ask(8));
    }
    at.join(9);
    let moved: Vec<_> = ids.iter().copied().filter(|&id| at.owner_of(id) == 9).collect();
    assert!(!moved.is_empty() && moved.len() < ids.len(), "{} of {}", moved.len(), ids.len());
    assert_eq!(at.status().entries as usize, ids.len() - moved.len());
    at.take_mail();
    at.request(4, moved[0], ask(8));
    let on = PeerMessage::Directory { origin: node(4), hops: 1, id: moved[0], request: ask(8) };
    assert_eq!(at.take_mail(), [(node(9), on)]);
    at.assert_consistent();
}

#[test]
fn a_coordinators_client_that_dies_ends_its_reduction() {
    let mut at = Node::alone(8 << 20);
    let (target, sources) = (object("t"), ["a", "b"].map(object));
    put(&mut at, sources[0], SIZE);
    let client = hoplite_core::io::ClientId(5);
    at.ask_as(client, reduce(target, &sources, 2, FoldOrder::Arrival));
    assert_eq!(at.status().reductions, 1);
    at.handle(hoplite_core::Input::ClientGone { client });
    at.ask(delete(sources[0]));
    at.assert_empty();
}

#[test]
fn a_deleted_target_fails_its_reduction_everywhere() {
    let mut at = Node::alone(8 << 20);
    let (target, sources) = (object("t"), ["a", "b"].map(object));
    put(&mut at, sources[0], SIZE);
    put(&mut at, sources[1], SIZE);
    let call = at.ask(reduce(target, &sources, 2, FoldOrder::Arrival));
    assert_eq!(at.folds.len(), 1);
    let done = at.ask(delete(target));
    assert_eq!(at.reply(done), Some(&Reply::Done));
    assert_eq!(failed(&at, call), hoplite_types::ErrorKind::Deleted);
    for source in sources {
        at.ask(delete(source));
    }
    at.assert_empty();
}

/// The rate of its last stream is measured when its death is known already.
#[test]
fn links_to_departed_nodes_are_forgotten() {
    let mut at = Node::among(3, 8 << 20);
    at.crash(3);
    at.handle(Input::Measured { peer: node(3), bytes_per_s: 1_000_000 });
    assert!(at.status().links.iter().all(|link| link.peer != node(3)));
}

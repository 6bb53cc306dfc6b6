//! Reductions with lost messages, with a coordinator that seems dead, or with a root that dies at the end.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::Reply;
use hoplite_types::peer::{CopyReport, DirectoryAnswer, PeerMessage, SlotAssignment, SlotFailure, Verdict};
use hoplite_types::{ErrorKind, FoldOrder, ObjectId, ReductionId};

use crate::crashes::{reduction, root_assignment};
use crate::losses::get_or_lost;
use crate::node::{node, Node, ME};
use crate::puts::{failed, put};
use crate::reduces::take_assignments;
use crate::requests::{
    accepted, announce, announce_unaccepted, delete, edition, put_report, received_report, reduce, SIZE,
};

/// Longer than any pause between two repetitions.
const A_WHILE: Duration = Duration::from_secs(9);

/// A reduction called here over one source on node 3 and one on node 2. Returns the root's assignment.
fn called() -> (Node, u64, ObjectId, u16, SlotAssignment) {
    let mut at = Node::among(3, 16 << 20);
    let target = at.id_owned_by(ME);
    let sources = [ObjectId::from_name("a source"), ObjectId::from_name("another")];
    let call = at.ask(reduce(target, &sources, 2, FoldOrder::Arrival));
    for (source, holder) in sources.into_iter().zip([2, 3]) {
        let report = put_report(5, edition(u64::from(holder)), SIZE);
        for owner in [2, 3] {
            at.answer(
                owner,
                source,
                DirectoryAnswer::Copy { node: node(holder), report: report.clone(), payload: None },
            );
        }
        at.request(holder, source, announce(report));
    }
    at.wait(Duration::from_millis(100));
    let assignments = take_assignments(&mut at);
    let (root, assignment) =
        assignments.into_iter().rfind(|(_, assignment)| assignment.root).expect("all sources are there");
    (at, call, target, root, assignment)
}

fn commits(at: &mut Node) -> Vec<(u16, ReductionId)> {
    let mail = at.take_mail().into_iter();
    mail.filter_map(|(to, message)| match message {
        PeerMessage::Commit { reduction, .. } => Some((to.addr.port(), reduction)),
        _ => None,
    })
    .collect()
}

/// The root reports that it is done, and gets the commit. Returns the reduction.
fn commit(at: &mut Node, root: u16, assignment: &SlotAssignment) -> ReductionId {
    let call_number = (1..100).find(|&number| {
        let reduction = ReductionId { coordinator: node(ME), number };
        at.take_mail();
        at.hear(
            root,
            PeerMessage::RootDone { reduction, slot: assignment.slot, attempt: assignment.attempt },
        );
        !commits(at).is_empty()
    });
    let number = call_number.expect("it is committed");
    ReductionId { coordinator: node(ME), number }
}

#[test]
fn a_commit_is_repeated_until_the_root_has_sealed_and_only_then_is_the_caller_answered() {
    let (mut at, call, _, root, assignment) = called();
    let id = commit(&mut at, root, &assignment);
    at.wait(A_WHILE);
    assert!(commits(&mut at).contains(&(root, id)), "repeated in time");
    at.handle(Input::PeerBroken { node: node(root) });
    at.wait(Duration::from_millis(100));
    assert!(commits(&mut at).contains(&(root, id)), "repeated on a new connection");
    assert_eq!(at.reply(call), None);
    at.hear(root, PeerMessage::Committed { reduction: id, sealed: true });
    assert!(matches!(at.reply(call), Some(Reply::Reduced { .. })));
    at.wait(A_WHILE);
    assert_eq!(commits(&mut at), []);
}

#[test]
fn a_committed_target_that_dies_with_its_root_is_lost() {
    let (mut at, call, target, root, assignment) = called();
    commit(&mut at, root, &assignment);
    at.kill(root);
    assert_eq!(at.reply(call), None, "others may say that they have it");
    at.wait(Duration::from_secs(2));
    assert_eq!(failed(&at, call), ErrorKind::Lost);
    assert_eq!(at.gauge("lost ids"), 1);
    let read = at.ask(get_or_lost(target));
    assert_eq!(failed(&at, read), ErrorKind::Lost);
}

#[test]
fn a_committed_target_that_others_have_survives_its_root() {
    let (mut at, call, target, root, assignment) = called();
    commit(&mut at, root, &assignment);
    let other = if root == 2 { 3 } else { 2 };
    let report = received_report(1, assignment.edition, SIZE, None);
    at.request(other, target, announce(CopyReport { stamp: Some(assignment.stamp), ..report }));
    assert_eq!(at.reply(call), None, "the root is still to say that it has sealed");
    at.kill(root);
    assert!(matches!(at.reply(call), Some(Reply::Reduced { .. })));
    assert_eq!(at.status().reductions, 0);
}

#[test]
fn after_the_commit_nothing_starts_over() {
    let (mut at, call, _, root, assignment) = called();
    let id = commit(&mut at, root, &assignment);
    at.take_mail();
    let (slot, attempt) = (assignment.slot, assignment.attempt);
    at.hear(root, PeerMessage::SlotFailed { reduction: id, slot, attempt, failure: SlotFailure::LetGo(0) });
    assert!(take_assignments(&mut at).is_empty());
    at.hear(root, PeerMessage::Committed { reduction: id, sealed: false });
    assert_eq!(at.reply(call), None, "the target's owner may say why");
    at.wait(Duration::from_secs(2));
    assert_eq!(failed(&at, call), ErrorKind::Lost);
}

#[test]
fn a_root_that_gave_up_a_deleted_target_is_no_loss() {
    let (mut at, call, target, root, assignment) = called();
    let id = commit(&mut at, root, &assignment);
    at.hear(root, PeerMessage::Committed { reduction: id, sealed: false });
    at.ask(delete(target));
    assert_eq!(failed(&at, call), ErrorKind::Deleted);
}

#[test]
fn a_put_that_waited_behind_a_committed_target_takes_its_place_when_that_is_lost() {
    let (mut at, call, target, root, assignment) = called();
    let id = commit(&mut at, root, &assignment);
    let other = if root == 2 { 3 } else { 2 };
    at.request(other, target, announce_unaccepted(other, put_report(9, edition(99), SIZE)));
    assert_eq!(at.take_answers(target), [], "the root may have sealed it");
    at.hear(root, PeerMessage::Committed { reduction: id, sealed: false });
    at.wait(Duration::from_secs(2));
    assert_eq!(failed(&at, call), ErrorKind::Lost);
    let answers = at.take_answers(target);
    let accepted = |(to, answer): &(u16, DirectoryAnswer)| {
        *to == other && matches!(answer, DirectoryAnswer::Verdict { verdict: Verdict::Accepted(_), .. })
    };
    assert!(answers.iter().any(accepted), "{answers:?}");
}

#[test]
fn slots_are_repeated_on_a_new_connection() {
    let (mut at, _, _, root, assignment) = called();
    at.take_mail();
    at.handle(Input::PeerBroken { node: node(root) });
    at.wait(Duration::from_millis(100));
    assert!(take_assignments(&mut at).contains(&(root, assignment)));
}

#[test]
fn a_node_with_a_slot_of_a_finished_reduction_is_told_to_release_it() {
    let mut at = Node::among(2, 8 << 20);
    let over = ReductionId { coordinator: node(ME), number: 77 };
    for message in [
        PeerMessage::SlotHeld { reduction: over, slot: 0, attempt: 0 },
        PeerMessage::RootDone { reduction: over, slot: 0, attempt: 0 },
        PeerMessage::SlotFailed { reduction: over, slot: 0, attempt: 0, failure: SlotFailure::LetGo(0) },
    ] {
        at.hear(2, message);
        assert_eq!(at.take_mail(), [(node(2), PeerMessage::ReleaseSlots { reduction: over })]);
    }
}

/// A root slot here, assigned by node 2.
fn participant() -> (Node, SlotAssignment) {
    let mut at = Node::among(3, 8 << 20);
    let (target, source) = (at.id_owned_by(3), at.id_owned_by(ME));
    put(&mut at, source, SIZE);
    let assignment = root_assignment(&mut at, target, source);
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment: assignment.clone() });
    at.take_mail();
    (at, assignment)
}

#[test]
fn a_finished_root_reports_after_its_owners_verdict_and_until_the_commit() {
    let (mut at, assignment) = participant();
    let &fold = at.folds.keys().next().expect("it folds");
    at.end_fold(fold);
    let done = (node(2), PeerMessage::RootDone { reduction: reduction(2), slot: 0, attempt: 0 });
    assert!(!at.take_mail().contains(&done), "a deletion might not wait for us");
    at.answer(2, assignment.out, accepted(assignment.edition));
    assert!(!at.take_mail().contains(&done), "that was not the owner");
    at.answer(3, assignment.out, accepted(assignment.edition));
    assert!(at.take_mail().contains(&done));
    at.wait(A_WHILE);
    assert!(at.take_mail().contains(&done));
}

#[test]
fn a_running_slot_is_reported_and_ends_when_its_coordinator_does_not_know_it() {
    let (mut at, _) = participant();
    at.wait(A_WHILE);
    let held = PeerMessage::SlotHeld { reduction: reduction(2), slot: 0, attempt: 0 };
    assert!(at.take_mail().contains(&(node(2), held)));
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    assert_eq!(at.status().reductions, 0);
}

#[test]
fn an_older_assignment_of_a_slot_changes_nothing() {
    let mut at = Node::among(3, 8 << 20);
    let (target, source) = (at.id_owned_by(3), at.id_owned_by(ME));
    put(&mut at, source, SIZE);
    let assignment = root_assignment(&mut at, target, source);
    for (version, open) in [(1, true), (3, false), (2, true), (1, true)] {
        let assignment = SlotAssignment { version, open, ..assignment.clone() };
        at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment });
    }
    let folding = at.folds.values().next().expect("it goes on");
    assert!(!folding.rule.open);
}

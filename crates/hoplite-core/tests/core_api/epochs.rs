//! Slots released because their coordinator seemed dead are not started again.

use std::time::Duration;

use hoplite_types::peer::{PeerMessage, SlotAssignment, SlotFailure};
use hoplite_types::{Edition, FoldOrder, NodeId, ObjectId, ReductionId};

use crate::crashes::{reduction, root_assignment};
use crate::node::{node, Node, ME};
use crate::puts::put;
use crate::requests::{announce, edition, object, put_report, reduce, SIZE};

/// Longer than the pause after which a peer is told again.
const SETTLED: Duration = Duration::from_millis(100);

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

/// The next attempt at a slot, by a coordinator that has heard of this epoch.
fn next_attempt(assignment: &SlotAssignment, epoch: u64) -> SlotAssignment {
    let edition = Edition { attempt: assignment.attempt + 1, ..assignment.edition };
    SlotAssignment {
        attempt: assignment.attempt + 1,
        version: assignment.version + 1,
        edition,
        epoch,
        ..assignment.clone()
    }
}

fn let_go(attempt: u32, epoch: u64) -> (NodeId, PeerMessage) {
    let (slot, failure) = (0, SlotFailure::LetGo(epoch));
    (node(2), PeerMessage::SlotFailed { reduction: reduction(2), slot, attempt, failure })
}

/// The earlier sum may have been read, and the same attempt would have other bytes. A newer attempt that was made
/// before the coordinator heard of the epoch may be an old one by the time it is repeated.
#[test]
fn a_slot_from_before_its_coordinators_death_is_refused_under_any_attempt() {
    let (mut at, assignment) = participant();
    at.kill(2);
    assert_eq!(at.folds.len(), 0);
    at.join(2);
    at.wait(SETTLED);
    assert!(at.take_mail().contains(&(node(2), PeerMessage::ResyncRequest { epoch: 1 })));
    for old in [assignment.clone(), next_attempt(&assignment, 0)] {
        let attempt = old.attempt;
        at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment: old });
        assert_eq!(at.folds.len(), 0);
        assert_eq!(at.take_mail(), [let_go(attempt, 1)]);
    }
    let next = next_attempt(&assignment, 1);
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment: next });
    assert_eq!(at.folds.len(), 1);
}

#[test]
fn each_death_of_a_coordinator_is_another_epoch() {
    let (mut at, assignment) = participant();
    at.kill(3);
    at.join(3);
    assert_eq!(at.folds.len(), 1, "that was another one's");
    at.kill(2);
    at.join(2);
    at.wait(SETTLED);
    assert!(at.take_mail().contains(&(node(2), PeerMessage::ResyncRequest { epoch: 2 })));
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment: next_attempt(&assignment, 1) });
    assert_eq!(at.take_mail(), [let_go(1, 2)]);
}

#[test]
fn a_slot_of_a_coordinator_that_is_no_member_is_refused() {
    let (mut at, assignment) = participant();
    let stranger = ReductionId { coordinator: node(9), number: 1 };
    let failure = SlotFailure::LetGo(0);
    at.hear(9, PeerMessage::AssignSlot { reduction: stranger, assignment });
    let failed = PeerMessage::SlotFailed { reduction: stranger, slot: 0, attempt: 0, failure };
    assert_eq!(at.take_mail(), [(node(9), failed)]);
    assert_eq!(at.folds.len(), 1);
}

/// A reduction called here with a source on node 2 and one on node 3: all assignments.
fn called() -> (Node, ReductionId, Vec<(u16, SlotAssignment)>) {
    let mut at = Node::among(3, 16 << 20);
    let ids = (0..).map(|number| object(&format!("source {number}")));
    let ours: Vec<ObjectId> = ids.filter(|&id| at.owner_of(id) == ME).take(2).collect();
    for (source, holder) in ours.iter().zip([2, 3]) {
        at.request(holder, *source, announce(put_report(1, edition(u64::from(holder)), SIZE)));
    }
    let target = at.id_owned_by(ME);
    at.take_mail();
    at.ask(reduce(target, &ours, 2, FoldOrder::Arrival));
    let (reduction, assignments) = take_assignments(&mut at).expect("all sources are there");
    (at, reduction, assignments)
}

fn take_assignments(at: &mut Node) -> Option<(ReductionId, Vec<(u16, SlotAssignment)>)> {
    let mut of = None;
    let mut assignments = Vec::new();
    for (to, message) in at.take_mail() {
        if let PeerMessage::AssignSlot { reduction, assignment } = message {
            of = Some(reduction);
            assignments.push((to.addr.port(), assignment));
        }
    }
    of.map(|reduction| (reduction, assignments))
}

#[test]
fn a_coordinator_that_hears_of_an_epoch_assigns_released_slots_anew() {
    for by_resync in [true, false] {
        let (mut at, reduction, before) = called();
        let (root, assignment) =
            before.iter().rfind(|(_, assignment)| assignment.root).expect("it is assigned").clone();
        assert_eq!(assignment.epoch, 0);
        let (slot, attempt, failure) = (assignment.slot, assignment.attempt, SlotFailure::LetGo(7));
        at.hear(
            root,
            match by_resync {
                true => PeerMessage::ResyncRequest { epoch: 7 },
                false => PeerMessage::SlotFailed { reduction, slot, attempt, failure },
            },
        );
        let (_, after) = take_assignments(&mut at).expect("it is assigned anew");
        let [(to, again)] = &after[..] else { panic!("nobody else: {after:?}") };
        assert_eq!((*to, again.slot, again.epoch), (root, assignment.slot, 7));
        assert!(again.attempt > assignment.attempt);
        at.hear(root, PeerMessage::ResyncRequest { epoch: 6 });
        at.hear(root, PeerMessage::ResyncRequest { epoch: 7 });
        assert!(take_assignments(&mut at).is_none(), "that is old news");
    }
}

/// It might continue with its partial sum, but its node has dropped that.
#[test]
fn a_slot_that_still_waits_for_sources_is_begun_anew_as_well() {
    let mut at = Node::among(3, 16 << 20);
    let ids = (0..).map(|number| object(&format!("source {number}")));
    let ours: Vec<ObjectId> = ids.filter(|&id| at.owner_of(id) == ME).take(3).collect();
    for source in &ours[..2] {
        at.request(2, *source, announce(put_report(1, edition(5), SIZE)));
    }
    let target = at.id_owned_by(ME);
    at.take_mail();
    at.ask(reduce(target, &ours, 3, FoldOrder::Arrival));
    let (_, before) = take_assignments(&mut at).expect("two sources are there");
    let [(2, open)] = &before[..] else { panic!("{before:?}") };
    assert!(open.open);
    at.hear(2, PeerMessage::ResyncRequest { epoch: 7 });
    let (_, after) = take_assignments(&mut at).expect("it is assigned anew");
    let [(2, again)] = &after[..] else { panic!("{after:?}") };
    assert_eq!((again.slot, again.attempt, again.epoch), (open.slot, open.attempt + 1, 7));
}

#[test]
fn later_reductions_know_of_the_epoch_from_the_start() {
    let (mut at, _, assignments) = called();
    let (root, _) =
        assignments.iter().rfind(|(_, assignment)| assignment.root).expect("it is assigned").clone();
    at.hear(root, PeerMessage::ResyncRequest { epoch: 7 });
    at.take_mail();
    let mut targets = (0..).map(|number| object(&format!("target {number}")));
    let target = targets.find(|&id| at.owner_of(id) == ME).expect("hashing is even");
    let source =
        assignments.iter().find_map(|(to, assignment)| assignment.sources.first().filter(|_| *to == root));
    let source = source.expect("the root has one of its own").id;
    at.ask(reduce(target, &[source], 1, FoldOrder::Arrival));
    let (_, assignments) = take_assignments(&mut at).expect("its source is there");
    assert!(
        assignments.iter().all(|(to, assignment)| *to == root && assignment.epoch == 7),
        "{assignments:?}"
    );
}

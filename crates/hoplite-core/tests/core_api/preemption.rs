//! Preemption between slots of different reductions.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::peer::{DirectoryRequest, PeerMessage, SlotAssignment, SlotFailure, Source};
use hoplite_types::{Edition, FoldOrder, ObjectId, ReductionId};

use crate::crashes::{reduction, root_assignment};
use crate::node::{node, Node, ME};
use crate::puts::{put, viewed};
use crate::requests::{announce, edition, get_partial, object, put_report, reduce, writing_report, SIZE};

/// Longer than a slot waits before it preempts others.
const PATIENCE: Duration = Duration::from_millis(1100);

/// Space for so many copies of `SIZE`.
fn room_for(copies: u64) -> u64 {
    copies * (SIZE + 64)
}

fn id_of(coordinator: u16, number: u64) -> ReductionId {
    ReductionId { number, ..reduction(coordinator) }
}

/// A partial sum of `source`, which is put here.
fn partial(at: &mut Node, of: ReductionId, source: ObjectId) -> SlotAssignment {
    let edition = Edition { writing: of.number, attempt: 0 };
    SlotAssignment { root: false, edition, ..root_assignment(at, ObjectId::partial_sum(of, 0), source) }
}

/// Slots of the reductions 1, 3 and 5 of node 2 hold all space of node 1, with a source; each of one copy's size.
fn full() -> (Node, ObjectId) {
    let mut at = Node::among(2, room_for(4));
    let source = at.id_owned_by(ME);
    put(&mut at, source, SIZE);
    for number in [1, 3, 5] {
        let of = id_of(2, number);
        let assignment = partial(&mut at, of, source);
        at.hear(2, PeerMessage::AssignSlot { reduction: of, assignment });
    }
    assert_eq!(at.folds.len(), 3);
    (at, source)
}

/// A slot waits for space, and is told by its coordinator to preempt others. Returns the reductions whose slots have
/// let go.
fn preempt(at: &mut Node, of: ReductionId, assignment: SlotAssignment) -> Vec<u64> {
    at.hear(2, PeerMessage::AssignSlot { reduction: of, assignment });
    at.wait(PATIENCE);
    let needs_space = PeerMessage::SlotNeedsSpace { reduction: of, slot: 0, attempt: 0 };
    assert!(at.take_mail().contains(&(node(2), needs_space)), "it asks its coordinator");
    at.hear(2, PeerMessage::Preempt { reduction: of, slot: 0, attempt: 0 });
    let let_go = at.take_mail().into_iter().filter_map(|(_, message)| match message {
        PeerMessage::SlotFailed { reduction, failure: SlotFailure::LetGo(0), .. } => Some(reduction.number),
        _ => None,
    });
    let_go.collect()
}

#[test]
fn the_last_reduction_in_order_is_preempted_and_waits() {
    let (mut at, source) = full();
    let (third, fifth) = (id_of(2, 2), id_of(2, 5));
    let assignment = partial(&mut at, third, source);
    let writing = assignment.edition;
    assert_eq!(preempt(&mut at, third, assignment), [5]);
    let outs: Vec<_> = at.folds.values().map(|folding| at.identity_of(folding.out).1).collect();
    assert!(outs.contains(&writing) && outs.len() == 3, "it has the room: {outs:?}");
    // The coordinator assigns the other slot anew. It waits until one of the others is done.
    let assignment = partial(&mut at, fifth, source);
    let again = Edition { attempt: 1, ..assignment.edition };
    let assignment = SlotAssignment { attempt: 1, version: 2, edition: again, ..assignment };
    at.hear(2, PeerMessage::AssignSlot { reduction: fifth, assignment });
    assert_eq!(at.folds.len(), 3);
    at.hear(2, PeerMessage::ReleaseSlots { reduction: third });
    assert!(at.folds.values().any(|folding| at.identity_of(folding.out).1 == again));
}

#[test]
fn nothing_is_preempted_if_that_is_not_enough() {
    let (mut at, source) = full();
    let fourth = id_of(2, 4);
    let assignment = partial(&mut at, fourth, source);
    let large = SlotAssignment { size: 2 * SIZE, ..assignment };
    assert_eq!(preempt(&mut at, fourth, large), [0; 0], "5 alone has not that much, and 3 goes first");
    assert_eq!(at.folds.len(), 3);
}

#[test]
fn earlier_reductions_stay_unless_they_lack_sources() {
    let (mut at, source) = full();
    let last = id_of(2, 7);
    let assignment = partial(&mut at, last, source);
    assert_eq!(preempt(&mut at, last, assignment), [0; 0]);
    at.hear(2, PeerMessage::ReleaseSlots { reduction: id_of(2, 3) });
    assert_eq!(at.folds.len(), 3, "that was its room");

    let (mut at, source) = full();
    at.hear(2, PeerMessage::ReleaseSlots { reduction: id_of(2, 1) });
    let first = id_of(2, 1);
    let lacking = SlotAssignment { lacking: true, ..partial(&mut at, first, source) };
    at.hear(2, PeerMessage::AssignSlot { reduction: first, assignment: lacking });
    let assignment = partial(&mut at, last, source);
    assert_eq!(preempt(&mut at, last, assignment), [1]);
}

/// A slot that waits for two others to go is not overtaken when the first has gone.
#[test]
fn preempted_space_goes_to_the_slot_that_needed_it() {
    let (mut at, source) = full();
    let (second, fifth) = (id_of(2, 2), id_of(2, 5));
    let assignment = partial(&mut at, second, source);
    let large = SlotAssignment { size: 2 * SIZE, ..assignment };
    // The fold of 3 takes its time to stop.
    let (&slow, folding) =
        at.folds.iter().find(|(_, folding)| at.identity_of(folding.out).1.writing == 3).unwrap();
    let folding = folding.clone();
    at.folds.remove(&slow);
    assert_eq!(preempt(&mut at, second, large), [5, 3]);
    at.folds.insert(slow, folding);
    let assignment = partial(&mut at, fifth, source);
    let again = SlotAssignment {
        attempt: 1,
        version: 2,
        edition: Edition { attempt: 1, ..assignment.edition },
        ..assignment
    };
    at.hear(2, PeerMessage::AssignSlot { reduction: fifth, assignment: again });
    assert_eq!(at.folds.len(), 2, "there is room, but not for this one");
    at.folds.remove(&slow);
    at.handle(Input::FoldEnded { fold: slow, outcome: Err(hoplite_core::io::Broken) });
    let sizes: Vec<_> = at.folds.values().map(|folding| at.copies[&folding.out].extent.size).collect();
    assert_eq!(sizes, [SIZE, 2 * SIZE]);
}

#[test]
fn a_root_that_may_be_committed_and_a_viewed_target_stay() {
    for looked_at in [false, true] {
        let mut at = Node::among(2, room_for(2));
        let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
        put(&mut at, source, SIZE);
        let assignment = root_assignment(&mut at, target, source);
        at.hear(2, PeerMessage::AssignSlot { reduction: id_of(2, 9), assignment });
        let &fold = at.folds.keys().next().expect("it folds");
        if looked_at {
            let call = at.ask(get_partial(target));
            viewed(&at, call);
        } else {
            at.end_fold(fold);
        }
        let first = id_of(2, 1);
        let assignment = partial(&mut at, first, source);
        assert_eq!(preempt(&mut at, first, assignment), [0; 0]);
    }
}

/// A reduction without a source may wait for the target of another one, so it must not preempt any.
#[test]
fn a_coordinator_preempts_when_all_sources_are_complete() {
    let mut at = Node::alone(8 << 20);
    let (target, sources) = (crate::requests::object("t"), ["a", "b"].map(crate::requests::object));
    let edition = crate::requests::edition(5);
    at.request(2, sources[0], announce(put_report(1, edition, SIZE)));
    at.request(3, sources[1], announce(writing_report(3, 1, edition, SIZE)));
    at.ask(reduce(target, &sources, 2, FoldOrder::Fixed));
    let told = at.take_mail().into_iter().find_map(|(to, message)| match message {
        PeerMessage::AssignSlot { reduction, assignment } => Some((to, reduction, assignment)),
        _ => None,
    });
    let (to, reduction, assignment) = told.expect("the second is the root");
    assert_eq!((to, &assignment.sources[..]), (node(3), &[Source { id: sources[1], edition }][..]));
    let asked = |at: &mut Node| {
        let (slot, attempt) = (assignment.slot, assignment.attempt);
        at.hear(3, PeerMessage::SlotNeedsSpace { reduction, slot, attempt });
        at.take_mail().contains(&(node(3), PeerMessage::Preempt { reduction, slot, attempt }))
    };
    assert!(!asked(&mut at));
    at.request(3, sources[1], announce(put_report(2, edition, SIZE)));
    assert!(asked(&mut at));
}

/// A reduction that waits for its target, and for space, would wait for ever.
#[test]
fn a_reduction_that_loses_a_source_tells_all_its_slots() {
    let mut at = Node::among(4, 16 << 20);
    let ids = (0..).map(|number| object(&format!("source {number}")));
    let sources: Vec<ObjectId> = ids.filter(|&id| at.owner_of(id) == ME).take(4).collect();
    for (&source, holder) in sources.iter().zip([2, 3, 4]) {
        at.request(holder, source, announce(put_report(1, edition(u64::from(holder)), SIZE)));
    }
    let target = at.id_owned_by(ME);
    at.take_mail();
    at.ask(reduce(target, &sources, 3, FoldOrder::Arrival));
    let assignments = |at: &mut Node| {
        let mail = at.take_mail().into_iter();
        let assignments = mail.filter_map(|(to, message)| match message {
            PeerMessage::AssignSlot { assignment, .. } => Some((to.addr.port(), assignment)),
            _ => None,
        });
        assignments.collect::<Vec<_>>()
    };
    let told = assignments(&mut at);
    let (holder, sum) =
        told.iter().find(|(_, assignment)| !assignment.root).expect("three have sources").clone();
    let (root, _) = told.iter().find(|(_, assignment)| assignment.root).expect("one is the root").clone();
    assert!(!sum.lacking);
    let gone = sources[usize::from(root) - 2];
    at.request(root, gone, DirectoryRequest::Withdraw { seq: 2, edition: edition(u64::from(root)) });
    at.wait(Duration::from_secs(2));
    let again = assignments(&mut at);
    let is_it = |(to, assignment): &(u16, SlotAssignment)| *to == holder && assignment.slot == sum.slot;
    let (_, again) = again.into_iter().find(is_it).expect("it is told");
    assert!(again.lacking && again.attempt == sum.attempt, "{again:?}");
}

/// A sum without a reader would hold its space until the reduction is over.
#[test]
fn a_node_that_reports_a_slot_of_another_node_is_told_to_release_it() {
    let mut at = Node::among(3, 16 << 20);
    let ids = (0..).map(|number| object(&format!("source {number}")));
    let ours: Vec<ObjectId> = ids.filter(|&id| at.owner_of(id) == ME).take(4).collect();
    let [target, first, second, mine] = ours[..] else { panic!() };
    for (source, holder) in [(first, 2), (second, 3)] {
        at.request(holder, source, announce(put_report(1, edition(u64::from(holder)), SIZE)));
    }
    at.take_mail();
    at.ask(reduce(target, &[first, second], 2, FoldOrder::Arrival));
    let reduction = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::AssignSlot { reduction, .. } => Some(reduction),
        _ => None,
    });
    let reduction = reduction.expect("both have sources");
    for said in [
        PeerMessage::SlotHeld { reduction, slot: 77, attempt: 1 },
        PeerMessage::RootDone { reduction, slot: 77, attempt: 1 },
    ] {
        at.hear(3, said);
        assert_eq!(at.take_mail(), [(node(3), PeerMessage::ReleaseSlot { reduction, slot: 77, attempt: 1 })]);
    }
    // And as a node with a slot.
    put(&mut at, mine, SIZE);
    let before = at.copies.len();
    let of = crate::crashes::reduction(2);
    let assignment = root_assignment(&mut at, object("theirs"), mine);
    let (slot, attempt) = (assignment.slot, assignment.attempt);
    at.hear(2, PeerMessage::AssignSlot { reduction: of, assignment });
    assert_eq!(at.copies.len(), before + 1);
    at.hear(2, PeerMessage::ReleaseSlot { reduction: of, slot, attempt: attempt + 1 });
    at.hear(3, PeerMessage::ReleaseSlot { reduction: of, slot, attempt });
    assert_eq!(at.copies.len(), before + 1, "of another attempt, or not its coordinator's word");
    at.hear(2, PeerMessage::ReleaseSlot { reduction: of, slot, attempt });
    assert_eq!(at.folds.len(), 0);
    assert_eq!(at.copies.len(), before);
}

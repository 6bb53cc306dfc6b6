//! All-gather of a striped allreduce at one node: it assembles the target from its parts.

use std::collections::BTreeSet;

use hoplite_types::client::Request;
use hoplite_types::limits::PROGRESS_BLOCK_BYTES;
use hoplite_types::peer::{Child, DirectoryRequest, PeerMessage, SlotAssignment, SlotFailure};
use hoplite_types::{CopyId, Edition, ObjectId, TransferId};

use crate::crashes::{reduction, root_assignment};
use crate::node::{node, Node, Opened, ME};
use crate::puts::{put, viewed};
use crate::requests::{accepted, array, delete, deleted, get, object};
use crate::sends::send_at;

/// One of three nodes, with a slot of node 2's, whose target is made of three parts: that of node 3, its own, and
/// that of node 2, which comes by way of node 3.
struct Participant {
    at: Node,
    target: ObjectId,
    source: ObjectId,
    whole: SlotAssignment,
    /// Its own sum.
    sum: SlotAssignment,
}

const WHOLE: u64 = 6 << 20;
const PART: u64 = (WHOLE / 3).next_multiple_of(64);

impl Participant {
    fn new(root: bool) -> Self {
        let mut participant = Self::unaccepted(root);
        let word = accepted(participant.whole.edition);
        participant.at.answer(2, participant.target, word);
        participant
    }

    /// Its owner has not heard yet that the target is made here.
    fn unaccepted(root: bool) -> Self {
        Self::in_store(root, 64 << 20)
    }

    fn in_store(root: bool, bytes: u64) -> Self {
        let mut at = Node::among(3, bytes);
        let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
        put(&mut at, source, WHOLE);
        let id = reduction(2);
        let blank =
            SlotAssignment { size: WHOLE, header: array(WHOLE), ..root_assignment(&mut at, target, source) };
        let partial = |slot: u32| SlotAssignment {
            slot,
            out: ObjectId::partial_sum(id, slot),
            edition: Edition { writing: u64::from(slot), attempt: 0 },
            root: false,
            size: PART,
            ..blank.clone()
        };
        let part = |slot: u32, from: u16, id: ObjectId| {
            let edition = Edition { writing: u64::from(slot), attempt: 0 };
            Child { slot, node: node(from), id, edition }
        };
        let sum = SlotAssignment { offset: PART, ..partial(2) };
        let whole = SlotAssignment {
            slot: 9,
            edition: Edition { writing: 9, attempt: 0 },
            root,
            sources: Vec::new(),
            children: vec![
                part(1, 3, ObjectId::partial_sum(id, 1)),
                part(2, ME, sum.out),
                part(3, 3, ObjectId::target_part(id, 3)),
            ],
            part_bytes: Some(PART),
            ..blank.clone()
        };
        at.take_mail();
        at.hear(2, PeerMessage::Prefetch { id: target });
        for assignment in [&sum, &whole] {
            at.hear(2, PeerMessage::AssignSlot { reduction: id, assignment: assignment.clone() });
        }
        Participant { at, target, source, whole, sum }
    }

    fn copy_of(&self, id: ObjectId) -> CopyId {
        let mut copies = self.at.copies.keys().copied();
        copies.find(|&copy| self.at.identity_of(copy).0 == id).expect("it is open")
    }

    /// Its own sum is made, and becomes its part of the target.
    fn sum_up(&mut self) {
        for out in [self.sum.out, ObjectId::target_part(reduction(2), 2)] {
            let copy = self.copy_of(out);
            let fold = *self.at.folds.iter().find(|(_, fold)| fold.out == copy).expect("it folds").0;
            self.at.end_fold(fold);
        }
    }

    fn receive_of(&self, slot: u32) -> TransferId {
        let copy = self.copy_of(ObjectId::target_part(reduction(2), slot));
        *self.at.receives.iter().find(|(_, receive)| receive.copy == copy).expect("it comes").0
    }

    fn arrive(&mut self, slot: u32) {
        let transfer = self.receive_of(slot);
        self.at.end_receive(transfer);
    }

    fn commit(&mut self) {
        let (id, edition) = (self.target, self.whole.edition);
        let sources = vec![self.source];
        self.at.hear(2, PeerMessage::Commit { reduction: reduction(2), attempt: 0, id, edition, sources });
    }

    /// Committed, while a part is still on its way.
    fn late() -> Self {
        let mut participant = Participant::new(false);
        participant.sum_up();
        participant.arrive(1);
        participant.commit();
        participant
    }

    fn ends_empty(mut self) {
        self.at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
        let gone = deleted(&self.at);
        self.at.answer(2, self.target, gone);
        self.at.ask(delete(self.source));
        self.at.assert_empty();
    }

    fn said(&mut self, wanted: impl Fn(&PeerMessage) -> bool) -> bool {
        self.at.take_mail().iter().any(|(_, message)| wanted(message))
    }
}

#[test]
fn the_parts_are_windows_of_the_target_and_only_the_sum_is_of_a_range() {
    let participant = Participant::new(true);
    let target = participant.at.copies[&participant.copy_of(participant.target)].extent;
    for (number, size) in [(1, PART), (2, PART), (3, WHOLE - 2 * PART)] {
        let copy = participant.copy_of(ObjectId::target_part(reduction(2), number));
        let window = participant.at.copies[&copy].extent;
        assert!(window.is_window());
        assert_eq!((window.offset, window.size), (target.offset + u64::from(number - 1) * PART, size));
    }
    let sum = participant.copy_of(participant.sum.out);
    let offsets = participant.at.folds.values().map(|fold| (fold.out == sum, fold.rule.offset));
    assert_eq!(offsets.collect::<BTreeSet<_>>(), BTreeSet::from([(true, PART), (false, 0)]));
    participant.ends_empty();
}

/// Closing it again must not count as new space, or it would be opened again at once.
#[test]
fn a_target_without_space_for_all_its_windows_waits() {
    let block = PROGRESS_BLOCK_BYTES;
    let room = 2 * (block + WHOLE) + (block + PART) + 2 * block;
    let mut participant = Participant::in_store(true, room);
    assert!(participant
        .at
        .copies
        .keys()
        .all(|&copy| participant.at.identity_of(copy).0 != participant.target));
    participant.at.ask(delete(participant.source));
    let gone = deleted(&participant.at);
    participant.at.answer(2, participant.target, gone);
    participant.at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    participant.at.assert_empty();
}

#[test]
fn the_root_reports_when_it_has_every_part_and_seals_with_the_commit() {
    let mut participant = Participant::new(true);
    let read = participant.at.ask(get(participant.target));
    participant.sum_up();
    participant.arrive(3);
    assert!(!participant.said(|message| matches!(message, PeerMessage::RootDone { .. })));
    participant.arrive(1);
    assert!(participant.said(|message| matches!(message, PeerMessage::RootDone { slot: 9, attempt: 0, .. })));
    assert_eq!(participant.at.reply(read), None, "nobody seals before the commit");
    participant.commit();
    assert!(participant.said(|message| matches!(message, PeerMessage::Committed { sealed: true, .. })));
    let copy = viewed(&participant.at, read);
    assert_eq!(participant.at.copies[&copy].sealed.as_ref().expect("sealed").sources, [participant.source]);
    let left = participant.at.copies.len();
    assert_eq!(left, 2, "the source and the target: windows and sums are gone");
    participant.at.ask(Request::Release { copy });
    participant.ends_empty();
}

#[test]
fn a_target_of_parts_is_sealed_when_its_owner_has_accepted_it() {
    for root in [true, false] {
        let mut participant = Participant::unaccepted(root);
        participant.sum_up();
        participant.arrive(1);
        participant.arrive(3);
        assert!(!participant.said(|message| matches!(message, PeerMessage::RootDone { .. })));
        if !root {
            // The root's owner was faster.
            participant.commit();
        }
        let copy = participant.copy_of(participant.target);
        assert_eq!(participant.at.copies[&copy].sealed, None);
        let word = accepted(participant.whole.edition);
        participant.at.answer(2, participant.target, word);
        match root {
            true => assert!(participant.said(|message| matches!(message, PeerMessage::RootDone { .. }))),
            false => assert!(participant.at.copies[&copy].sealed.is_some()),
        }
        participant.ends_empty();
    }
}

#[test]
fn a_neighbour_may_finish_its_stream_from_a_window() {
    let mut participant = Participant::new(false);
    let id = ObjectId::target_part(reduction(2), 3);
    let edition = Edition { writing: 3, attempt: 0 };
    let pull = PeerMessage::Pull { transfer: TransferId(70), id, edition, offset: 0, patient: true };
    participant.at.hear(3, pull);
    let (&send, sending) = participant.at.sends.iter().next().expect("it is passed on while it comes");
    let window = sending.copy;
    participant.sum_up();
    participant.arrive(1);
    participant.arrive(3);
    participant.commit();
    assert!(participant.at.sends.contains_key(&send) && participant.at.copies.contains_key(&window));
    participant.at.end_send(send);
    assert!(!participant.at.copies.contains_key(&window));
    participant.ends_empty();
}

#[test]
fn a_part_that_breaks_off_before_the_commit_is_reported_to_the_coordinator() {
    let mut participant = Participant::new(false);
    let transfer = participant.receive_of(3);
    participant.at.break_receive(transfer, 100);
    assert!(participant.said(|message| {
        matches!(message, PeerMessage::SlotFailed { slot: 9, failure: SlotFailure::Child(3), .. })
    }));
    participant.ends_empty();
}

#[test]
fn after_the_commit_a_late_node_continues_alone_and_fetches_broken_parts() {
    for breaks in [false, true] {
        let mut participant = Participant::late();
        participant.at.take_mail();
        let transfer = participant.receive_of(3);
        if breaks {
            participant.at.break_receive(transfer, 100);
        } else {
            participant.at.end_receive(transfer);
        }
        let target = participant.target;
        let asks =
            participant.at.take_requests(target).iter().any(|r| matches!(r, DirectoryRequest::Ask { .. }));
        let sealed = participant
            .at
            .copies
            .values()
            .filter(|copy| copy.sealed.as_ref().is_some_and(|seal| seal.sources == [participant.source]));
        assert_eq!((asks, sealed.count()), if breaks { (true, 0) } else { (false, 1) });
        participant.ends_empty();
    }
}

/// The coordinator is done once the root has sealed, and releases the slots of a node whose report crossed the commit.
#[test]
fn after_the_commit_nothing_of_the_coordinator_takes_the_parts_away() {
    for dies in [false, true] {
        let mut participant = Participant::late();
        if dies {
            participant.at.kill(2);
        } else {
            participant.at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
        }
        participant.arrive(3);
        let whole =
            |copy: &&Opened| copy.sealed.as_ref().is_some_and(|seal| seal.sources == [participant.source]);
        assert_eq!(participant.at.copies.values().filter(whole).count(), 1);
    }
}

#[test]
fn a_deleted_target_takes_its_windows_along() {
    let mut participant = Participant::new(true);
    let gone = deleted(&participant.at);
    participant.at.answer(2, participant.target, gone);
    assert!(participant.at.receives.is_empty());
    participant.ends_empty();
}

#[test]
fn the_streams_of_stripes_share_all_connections() {
    let mut participant = Participant::new(false);
    let mut ids = (0..).map(|n| object(&format!("large {n}")));
    let large = ids.find(|&id| participant.at.owner_of(id) == ME).expect("hashing is even");
    put(&mut participant.at, large, 16 << 20);
    let learnt: Vec<_> =
        (80..87).map(|transfer| send_at(&mut participant.at, 3, transfer, large, 1000)).collect();
    assert_eq!(learnt, [1, 2, 1, 4, 2, 8, 4]);
    // Partial sums and parts go to the same neighbour.
    let part = (ObjectId::target_part(reduction(2), 3), 3);
    for (id, writing) in [(participant.sum.out, 2), part] {
        let edition = Edition { writing, attempt: 0 };
        let pull = PeerMessage::Pull { transfer: TransferId(90), id, edition, offset: 0, patient: true };
        participant.at.hear(3, pull);
        let (&send, sending) = participant.at.sends.iter().next().expect("it is sent");
        assert_eq!((sending.connections.get(), sending.group), (8, Some(reduction(2))));
        participant.at.end_send(send);
    }
}

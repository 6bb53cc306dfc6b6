//! Striped allreduce: what a coordinator tells whom, what each node does with it, and when it is taken back.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_words::client::{Reply, Request};
use hoplite_words::peer::{Child, DirectoryRequest, PeerMessage, Seat, SeatTrouble};
use hoplite_words::{CopyId, Edition, FoldOrder, NodeId, ObjectId, ReductionId, TransferId};

use crate::crashes::{reduction, root_seat};
use crate::node::{node, Node, Opened, ME};
use crate::puts::{put, viewed};
use crate::requests::{accepted, announce, array, delete, deleted, edition, get, object, put_report, reduce};
use crate::serving::send_at;

const NODES: std::ops::RangeInclusive<u16> = 2..=5;

/// Large enough for stripes on links nothing is known of yet, and no multiple of anything.
const LARGE: u64 = (8 << 20) + 24;

/// A coordinator without a source of its own, and a source on each of four other nodes.
struct Called {
    at: Node,
    call: u64,
    target: ObjectId,
    sources: Vec<ObjectId>,
}

impl Called {
    fn new(k: u32) -> Self {
        let mut at = Node::among(*NODES.end(), 8 << 20);
        let target = at.id_owned_by(ME);
        let ids = (0..).map(|i| ObjectId::from_name(&format!("source {i}")));
        let ids: Vec<_> = ids.take(200).collect();
        let sources: Vec<_> = ids.into_iter().filter(|&id| at.owner_of(id) == ME).take(4).collect();
        for (from, &source) in NODES.zip(&sources) {
            at.request(from, source, announce(put_report(1, edition(u64::from(from)), LARGE)));
        }
        at.take_mail();
        let Request::Reduce { target, sources, num_objects, op, order, timeout_ms, .. } =
            reduce(target, &sources, k, FoldOrder::Arrival)
        else {
            unreachable!("made by reduce")
        };
        let listed = sources.clone();
        let to_sources = true;
        let call =
            at.ask(Request::Reduce { target, sources, num_objects, op, order, timeout_ms, to_sources });
        Called { at, call, target, sources: listed }
    }

    fn seats(&mut self) -> Vec<(NodeId, Seat)> {
        seats(self.at.take_mail())
    }
}

fn seats(mail: Vec<(NodeId, PeerMessage)>) -> Vec<(NodeId, Seat)> {
    let seats = mail.into_iter().filter_map(|(to, message)| match message {
        PeerMessage::Seat { seat, .. } => Some((to, seat)),
        _ => None,
    });
    seats.collect()
}

fn are_stripes(seats: &[(NodeId, Seat)]) -> bool {
    seats.iter().any(|(_, seat)| seat.part_bytes.is_some())
}

fn reduction_of(mail: &[(NodeId, PeerMessage)]) -> ReductionId {
    let seat = mail.iter().find_map(|(_, message)| match message {
        PeerMessage::Seat { reduction, .. } => Some(*reduction),
        _ => None,
    });
    seat.expect("somebody is seated")
}

fn disbanded(mail: &[(NodeId, PeerMessage)]) -> BTreeSet<NodeId> {
    let is_disband = |message: &PeerMessage| matches!(message, PeerMessage::Disband { .. });
    mail.iter().filter(|(_, message)| is_disband(message)).map(|(to, _)| *to).collect()
}

#[test]
fn every_byte_is_folded_once_at_every_node_and_no_link_carries_more_than_it_must() {
    let mut called = Called::new(4);
    let seats = called.seats();
    let (wholes, folds): (Vec<_>, Vec<_>) =
        seats.into_iter().partition(|(_, seat)| seat.part_bytes.is_some());
    let mut folded: BTreeMap<NodeId, Vec<(u64, u64)>> = BTreeMap::new();
    let mut sent: BTreeMap<NodeId, u64> = BTreeMap::new();
    for (at, seat) in &folds {
        folded.entry(*at).or_default().push((seat.offset, seat.size));
        assert_eq!(seat.sources.len(), 1);
        for child in &seat.children {
            let (from, below) = folds.iter().find(|(_, below)| below.slot == child.slot).expect("a slot");
            assert_eq!((below.offset, below.size, *from), (seat.offset, seat.size, child.node));
            *sent.entry(child.node).or_default() += seat.size;
        }
    }
    for parts in folded.values_mut() {
        parts.sort_unstable();
        let ends: Vec<_> = parts.iter().map(|(offset, size)| offset + size).collect();
        assert_eq!(parts[0].0, 0);
        assert!(parts[1..].iter().zip(&ends).all(|((offset, _), end)| offset == end), "{parts:?}");
        assert_eq!(ends.last(), Some(&LARGE));
    }
    assert_eq!(folded.len(), NODES.count());
    assert_eq!(wholes.len(), NODES.count());
    assert_eq!(wholes.iter().filter(|(_, whole)| whole.root).count(), 1);
    for (at, whole) in &wholes {
        assert_eq!((whole.out, whole.size, whole.edition), (called.target, LARGE, wholes[0].1.edition));
        let own = whole.children.iter().filter(|part| part.node == *at).count();
        assert_eq!(own, 1, "each node makes one of the sums");
        for part in whole.children.iter().filter(|part| part.node != *at) {
            let (_, sum) = folds.iter().find(|(_, sum)| sum.slot == part.slot).expect("a slot");
            *sent.entry(part.node).or_default() += sum.size;
        }
    }
    let n = NODES.count() as u64;
    let bound = 2 * (n - 1) * LARGE / n;
    assert!(sent.values().all(|&bytes| bytes.abs_diff(bound) < n * 64), "{sent:?}, not {bound}");
}

#[test]
fn a_commit_goes_to_all_and_the_caller_hears_when_the_root_has_sealed() {
    let mut called = Called::new(4);
    let mail = called.at.take_mail();
    let reduction = reduction_of(&mail);
    let seats = seats(mail);
    let (root, seat) = seats.iter().find(|(_, seat)| seat.root).expect("one is pinned").clone();
    let port = root.addr.port();
    let done = PeerMessage::RootDone { reduction, slot: seat.slot, attempt: seat.attempt };
    called.at.hear(port, done);
    let mail = called.at.take_mail();
    let commits: BTreeSet<_> = mail
        .iter()
        .filter(
            |(_, message)| matches!(message, PeerMessage::Commit { edition, .. } if *edition == seat.edition),
        )
        .map(|(to, _)| *to)
        .collect();
    assert_eq!(commits, NODES.map(node).collect());
    assert_eq!(called.at.reply(called.call), None);
    called.at.hear(port, PeerMessage::Committed { reduction, sealed: true });
    let Some(Reply::Reduced { sources }) = called.at.reply(called.call) else { panic!("no answer") };
    assert_eq!(BTreeSet::from_iter(sources), BTreeSet::from_iter(&called.sources));
    let mail = called.at.take_mail();
    assert_eq!(disbanded(&mail), BTreeSet::new(), "some may still be at it");
}

#[test]
fn what_breaks_off_is_taken_back_as_a_whole_and_striped_only_so_often() {
    let mut called = Called::new(4);
    let mut mail = called.at.take_mail();
    let mut slots = BTreeSet::new();
    let mut stripings = 0;
    while are_stripes(&seats(mail.clone())) {
        stripings += 1;
        assert!(stripings < 10, "it never gives up");
        let reduction = reduction_of(&mail);
        let told = seats(mail);
        let fresh = told.iter().map(|(_, seat)| seat.slot).collect::<BTreeSet<_>>();
        assert!(fresh.is_disjoint(&slots), "slots are numbered anew");
        slots.extend(fresh);
        let (from, seat) = told.iter().find(|(_, seat)| !seat.children.is_empty()).expect("a parent").clone();
        let trouble = SeatTrouble::Child(seat.children[0].slot);
        let failed = PeerMessage::SeatFailed { reduction, slot: seat.slot, attempt: 0, trouble };
        called.at.hear(from.addr.port(), failed.clone());
        mail = called.at.take_mail();
        assert_eq!(disbanded(&mail), NODES.map(node).collect());
        // Said again, it is about slots that are none any more.
        called.at.hear(from.addr.port(), failed);
        assert!(called.at.take_mail().is_empty());
    }
    assert_eq!(stripings, 2);
    assert!(!seats(mail).is_empty(), "a plain chain goes on");
}

#[test]
fn without_one_of_its_sources_it_goes_on_as_a_chain() {
    let mut called = Called::new(4);
    assert!(are_stripes(&called.seats()));
    let lost = DirectoryRequest::Withdraw { seq: 2, edition: edition(3) };
    called.at.request(3, called.sources[1], lost);
    let mail = called.at.take_mail();
    assert_eq!(disbanded(&mail), NODES.map(node).collect());
    let told = seats(mail);
    assert!(!told.is_empty() && !are_stripes(&told));
    assert!(told.iter().all(|(to, _)| *to != node(3)));
}

#[test]
fn a_spare_source_takes_the_place_of_one_that_is_gone_in_new_stripes() {
    let mut called = Called::new(3);
    let before = called.seats();
    assert!(are_stripes(&before));
    called.at.request(2, called.sources[0], DirectoryRequest::Withdraw { seq: 2, edition: edition(2) });
    let after = called.seats();
    assert!(are_stripes(&after));
    let nodes: BTreeSet<_> = after.iter().map(|(to, _)| *to).collect();
    assert_eq!(nodes, (3..=5).map(node).collect());
}

#[test]
fn a_store_too_crowded_for_stripes_gets_a_chain() {
    let mut called = Called::new(4);
    let mail = called.at.take_mail();
    let reduction = reduction_of(&mail);
    let told = seats(mail);
    let (from, seat) = told.iter().find(|(_, seat)| seat.part_bytes.is_some()).expect("stripes");
    called.at.hear(from.addr.port(), PeerMessage::SeatCrowded { reduction, slot: seat.slot, attempt: 0 });
    let mail = called.at.take_mail();
    assert_eq!(disbanded(&mail), NODES.map(node).collect());
    let told = seats(mail);
    assert!(!told.is_empty() && !are_stripes(&told));
}

/// One of three nodes, seated by node 2, whose target is made of three parts: that of node 3, its own, and
/// that of node 2, which comes by way of node 3.
struct Seated {
    at: Node,
    target: ObjectId,
    source: ObjectId,
    whole: Seat,
    /// Its own sum.
    sum: Seat,
}

const WHOLE: u64 = 6 << 20;
const PART: u64 = (WHOLE / 3).next_multiple_of(64);

impl Seated {
    fn new(root: bool) -> Self {
        let mut seated = Self::unjudged(root);
        let word = accepted(seated.whole.edition);
        seated.at.answer(2, seated.target, word);
        seated
    }

    /// Its owner has not heard yet that the target is made here.
    fn unjudged(root: bool) -> Self {
        let mut at = Node::among(3, 64 << 20);
        let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
        put(&mut at, source, WHOLE);
        let id = reduction(2);
        let blank = Seat { size: WHOLE, header: array(WHOLE), ..root_seat(&mut at, target, source) };
        let partial = |slot: u32| Seat {
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
        let sum = Seat { offset: PART, ..partial(2) };
        let whole = Seat {
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
        for seat in [&sum, &whole] {
            at.hear(2, PeerMessage::Seat { reduction: id, seat: seat.clone() });
        }
        Seated { at, target, source, whole, sum }
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
        let mut seated = Seated::new(false);
        seated.sum_up();
        seated.arrive(1);
        seated.commit();
        seated
    }

    fn ends_empty(mut self) {
        self.at.hear(2, PeerMessage::Disband { reduction: reduction(2) });
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
    let seated = Seated::new(true);
    let target = seated.at.copies[&seated.copy_of(seated.target)].extent;
    for (number, size) in [(1, PART), (2, PART), (3, WHOLE - 2 * PART)] {
        let copy = seated.copy_of(ObjectId::target_part(reduction(2), number));
        let window = seated.at.copies[&copy].extent;
        assert!(window.is_window());
        assert_eq!((window.offset, window.size), (target.offset + u64::from(number - 1) * PART, size));
    }
    let sum = seated.copy_of(seated.sum.out);
    let offsets = seated.at.folds.values().map(|fold| (fold.out == sum, fold.rule.offset));
    assert_eq!(offsets.collect::<BTreeSet<_>>(), BTreeSet::from([(true, PART), (false, 0)]));
    seated.ends_empty();
}

#[test]
fn the_root_says_when_it_has_every_part_and_seals_with_the_commit() {
    let mut seated = Seated::new(true);
    let read = seated.at.ask(get(seated.target));
    seated.sum_up();
    seated.arrive(3);
    assert!(!seated.said(|message| matches!(message, PeerMessage::RootDone { .. })));
    seated.arrive(1);
    assert!(seated.said(|message| matches!(message, PeerMessage::RootDone { slot: 9, attempt: 0, .. })));
    assert_eq!(seated.at.reply(read), None, "nobody seals before the commit");
    seated.commit();
    assert!(seated.said(|message| matches!(message, PeerMessage::Committed { sealed: true, .. })));
    let copy = viewed(&seated.at, read);
    assert_eq!(seated.at.copies[&copy].sealed.as_ref().expect("sealed").sources, [seated.source]);
    let left = seated.at.copies.len();
    assert_eq!(left, 2, "the source and the target: windows and sums are gone");
    seated.at.ask(Request::Release { copy });
    seated.ends_empty();
}

#[test]
fn a_target_of_parts_is_sealed_when_its_owner_has_accepted_it() {
    for root in [true, false] {
        let mut seated = Seated::unjudged(root);
        seated.sum_up();
        seated.arrive(1);
        seated.arrive(3);
        assert!(!seated.said(|message| matches!(message, PeerMessage::RootDone { .. })));
        if !root {
            // The root's owner was faster.
            seated.commit();
        }
        let copy = seated.copy_of(seated.target);
        assert_eq!(seated.at.copies[&copy].sealed, None);
        let word = accepted(seated.whole.edition);
        seated.at.answer(2, seated.target, word);
        match root {
            true => assert!(seated.said(|message| matches!(message, PeerMessage::RootDone { .. }))),
            false => assert!(seated.at.copies[&copy].sealed.is_some()),
        }
        seated.ends_empty();
    }
}

#[test]
fn a_neighbour_may_finish_what_it_streams_from_a_window() {
    let mut seated = Seated::new(false);
    let id = ObjectId::target_part(reduction(2), 3);
    let edition = Edition { writing: 3, attempt: 0 };
    let pull = PeerMessage::Pull { transfer: TransferId(70), id, edition, offset: 0, patient: true };
    seated.at.hear(3, pull);
    let (&send, sending) = seated.at.sends.iter().next().expect("it is passed on while it comes");
    let window = sending.copy;
    seated.sum_up();
    seated.arrive(1);
    seated.arrive(3);
    seated.commit();
    assert!(seated.at.sends.contains_key(&send) && seated.at.copies.contains_key(&window));
    seated.at.end_send(send);
    assert!(!seated.at.copies.contains_key(&window));
    seated.ends_empty();
}

#[test]
fn a_part_that_breaks_off_before_the_commit_is_the_coordinators_trouble() {
    let mut seated = Seated::new(false);
    let transfer = seated.receive_of(3);
    seated.at.break_receive(transfer, 100);
    assert!(seated.said(|message| {
        matches!(message, PeerMessage::SeatFailed { slot: 9, trouble: SeatTrouble::Child(3), .. })
    }));
    seated.ends_empty();
}

#[test]
fn after_the_commit_who_is_late_goes_on_alone_and_fetches_what_breaks_off() {
    for breaks in [false, true] {
        let mut seated = Seated::late();
        seated.at.take_mail();
        let transfer = seated.receive_of(3);
        if breaks {
            seated.at.break_receive(transfer, 100);
        } else {
            seated.at.end_receive(transfer);
        }
        let target = seated.target;
        let asks = seated.at.take_requests(target).iter().any(|r| matches!(r, DirectoryRequest::Ask { .. }));
        let sealed = seated
            .at
            .copies
            .values()
            .filter(|copy| copy.sealed.as_ref().is_some_and(|seal| seal.sources == [seated.source]));
        assert_eq!((asks, sealed.count()), if breaks { (true, 0) } else { (false, 1) });
        seated.ends_empty();
    }
}

/// The coordinator is done once the root has sealed, and disbands a node whose report crossed the commit.
#[test]
fn after_the_commit_nothing_of_the_coordinator_takes_the_parts_away() {
    for dies in [false, true] {
        let mut seated = Seated::late();
        if dies {
            seated.at.kill(2);
        } else {
            seated.at.hear(2, PeerMessage::Disband { reduction: reduction(2) });
        }
        seated.arrive(3);
        let whole = |copy: &&Opened| copy.sealed.as_ref().is_some_and(|seal| seal.sources == [seated.source]);
        assert_eq!(seated.at.copies.values().filter(whole).count(), 1);
    }
}

#[test]
fn a_deleted_target_takes_its_windows_along() {
    let mut seated = Seated::new(true);
    let gone = deleted(&seated.at);
    seated.at.answer(2, seated.target, gone);
    assert!(seated.at.receives.is_empty());
    seated.ends_empty();
}

#[test]
fn the_streams_of_stripes_share_all_connections() {
    let mut seated = Seated::new(false);
    let mut ids = (0..).map(|n| object(&format!("large {n}")));
    let large = ids.find(|&id| seated.at.owner_of(id) == ME).expect("hashing is even");
    put(&mut seated.at, large, 16 << 20);
    let learnt: Vec<_> = (80..87).map(|transfer| send_at(&mut seated.at, 3, transfer, large, 1000)).collect();
    assert_eq!(learnt, [1, 2, 1, 4, 2, 8, 4]);
    // Partial sums and parts go to the same neighbour.
    let part = (ObjectId::target_part(reduction(2), 3), 3);
    for (id, writing) in [(seated.sum.out, 2), part] {
        let edition = Edition { writing, attempt: 0 };
        let pull = PeerMessage::Pull { transfer: TransferId(90), id, edition, offset: 0, patient: true };
        seated.at.hear(3, pull);
        let (&send, sending) = seated.at.sends.iter().next().expect("it is sent");
        assert_eq!((sending.connections.get(), sending.group), (8, Some(reduction(2))));
        seated.at.end_send(send);
    }
}

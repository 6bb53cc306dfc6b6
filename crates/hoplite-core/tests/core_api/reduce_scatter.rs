//! Striped allreduce: the coordinator's assignments, and when it releases them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{CopyReport, DirectoryRequest, PeerMessage, SlotAssignment, SlotFailure};
use hoplite_types::{FoldOrder, NodeId, ObjectId, ReductionId};

use crate::node::{node, Node, ME};
use crate::requests::{announce, edition, put_report, reduce};

const NODES: std::ops::RangeInclusive<u16> = 2..=5;

/// Large enough for stripes on links without measurements, and no round number.
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

    fn assignments(&mut self) -> Vec<(NodeId, SlotAssignment)> {
        assignments(self.at.take_mail())
    }
}

fn assignments(mail: Vec<(NodeId, PeerMessage)>) -> Vec<(NodeId, SlotAssignment)> {
    let assignments = mail.into_iter().filter_map(|(to, message)| match message {
        PeerMessage::AssignSlot { assignment, .. } => Some((to, assignment)),
        _ => None,
    });
    assignments.collect()
}

fn are_stripes(assignments: &[(NodeId, SlotAssignment)]) -> bool {
    assignments.iter().any(|(_, assignment)| assignment.part_bytes.is_some())
}

fn reduction_of(mail: &[(NodeId, PeerMessage)]) -> ReductionId {
    let assignment = mail.iter().find_map(|(_, message)| match message {
        PeerMessage::AssignSlot { reduction, .. } => Some(*reduction),
        _ => None,
    });
    assignment.expect("somebody has a slot")
}

fn released(mail: &[(NodeId, PeerMessage)]) -> BTreeSet<NodeId> {
    let is_disband = |message: &PeerMessage| matches!(message, PeerMessage::ReleaseSlots { .. });
    mail.iter().filter(|(_, message)| is_disband(message)).map(|(to, _)| *to).collect()
}

#[test]
fn every_byte_is_folded_once_at_every_node_and_no_link_carries_too_much() {
    let mut called = Called::new(4);
    let assignments = called.assignments();
    let (wholes, folds): (Vec<_>, Vec<_>) =
        assignments.into_iter().partition(|(_, assignment)| assignment.part_bytes.is_some());
    let mut folded: BTreeMap<NodeId, Vec<(u64, u64)>> = BTreeMap::new();
    let mut sent: BTreeMap<NodeId, u64> = BTreeMap::new();
    for (at, assignment) in &folds {
        folded.entry(*at).or_default().push((assignment.offset, assignment.size));
        assert_eq!(assignment.sources.len(), 1);
        for child in &assignment.children {
            let (from, below) = folds.iter().find(|(_, below)| below.slot == child.slot).expect("a slot");
            assert_eq!((below.offset, below.size, *from), (assignment.offset, assignment.size, child.node));
            *sent.entry(child.node).or_default() += assignment.size;
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
    let assignments = assignments(mail);
    let (root, assignment) =
        assignments.iter().find(|(_, assignment)| assignment.root).expect("one is pinned").clone();
    let port = root.addr.port();
    let done = PeerMessage::RootDone { reduction, slot: assignment.slot, attempt: assignment.attempt };
    called.at.hear(port, done);
    let mail = called.at.take_mail();
    let commits: BTreeSet<_> = mail
        .iter()
        .filter(
            |(_, message)| matches!(message, PeerMessage::Commit { edition, .. } if *edition == assignment.edition),
        )
        .map(|(to, _)| *to)
        .collect();
    assert_eq!(commits, NODES.map(node).collect());
    assert_eq!(called.at.reply(called.call), None);
    called.at.hear(port, PeerMessage::Committed { reduction, sealed: true });
    let Some(Reply::Reduced { sources }) = called.at.reply(called.call) else { panic!("no answer") };
    assert_eq!(BTreeSet::from_iter(sources), BTreeSet::from_iter(&called.sources));
    let mail = called.at.take_mail();
    assert_eq!(released(&mail), BTreeSet::new(), "some may still be at it");
}

#[test]
fn a_broken_striped_attempt_is_released_as_a_whole_and_repeated_a_few_times() {
    let mut called = Called::new(4);
    let mut mail = called.at.take_mail();
    let mut slots = BTreeSet::new();
    let mut stripings = 0;
    while are_stripes(&assignments(mail.clone())) {
        stripings += 1;
        assert!(stripings < 10, "it never gives up");
        let reduction = reduction_of(&mail);
        let told = assignments(mail);
        let fresh = told.iter().map(|(_, assignment)| assignment.slot).collect::<BTreeSet<_>>();
        assert!(fresh.is_disjoint(&slots), "slots are numbered anew");
        slots.extend(fresh);
        let (from, assignment) =
            told.iter().find(|(_, assignment)| !assignment.children.is_empty()).expect("a parent").clone();
        let failure = SlotFailure::Child(assignment.children[0].slot);
        let failed = PeerMessage::SlotFailed { reduction, slot: assignment.slot, attempt: 0, failure };
        called.at.hear(from.addr.port(), failed.clone());
        mail = called.at.take_mail();
        assert_eq!(released(&mail), NODES.map(node).collect());
        // The repeated report is about slots that no longer exist.
        called.at.hear(from.addr.port(), failed);
        assert!(called.at.take_mail().is_empty());
    }
    assert_eq!(stripings, 2);
    assert!(!assignments(mail).is_empty(), "a plain chain goes on");
}

#[test]
fn without_one_of_its_sources_it_goes_on_as_a_chain() {
    let mut called = Called::new(4);
    assert!(are_stripes(&called.assignments()));
    let lost = DirectoryRequest::Withdraw { seq: 2, edition: edition(3) };
    called.at.request(3, called.sources[1], lost);
    let mail = called.at.take_mail();
    assert_eq!(released(&mail), NODES.map(node).collect());
    let told = assignments(mail);
    assert!(!told.is_empty() && !are_stripes(&told));
    assert!(told.iter().all(|(to, _)| *to != node(3)));
}

#[test]
fn a_spare_source_takes_the_place_of_one_that_is_gone_in_new_stripes() {
    let mut called = Called::new(3);
    let before = called.assignments();
    assert!(are_stripes(&before));
    called.at.request(2, called.sources[0], DirectoryRequest::Withdraw { seq: 2, edition: edition(2) });
    let after = called.assignments();
    assert!(are_stripes(&after));
    let nodes: BTreeSet<_> = after.iter().map(|(to, _)| *to).collect();
    assert_eq!(nodes, (3..=5).map(node).collect());
}

#[test]
fn a_store_too_small_for_stripes_gets_a_chain() {
    let mut called = Called::new(4);
    let mail = called.at.take_mail();
    let reduction = reduction_of(&mail);
    let told = assignments(mail);
    let (from, assignment) =
        told.iter().find(|(_, assignment)| assignment.part_bytes.is_some()).expect("stripes");
    called
        .at
        .hear(from.addr.port(), PeerMessage::SlotNeedsSpace { reduction, slot: assignment.slot, attempt: 0 });
    let mail = called.at.take_mail();
    assert_eq!(released(&mail), NODES.map(node).collect());
    let told = assignments(mail);
    assert!(!told.is_empty() && !are_stripes(&told));
}

#[test]
fn a_committed_target_that_others_are_still_putting_together_is_not_lost() {
    let mut called = Called::new(4);
    let mail = called.at.take_mail();
    let reduction = reduction_of(&mail);
    let assignments = assignments(mail);
    let (root, assignment) =
        assignments.iter().find(|(_, assignment)| assignment.root).expect("one is pinned").clone();
    let target = called.target;
    let report = |seq, complete| CopyReport {
        complete,
        pinned: false,
        header: assignment.header.clone(),
        stamp: Some(assignment.stamp),
        claim: (!complete).then_some(assignment.claim),
        ..put_report(seq, assignment.edition, LARGE)
    };
    for number in NODES {
        let request =
            DirectoryRequest::Announce { report: report(10, false), payload: None, wants_verdict: true };
        called.at.request(number, target, request);
    }
    let done = PeerMessage::RootDone { reduction, slot: assignment.slot, attempt: assignment.attempt };
    called.at.hear(root.addr.port(), done);
    called.at.crash(root.addr.port());
    called.at.wait(Duration::from_millis(1500));
    assert_eq!(called.at.reply(called.call), None, "they have its commit, and are at it");
    let other = NODES.map(node).find(|other| *other != root).expect("there are several");
    called.at.request(other.addr.port(), target, announce(report(11, true)));
    assert!(matches!(called.at.reply(called.call), Some(Reply::Reduced { .. })));
}

//! A coordinator's assignments as sources come, go and fail. After every step the latest assignments must be one tree
//! over k sources, and no slot may have changed under its readers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::client::Reply;
use hoplite_types::peer::{CopyReport, DirectoryRequest, PeerMessage, SlotAssignment, SlotFailure};
use hoplite_types::{Edition, FoldOrder, ObjectId, ReductionId};
use proptest::prelude::*;

use crate::node::{node, Node};
use crate::requests::{announce, edition, object, put_report, received_report, reduce, writing_report, SIZE};

const NODES: std::ops::RangeInclusive<u16> = 2..=5;
const SOURCES_MAX: usize = 9;

#[derive(Clone, Debug)]
enum Step {
    /// A source is put on a node, complete or not.
    Put {
        index: usize,
        at: u16,
        complete: bool,
    },
    /// A node caches it as well.
    Cache {
        index: usize,
        at: u16,
    },
    Finish {
        index: usize,
        at: u16,
    },
    Vanish {
        index: usize,
        at: u16,
    },
    /// A slot reports that an input broke: which slot, which of its inputs.
    Fail {
        assignment: usize,
        input: usize,
    },
}

struct World {
    coordinator: Node,
    call: u64,
    reduction: Option<ReductionId>,
    sources: Vec<ObjectId>,
    k: usize,
    order: FoldOrder,
    held: BTreeMap<(usize, u16), CopyReport>,
    /// Reported by a slot as not usable.
    bad: BTreeSet<(usize, u16, Edition)>,
    number: u64,
    /// By slot: the last assignment, and the order in which its fold takes its inputs.
    slots: BTreeMap<u32, Participant>,
    root: Option<u32>,
}

struct Participant {
    at: u16,
    assignment: SlotAssignment,
    /// Local inputs in fold order, and streams: they come before all others.
    streams: Vec<Input>,
    local: Vec<Input>,
}

#[derive(Clone, Debug, PartialEq)]
enum Input {
    Source(ObjectId),
    Child(u32),
}

impl World {
    fn new(n: usize, k: usize, order: FoldOrder, latency: Duration, before: &[Step]) -> Self {
        let mut coordinator = Node::alone(64 << 20);
        coordinator.measure(latency);
        let mut world = World {
            coordinator,
            call: 0,
            reduction: None,
            sources: (0..n).map(|index| object(&format!("source {index}"))).collect(),
            k,
            order,
            held: BTreeMap::new(),
            bad: BTreeSet::new(),
            number: 0,
            slots: BTreeMap::new(),
            root: None,
        };
        for step in before {
            world.step(step);
        }
        let request = reduce(object("target"), &world.sources, k as u32, order);
        world.call = world.coordinator.ask(request);
        world.hear();
        world.check();
        world
    }

    fn announce(&mut self, index: usize, at: u16, report: CopyReport) {
        self.held.insert((index, at), report.clone());
        self.coordinator.request(at, self.sources[index], announce(report));
    }

    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn step(&mut self, step: &Step) {
        let n = self.sources.len();
        match *step {
            Step::Put { index, at, complete } if !self.held.keys().any(|&(held, _)| held == index % n) => {
                let (edition, seq) = (edition(self.next()), self.next());
                let report = match complete {
                    true => put_report(seq, edition, SIZE),
                    false => writing_report(at, seq, edition, SIZE),
                };
                self.announce(index % n, at, report);
            }
            Step::Cache { index, at } if !self.held.contains_key(&(index % n, at)) => {
                let whole =
                    self.held.iter().find(|((held, _), report)| *held == index % n && report.complete);
                if let Some(edition) = whole.map(|(_, report)| report.edition) {
                    let seq = self.next();
                    self.announce(index % n, at, received_report(seq, edition, SIZE, None));
                }
            }
            Step::Finish { index, at } => {
                if let Some(edition) = self.held.get(&(index % n, at)).map(|report| report.edition) {
                    let seq = self.next();
                    self.announce(index % n, at, put_report(seq, edition, SIZE));
                }
            }
            Step::Vanish { index, at } => {
                if let Some(report) = self.held.remove(&(index % n, at)) {
                    let (seq, edition) = (self.next(), report.edition);
                    let request = DirectoryRequest::Withdraw { seq, edition };
                    self.coordinator.request(at, self.sources[index % n], request);
                }
            }
            Step::Fail { assignment, input } => self.fail(assignment, input),
            Step::Put { .. } | Step::Cache { .. } => {}
        }
        if self.call != 0 {
            self.hear();
            self.check();
        }
    }

    fn fail(&mut self, assignment: usize, input: usize) {
        if self.slots.is_empty() {
            return;
        }
        let (&slot, participant) = self.slots.iter().nth(assignment % self.slots.len()).expect("in range");
        let assignment = &participant.assignment;
        let inputs = assignment.sources.iter().map(|source| SlotFailure::Source(source.id));
        let inputs: Vec<_> =
            inputs.chain(assignment.children.iter().map(|child| SlotFailure::Child(child.slot))).collect();
        let input = inputs[input % inputs.len()];
        let (at, attempt) = (participant.at, assignment.attempt);
        let current = self.tree().is_some_and(|tree| tree.contains(&slot));
        if let SlotFailure::Source(id) = input {
            // A report about a slot that no longer exists may count or not, so such a source is then really gone.
            let index = self.index(id);
            let edition = assignment.sources.iter().find(|source| source.id == id).expect("its own").edition;
            if !current {
                return;
            }
            self.bad.insert((index, at, edition));
        }
        let reduction = self.reduction.expect("there is a assignment");
        self.coordinator.hear(at, PeerMessage::SlotFailed { reduction, slot, attempt, failure: input });
    }

    fn index(&self, id: ObjectId) -> usize {
        self.sources.iter().position(|&source| source == id).expect("a source")
    }

    /// Applies the assignments, and checks each change against the earlier one.
    fn hear(&mut self) {
        for (to, message) in self.coordinator.take_mail() {
            let PeerMessage::AssignSlot { reduction, assignment } = message else { continue };
            self.reduction = Some(reduction);
            self.on_assign_slot(to.addr.port(), assignment);
        }
    }

    fn on_assign_slot(&mut self, at: u16, assignment: SlotAssignment) {
        assert_eq!(assignment.edition.attempt, assignment.attempt);
        let known =
            self.slots.get(&assignment.slot).filter(|known| known.assignment.attempt == assignment.attempt);
        if known.is_some_and(|known| known.assignment.version == assignment.version) {
            // Repeated, for a node that may have missed it.
            return assert_eq!(known.expect("just seen").assignment, assignment);
        }
        let (mut streams, mut local) = (Vec::new(), Vec::new());
        let (mut old_sources, mut old_children) = (0, Vec::new());
        if let Some(Participant { at: before, assignment: told, streams: s, local: l }) = known {
            assert_eq!(*before, at, "another node needs another attempt");
            let lacks = SlotAssignment { lacking: true, version: assignment.version, ..told.clone() };
            assert!(
                told.open || assignment == lacks,
                "changed under its readers: {told:?} became {assignment:?}"
            );
            assert!(assignment.sources.starts_with(&told.sources), "{told:?} became {assignment:?}");
            assert!(
                told.children.iter().all(|child| assignment.children.contains(child)),
                "{told:?} became {assignment:?}"
            );
            (streams, local) = (s.clone(), l.clone());
            (old_sources, old_children) = (told.sources.len(), told.children.clone());
        } else if let Some(known) = self.slots.get(&assignment.slot) {
            assert!(
                assignment.attempt > known.assignment.attempt,
                "back from {:?} to {assignment:?}",
                known.assignment
            );
        }
        for child in assignment.children.iter().filter(|child| !old_children.contains(child)) {
            match child.node == node(at) {
                true => local.push(Input::Child(child.slot)),
                false => streams.push(Input::Child(child.slot)),
            }
        }
        local.extend(assignment.sources[old_sources..].iter().map(|source| Input::Source(source.id)));
        if assignment.root {
            self.root = Some(assignment.slot);
        }
        self.slots.insert(assignment.slot, Participant { at, assignment, streams, local });
    }

    fn available(&self) -> usize {
        let usable = |index: usize| {
            self.held.iter().any(|(&(held, at), report)| {
                held == index && !self.bad.contains(&(index, at, report.edition))
            })
        };
        (0..self.sources.len()).filter(|&index| usable(index)).count()
    }

    /// The slots of the tree below the current root, if it is complete.
    fn tree(&self) -> Option<BTreeSet<u32>> {
        if self.available() < self.k {
            return None;
        }
        let mut tree = BTreeSet::new();
        let mut open = vec![self.root?];
        while let Some(slot) = open.pop() {
            let assignment = &self.slots.get(&slot)?.assignment;
            tree.insert(slot);
            open.extend(assignment.children.iter().filter(|c| !self.sources.contains(&c.id)).map(|c| c.slot));
        }
        Some(tree)
    }

    fn check(&self) {
        if self.available() < self.k {
            return;
        }
        let root = self.root.expect("k sources are there");
        let mut seen = BTreeSet::new();
        let mut taken = BTreeSet::new();
        self.check_below(root, true, &mut seen, &mut taken);
        assert_eq!(
            taken.len(),
            self.k,
            "{:?}",
            self.slots.values().map(|s| &s.assignment).collect::<Vec<_>>()
        );
        if self.order == FoldOrder::Fixed {
            let folded = self.folded(root);
            let indices: Vec<_> = taken.iter().map(|index| index.to_string()).collect();
            let (first, rest) = indices.split_first().expect("k is at least 1");
            let left = rest.iter().fold(first.clone(), |sum, next| format!("({sum}+{next})"));
            assert_eq!(folded, left);
        }
    }

    fn check_below(&self, slot: u32, root: bool, seen: &mut BTreeSet<u32>, taken: &mut BTreeSet<usize>) {
        assert!(seen.insert(slot), "slot {slot} is in the tree twice");
        let Participant { at, assignment, .. } = &self.slots[&slot];
        assert!(assignment.root == root && !assignment.open, "{assignment:?}");
        for source in &assignment.sources {
            self.take(source.id, *at, source.edition, taken);
        }
        for child in &assignment.children {
            if self.sources.contains(&child.id) {
                assert!(seen.insert(child.slot), "slot {} is in the tree twice", child.slot);
                self.take(child.id, child.node.addr.port(), child.edition, taken);
            } else {
                let below = &self.slots[&child.slot];
                let expected = (node(below.at), below.assignment.out, below.assignment.edition);
                assert_eq!((child.node, child.id, child.edition), expected, "a child by its current name");
                self.check_below(child.slot, false, seen, taken);
            }
        }
    }

    fn take(&self, id: ObjectId, at: u16, edition: Edition, taken: &mut BTreeSet<usize>) {
        let index = self.index(id);
        let held = self.held.get(&(index, at)).unwrap_or_else(|| panic!("source {index} is not at {at}"));
        assert_eq!(held.edition, edition);
        assert!(!self.bad.contains(&(index, at, edition)), "source {index} at {at} was reported as bad");
        assert!(taken.insert(index), "source {index} is in the tree twice");
    }

    /// The result of a slot, as a formula.
    fn folded(&self, slot: u32) -> String {
        let Participant { assignment, streams, local, .. } = &self.slots[&slot];
        let term = |input: &Input| match input {
            Input::Source(id) => self.index(*id).to_string(),
            Input::Child(child) => {
                let child = assignment.children.iter().find(|known| known.slot == *child).expect("its child");
                match self.sources.contains(&child.id) {
                    true => self.index(child.id).to_string(),
                    false => self.folded(child.slot),
                }
            }
        };
        let terms = streams.iter().chain(local).map(term);
        terms.reduce(|sum, next| format!("({sum}+{next})")).expect("a slot has inputs")
    }

    /// All sources arrive, the root finishes, and nothing is left.
    fn finish(&mut self) {
        for index in 0..self.sources.len() {
            let unfinished = self.held.iter().find(|((held, _), report)| *held == index && !report.complete);
            if let Some((&(index, at), _)) = unfinished {
                self.step(&Step::Vanish { index, at });
            }
            let seq = self.next();
            let edition = edition(self.next());
            // On a node of its own, beyond all that was reported as bad. It was accepted later than the copies of
            // others, which are to go.
            self.held.retain(|&(held, _), _| held != index);
            self.announce(index, 10 + index as u16, put_report(seq, edition, SIZE));
            self.hear();
            self.check();
        }
        let Participant { at, assignment, .. } = &self.slots[&self.root.expect("all sources are there")];
        let (at, slot, attempt) = (*at, assignment.slot, assignment.attempt);
        let reduction = self.reduction.expect("it has slots");
        let edition = assignment.edition;
        self.coordinator.hear(at, PeerMessage::RootDone { reduction, slot, attempt });
        assert_eq!(self.coordinator.reply(self.call), None, "the root has not sealed yet");
        let mut mail = self.coordinator.take_mail();
        self.coordinator.hear(at, PeerMessage::Committed { reduction, sealed: true });
        mail.extend(self.coordinator.take_mail());
        let Some(Reply::Reduced { sources }) = self.coordinator.reply(self.call).cloned() else {
            panic!("{:?}", self.coordinator.reply(self.call));
        };
        let distinct: BTreeSet<_> = sources.iter().collect();
        assert_eq!((sources.len(), distinct.len()), (self.k, self.k));
        let commits: Vec<_> =
            mail.iter().filter(|(_, message)| matches!(message, PeerMessage::Commit { .. })).collect();
        let commit = PeerMessage::Commit {
            reduction,
            attempt,
            id: object("target"),
            edition,
            sources: sources.clone(),
        };
        assert_eq!(commits, [&(node(at), commit)]);
        let told: BTreeSet<_> = self.slots.values().map(|participant| node(participant.at)).collect();
        let released = |to| mail.contains(&(to, PeerMessage::ReleaseSlots { reduction }));
        assert!(told.into_iter().all(released), "{mail:?}");
        self.call = 0;
        let target = received_report(1, edition, SIZE, None);
        let stamp = Some(self.slots[&slot].assignment.stamp);
        let target = CopyReport { pinned: true, stamp, ..target };
        self.coordinator.request(at, object("target"), announce(target));
        let gone = DirectoryRequest::Withdraw { seq: 2, edition };
        self.coordinator.request(at, object("target"), gone);
        for (index, at) in self.held.keys().copied().collect::<Vec<_>>() {
            self.step(&Step::Vanish { index, at });
        }
        self.coordinator.assert_empty();
    }
}

fn step() -> impl Strategy<Value = Step> {
    let (index, at) = (0..SOURCES_MAX, NODES);
    prop_oneof![
        8 => (index.clone(), at.clone(), any::<bool>())
            .prop_map(|(index, at, complete)| Step::Put { index, at, complete }),
        2 => (index.clone(), at.clone()).prop_map(|(index, at)| Step::Cache { index, at }),
        2 => (index.clone(), at.clone()).prop_map(|(index, at)| Step::Finish { index, at }),
        4 => (index, at).prop_map(|(index, at)| Step::Vanish { index, at }),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(assignment, input)| Step::Fail { assignment, input }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_one_tree_over_k_sources(
        before in proptest::collection::vec(step(), 0..12),
        after in proptest::collection::vec(step(), 1..60),
        (n, k) in (1..=SOURCES_MAX).prop_flat_map(|n| (Just(n), 1..=n)),
        fixed in any::<bool>(),
        // A chain, a binary tree, and a star become the best with these.
        latency in prop_oneof![Just(1u64), Just(700), Just(20_000)].prop_map(Duration::from_micros),
    ) {
        let order = if fixed { FoldOrder::Fixed } else { FoldOrder::Arrival };
        let mut world = World::new(n, k, order, latency, &before);
        for step in &after {
            world.step(step);
        }
        world.finish();
    }
}

#[test]
fn sources_on_one_node_share_a_slot_if_they_are_known_from_the_start() {
    for order in [FoldOrder::Arrival, FoldOrder::Fixed] {
        let before: Vec<_> =
            (0..6).map(|index| Step::Put { index, at: 2 + index as u16 / 3, complete: true }).collect();
        let world = World::new(6, 6, order, Duration::from_micros(1), &before);
        assert_eq!(world.slots.len(), 2);
        assert!(world.slots.values().all(|participant| participant.assignment.sources.len() == 3));
    }
}

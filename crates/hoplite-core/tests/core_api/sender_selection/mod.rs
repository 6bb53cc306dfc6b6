//! The directory as the only owner, and nodes that act at random on one object: every lend is checked against their
//! true state.

mod truth;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{Edition, NodeId, ObjectId, Stamp};
use proptest::prelude::*;

use crate::node::{node, Node, ME};
use crate::requests::{announce, announce_unaccepted, edition, put_report, received_report, writing_report};

/// The nodes that take part, the directory's own not among them.
const NODES: std::ops::RangeInclusive<u16> = 2..=7;
/// Watches the object all the time.
const WATCHER: u16 = 8;
/// How long a sender that failed is avoided.
const DISTRUST: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Doing {
    Nothing,
    /// Its put waits for what becomes of another.
    Contending(Edition),
    Writing(Edition),
    Asking {
        ask: u64,
        have: Option<Edition>,
        distrust: Option<(u16, Duration)>,
    },
    Receiving {
        from: u16,
        edition: Edition,
    },
    Holding {
        edition: Edition,
        pinned: bool,
    },
}

#[derive(Clone, Debug)]
enum Step {
    Put(u16),
    Finish(u16),
    Abort(u16),
    Ask(u16),
    CancelAsk(u16),
    Complete(u16),
    Break(u16),
    Evict(u16),
    Delete,
    Wait(u64),
}

/// The reaction of a node to a message, once it reads it.
#[derive(Clone, Copy, Debug)]
enum Reaction {
    /// Its sender sends no more.
    BreakOff { receiver: u16, from: u16, edition: Edition },
    /// Its half of this edition is of no use.
    Drop { receiver: u16, edition: Edition },
    /// It has dropped what it had of the deleted object.
    HaveHeard { number: u16 },
}

struct World {
    owner: Node,
    id: ObjectId,
    size: u64,
    fanout: usize,
    doing: BTreeMap<u16, Doing>,
    number: u64,
    deleted: bool,
    was_complete: bool,
    /// The copies that the subscriber was told of.
    watched: BTreeMap<NodeId, CopyReport>,
    /// The reports of the nodes.
    reported: BTreeMap<NodeId, CopyReport>,
    /// The reports of the nodes that want to write it.
    proposed: BTreeMap<u16, CopyReport>,
    /// When the owner has accepted each writing.
    stamps: BTreeMap<Edition, Stamp>,
    reactions: VecDeque<Reaction>,
}

impl World {
    fn new(size: u64, latency: Duration) -> Self {
        let mut owner = Node::among(WATCHER, 8 << 20);
        owner.measure(latency);
        let fanout = hoplite_core::fanout(size, latency.as_secs_f64(), 1e9);
        let id = owner.id_owned_by(ME);
        owner.request(WATCHER, id, DirectoryRequest::Subscribe { bytes_max: None });
        World {
            owner,
            id,
            size,
            fanout,
            doing: NODES.map(|number| (number, Doing::Nothing)).collect(),
            number: 0,
            deleted: false,
            was_complete: false,
            watched: BTreeMap::new(),
            reported: BTreeMap::new(),
            proposed: BTreeMap::new(),
            stamps: BTreeMap::new(),
            reactions: VecDeque::new(),
        }
    }

    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn announce(&mut self, from: u16, report: CopyReport) {
        let report = CopyReport { stamp: self.stamps.get(&report.edition).copied(), ..report };
        if !self.deleted {
            self.reported.insert(node(from), report.clone());
            self.was_complete |= report.complete;
        }
        self.say(from, announce(report));
    }

    fn withdraw(&mut self, from: u16, edition: Edition) {
        self.reported.remove(&node(from));
        let seq = self.next();
        self.say(from, DirectoryRequest::Withdraw { seq, edition });
    }

    fn ask(&mut self, from: u16, have: Option<Edition>, failed: Option<u16>) {
        let ask = self.next();
        let distrust = failed.map(|failed| (failed, self.owner.now + DISTRUST));
        self.doing.insert(from, Doing::Asking { ask, have, distrust });
        self.say(from, DirectoryRequest::Ask { ask, have, failed: failed.map(node) });
    }

    fn say(&mut self, from: u16, request: DirectoryRequest) {
        self.owner.request(from, self.id, request);
        self.hear_answers();
    }

    fn hear_answers(&mut self) {
        for (to, message) in self.owner.take_mail() {
            if matches!(message, PeerMessage::BackupIds { .. }) {
                continue;
            }
            let PeerMessage::Answer { id, answer } = message else { panic!("{message:?}") };
            assert_eq!(id, self.id);
            let number = to.addr.port();
            match answer {
                DirectoryAnswer::Lend { ask, sender, edition, stamp, .. } => {
                    assert_eq!(stamp, self.stamps.get(&edition).copied());
                    self.on_lend(number, ask, sender, edition)
                }
                DirectoryAnswer::Copy { node, report, .. } => {
                    assert_eq!(number, WATCHER);
                    self.watched.insert(node, report);
                }
                DirectoryAnswer::CopyGone { node } => {
                    assert_eq!(number, WATCHER);
                    assert!(self.watched.remove(&node).is_some() || !self.reported.contains_key(&node));
                }
                DirectoryAnswer::Lost => {
                    assert!(self.is_lost(), "told lost, but {:?}", self.doing);
                }
                DirectoryAnswer::Deleted { .. } => {
                    assert!(self.deleted);
                    if number == WATCHER {
                        self.watched.clear();
                    } else {
                        self.doing.insert(number, Doing::Nothing);
                    }
                    self.reactions.push_back(Reaction::HaveHeard { number });
                }
                DirectoryAnswer::Verdict { edition, verdict } => self.on_verdict(number, edition, verdict),
                // A node may know better: it evicts what it was asked to keep at the same moment.
                DirectoryAnswer::Pin => {
                    assert!(matches!(self.doing[&number], Doing::Holding { .. }), "{:?}", self.doing)
                }
                DirectoryAnswer::DeleteDone { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn on_verdict(&mut self, number: u16, edition: Edition, verdict: Verdict) {
        let is_complete = |doing: &Doing| matches!(doing, Doing::Holding { .. });
        let is_written = |doing: &Doing| matches!(doing, Doing::Writing(_));
        match (verdict, self.doing[&number]) {
            (Verdict::Accepted(stamp), Doing::Contending(contending)) => {
                assert_eq!(contending, edition);
                let stands = |doing: &Doing| is_complete(doing) || is_written(doing);
                assert!(!self.doing.values().any(stands), "two contents in {:?}", self.doing);
                assert!(self.stamps.values().all(|&earlier| earlier < stamp));
                self.stamps.insert(edition, stamp);
                self.doing.insert(number, Doing::Writing(edition));
                let report = self.proposed.remove(&number).expect("it said so");
                self.reported.insert(node(number), CopyReport { stamp: Some(stamp), ..report });
            }
            (Verdict::Exists(stamp), Doing::Contending(_)) => {
                assert!(self.doing.values().any(is_complete), "nobody has it in {:?}", self.doing);
                assert!(self.stamps.values().any(|&known| known == stamp));
                self.doing.insert(number, Doing::Nothing);
            }
            (Verdict::Abandoned, _) => self.reactions.push_back(Reaction::Drop { receiver: number, edition }),
            other => panic!("{other:?} of {edition:?} in {:?}", self.doing),
        }
    }

    fn on_lend(&mut self, to: u16, ask: u64, sender: NodeId, edition: Edition) {
        let sender = sender.addr.port();
        let Doing::Asking { ask: current, have, .. } = self.doing[&to] else {
            panic!("{to} did not ask: {:?}", self.doing)
        };
        assert_eq!(ask, current);
        assert!(
            self.may_lend(sender, to),
            "{sender} lent to {to} in {:?} at {:?}",
            self.doing,
            self.owner.now
        );
        assert_eq!(self.edition_at(sender), Some(edition));
        self.doing.insert(to, Doing::Receiving { from: sender, edition });
        if have != Some(edition) {
            self.break_all(to);
        }
    }

    /// All receivers of `number` will notice that nothing more comes.
    fn break_all(&mut self, number: u16) {
        for receiver in self.receivers_of(number) {
            self.break_off(receiver);
        }
    }

    fn break_off(&mut self, receiver: u16) {
        if let Doing::Receiving { from, edition } = self.doing[&receiver] {
            self.reactions.push_back(Reaction::BreakOff { receiver, from, edition });
        }
    }

    fn react(&mut self) {
        while let Some(reaction) = self.reactions.pop_front() {
            match reaction {
                Reaction::BreakOff { receiver, from, edition } => {
                    if self.doing[&receiver] == (Doing::Receiving { from, edition }) {
                        self.ask(receiver, Some(edition), Some(from));
                    }
                }
                Reaction::Drop { receiver, edition } => self.drop_half(receiver, edition),
                Reaction::HaveHeard { number } => {
                    let id = self.id;
                    self.owner.hear(number, PeerMessage::DeletionAck { id });
                    self.hear_answers();
                }
            }
        }
    }

    fn drop_half(&mut self, receiver: u16, edition: Edition) {
        let doing = self.doing[&receiver];
        let half = matches!(doing, Doing::Asking { .. } | Doing::Receiving { .. });
        if !half || self.edition_at(receiver) != Some(edition) {
            return;
        }
        self.doing.insert(receiver, Doing::Nothing);
        if let Doing::Asking { ask, .. } = doing {
            self.say(receiver, DirectoryRequest::CancelAsk { ask });
        }
        self.withdraw(receiver, edition);
        self.break_all(receiver);
        self.ask(receiver, None, None);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Put(number) if self.doing[&number] == Doing::Nothing && !self.deleted => {
                let edition = edition(self.next());
                self.doing.insert(number, Doing::Contending(edition));
                let seq = self.next();
                let report = writing_report(number, seq, edition, self.size);
                self.proposed.insert(number, report.clone());
                self.say(number, announce_unaccepted(number, report));
                self.check_contenders();
            }
            Step::Finish(number) => {
                if let Doing::Writing(edition) = self.doing[&number] {
                    self.doing.insert(number, Doing::Holding { edition, pinned: true });
                    let seq = self.next();
                    self.announce(number, put_report(seq, edition, self.size));
                }
            }
            Step::Abort(number) => {
                if let Doing::Writing(edition) | Doing::Contending(edition) = self.doing[&number] {
                    self.doing.insert(number, Doing::Nothing);
                    self.withdraw(number, edition);
                    self.break_all(number);
                }
            }
            Step::Ask(number) if self.doing[&number] == Doing::Nothing => self.ask(number, None, None),
            Step::CancelAsk(number) => {
                if let Doing::Asking { ask, have, .. } = self.doing[&number] {
                    self.doing.insert(number, Doing::Nothing);
                    self.say(number, DirectoryRequest::CancelAsk { ask });
                    if let Some(edition) = have {
                        self.withdraw(number, edition);
                    }
                    self.break_all(number);
                }
            }
            Step::Complete(number) => self.complete(number),
            Step::Break(number) => self.break_off(number),
            Step::Evict(number) => {
                if let Doing::Holding { edition, pinned: false } = self.doing[&number] {
                    self.doing.insert(number, Doing::Nothing);
                    self.withdraw(number, edition);
                    self.break_all(number);
                }
            }
            Step::Delete => {
                self.deleted = true;
                self.reported.clear();
                let token = self.next();
                self.say(2, DirectoryRequest::Delete { token });
            }
            Step::Wait(ms) => {
                self.owner.wait(Duration::from_millis(ms));
                self.hear_answers();
            }
            Step::Put(_) | Step::Ask(_) => {}
        }
        self.react();
        self.check();
    }

    fn complete(&mut self, number: u16) {
        let Doing::Receiving { from, edition } = self.doing[&number] else { return };
        if matches!(self.doing[&from], Doing::Holding { edition: theirs, .. } if theirs == edition) {
            self.doing.insert(number, Doing::Holding { edition, pinned: false });
            let seq = self.next();
            self.announce(number, received_report(seq, edition, self.size, None));
        }
    }

    /// No more troubles: all askers get the object if any node has it.
    fn heal(&mut self) {
        self.step(&Step::Wait(200));
        for number in NODES {
            self.step(&Step::Finish(number));
        }
        for _ in NODES {
            for number in NODES {
                self.step(&Step::Complete(number));
            }
        }
        let holder = self.doing.values().any(|doing| matches!(doing, Doing::Holding { .. }));
        for (number, doing) in &self.doing {
            let settled = matches!(doing, Doing::Nothing | Doing::Holding { .. });
            assert!(settled || !holder, "{number} never got it: {:?}", self.doing);
        }
        for number in NODES {
            self.step(&Step::CancelAsk(number));
            if let Doing::Holding { edition, .. } = self.doing[&number] {
                self.doing.insert(number, Doing::Nothing);
                self.withdraw(number, edition);
            }
        }
        self.say(WATCHER, DirectoryRequest::Unsubscribe);
        self.owner.assert_empty();
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => NODES.prop_map(Step::Put),
        4 => NODES.prop_map(Step::Finish),
        2 => NODES.prop_map(Step::Abort),
        10 => NODES.prop_map(Step::Ask),
        2 => NODES.prop_map(Step::CancelAsk),
        8 => NODES.prop_map(Step::Complete),
        5 => NODES.prop_map(Step::Break),
        3 => NODES.prop_map(Step::Evict),
        1 => Just(Step::Delete),
        4 => (1u64..120).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lends_follow_the_actual_transfers(
        steps in proptest::collection::vec(step(), 1..120),
        size in prop_oneof![Just(1000u64), Just(100_000), Just(1 << 20)],
        latency_us in prop_oneof![Just(100u64), Just(350)],
    ) {
        let mut world = World::new(size, Duration::from_micros(latency_us));
        for step in &steps {
            world.step(step);
        }
        world.heal();
    }
}

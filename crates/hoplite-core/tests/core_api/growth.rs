//! The cost of a turn grows linearly with the items that it touches, and not with the rest.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_core::Input;
use hoplite_types::client::Request;
use hoplite_types::peer::{Child, DirectoryRequest, PeerMessage, Scope, ShardQuery, SlotAssignment};
use hoplite_types::{Blob, FoldOrder, ObjectId, ReductionId, Stamp};

use crate::crashes::{reduction, root_assignment};
use crate::gets::lend;
use crate::node::{node, Node, ME};
use crate::puts::put;
use crate::recovery::id_moving;
use crate::requests::{
    accepted, announce, array, ask, create, edition, get, object, put_report, put_small, reduce, SIZE, SMALL,
};

const STORE: u64 = 8 << 20;

/// How many more there are in the second of two runs.
const MORE: usize = 16;

/// How long that took.
#[expect(clippy::disallowed_types, reason = "it is about real time")]
fn timed(work: impl FnOnce()) -> Duration {
    let began = std::time::Instant::now();
    work();
    began.elapsed()
}

/// Whether `MORE` times as many take less than `most` times as long, in one of a few trials. Where the machine does
/// other things at the same time, they come in between when something takes long: so as many are run with a few at
/// a time as all at once.
#[track_caller]
fn assert_growth(few: usize, most: u32, run: impl Fn(usize) -> Duration) {
    let shortest = |runs: usize, count| {
        let time = || (0..runs).map(|_| run(count)).sum::<Duration>() / runs as u32;
        (0..2).map(|_| time()).min().unwrap()
    };
    let mut trials = Vec::new();
    for _ in 0..4 {
        let (short, long) = (shortest(MORE, few), shortest(1, few * MORE));
        if long < short.max(Duration::from_micros(200)) * most {
            return;
        }
        trials.push((short, long));
    }
    panic!("{few}, and {MORE} times as many, take {trials:?}");
}

/// The path from each receiver to the source goes through all that were lent before it.
#[test]
fn many_waiting_receivers_of_a_large_object_are_lent_senders_in_one_turn() {
    // One after the other, and in a tree: where a hop takes as long as several copies.
    for (id, size) in [(object("large"), 4 << 20), (object("smaller"), 100_000)] {
        assert_growth(250, 5 * MORE as u32, |askers| {
            let mut at = Node::alone(STORE);
            at.measure(Duration::from_millis(1));
            for number in 0..askers {
                at.request(3 + number as u16, id, ask(5));
            }
            let took = timed(|| at.request(2, id, announce(put_report(1, edition(5), size))));
            assert_eq!(at.take_answers(id).len(), askers);
            took
        });
    }
}

/// Claims are found by their targets, however many there are.
#[test]
fn a_page_of_claims_is_short_work_with_many_reductions() {
    assert_growth(1000, MORE as u32 / 2, |reductions| {
        let mut at = Node::among(2, STORE);
        let targets: Vec<_> = (0..reductions).map(|number| object(&format!("sum {number}"))).collect();
        for (number, &target) in targets.iter().enumerate() {
            at.ask(reduce(target, &[object(&format!("source {number}"))], 1, FoldOrder::Arrival));
        }
        at.take_mail();
        let theirs = targets.into_iter().filter(|&id| at.owner_of(id) == 2).map(ObjectId::shard);
        let shards = theirs.collect::<BTreeSet<_>>().into_iter().take(200);
        let shards = shards.map(|shard| ShardQuery { shard, digest: None }).collect();
        let (round, scope, from, fresh, clock) = (1, Scope::All, None, false, Stamp::from_ms(0));
        timed(|| at.hear(2, PeerMessage::InventoryRequest { round, scope, shards, from, fresh, clock }))
    });
}

/// Each slot looks only at itself, not at those that wait already.
#[test]
fn many_gets_wait_for_an_object_that_is_being_written() {
    assert_growth(1000, 4 * MORE as u32, |gets| {
        let mut at = Node::alone(STORE);
        at.ask(create(object("slow"), SIZE));
        timed(|| {
            for _ in 0..gets {
                at.ask(get(object("slow")));
            }
        })
    });
}

#[test]
fn many_reductions_run_at_a_time() {
    assert_growth(1000, 4 * MORE as u32, |reductions| {
        let mut at = Node::alone(STORE);
        let targets: Vec<_> = (0..reductions).map(|number| object(&format!("sum {number}"))).collect();
        timed(|| {
            for target in targets {
                at.ask(reduce(target, &[object("never comes")], 1, FoldOrder::Arrival));
            }
        })
    });
}

/// Neither a verdict on a target nor free space causes a search among all slots.
#[test]
fn many_slots_are_taken_on_one_node() {
    assert_growth(1000, 4 * MORE as u32, |assignments| {
        let mut at = Node::among(2, STORE);
        let source = at.id_owned_by(ME);
        at.ask(put_small(source, SMALL));
        // They wait for space: the driver of these tests looks at all copies itself when one is opened.
        let ids = (0..).map(|number| object(&format!("half the room {number}")));
        let other = { ids }.find(|&id| at.owner_of(id) == ME).unwrap();
        put(&mut at, other, STORE / 2);
        let (size, header) = (STORE * 3 / 4, array(STORE * 3 / 4));
        let base = SlotAssignment { size, header, ..root_assignment(&mut at, object("sum"), source) };
        let assignment = |number: u64| SlotAssignment {
            out: object(&format!("sum {number}")),
            edition: edition(1000 + number),
            ..base.clone()
        };
        let assignments: Vec<_> = (0..assignments as u64).map(assignment).collect();
        timed(|| {
            for (assignment, number) in assignments.into_iter().zip(1..) {
                let (id, edition, reduction) =
                    (assignment.out, assignment.edition, ReductionId { number, ..reduction(2) });
                at.hear(2, PeerMessage::AssignSlot { reduction, assignment });
                at.answer(2, id, accepted(edition));
            }
        })
    });
}

/// A source of each of them goes, and comes again.
#[test]
fn many_nodes_take_part_in_one_reduction() {
    for to_sources in [false, true] {
        assert_growth(256, 3 * MORE as u32, |nodes| {
            let mut at = Node::alone(STORE);
            // So far apart that one node sums up what all others send.
            at.measure(Duration::from_millis(50));
            let sources: Vec<_> = (0..nodes).map(|number| object(&format!("source {number}"))).collect();
            for (&source, from) in sources.iter().zip(3..) {
                at.request(from, source, announce(put_report(1, edition(5), 70_000)));
            }
            let (last, k) = (sources[nodes - 1], nodes as u32);
            let request = reduce(object("sum"), &sources, k, FoldOrder::Arrival);
            at.ask(match request {
                Request::Reduce { target, sources, num_objects, op, order, timeout_ms, .. } => {
                    Request::Reduce { target, sources, num_objects, op, order, timeout_ms, to_sources }
                }
                other => other,
            });
            // Many sources are watched in turns.
            at.wait(Duration::from_millis(2));
            let is_star = |message: &PeerMessage| match message {
                PeerMessage::AssignSlot { assignment, .. } => assignment.children.len() == nodes - 1,
                _ => false,
            };
            assert!(at.take_mail().iter().any(|(_, message)| is_star(message)));
            let from = nodes as u16 + 2;
            timed(|| {
                for round in 1..4 {
                    at.now += Duration::from_millis(20);
                    let gone = DirectoryRequest::Withdraw { seq: 2 * round, edition: edition(5) };
                    at.request(from, last, gone);
                    at.now += Duration::from_millis(20);
                    at.request(from, last, announce(put_report(2 * round + 1, edition(5), 70_000)));
                }
            })
        });
    }
}

/// The node that sums up what all others send: it is told of them, of one more, and when all has come.
#[test]
fn a_slot_has_many_children() {
    assert_growth(250, 3 * MORE as u32, |children| {
        let mut at = Node::among(2, STORE);
        let source = at.id_owned_by(ME);
        put(&mut at, source, SIZE);
        let of = reduction(2);
        let child = |slot: u32| Child {
            slot,
            node: node(2 + slot as u16),
            id: ObjectId::partial_sum(of, slot),
            edition: edition(1000 + u64::from(slot)),
        };
        let mut children: Vec<_> = (1..=children as u32).map(child).collect();
        let base = root_assignment(&mut at, object("sum"), source);
        let first = SlotAssignment { open: true, children: children.clone(), ..base.clone() };
        children.push(child(children.len() as u32 + 1));
        let count = children.len();
        let second = SlotAssignment { version: 2, children, ..base };
        timed(|| {
            at.hear(2, PeerMessage::AssignSlot { reduction: of, assignment: first });
            at.hear(2, PeerMessage::AssignSlot { reduction: of, assignment: second });
            let fold = *at.folds.keys().next().unwrap();
            assert_eq!(at.folds[&fold].inputs.streams.len(), count);
            at.end_fold(fold);
        })
    });
}

/// Only requests of one node about one object are compared with each other.
#[test]
fn many_requests_of_one_node_wait_for_a_shard() {
    // Much of it is memory that is touched for the first time.
    assert_growth(1000, 8 * MORE as u32, |requests| {
        let mut at = Node::among(3, STORE);
        let id = id_moving(&mut at, 3, ME, 3);
        at.members_answer = false;
        at.crash(3);
        let took = timed(|| {
            for token in 0..requests as u64 {
                at.request(2, id, DirectoryRequest::Locate { token });
            }
        });
        assert_eq!(at.gauge("held requests"), requests as u64);
        took
    });
}

/// A request does not look at those before it, and the loss is not reported to all again for each.
#[test]
fn many_nodes_wait_for_an_object_of_a_shard_that_changes_hands() {
    for (have, holder) in [(None, Some(9)), (Some(edition(5)), None)] {
        assert_growth(250, 3 * MORE as u32, |askers| {
            let mut at = Node::among(3, STORE);
            let id = id_moving(&mut at, 3, ME, 3);
            at.members_answer = false;
            at.crash(3);
            at.wait(Duration::from_millis(20));
            if let Some(from) = holder {
                at.request(from, id, announce(put_report(1, edition(5), SMALL)));
            }
            for number in 0..askers {
                at.request(10 + number as u16, id, DirectoryRequest::Ask { ask: 1, have, failed: None });
            }
            at.take_mail();
            let took = timed(|| {
                // No other node could know of it.
                at.crash(2);
                at.wait(Duration::from_millis(20));
            });
            assert_eq!(at.gauge("held requests"), 0);
            took
        });
    }
}

/// The victims of a preemption are found without a look at what else is here.
#[test]
fn a_slot_preempts_on_a_node_with_many_copies() {
    assert_growth(1000, MORE as u32 / 4, |copies| {
        let mut at = Node::among(2, STORE);
        let source = at.id_owned_by(ME);
        put(&mut at, source, SIZE);
        for number in 0..copies {
            let report = put_report(1, edition(5), 8);
            let payload = Some(Blob(vec![0; 8]));
            let request = DirectoryRequest::Announce { report, payload, wants_verdict: false };
            at.request(2, object(&format!("small {number}")), request);
        }
        let (size, header) = (STORE - SIZE, array(STORE - SIZE));
        let assignment = SlotAssignment { size, header, ..root_assignment(&mut at, object("sum"), source) };
        at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment });
        at.wait(Duration::from_millis(1100));
        let waits = |(_, message): &(_, PeerMessage)| matches!(message, PeerMessage::SlotNeedsSpace { .. });
        assert!(at.take_mail().iter().any(waits));
        let preempt = PeerMessage::Preempt { reduction: reduction(2), slot: 0, attempt: 0 };
        let took = timed(|| {
            for _ in 0..100 {
                at.hear(2, preempt.clone());
            }
        });
        assert!(at.folds.is_empty(), "it finds no room");
        took
    });
}

/// The writings of one client are found among those of others.
#[test]
fn many_clients_that_write_go_one_after_the_other() {
    assert_growth(1000, 3 * MORE as u32, |clients| {
        let mut at = Node::alone(STORE);
        for number in 0..clients {
            at.ask_as(ClientId(1 + number as u64), create(object(&format!("put {number}")), 8));
        }
        timed(|| {
            for number in 0..clients {
                at.handle(Input::ClientGone { client: ClientId(1 + number as u64) });
            }
        })
    });
}

/// The sends of one node, if any, are found among those of others.
#[test]
fn many_connections_break_while_one_node_sends_much() {
    assert_growth(500, 3 * MORE as u32, |count| {
        let mut at = Node::among(2, STORE);
        let names = (0..).map(|number| object(&format!("got {number}")));
        let ids: Vec<_> = { names }.filter(|&id| at.owner_of(id) == 2).take(count).collect();
        for &id in &ids {
            at.ask(get(id));
            lend(&mut at, 2, id, 2, edition(5), 8);
            at.take_mail();
        }
        timed(|| {
            for number in 0..count as u16 {
                at.handle(Input::PeerBroken { node: node(3 + number) });
            }
        })
    });
}

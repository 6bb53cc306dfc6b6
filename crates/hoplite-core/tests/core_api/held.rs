//! Requests held until their shard is recovered.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, InventoryPage, Scope};
use hoplite_types::ObjectId;

use crate::node::{node, Node, ME};
use crate::recovery::{id_moving, take_asked};
use crate::requests::{announce_unaccepted, ask, edition, put_report, SIZE};

const MOMENT: Duration = Duration::from_millis(50);

#[test]
fn held_requests_are_served_in_order_of_arrival_and_only_the_newest_of_a_kind() {
    let mut at = Node::among(5, 8 << 20);
    let id = id_moving(&mut at, 3, ME, 5);
    at.members_answer = false;
    at.crash(3);
    at.wait(MOMENT);
    let locate = |token| DirectoryRequest::Locate { token };
    // In the order of neither nodes nor tokens.
    for (from, request) in [
        (5, locate(9)),
        (2, locate(8)),
        (2, locate(6)),
        (2, ask(1)),
        (5, locate(7)),
        (4, ask(1)),
        (5, locate(9)),
        (2, locate(8)),
        (4, ask(2)),
        (4, DirectoryRequest::CancelAsk { ask: 1 }),
        (2, DirectoryRequest::CancelAsk { ask: 1 }),
    ] {
        at.request(from, id, request);
    }
    assert_eq!(at.gauge("held requests"), 5);
    at.request(5, id, announce_unaccepted(5, put_report(7, edition(5), SIZE)));
    let newer = put_report(9, edition(5), SIZE);
    at.request(5, id, announce_unaccepted(5, newer));
    at.request(5, id, announce_unaccepted(5, put_report(8, edition(5), SIZE)));
    assert_eq!(at.gauge("held requests"), 6);
    let asked: Vec<_> = take_asked(&mut at).into_iter().filter(|asked| asked.scope == Scope::All).collect();
    for asked in asked {
        at.hear(asked.of, asked.answer(0, InventoryPage::default(), None));
    }
    at.wait(MOMENT);
    let told = at.take_answers(id);
    let located = told.iter().filter_map(|(to, answer)| match answer {
        DirectoryAnswer::Located { token, .. } => Some((*to, *token)),
        _ => None,
    });
    assert_eq!(located.collect::<Vec<_>>(), [(2, 6), (5, 7), (5, 9), (2, 8)]);
    let lent = told.iter().filter(|(_, answer)| matches!(answer, DirectoryAnswer::Lend { .. }));
    assert_eq!(lent.map(|(to, _)| *to).collect::<Vec<_>>(), [4]);
    assert_eq!(at.gauge("held requests"), 0);
    at.assert_consistent();
}

/// Node 2 asked 5,000 times for an object of a shard that is ours now, and the members have just sent their
/// inventories.
fn much_waits_for_a_shard(members: u16) -> (Node, ObjectId) {
    let mut at = Node::among(members, 8 << 20);
    let id = id_moving(&mut at, 3, ME, members);
    at.members_answer = false;
    at.crash(3);
    at.wait(MOMENT);
    for token in 0..5000 {
        at.request(2, id, DirectoryRequest::Locate { token });
    }
    let asked: Vec<_> = take_asked(&mut at).into_iter().filter(|asked| asked.scope == Scope::All).collect();
    for asked in asked {
        at.hear(asked.of, asked.answer(0, InventoryPage::default(), None));
    }
    (at, id)
}

/// Requests that come meanwhile are served after them.
#[test]
fn many_held_requests_of_a_shard_are_served_in_turns_and_in_order() {
    let (mut at, id) = much_waits_for_a_shard(3);
    let mut told = Vec::new();
    let mut take_told = |at: &mut Node| {
        told.extend(at.take_answers(id).into_iter().filter_map(|(_, answer)| match answer {
            DirectoryAnswer::Located { token, .. } => Some(token),
            _ => None,
        }));
        told.len()
    };
    // The inventory is applied first.
    while take_told(&mut at) == 0 {
        at.now += Duration::from_micros(100);
        at.handle(Input::Tick);
    }
    let at_once = take_told(&mut at);
    assert!(at_once <= 1024, "{at_once}");
    at.request(2, id, DirectoryRequest::Locate { token: 5000 });
    assert_eq!((take_told(&mut at), at.gauge("held requests")), (at_once, 5001 - at_once as u64));
    at.wait(MOMENT);
    take_told(&mut at);
    assert_eq!(told, (0..=5000).collect::<Vec<_>>());
    assert_eq!(at.gauge("held requests"), 0);
}

/// They are dropped with the node that sent them, and when another node owns the shard.
#[test]
fn released_requests_are_dropped_with_the_node_that_sent_them() {
    let (mut at, id) = much_waits_for_a_shard(4);
    while at.take_answers(id).is_empty() {
        at.now += Duration::from_micros(100);
        at.handle(Input::Tick);
    }
    assert!(at.gauge("held requests") > 2000);
    at.handle(Input::PeerGone { node: node(2) });
    assert_eq!(at.gauge("held requests"), 0);
}

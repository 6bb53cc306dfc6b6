//! However much is asked for, a page, a turn and a table have their bounds.

use hoplite_words::client::{Reply, Request};
use hoplite_words::peer::{PeerMessage, Scope, ShardQuery};
use hoplite_words::{FoldOrder, Stamp};

use crate::node::Node;
use crate::requests::{object, reduce};

const STORE: u64 = 8 << 20;

/// The others ask for their verdicts themselves.
#[test]
fn a_page_tells_of_so_many_claims_to_one_target() {
    let mut at = Node::among(2, STORE);
    let target = at.id_owned_by(2);
    for _ in 0..1500 {
        at.ask(reduce(target, &[object("never comes")], 1, FoldOrder::Arrival));
    }
    at.take_mail();
    let shards = vec![ShardQuery { shard: target.shard(), digest: None }];
    let (round, scope, from, fresh, clock) = (1, Scope::All, None, false, Stamp::from_ms(0));
    at.hear(2, PeerMessage::InventoryRequest { round, scope, shards, from, fresh, clock });
    let told = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Inventory { page, .. } => Some(page.claims.len()),
        _ => None,
    });
    assert_eq!(told, Some(512));
}

#[test]
fn prefetches_beyond_a_bound_are_left_out() {
    const BOUND: u64 = 1 << 17;
    let mut at = Node::among(2, STORE);
    for round in 0..3 {
        let ids: Vec<_> = (0..60_000).map(|number| object(&format!("hint {round} {number}"))).collect();
        let call = at.ask(Request::Prefetch { ids, nodes: vec![] });
        assert_eq!(at.reply(call), Some(&Reply::Done));
        at.take_mail();
    }
    assert_eq!(at.gauge("objects wanted"), BOUND);
}

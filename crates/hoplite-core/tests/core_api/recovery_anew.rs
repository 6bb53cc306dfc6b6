//! A recovery that starts over: earlier inventories of the same shard no longer count.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::peer::{InventoryPage, PeerMessage, Scope, ShardQuery};
use hoplite_types::{ObjectId, Stamp};

use crate::node::{node, Node, ME};
use crate::recovery::{copies, id_moving, take_asked, Asked};
use crate::requests::{announce_unaccepted, edition, object, put_report, writing_report, SIZE};

const STORE: u64 = 8 << 20;
const MOMENT: Duration = Duration::from_millis(50);

/// We own `id` since node 3 died, and have asked node 2 for what it knows of it.
fn asked_about(at: &mut Node, id: ObjectId) -> Asked {
    at.take_mail();
    at.members_answer = false;
    at.crash(3);
    at.wait(MOMENT);
    let is_it = |asked: &Asked| asked.of == 2 && asked.scope == Scope::All && asked.is_about(id.shard());
    take_asked(at).into_iter().find(is_it).expect("node 2 may know of it")
}

/// A question for all that is here of the shard of an id.
pub fn query(of: ObjectId, fresh: bool, digest: Option<u64>) -> PeerMessage {
    let shards = vec![ShardQuery { shard: of.shard(), digest }];
    PeerMessage::InventoryRequest {
        round: 1,
        scope: Scope::All,
        shards,
        from: None,
        fresh,
        clock: Stamp::from_ms(0),
    }
}

/// The inventory came before a turn of the owner had applied it.
#[test]
fn an_inventory_from_before_a_pause_does_not_end_the_recovery_after_it() {
    let mut at = Node::among(3, STORE);
    let id = id_moving(&mut at, 3, ME, 3);
    let asked = asked_about(&mut at, id);
    at.hear(2, asked.answer(7, InventoryPage::default(), None));
    at.handle(Input::StoodStill { time: Duration::from_secs(1) });
    at.request(2, id, announce_unaccepted(2, writing_report(2, 9, edition(5), SIZE)));
    at.take_mail();
    at.wait(MOMENT);
    let told = at.take_answers(id);
    assert!(told.is_empty(), "node 2 was asked anew and has not answered: {told:?}");
}

#[test]
fn an_inventory_of_a_shard_does_not_count_after_another_node_owned_it() {
    let mut at = Node::among(3, STORE);
    let owner = |members: &[u16], id| {
        let mut view = Node::alone(0);
        members.iter().for_each(|&number| view.join(number));
        view.owner_of(id)
    };
    let is_it = |&id: &ObjectId| at.owner_of(id) == 3 && owner(&[2], id) == ME && owner(&[2, 9], id) == 9;
    let id = (0..).map(|number| object(&format!("moving {number}"))).find(is_it).expect("hashing is even");
    let asked = asked_about(&mut at, id);
    at.hear(2, asked.answer(7, copies(&[(id, put_report(9, edition(5), SIZE))]), None));
    at.hear(9, query(id, true, None));
    at.handle(Input::PeerGone { node: node(9) });
    at.wait(MOMENT);
    at.take_mail();
    at.request(2, id, announce_unaccepted(2, put_report(77, edition(77), SIZE)));
    let told = at.take_answers(id);
    assert!(told.is_empty(), "node 2 has another content, and was not heard: {told:?}");
}

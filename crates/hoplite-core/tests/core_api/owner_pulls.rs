//! An owner that does not pull our inventory is asked to: it may never have heard that it missed reports.

use std::time::Duration;

use hoplite_types::ObjectId;

use crate::inventory::take_inventory;
use crate::node::Node;
use crate::puts::{announced, created};
use crate::requests::{accepted, create, SIZE};
use crate::resync::{asked_to_resync, A_WHILE, SETTLED, STORE};

/// We hold a copy in a shard of node 2, then take node `LAST` for the shard's owner and report to it.
fn reported_to_another_owner() -> (Node, ObjectId, u16) {
    const LAST: u16 = 9;
    let mut at = Node::among(LAST, STORE);
    let id = at.id_owned_by(LAST);
    at.kill(LAST);
    let owner = at.owner_of(id);
    assert_ne!(owner, 1);
    let call = at.ask(create(id, SIZE));
    created(&at, call);
    let written = announced(&mut at, id);
    at.answer(owner, id, accepted(written));
    at.join(LAST);
    assert_eq!(at.owner_of(id), LAST);
    at.wait(A_WHILE);
    at.members_answer = false;
    (at, id, owner)
}

/// It may have owned the shard all along: only we took a dead node for alive, and told it what we had.
#[test]
fn an_owner_that_does_not_pull_our_inventory_is_asked_to() {
    let (mut at, _, owner) = reported_to_another_owner();
    at.kill(9);
    at.take_mail();
    at.wait(Duration::from_millis(2900));
    assert_eq!(asked_to_resync(&mut at), [], "it may be about to ask");
    at.wait(SETTLED * 2);
    assert_eq!(asked_to_resync(&mut at), [owner]);
    at.wait(A_WHILE);
    assert_eq!(asked_to_resync(&mut at), []);
}

#[test]
fn an_owner_that_has_pulled_our_inventory_is_not_asked_again() {
    let (mut at, id, owner) = reported_to_another_owner();
    at.kill(9);
    take_inventory(&mut at, owner, &[id.shard()]);
    at.wait(A_WHILE);
    assert_eq!(asked_to_resync(&mut at), []);
}

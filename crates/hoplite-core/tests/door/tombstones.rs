//! A delete is done when everyone concerned has heard of it; its tombstone outlives its owner.

use std::time::Duration;

use hoplite_words::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_words::ObjectId;

use crate::node::{node, Node};
use crate::requests::{announce, edition, put_report};

const ME: u16 = 1;
const SIZE: u64 = 1 << 20;
const TOKEN: u64 = 7;

/// Who was told of the deletion, and who that it is done.
fn told(at: &mut Node, id: ObjectId) -> (Vec<u16>, Vec<u16>) {
    let (mut deleted, mut done) = (Vec::new(), Vec::new());
    for (to, message) in at.take_mail() {
        match message {
            PeerMessage::Answer { id: about, answer } if about == id => match answer {
                DirectoryAnswer::Deleted { .. } => deleted.push(to.addr.port()),
                DirectoryAnswer::DeleteDone { token: TOKEN } => done.push(to.addr.port()),
                _ => {}
            },
            _ => {}
        }
    }
    (deleted, done)
}

/// Node 2 holds an object of ours, node 3 deletes it.
fn deleted_while_held(last: u16) -> (Node, ObjectId, Vec<u16>) {
    let mut at = Node::among(last, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(put_report(1, edition(5), SIZE, true)));
    at.take_mail();
    at.request(3, id, DirectoryRequest::Delete { token: TOKEN });
    let (deleted, done) = told(&mut at, id);
    assert!(deleted.contains(&2), "{deleted:?}");
    assert!(done.is_empty(), "node 2 may still serve it");
    (at, id, deleted)
}

#[test]
fn a_delete_is_done_when_all_have_heard() {
    let (mut at, id, deleted) = deleted_while_held(4);
    for &holder in &deleted {
        assert_eq!(told(&mut at, id).1, []);
        at.hear(holder, PeerMessage::DeletionHeard { id });
    }
    assert_eq!(told(&mut at, id).1, [3]);
    at.request(3, id, DirectoryRequest::Delete { token: TOKEN });
    assert_eq!(told(&mut at, id).1, [3], "asked once more, it is done at once");
}

#[test]
fn nobody_waits_for_the_dead_to_hear() {
    let (mut at, id, deleted) = deleted_while_held(4);
    for &holder in deleted.iter().filter(|&&holder| holder != 2) {
        at.hear(holder, PeerMessage::DeletionHeard { id });
    }
    at.kill(2);
    assert_eq!(told(&mut at, id).1, [3]);
}

/// However often the next in line dies, there is one who knows.
#[test]
fn a_tombstone_has_an_heir_as_long_as_there_are_two() {
    let mut at = Node::among(5, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(3, id, DirectoryRequest::Delete { token: TOKEN });
    let mut dead = Vec::new();
    for _ in 2..5 {
        let mut heirs = told(&mut at, id).0;
        // While it is only suspected, it is told again.
        heirs.retain(|heir| !dead.contains(heir));
        let [heir] = heirs[..] else { panic!("one heir at a time: {heirs:?}") };
        at.kill(heir);
        dead.push(heir);
    }
    assert_eq!(dead.len(), 3);
}

/// Or each change of owners would give it another life.
#[test]
fn who_hears_late_forgets_in_time() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(2);
    at.answer(2, id, DirectoryAnswer::Deleted { ttl_ms: 1000 });
    assert_eq!(at.take_mail(), [(node(2), PeerMessage::DeletionHeard { id })]);
    at.wait(Duration::from_secs(2));
    at.kill(2);
    assert_eq!(at.status().tombstones, 0);
}

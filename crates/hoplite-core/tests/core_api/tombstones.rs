//! A delete is done when every node concerned has acknowledged it. Its tombstone outlives its owner, and ends contents
//! that were accepted before the deletion.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{CopyReport, Deletion, DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{limits, ErrorKind, ObjectId, Stamp};

use crate::node::{node, Node, ME};
use crate::puts::{announced, created, failed};
use crate::recovery::id_moving;
use crate::requests::{
    accepted, announce, announce_unaccepted, ask, claim_of, create, delete, edition, get, object, put_report,
    verdict, writing_report, SIZE,
};

const TOKEN: u64 = 7;

/// The nodes that were told of the deletion, and those that were told that it is done.
fn told(at: &mut Node, id: ObjectId) -> (Vec<u16>, Vec<u16>) {
    let (mut deleted, mut done) = (Vec::new(), Vec::new());
    for (to, answer) in at.take_answers(id) {
        match answer {
            DirectoryAnswer::Deleted { .. } => deleted.push(to),
            DirectoryAnswer::DeleteDone { token: TOKEN, .. } => done.push(to),
            _ => {}
        }
    }
    (deleted, done)
}

/// Node 2 holds an object of ours, and node 3 deletes it. Returns the nodes that are told.
fn deleted_while_held() -> (Node, ObjectId, Vec<u16>) {
    let mut at = Node::among(4, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(put_report(1, edition(5), SIZE)));
    at.take_mail();
    at.request(3, id, DirectoryRequest::Delete { token: TOKEN });
    let (deleted, done) = told(&mut at, id);
    assert!(deleted.contains(&2), "{deleted:?}");
    assert!(done.is_empty(), "node 2 may still serve it");
    (at, id, deleted)
}

#[test]
fn a_delete_is_done_when_all_have_heard() {
    let (mut at, id, deleted) = deleted_while_held();
    for &holder in &deleted {
        assert_eq!(told(&mut at, id).1, []);
        at.hear(holder, PeerMessage::DeletionAck { id });
    }
    assert_eq!(told(&mut at, id).1, [3]);
    at.request(3, id, DirectoryRequest::Delete { token: TOKEN });
    assert_eq!(told(&mut at, id).1, [3], "asked once more, it is done at once");
}

#[test]
fn a_delete_does_not_wait_for_dead_nodes() {
    let (mut at, id, deleted) = deleted_while_held();
    for &holder in deleted.iter().filter(|&&holder| holder != 2) {
        at.hear(holder, PeerMessage::DeletionAck { id });
    }
    at.kill(2);
    assert_eq!(told(&mut at, id).1, [3]);
}

/// Holders, askers, subscribers and claimants, and the backup.
#[test]
fn holders_askers_and_subscribers_hear_of_a_deletion_before_it_is_done() {
    let mut at = Node::among(7, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce(writing_report(2, 1, edition(5), SIZE)));
    at.request(3, id, ask(1));
    at.request(4, id, DirectoryRequest::Subscribe { bytes_max: None });
    at.request(5, id, announce_unaccepted(5, writing_report(5, 1, edition(6), SIZE)));
    let claim = claim_of(6, edition(8));
    at.request(6, id, DirectoryRequest::Claim { seq: 1, claim });
    at.take_mail();
    at.request(7, id, DirectoryRequest::Delete { token: TOKEN });
    let (deleted, done) = told(&mut at, id);
    assert_eq!((&deleted[..5], &done[..]), (&[2, 3, 4, 5, 6][..], &[][..]));
    for concerned in deleted {
        at.hear(concerned, PeerMessage::DeletionAck { id });
    }
    assert_eq!(told(&mut at, id).1, [7]);
}

#[test]
fn a_deletion_is_repeated_on_a_new_connection() {
    let (mut at, id, _) = deleted_while_held();
    at.handle(Input::PeerBroken { node: node(2) });
    at.wait(Duration::from_millis(100));
    assert_eq!(told(&mut at, id).0, [2]);
    at.hear(2, PeerMessage::DeletionAck { id });
    at.handle(Input::PeerBroken { node: node(2) });
    at.wait(Duration::from_millis(100));
    assert_eq!(told(&mut at, id).0, [], "it has heard");
}

#[test]
fn a_tombstone_wins_until_its_time_is_over() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    at.request(2, id, DirectoryRequest::Delete { token: 1 });
    at.take_mail();
    at.request(2, id, announce(put_report(5, edition(1), SIZE)));
    at.request(3, id, ask(1));
    at.request(4, id, DirectoryRequest::Subscribe { bytes_max: None });
    assert_eq!(told(&mut at, id).0, [2, 3, 4]);
    at.request(5, id, announce_unaccepted(5, put_report(5, edition(2), SIZE)));
    assert_eq!(at.take_answers(id), [(5, verdict(edition(2), Verdict::Deleted))]);
    let claim = claim_of(6, edition(8));
    at.request(6, id, DirectoryRequest::Claim { seq: 1, claim });
    let refused = DirectoryAnswer::ClaimVerdict { claim, verdict: Verdict::Deleted };
    assert_eq!(at.take_answers(id), [(6, refused)]);
    let status = at.status();
    assert_eq!((status.entries, status.tombstones), (0, 1));
    at.now += limits::TOMBSTONE_TTL + Duration::from_secs(1);
    at.handle(Input::Tick);
    assert_eq!(at.status().tombstones, 0);
    at.request(2, id, announce(put_report(6, edition(1), SIZE)));
    assert_eq!(at.status().entries, 1);
}

/// A clock of others that is ahead, so that the past is long enough.
fn at_cluster_time(at: &mut Node, ms: u64) {
    let claim = claim_of(2, edition(99));
    let other = object("something else");
    let stamp = Some(Stamp::from_ms(ms));
    at.request(2, other, announce(CopyReport { stamp, ..writing_report(2, 1, edition(99), SIZE) }));
    at.request(2, other, DirectoryRequest::ReleaseClaim { claim, made: false });
    at.request(2, other, DirectoryRequest::Withdraw { seq: 2, edition: edition(99) });
    at.take_mail();
}

/// Otherwise each change of owners would extend its time.
#[test]
fn the_time_of_a_tombstone_counts_from_the_deletion_wherever_it_is_heard_of() {
    let mut at = Node::alone(8 << 20);
    let (id, other) = (object("x"), object("y"));
    at_cluster_time(&mut at, 2_000_000);
    let ttl = limits::TOMBSTONE_TTL.as_millis() as u64;
    let deleted_ago = |ms: u64| DirectoryAnswer::Deleted {
        deletion: Deletion { stamp: Stamp::from_ms(2_000_000 - ms), age_ms: ms },
    };
    at.answer(2, other, deleted_ago(ttl));
    assert_eq!(at.status().tombstones, 0, "its time is over");
    at.answer(2, id, deleted_ago(ttl - 1000));
    assert_eq!(at.status().tombstones, 1);
    let heard = [other, id].map(|id| (node(2), PeerMessage::DeletionAck { id }));
    assert_eq!(at.take_mail(), heard, "either way it is answered");
    at.wait(Duration::from_secs(3));
    assert_eq!(at.status().tombstones, 0);
}

#[test]
fn a_content_that_was_accepted_later_ends_the_tombstone() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    at.answer(
        2,
        id,
        DirectoryAnswer::Deleted { deletion: Deletion { stamp: Stamp::from_ms(500), age_ms: 0 } },
    );
    at.request(2, id, announce(put_report(1, edition(499), SIZE)));
    assert_eq!((at.status().entries, at.status().tombstones), (0, 1));
    at.request(3, id, announce(put_report(1, edition(501), SIZE)));
    assert_eq!((at.status().entries, at.status().tombstones), (1, 0));
    // The same deletion comes once more, by another way.
    at.answer(
        2,
        id,
        DirectoryAnswer::Deleted { deletion: Deletion { stamp: Stamp::from_ms(500), age_ms: 0 } },
    );
    assert_eq!((at.status().entries, at.status().tombstones), (1, 0));
}

/// A paused owner accepts an earlier put, whose object was deleted elsewhere while the owner was believed dead.
#[test]
fn a_tombstone_stands_when_a_later_content_is_taken_back() {
    let mut at = Node::among(3, 8 << 20);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce_unaccepted(2, put_report(1, edition(5), SIZE)));
    // Long before this node's own time, by which the put was accepted.
    let deletion = Deletion { stamp: Stamp::from_ms(1), age_ms: 0 };
    at.answer(3, id, DirectoryAnswer::Deleted { deletion });
    let accepted = at.take_answers(id).into_iter().find_map(|(_, answer)| match answer {
        DirectoryAnswer::Verdict { verdict: Verdict::Accepted(stamp), .. } => Some(stamp),
        _ => None,
    });
    at.request(2, id, DirectoryRequest::Withdraw { seq: 2, edition: edition(5) });
    at.take_mail();
    at.request(3, id, ask(7));
    let answers = at.take_answers(id);
    // A node with a part of the accepted content ignores an earlier deletion.
    let counts = |deletion: &Deletion| Some(deletion.stamp) >= accepted && deletion.age_ms < 1000;
    assert!(
        matches!(&answers[..], [(3, DirectoryAnswer::Deleted { deletion })] if counts(deletion)),
        "{answers:?}, accepted at {accepted:?}"
    );
}

#[test]
fn a_deletion_leaves_a_copy_that_was_accepted_later() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let writing = announced(&mut at, id);
    at.answer(2, id, verdict(writing, Verdict::Accepted(Stamp::from_ms(700))));
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(seal), Some(&Reply::Done));
    at.take_mail();
    at.answer(
        2,
        id,
        DirectoryAnswer::Deleted { deletion: Deletion { stamp: Stamp::from_ms(600), age_ms: 0 } },
    );
    assert_eq!(at.take_mail(), [(node(2), PeerMessage::DeletionAck { id })], "or it would be repeated");
    assert!(!at.copies[&copy].aborted && at.removed.is_empty());
    at.answer(
        2,
        id,
        DirectoryAnswer::Deleted { deletion: Deletion { stamp: Stamp::from_ms(800), age_ms: 0 } },
    );
    assert_eq!(at.removed, [id]);
    assert!(!at.copies.contains_key(&copy));
}

/// All nodes that asked for it are told once that it is done.
#[test]
fn many_may_delete_the_same_object() {
    let (mut at, id, deleted) = deleted_while_held();
    at.request(4, id, DirectoryRequest::Delete { token: TOKEN });
    at.request(4, id, DirectoryRequest::Delete { token: TOKEN });
    let ours = at.ask(delete(id));
    assert_eq!(told(&mut at, id), (vec![], vec![]), "whoever is concerned has been told");
    for holder in deleted {
        at.hear(holder, PeerMessage::DeletionAck { id });
    }
    assert_eq!(told(&mut at, id).1, [3, 4]);
    assert_eq!(at.reply(ours), Some(&Reply::Done));
}

#[test]
fn a_deletion_outlives_its_owner_at_all_nodes_that_heard_of_it() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(2);
    put_at(&mut at, id);
    let stamp = Stamp::from_ms(at.now.as_millis() as u64 + 1000);
    at.answer(2, id, DirectoryAnswer::Deleted { deletion: Deletion { stamp, age_ms: 0 } });
    at.kill(2);
    let call = at.ask(get(id));
    assert_eq!(failed(&at, call), ErrorKind::Deleted);
    let again = at.ask(create(id, SIZE));
    let copy = created(&at, again);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(failed(&at, seal), ErrorKind::Deleted);
}

/// A put of an object that node 2 owns.
fn put_at(at: &mut Node, id: ObjectId) {
    let call = at.ask(create(id, SIZE));
    let copy = created(at, call);
    let writing = announced(at, id);
    at.answer(2, id, accepted(writing));
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(seal), Some(&Reply::Done));
}

#[test]
fn a_delete_follows_its_object_to_a_new_owner() {
    for next in [ME, 2] {
        let mut at = Node::among(3, 8 << 20);
        let id = id_moving(&mut at, 3, next, 3);
        let call = at.ask(delete(id));
        at.take_mail();
        at.crash(3);
        if next == 2 {
            let again = at.take_requests(id);
            let Some(&DirectoryRequest::Delete { token }) = again.last() else { panic!("{again:?}") };
            at.answer(2, id, DirectoryAnswer::DeleteDone { token, deletion: None });
        } else {
            at.hear(2, PeerMessage::DeletionAck { id });
        }
        assert_eq!(at.reply(call), Some(&Reply::Done));
    }
}

/// Its owner and the backup may both die. The node that deleted it still knows.
#[test]
fn the_node_that_deleted_an_object_remembers_it_when_the_owner_dies() {
    let mut at = Node::among(3, 8 << 20);
    let id = id_moving(&mut at, 3, ME, 3);
    let call = at.ask(delete(id));
    let asked = at.take_requests(id);
    let Some(&DirectoryRequest::Delete { token }) = asked.last() else { panic!("{asked:?}") };
    let deletion = Some(Deletion { stamp: Stamp::from_ms(1), age_ms: 0 });
    at.answer(3, id, DirectoryAnswer::DeleteDone { token, deletion });
    assert_eq!(at.reply(call), Some(&Reply::Done));
    at.crash(3);
    at.wait(Duration::from_millis(50));
    at.take_mail();
    let claim = claim_of(2, edition(8));
    at.request(2, id, DirectoryRequest::Claim { seq: 1, claim });
    let deleted = DirectoryAnswer::ClaimVerdict { claim, verdict: Verdict::Deleted };
    assert_eq!(at.take_answers(id), [(2, deleted)]);
}

#[test]
fn a_former_owner_answers_no_deletion() {
    let mut at = Node::among(2, 8 << 20);
    let ids: Vec<_> = (0..40).map(|number| object(&format!("deleted {number}"))).collect();
    let ours: Vec<_> = ids.into_iter().filter(|&id| at.owner_of(id) == ME).collect();
    for &id in &ours {
        at.request(2, id, announce(put_report(1, edition(5), SIZE)));
        at.request(2, id, DirectoryRequest::Delete { token: TOKEN });
    }
    at.join(3);
    let moved = ours.iter().copied().find(|&id| at.owner_of(id) == 3).expect("some of them");
    at.take_mail();
    at.hear(2, PeerMessage::DeletionAck { id: moved });
    assert_eq!(at.take_mail(), [], "who deletes asks the new owner");
    assert!(at.status().tombstones >= ours.len() as u64, "but it is not forgotten");
}

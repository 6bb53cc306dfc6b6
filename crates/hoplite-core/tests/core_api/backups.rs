//! Objects of which only their owner had a copy: its backup knows that they existed.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::Request;
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{limits, ErrorKind, ObjectId};

use crate::losses::get_or_lost;
use crate::node::{node, Node, ME};
use crate::puts::{failed, put};
use crate::recovery_anew::query;
use crate::requests::{announce, delete, deleted, edition, object, put_report, SIZE, SMALL};

const STORE: u64 = 8 << 20;

/// Longer than the pause between two messages to a backup.
const MOMENT: Duration = Duration::from_millis(100);

/// How often a backup is told again.
const RENEWAL: Duration = Duration::from_secs(limits::TOMBSTONE_TTL.as_secs() / 2);

pub fn held(seq: u64, size: u64) -> DirectoryRequest {
    announce(put_report(seq, edition(5), size))
}

/// The backups that were told of objects since the last time, each with these objects.
pub fn told(at: &mut Node) -> Vec<(u16, Vec<ObjectId>)> {
    let mail = at.take_mail().into_iter();
    mail.filter_map(|(to, message)| match message {
        PeerMessage::BackupIds { ids } => Some((to.addr.port(), ids)),
        _ => None,
    })
    .collect()
}

/// Passes the time as if nothing was due until its end.
fn skip(at: &mut Node, time: Duration) {
    at.now += time;
    at.handle(Input::Tick);
    at.wait(MOMENT);
}

#[test]
fn an_owner_tells_its_backup_of_its_only_copies_singly_or_in_batches() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(ME);
    put(&mut at, id, SIZE);
    assert_eq!(told(&mut at), [(2, vec![id])]);
    let others: Vec<_> = (0..100).map(|i| object(&format!("next {i}"))).collect();
    let others: BTreeSet<_> = others.into_iter().filter(|&id| at.owner_of(id) == ME).collect();
    for &id in &others {
        put(&mut at, id, SMALL);
    }
    assert_eq!(told(&mut at), [], "a moment later, together");
    at.wait(MOMENT);
    assert_eq!(told(&mut at), [(2, others.into_iter().collect())]);
}

#[test]
fn a_backup_is_told_again_before_it_forgets() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(ME);
    let mut ids = (0..).map(|number| object(&format!("gone by then {number}")));
    let other = ids.find(|&other| at.owner_of(other) == ME).expect("hashing is even");
    put(&mut at, id, SIZE);
    put(&mut at, other, SIZE);
    at.ask(delete(other));
    at.wait(MOMENT);
    at.take_mail();
    for _ in 0..3 {
        skip(&mut at, RENEWAL);
        assert_eq!(told(&mut at), [(2, vec![id])]);
    }
}

#[test]
fn objects_on_another_node_need_no_backup_until_that_node_dies() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    at.request(3, id, held(1, SIZE));
    at.wait(MOMENT);
    assert_eq!(told(&mut at), []);
    at.kill(3);
    at.wait(MOMENT);
    assert_eq!(told(&mut at), [(2, vec![id])], "it is lost, and our death must not make that forgotten");
}

#[test]
fn the_backup_of_a_dead_owner_reports_losses() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(2);
    at.hear(2, PeerMessage::BackupIds { ids: vec![id] });
    let before = at.ask(get_or_lost(id));
    at.kill(2);
    assert_eq!(failed(&at, before), ErrorKind::Lost);
    let wait = Request::Wait {
        ids: vec![id],
        count: 1,
        timeout_ms: None,
        fail_if_lost: true,
        known_lost: Vec::new(),
    };
    for call in [at.ask(get_or_lost(id)), at.ask(wait)] {
        assert_eq!(failed(&at, call), ErrorKind::Lost, "at once");
    }
    skip(&mut at, limits::TOMBSTONE_TTL + Duration::from_secs(2));
    let forgotten = at.ask(get_or_lost(id));
    assert_eq!(at.reply(forgotten), None);
}

#[test]
fn deleted_objects_need_no_backup() {
    let mut at = Node::among(2, STORE);
    let (theirs, ours) = (at.id_owned_by(2), at.id_owned_by(ME));
    at.hear(2, PeerMessage::BackupIds { ids: vec![theirs] });
    let gone = deleted(&at);
    at.answer(2, theirs, gone);
    at.hear(2, PeerMessage::BackupIds { ids: vec![theirs] });
    put(&mut at, ours, SIZE);
    at.ask(delete(ours));
    at.wait(MOMENT);
    let last = at.take_mail().into_iter().rfind(|(_, message)| match message {
        PeerMessage::Answer { id, answer: DirectoryAnswer::Deleted { .. } } => *id == ours,
        message => matches!(message, PeerMessage::BackupIds { .. }),
    });
    assert!(matches!(last, Some((to, PeerMessage::Answer { .. })) if to == node(2)), "{last:?}");
    at.hear(2, PeerMessage::DeletionAck { id: ours });
    skip(&mut at, limits::TOMBSTONE_TTL + Duration::from_secs(2));
    assert_eq!(at.leftovers(), Vec::<String>::new());
}

#[test]
fn a_backup_forgets_ids_that_are_not_renewed() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(2);
    at.hear(2, PeerMessage::BackupIds { ids: vec![id] });
    skip(&mut at, RENEWAL);
    at.hear(2, PeerMessage::BackupIds { ids: vec![id] });
    skip(&mut at, RENEWAL);
    assert_eq!(at.gauge("backup ids"), 1);
    skip(&mut at, RENEWAL + Duration::from_secs(2));
    assert_eq!(at.gauge("backup ids"), 0);
    assert_eq!(at.leftovers(), Vec::<String>::new());
}

/// A newcomer owns it now. It asked us while the owner before it lived, which died before it answered the newcomer.
#[test]
fn a_backup_asks_the_new_owner_of_its_ids_to_pull_again() {
    let mut beside = Node::among(3, 0);
    let mut at = Node::among(2, STORE);
    let mut ids = (0..).map(|number| object(&format!("of two owners {number}")));
    let is_it = |id: &ObjectId| at.owner_of(*id) == 2 && beside.owner_of(*id) == 3;
    let id = ids.find(is_it).expect("hashing is even");
    at.hear(2, PeerMessage::BackupIds { ids: vec![id] });
    at.join(3);
    at.wait(MOMENT);
    at.take_mail();
    let lost = |at: &mut Node| {
        at.hear(3, query(id, false, Some(0)));
        let told = at.take_mail().into_iter().find_map(|(_, message)| match message {
            PeerMessage::Inventory { page, .. } => Some(page.lost),
            _ => None,
        });
        told.expect("it is answered at once").into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(lost(&mut at), []);
    at.crash(2);
    at.wait(MOMENT);
    let is_request = |message: &PeerMessage| matches!(message, PeerMessage::ResyncRequest { .. });
    assert!(at.take_mail().iter().any(|(to, message)| *to == node(3) && is_request(message)));
    assert_eq!(lost(&mut at), [id]);
}

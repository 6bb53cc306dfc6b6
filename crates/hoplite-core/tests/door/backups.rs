//! Objects that only their owner had: a witness knows that they existed.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_words::client::{Reply, Request};
use hoplite_words::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_words::{limits, Blob, ErrorKind, ObjectId};

use crate::losses::settled;
use crate::node::{node, Node, ME};
use crate::puts::{failed, put};
use crate::requests::{announce, delete, edition, put_report, received_report, SIZE, SMALL};

const DELETED: DirectoryAnswer =
    DirectoryAnswer::Deleted { ttl_ms: limits::TOMBSTONE_TTL.as_millis() as u64 };

const MOMENT: Duration = Duration::from_millis(10);

fn get_or_lost(id: ObjectId) -> Request {
    Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: true }
}

fn held(seq: u64, size: u64) -> DirectoryRequest {
    announce(put_report(seq, edition(5), size, true))
}

/// Who was told of which objects since the last time.
fn told(at: &mut Node) -> Vec<(u16, Vec<ObjectId>)> {
    let mail = at.take_mail().into_iter();
    mail.filter_map(|(to, message)| match message {
        PeerMessage::Remember { ids } => Some((to.addr.port(), ids)),
        _ => None,
    })
    .collect()
}

#[test]
fn an_owner_tells_a_witness_of_what_only_it_has() {
    let mut at = settled(2);
    let id = at.id_owned_by(ME);
    put(&mut at, id, SIZE);
    assert_eq!(told(&mut at), [(2, vec![id])]);
    let others: Vec<_> = (0..).map(|i| ObjectId::from_name(&format!("next {i}"))).take(100).collect();
    let others: Vec<_> = others.into_iter().filter(|&id| at.owner_of(id) == ME).collect();
    for &id in &others {
        put(&mut at, id, SMALL);
    }
    assert_eq!(told(&mut at), [], "a moment later, together");
    at.wait(MOMENT);
    let sorted: Vec<_> =
        others.iter().copied().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    assert_eq!(told(&mut at), [(2, sorted)]);
    for id in others {
        at.ask(delete(id));
    }
    at.take_mail();
    // It says so again before the witness forgets it, and where it may have been lost.
    at.handle(Input::PeerBroken { node: node(2) });
    at.wait(Duration::from_millis(100));
    assert_eq!(told(&mut at), [(2, vec![id])]);
    at.now += limits::TOMBSTONE_TTL / 2;
    at.handle(Input::Tick);
    at.now += MOMENT;
    at.handle(Input::Tick);
    assert_eq!(told(&mut at), [(2, vec![id])]);
}

#[test]
fn what_another_node_has_needs_no_witness_until_that_node_dies() {
    let mut at = settled(3);
    let id = at.id_owned_by(ME);
    at.request(3, id, held(1, SIZE));
    at.wait(MOMENT);
    assert_eq!(told(&mut at), []);
    at.kill(3);
    at.wait(MOMENT);
    assert_eq!(told(&mut at), [(2, vec![id])], "it is lost, and our death must not make that forgotten");
}

#[test]
fn a_new_witness_is_told_as_well() {
    let mut at = Node::among(2, 8 << 20);
    let mut later = Node::among(3, 0);
    let id = later.id_owned_by(ME);
    put(&mut at, id, SIZE);
    at.wait(MOMENT);
    assert_eq!(told(&mut at), [(2, vec![id])]);
    at.join(3);
    at.kill(2);
    at.wait(MOMENT);
    let told = told(&mut at);
    // Either as the better one when it came, or as the only one that is left.
    assert!(told.contains(&(3, vec![id])), "{told:?}");
}

#[test]
fn who_asks_the_witness_of_a_dead_owner_is_told_of_the_loss() {
    let mut at = settled(2);
    let id = at.id_owned_by(2);
    at.hear(2, PeerMessage::Remember { ids: vec![id] });
    at.kill(2);
    let early = at.ask(get_or_lost(id));
    assert_eq!(at.reply(early), None, "others may have it, and not have said so yet");
    at.wait(Duration::from_millis(2500));
    assert_eq!(failed(&at, early), ErrorKind::Lost);
    let wait = Request::Wait {
        ids: vec![id],
        count: 1,
        timeout_ms: None,
        fail_if_lost: true,
        known_lost: Vec::new(),
    };
    let late = [at.ask(get_or_lost(id)), at.ask(wait)];
    for call in late {
        assert_eq!(failed(&at, call), ErrorKind::Lost, "at once");
    }
    at.wait(limits::TOMBSTONE_TTL);
    let forgotten = at.ask(get_or_lost(id));
    assert_eq!(at.reply(forgotten), None);
}

#[test]
fn what_somebody_has_after_all_is_not_lost() {
    let mut at = Node::among(3, 8 << 20);
    let id = inherited_from(&mut at, 3);
    at.hear(3, PeerMessage::Remember { ids: vec![id] });
    at.kill(3);
    at.request(2, id, held(1, SMALL));
    let call = at.ask(get_or_lost(id));
    at.wait(Duration::from_secs(3));
    assert_eq!(at.reply(call), None, "its bytes are on their way");
}

/// An id that is ours without this owner.
fn inherited_from(at: &mut Node, owner: u16) -> ObjectId {
    let mut others = Node::among(2, 0);
    let ids = (0..).map(|i| ObjectId::from_name(&format!("inherited {i}")));
    let mut fitting = ids.filter(|&id| at.owner_of(id) == owner && others.owner_of(id) == ME);
    fitting.next().expect("hashing is even")
}

#[test]
fn what_was_deleted_is_not_remembered() {
    let mut at = settled(2);
    let (theirs, ours) = (at.id_owned_by(2), at.id_owned_by(ME));
    at.hear(2, PeerMessage::Remember { ids: vec![theirs] });
    at.answer(2, theirs, DELETED);
    put(&mut at, ours, SIZE);
    at.ask(delete(ours));
    at.wait(MOMENT);
    let mail = at.take_mail();
    let gone = PeerMessage::Answer { id: ours, answer: DELETED };
    let last = mail.iter().rfind(|(_, message)| *message == gone || is_remember(message));
    assert_eq!(last, Some(&(node(2), gone.clone())), "its witness hears of it last");
    at.hear(2, PeerMessage::DeletionHeard { id: ours });
    at.wait(limits::TOMBSTONE_TTL + Duration::from_secs(1));
    assert_eq!(at.leftovers(), Vec::<String>::new());
}

fn is_remember(message: &PeerMessage) -> bool {
    matches!(message, PeerMessage::Remember { .. })
}

#[test]
fn memories_end_unless_they_are_renewed() {
    let mut at = settled(2);
    let id = at.id_owned_by(2);
    at.hear(2, PeerMessage::Remember { ids: vec![id] });
    at.now += limits::TOMBSTONE_TTL / 2;
    at.handle(Input::Tick);
    at.hear(2, PeerMessage::Remember { ids: vec![id] });
    at.now += limits::TOMBSTONE_TTL / 2;
    at.handle(Input::Tick);
    assert_ne!(at.leftovers(), Vec::<String>::new());
    at.now += limits::TOMBSTONE_TTL / 2;
    at.handle(Input::Tick);
    assert_eq!(at.leftovers(), Vec::<String>::new());
}

fn small_put(at: &mut Node, id: ObjectId, writing: u64) {
    let report = put_report(writing, edition(writing), SMALL, true);
    let payload = Some(Blob(vec![7; SMALL as usize]));
    at.request(2, id, DirectoryRequest::Announce { report, payload, wants_verdict: true });
}

fn give_up(at: &mut Node, id: ObjectId, writing: u64) {
    at.request(2, id, DirectoryRequest::Withdraw { seq: writing + 1, edition: edition(writing) });
}

/// The caller of the put was told that its time was up.
#[test]
fn a_small_put_that_was_given_up_never_was() {
    let mut at = settled(3);
    let id = at.id_owned_by(ME);
    at.request(3, id, DirectoryRequest::Subscribe { bytes_max: None });
    small_put(&mut at, id, 5);
    at.take_mail();
    give_up(&mut at, id, 5);
    let gone: Vec<_> = at.take_mail().into_iter().filter_map(|(to, message)| gone_at(to, message)).collect();
    assert_eq!(gone, [ME, 2], "the watcher knows that neither has it");
    let call = at.ask(get_or_lost(id));
    at.wait(Duration::from_secs(10));
    assert_eq!(at.reply(call), None, "it waits for a put");
    assert_eq!(told(&mut at), []);
    put(&mut at, id, SIZE);
    assert!(matches!(at.reply(call), Some(Reply::View { .. })));
}

fn gone_at(to: hoplite_words::NodeId, message: PeerMessage) -> Option<u16> {
    match message {
        PeerMessage::Answer { answer: DirectoryAnswer::CopyGone { node: at }, .. } => {
            assert_eq!(to, node(3));
            Some(at.addr.port())
        }
        _ => None,
    }
}

#[test]
fn what_was_lost_before_a_put_that_was_given_up_is_lost_still() {
    let mut at = settled(3);
    let id = at.id_owned_by(ME);
    at.request(3, id, held(1, SMALL));
    at.kill(3);
    small_put(&mut at, id, 6);
    give_up(&mut at, id, 6);
    at.wait(Duration::from_secs(3));
    let call = at.ask(get_or_lost(id));
    assert_eq!(failed(&at, call), ErrorKind::Lost);
}

#[test]
fn who_read_a_small_put_before_it_was_given_up_has_it() {
    let mut at = settled(3);
    let id = at.id_owned_by(ME);
    small_put(&mut at, id, 5);
    let report = received_report(1, edition(5), SMALL, None);
    at.request(3, id, announce(report));
    give_up(&mut at, id, 5);
    at.take_mail();
    let call = at.ask(get_or_lost(id));
    assert_eq!(at.reply(call), None, "it is fetched");
    assert!(at
        .mail
        .iter()
        .any(|(to, message)| *to == node(3) && matches!(message, PeerMessage::Pull { .. })));
}

//! Puts of an object that was put before: the first content stays, and the put succeeds once that has arrived.

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{CopyId, ErrorKind, ObjectId, Stamp, TransferId};

use crate::gets::{last_ask, lend};
use crate::node::{Node, CLIENT};
use crate::puts::{announced, created, failed, viewed};
use crate::requests::{accepted, create, create_kept, deleted, edition, get, object, verdict, SIZE};

/// Space for two objects of `SIZE` and a little.
const STORE: u64 = 2 * (SIZE + 64) + 4096;

fn exists(ms: u64) -> Verdict {
    Verdict::Exists(Stamp::from_ms(ms))
}

/// A second put of an object that another node has put before: the call of its seal, and its bytes.
struct Second {
    at: Node,
    id: ObjectId,
    seal: u64,
    spare: CopyId,
}

impl Second {
    fn sealed_with(timeout_ms: Option<u64>) -> Self {
        Self::created_by(create, timeout_ms)
    }

    /// The client keeps a view of what it writes.
    fn kept() -> Self {
        Self::created_by(create_kept, None)
    }

    fn created_by(create: fn(ObjectId, u64) -> Request, timeout_ms: Option<u64>) -> Self {
        let mut at = Node::among(3, STORE);
        let id = at.id_owned_by(2);
        let call = at.ask(create(id, SIZE));
        let spare = created(&at, call);
        let writing = announced(&mut at, id);
        at.answer(2, id, verdict(writing, exists(5)));
        assert!(at.copies[&spare].aborted, "nobody is to stream from it");
        let seal = at.ask(Request::Seal { copy: spare, timeout_ms });
        assert_eq!(at.reply(seal), None);
        Second { at, id, seal, spare }
    }

    fn new() -> Self {
        Self::sealed_with(None)
    }

    /// The first content is on its way here.
    fn lend(&mut self) -> TransferId {
        lend(&mut self.at, 2, self.id, 3, edition(5), SIZE)
    }

    /// Whether the content that was put here has been offered as the object's.
    fn offered(&mut self) -> Option<CopyReport> {
        self.at.take_requests(self.id).into_iter().find_map(|request| match request {
            DirectoryRequest::Announce { report, wants_verdict: true, .. } => Some(report),
            _ => None,
        })
    }
}

#[test]
fn a_second_put_ends_well_once_the_first_content_is_here_and_its_node_keeps_that() {
    let mut second = Second::new();
    assert!(second.at.copies.contains_key(&second.spare), "the first may be lost before it has come");
    let transfer = second.lend();
    second.at.take_mail();
    second.at.end_receive(transfer);
    assert_eq!(second.at.reply(second.seal), Some(&Reply::Done));
    assert!(!second.at.copies.contains_key(&second.spare));
    let kept = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Announce { report, .. } if report.complete && report.pinned);
    assert!(second.at.take_requests(second.id).iter().any(kept));
    let read = second.at.ask(get(second.id));
    let copy = viewed(&second.at, read);
    assert_eq!(second.at.identity_of(copy).1, edition(5), "the first content is served");
}

#[test]
fn a_second_put_may_be_accepted_after_its_seal() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let spare = created(&at, call);
    let writing = announced(&mut at, id);
    let seal = at.ask(Request::Seal { copy: spare, timeout_ms: None });
    at.answer(2, id, verdict(writing, exists(5)));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.end_receive(transfer);
    assert_eq!(at.reply(seal), Some(&Reply::Done));
}

#[test]
fn a_second_put_takes_the_place_of_a_first_content_that_is_lost() {
    let lost = |second: &mut Second| second.at.answer(2, second.id, DirectoryAnswer::Lost);
    let nowhere = |second: &mut Second| {
        let ask = last_ask(&mut second.at, second.id);
        second.at.answer(2, second.id, DirectoryAnswer::NotYet { ask, copies: Vec::new() });
    };
    for end in [lost as fn(&mut Second), nowhere] {
        let mut second = Second::new();
        end(&mut second);
        let offered = second.offered().expect("its bytes are still here");
        assert!(offered.complete && offered.pinned && offered.stamp.is_none());
        assert_eq!(second.at.reply(second.seal), None);
        second.at.answer(2, second.id, accepted(offered.edition));
        assert_eq!(second.at.reply(second.seal), Some(&Reply::Done));
        assert_eq!(second.at.status().copies, 1);
        let read = second.at.ask(get(second.id));
        viewed(&second.at, read);
    }
}

/// Half of the first content is here, and its sender is dead.
#[test]
fn a_second_put_takes_the_place_of_half_a_first_content() {
    let mut second = Second::new();
    let transfer = second.lend();
    second.at.break_receive(transfer, 1000);
    second.at.take_mail();
    second.at.answer(2, second.id, DirectoryAnswer::Lost);
    let offered = second.offered().expect("its bytes are still here");
    second.at.answer(2, second.id, accepted(offered.edition));
    assert_eq!(second.at.reply(second.seal), Some(&Reply::Done));
}

/// A spare that was offered as the content may lose against another put once more.
#[test]
fn a_spare_that_is_offered_may_be_second_again() {
    let mut second = Second::new();
    second.at.answer(2, second.id, DirectoryAnswer::Lost);
    let offered = second.offered().expect("its bytes are still here");
    second.at.answer(2, second.id, verdict(offered.edition, exists(6)));
    assert_eq!(second.at.reply(second.seal), None);
    let transfer = lend(&mut second.at, 2, second.id, 3, edition(6), SIZE);
    second.at.end_receive(transfer);
    assert_eq!(second.at.reply(second.seal), Some(&Reply::Done));
}

#[test]
fn a_spare_is_dropped_when_space_is_short() {
    let mut second = Second::new();
    let other = object("needs the room");
    let call = second.at.ask(create(other, SIZE));
    created(&second.at, call);
    assert!(second.at.copies.contains_key(&second.spare), "there is room for both");
    let call = second.at.ask(create(object("this, too"), SIZE));
    created(&second.at, call);
    assert!(!second.at.copies.contains_key(&second.spare));
    assert_eq!(second.at.gauge("spare copies of puts"), 0);
    second.at.take_mail();
    second.at.answer(2, second.id, DirectoryAnswer::Lost);
    assert_eq!(second.offered(), None);
    assert_eq!(failed(&second.at, second.seal), ErrorKind::StoreFull);
}

/// A put that waited for space while these bytes were still being written gets it.
#[test]
fn a_spare_is_dropped_for_a_put_that_already_waits_for_space() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let spare = created(&at, call);
    let writing = announced(&mut at, id);
    at.answer(2, id, verdict(writing, exists(5)));
    let other = at.ask(create(object("needs the room"), SIZE));
    created(&at, other);
    let waits = at.ask(create(object("this, too"), SIZE));
    assert_eq!(at.reply(waits), None);
    at.ask(Request::Seal { copy: spare, timeout_ms: None });
    created(&at, waits);
}

#[test]
fn a_viewed_spare_is_not_dropped_since_that_frees_no_space() {
    let mut second = Second::kept();
    let call = second.at.ask(create(object("needs the room"), SIZE));
    created(&second.at, call);
    let waits = second.at.ask(create(object("this, too"), SIZE));
    assert_eq!(second.at.reply(waits), None);
    assert_eq!(second.at.gauge("spare copies of puts"), 1);
    second.at.ask(Request::Release { copy: second.spare });
    created(&second.at, waits);
    assert_eq!(second.at.gauge("spare copies of puts"), 0);
}

/// The memory that the client views is then the object's copy, as after any put.
#[test]
fn a_viewed_spare_replaces_a_first_content_that_is_lost() {
    let mut second = Second::kept();
    second.at.answer(2, second.id, DirectoryAnswer::Lost);
    let offered = second.offered().expect("its bytes are still here");
    second.at.answer(2, second.id, accepted(offered.edition));
    assert_eq!(second.at.reply(second.seal), Some(&Reply::Done));
    let read = second.at.ask(get(second.id));
    assert_eq!(viewed(&second.at, read), second.spare);
    second.at.ask(Request::Release { copy: second.spare });
    let gone = deleted(&second.at);
    second.at.answer(2, second.id, gone);
    assert!(second.at.copies.contains_key(&second.spare), "one view is left");
    second.at.ask(Request::Release { copy: second.spare });
    assert!(!second.at.copies.contains_key(&second.spare));
}

/// Its memory would become the object's copy again while a node streams from it.
#[test]
fn a_spare_that_is_still_streamed_from_is_not_offered_yet() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let spare = created(&at, call);
    let writing = announced(&mut at, id);
    let (transfer, offset, patient) = (TransferId(9), 0, false);
    at.hear(3, PeerMessage::Pull { transfer, id, edition: writing, offset, patient });
    let (&send, sending) = at.sends.iter().next().expect("it is streamed while it is written");
    let sending = sending.clone();
    // It takes its time to stop.
    at.sends.remove(&send);
    at.answer(2, id, verdict(writing, exists(5)));
    at.sends.insert(send, sending);
    let seal = at.ask(Request::Seal { copy: spare, timeout_ms: None });
    at.answer(2, id, DirectoryAnswer::Lost);
    let offers = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Announce { .. });
    assert!(!at.take_requests(id).iter().any(offers));
    at.end_send(send);
    at.answer(2, id, DirectoryAnswer::Lost);
    assert!(at.take_requests(id).iter().any(offers));
    assert_eq!(at.reply(seal), None);
}

#[test]
fn a_first_content_of_another_kind_fails_the_second_put() {
    let mut second = Second::new();
    let transfer = lend(&mut second.at, 2, second.id, 3, edition(6), SIZE / 2);
    second.at.end_receive(transfer);
    assert_eq!(failed(&second.at, second.seal), ErrorKind::AlreadyExists);
    assert!(!second.at.copies.contains_key(&second.spare));
}

#[test]
fn a_second_put_that_times_out_names_the_first_content() {
    let mut second = Second::sealed_with(Some(300));
    second.at.wait(Duration::from_millis(300));
    let Some(Reply::Failed(error)) = second.at.reply(second.seal) else { panic!("it has an end") };
    assert_eq!(error.kind, ErrorKind::TimedOut);
    assert!(error.message.contains("put it first"), "{error:?}");
    second.at.assert_empty();
}

#[test]
fn a_second_put_of_a_client_that_is_gone_leaves_nothing_behind() {
    let mut second = Second::new();
    second.at.handle(Input::ClientGone { client: CLIENT });
    second.at.assert_empty();
}

#[test]
fn a_deletion_ends_a_second_put() {
    let mut second = Second::new();
    let gone = deleted(&second.at);
    second.at.answer(2, second.id, gone);
    assert_eq!(failed(&second.at, second.seal), ErrorKind::Deleted);
    second.at.assert_empty();
}

/// A copy that was only cached is kept for good from then on.
#[test]
fn a_put_of_an_object_that_is_here_ends_at_once_and_pins_it() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.end_receive(transfer);
    at.take_mail();
    let call = at.ask(create(id, SIZE));
    assert_eq!(at.reply(call), Some(&Reply::Done));
    let said = at.take_requests(id);
    assert!(matches!(&said[..], [DirectoryRequest::Announce { report, .. }] if report.pinned), "{said:?}");
    let smaller = at.ask_as(ClientId(7), create(id, SIZE / 2));
    assert_eq!(failed(&at, smaller), ErrorKind::AlreadyExists);
}

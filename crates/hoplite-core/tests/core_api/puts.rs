//! Puts and creates: verdicts, seals, aborts, and writers that wait for each other.

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{CopyId, Edition, ErrorKind, ObjectId};

use crate::node::{Node, CLIENT};
use crate::requests::{
    accepted, create, create_kept, delete, edition, get, get_partial, object, put_small, reduce, verdict,
    SIZE, SMALL,
};

pub fn created(at: &Node, call: u64) -> CopyId {
    match at.reply(call) {
        Some(Reply::Created { copy, .. }) => *copy,
        other => panic!("call {call}: {other:?}"),
    }
}

pub fn viewed(at: &Node, call: u64) -> CopyId {
    match at.reply(call) {
        Some(Reply::View { copy, .. }) => *copy,
        other => panic!("call {call}: {other:?}"),
    }
}

pub fn failed(at: &Node, call: u64) -> ErrorKind {
    match at.reply(call) {
        Some(Reply::Failed(error)) => error.kind,
        other => panic!("call {call}: {other:?}"),
    }
}

/// Puts a whole object and returns its copy.
pub fn put(at: &mut Node, id: ObjectId, size: u64) -> CopyId {
    let call = at.ask(create(id, size));
    let copy = created(at, call);
    let call = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(call), Some(&Reply::Done));
    copy
}

/// The edition of the writing here that was last announced.
pub fn announced(at: &mut Node, id: ObjectId) -> Edition {
    let announce = at.take_requests(id).into_iter().find_map(|request| match request {
        DirectoryRequest::Announce { report, .. } => Some(report.edition),
        _ => None,
    });
    announce.expect("the put was announced")
}

#[test]
fn create_progress_seal_get_release_delete() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let early = at.ask(get(id));
    at.ask(Request::Progress { copy, watermark: SIZE / 2 });
    assert_eq!(at.reply(early), None, "not before the seal");
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(seal), Some(&Reply::Done));
    assert_eq!(viewed(&at, early), copy);
    let late = at.ask(get(id));
    assert_eq!(viewed(&at, late), copy);
    at.ask(Request::Release { copy });
    let done = at.ask(delete(id));
    assert_eq!(at.reply(done), Some(&Reply::Done));
    assert!(at.copies.contains_key(&copy), "one view keeps the bytes");
    let gone = at.ask(get(id));
    assert_eq!(failed(&at, gone), ErrorKind::Deleted);
    at.ask(Request::Release { copy });
    at.assert_empty();
}

/// Sealed and deleted, or aborted: the space is free only after the release, or the end of the client.
#[test]
fn a_client_may_keep_the_memory_of_its_put() {
    for (seals, releases) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut at = Node::alone(SIZE + 4096);
        let id = object("x");
        let call = at.ask(create_kept(id, SIZE));
        let copy = created(&at, call);
        assert!(matches!(at.reply(call), Some(Reply::Created { kept: true, .. })));
        if seals {
            let seal = at.ask(Request::Seal { copy, timeout_ms: None });
            assert_eq!(at.reply(seal), Some(&Reply::Done));
            let done = at.ask(delete(id));
            assert_eq!(at.reply(done), Some(&Reply::Done));
        } else {
            at.ask(Request::Abort { copy });
        }
        let next = at.ask_as(ClientId(7), create(object("next"), SIZE));
        assert_eq!(at.reply(next), None, "its room is taken");
        assert!(at.copies.contains_key(&copy));
        if releases {
            at.ask(Request::Release { copy });
        } else {
            at.handle(Input::ClientGone { client: CLIENT });
        }
        assert!(!at.copies.contains_key(&copy));
        let next = created(&at, next);
        at.ask_as(ClientId(7), Request::Abort { copy: next });
        at.assert_empty();
    }
}

#[test]
fn the_directory_may_speak_before_or_after_the_seal() {
    for verdict_first in [true, false] {
        let mut at = Node::among(2, 8 << 20);
        let id = at.id_owned_by(2);
        let call = at.ask(create(id, SIZE));
        let copy = created(&at, call);
        let edition = announced(&mut at, id);
        let seal = if verdict_first {
            at.answer(2, id, accepted(edition));
            at.ask(Request::Seal { copy, timeout_ms: None })
        } else {
            let seal = at.ask(Request::Seal { copy, timeout_ms: None });
            assert_eq!(at.reply(seal), None, "the directory has not accepted it");
            assert!(at.copies[&copy].sealed.is_none());
            at.answer(2, id, accepted(edition));
            seal
        };
        assert_eq!(at.reply(seal), Some(&Reply::Done));
        assert!(at.copies[&copy].sealed.is_some());
        assert!(at
            .take_requests(id)
            .iter()
            .any(|request| matches!(request, DirectoryRequest::Announce { report, .. } if report.complete)));
    }
}

#[test]
fn a_rejected_put_fails_at_its_seal_and_leaves_nothing() {
    for verdict_first in [true, false] {
        for (word, kind) in
            [(Verdict::Deleted, ErrorKind::Deleted), (Verdict::OtherKind(7), ErrorKind::AlreadyExists)]
        {
            let mut at = Node::among(2, 8 << 20);
            let id = at.id_owned_by(2);
            let call = at.ask(create(id, SIZE));
            let copy = created(&at, call);
            let edition = announced(&mut at, id);
            let rejected = verdict(edition, word);
            let seal = if verdict_first {
                at.answer(2, id, rejected);
                assert!(at.copies.contains_key(&copy), "its client may still be writing");
                at.ask(Request::Seal { copy, timeout_ms: None })
            } else {
                let seal = at.ask(Request::Seal { copy, timeout_ms: None });
                at.answer(2, id, rejected);
                seal
            };
            assert_eq!(failed(&at, seal), kind);
            at.assert_empty();
        }
    }
}

#[test]
fn a_verdict_that_was_lost_is_asked_for_again() {
    let mut at = Node::among(2, 8 << 20);
    // Apart from the repetition because a member came.
    at.wait(Duration::from_secs(5));
    let id = at.id_owned_by(2);
    let call = at.ask(put_small(id, SMALL));
    at.take_mail();
    at.wait(Duration::from_secs(1));
    let edition = announced(&mut at, id);
    at.answer(2, id, accepted(edition));
    assert_eq!(at.reply(call), Some(&Reply::Done));
    at.take_mail();
    at.wait(Duration::from_secs(3));
    assert_eq!(at.take_requests(id), [], "judged once is enough");
}

#[test]
fn an_aborted_put_is_withdrawn_and_its_waiters_wait_on() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let waiting = at.ask(get(id));
    let abort = at.ask(Request::Abort { copy });
    assert_eq!(at.reply(abort), Some(&Reply::Done));
    assert_eq!(at.reply(waiting), None);
    let again = put(&mut at, id, SIZE / 2);
    assert_eq!(viewed(&at, waiting), again);
}

#[test]
fn an_abort_answers_the_seal_that_still_waits() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    let abort = at.ask(Request::Abort { copy });
    assert_eq!(at.reply(abort), Some(&Reply::Done));
    assert_eq!(failed(&at, seal), ErrorKind::Aborted);
    at.assert_empty();
}

#[test]
fn only_its_writer_may_touch_a_created_copy() {
    let mut at = Node::alone(8 << 20);
    let call = at.ask(create(object("x"), SIZE));
    let copy = created(&at, call);
    let stranger = hoplite_core::io::ClientId(77);
    let seal = at.ask_as(stranger, Request::Seal { copy, timeout_ms: None });
    assert_eq!(failed(&at, seal), ErrorKind::BadArgument);
    at.ask_as(stranger, Request::Abort { copy });
    at.ask_as(stranger, Request::Release { copy });
    assert!(!at.copies[&copy].aborted);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(seal), Some(&Reply::Done));
    let twice = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(failed(&at, twice), ErrorKind::BadArgument);
}

#[test]
fn a_second_put_is_the_same_object_or_an_error() {
    let mut at = Node::alone(8 << 20);
    let id = object("x");
    put(&mut at, id, SIZE);
    let same = at.ask(create(id, SIZE));
    assert_eq!(at.reply(same), Some(&Reply::Done));
    let other = at.ask(create(id, SIZE + 1));
    assert_eq!(failed(&at, other), ErrorKind::AlreadyExists);
    assert_eq!(at.copies.len(), 1);
}

#[test]
fn a_second_writer_waits_for_the_first_and_takes_over_if_it_dies() {
    let mut at = Node::alone(8 << 20);
    let (id, second, third) = (object("x"), hoplite_core::io::ClientId(2), hoplite_core::io::ClientId(3));
    let first = at.ask(create(id, SIZE));
    created(&at, first);
    let two = at.ask_as(second, create(id, SIZE));
    let three = at.ask_as(third, create(id, SIZE));
    let reader = at.ask(get(id));
    assert_eq!((at.reply(two), at.reply(three)), (None, None));
    at.handle(hoplite_core::Input::ClientGone { client: CLIENT });
    let copy = created(&at, two);
    assert_eq!(at.reply(reader), None, "that client is gone");
    assert_eq!(at.reply(three), None, "still in the way");
    let seal = at.ask_as(second, Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(seal), Some(&Reply::Done));
    assert_eq!(at.reply(three), Some(&Reply::Done));
}

/// A put need not wait for a partial copy without a sender: it replaces that copy.
#[test]
fn puts_that_wait_behind_a_broken_fetch_go_one_after_the_other() {
    let mut at = Node::among(2, 8 << 20);
    let id = at.id_owned_by(2);
    let read = at.ask(get(id));
    let transfer = crate::gets::lend(&mut at, 2, id, 2, edition(5), SIZE);
    let (two, three) = (hoplite_core::io::ClientId(2), hoplite_core::io::ClientId(3));
    let first = at.ask_as(two, create(id, SIZE));
    let second = at.ask_as(three, create(id, SIZE));
    at.take_mail();
    at.break_receive(transfer, 100);
    let copy = created(&at, first);
    let edition = announced(&mut at, id);
    at.answer(2, id, accepted(edition));
    at.ask_as(two, Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(second), Some(&Reply::Done));
    assert_eq!(viewed(&at, read), copy);
    assert_eq!(at.copies.len(), 1);
}

#[test]
fn nonsense_is_refused_before_anything_moves() {
    let mut at = Node::alone(1 << 20);
    let id = object("x");
    let large = at.ask(create(id, 2 << 20));
    assert_eq!(failed(&at, large), ErrorKind::StoreFull);
    let header = crate::requests::array(11);
    let mismatch = Request::Create { id, size: 10, header, timeout_ms: None, keep: false };
    let mismatch = at.ask(mismatch);
    assert_eq!(failed(&at, mismatch), ErrorKind::BadArgument);
    let wide = at.ask(put_small(id, 65_537));
    assert_eq!(failed(&at, wide), ErrorKind::BadArgument);
    let hello = at.ask(Request::Hello { version: 1, pid: 1 });
    assert_eq!(failed(&at, hello), ErrorKind::BadArgument);
    at.assert_empty();
}

/// A client writes the target of a reduction, and its put was accepted.
#[test]
fn a_slot_does_not_displace_a_put_of_its_target() {
    let mut at = Node::among(2, 8 << 20);
    let target = at.id_owned_by(2);
    let source = object("source");
    put(&mut at, source, SIZE);
    let call = at.ask(create(target, SIZE));
    let copy = created(&at, call);
    let edition = announced(&mut at, target);
    at.answer(2, target, accepted(edition));
    let assignment = crate::crashes::root_assignment(&mut at, target, source);
    let reduction = crate::crashes::reduction(2);
    at.hear(2, PeerMessage::AssignSlot { reduction, assignment });
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(seal), Some(&Reply::Done));
    let read = at.ask(get_partial(target));
    assert_eq!(viewed(&at, read), copy);
}

/// The first accepted claim makes the target. The put succeeds, and its bytes are dropped.
#[test]
fn a_put_that_is_not_accepted_yet_gives_way_to_a_reduction() {
    for size in [SMALL, SIZE] {
        let mut at = Node::alone(8 << 20);
        let (target, source) = (object("target"), object("source"));
        let call = at.ask(reduce(target, &[source], 1, hoplite_types::FoldOrder::Arrival));
        let writing = at.ask(create(target, size));
        let copy = created(&at, writing);
        put(&mut at, source, size);
        if let Some(&fold) = at.folds.keys().next() {
            at.end_fold(fold);
        }
        assert!(matches!(at.reply(call), Some(Reply::Reduced { .. })), "{size}: {:?}", at.reply(call));
        let seal = at.ask(Request::Seal { copy, timeout_ms: None });
        assert_eq!(at.reply(seal), Some(&Reply::Done));
        let read = at.ask(get(target));
        assert_ne!(viewed(&at, read), copy, "the sum");
    }
}

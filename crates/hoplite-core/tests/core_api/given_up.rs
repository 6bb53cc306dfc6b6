//! Puts withdrawn after their owner has accepted them: they leave no trace, unless their bytes were shown to a node or
//! client.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, InventoryPage, Verdict};
use hoplite_types::{Blob, ErrorKind, ObjectId, Stamp};

use crate::backups::{held, told};
use crate::gets::last_ask;
use crate::losses::get_or_lost;
use crate::node::{node, Node, ME};
use crate::puts::{created, failed, put};
use crate::recovery::take_asked;
use crate::requests::{
    announce, ask, create, edition, get, object, put_report, put_small, received_report, unaccepted, SIZE,
    SMALL,
};

const STORE: u64 = 8 << 20;

/// Longer than the pause before a turn of the owner's own work.
const TURN: Duration = Duration::from_millis(9);

/// A put of node 2 whose bytes come with the question for the verdict.
fn small_put(at: &mut Node, id: ObjectId, writing: u64) {
    let report = unaccepted(2, put_report(writing, edition(writing), SMALL));
    let payload = Some(Blob(vec![7; SMALL as usize]));
    at.request(2, id, DirectoryRequest::Announce { report, payload, wants_verdict: true });
}

fn give_up(at: &mut Node, id: ObjectId, writing: u64) {
    at.request(2, id, DirectoryRequest::Withdraw { seq: writing + 1, edition: edition(writing) });
}

/// Another put under its id would be its second content.
fn assert_stays(at: &mut Node, id: ObjectId) {
    let call = at.ask(get_or_lost(id));
    assert!(matches!(at.reply(call), Some(Reply::View { size: SMALL, .. })), "{:?}", at.reply(call));
    at.assert_consistent();
}

/// The caller of the put was told that its time was up.
#[test]
fn a_small_put_that_was_given_up_leaves_no_trace() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    at.request(3, id, DirectoryRequest::Subscribe { bytes_max: None });
    small_put(&mut at, id, 5);
    at.take_mail();
    give_up(&mut at, id, 5);
    let gone = [ME, 2].map(|holder| (3, DirectoryAnswer::CopyGone { node: node(holder) }));
    assert_eq!(at.take_answers(id), gone, "the watcher knows that neither has it");
    let call = at.ask(get_or_lost(id));
    at.wait(Duration::from_secs(10));
    assert_eq!(at.reply(call), None, "it waits for a put");
    assert_eq!(told(&mut at), []);
    put(&mut at, id, SIZE);
    assert!(matches!(at.reply(call), Some(Reply::View { .. })));
}

#[test]
fn an_object_lost_before_an_abandoned_put_is_still_lost() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    at.request(3, id, held(1, SMALL));
    at.kill(3);
    small_put(&mut at, id, 6);
    give_up(&mut at, id, 6);
    let call = at.ask(get_or_lost(id));
    assert_eq!(failed(&at, call), ErrorKind::Lost);
}

#[test]
fn a_small_put_that_was_read_here_before_it_was_given_up_stays() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    let call = at.ask(get_or_lost(id));
    small_put(&mut at, id, 5);
    assert!(matches!(at.reply(call), Some(Reply::View { .. })));
    give_up(&mut at, id, 5);
    assert_stays(&mut at, id);
}

#[test]
fn a_node_that_read_a_small_put_before_it_was_given_up_has_it() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    small_put(&mut at, id, 5);
    let stamp = at.take_answers(id).into_iter().find_map(|(_, answer)| match answer {
        DirectoryAnswer::Verdict { verdict: Verdict::Accepted(stamp), .. } => Some(stamp),
        _ => None,
    });
    let report = CopyReport { stamp, ..received_report(1, edition(5), SMALL, None) };
    at.request(3, id, announce(report));
    give_up(&mut at, id, 5);
    assert_stays(&mut at, id);
}

#[test]
fn a_small_put_that_was_sent_before_it_was_given_up_stays() {
    let mut at = Node::among(4, STORE);
    let id = at.id_owned_by(ME);
    small_put(&mut at, id, 5);
    at.request(3, id, ask(7));
    assert!(at.take_answers(id).iter().any(|(_, answer)| matches!(answer, DirectoryAnswer::Inline { .. })));
    // It has no space for it by now.
    at.request(3, id, DirectoryRequest::Withdraw { seq: 8, edition: edition(5) });
    give_up(&mut at, id, 5);
    assert_stays(&mut at, id);
}

/// A coordinator is no holder, and watches no more.
#[test]
fn a_small_put_whose_bytes_went_to_a_subscriber_before_it_was_given_up_stays() {
    let mut at = Node::among(4, STORE);
    let id = at.id_owned_by(ME);
    at.request(3, id, DirectoryRequest::Subscribe { bytes_max: Some(SMALL) });
    small_put(&mut at, id, 5);
    let with_bytes = |(_, answer): &(u16, DirectoryAnswer)| {
        matches!(answer, DirectoryAnswer::Copy { payload: Some(_), .. })
    };
    assert!(at.take_answers(id).iter().any(with_bytes));
    give_up(&mut at, id, 5);
    assert_stays(&mut at, id);
}

#[test]
fn a_small_put_that_was_read_here_and_is_nowhere_when_it_is_given_up_is_lost() {
    let mut at = Node::among(4, SMALL + 128);
    let id = at.id_owned_by(ME);
    let call = at.ask(get(id));
    small_put(&mut at, id, 5);
    let Some(Reply::View { copy, .. }) = at.reply(call) else { panic!("{:?}", at.reply(call)) };
    let copy = *copy;
    at.ask(Request::Release { copy });
    let call = at.ask(create(object("in its place"), SMALL));
    created(&at, call);
    give_up(&mut at, id, 5);
    at.take_mail();
    at.request(3, id, ask(7));
    assert!(at.take_answers(id).contains(&(3, DirectoryAnswer::Lost)));
}

/// The withdrawal of the put never came. A copy that its writer does not repeat is dropped before any answer carries
/// it.
#[test]
fn a_kept_copy_that_its_writer_does_not_repeat_is_not_sent() {
    let last = 60;
    let mut at = Node::among(last, STORE);
    let id = at.id_owned_by(ME);
    small_put(&mut at, id, 5);
    at.members_answer = false;
    at.take_mail();
    at.handle(Input::StoodStill { time: Duration::from_secs(1) });
    let mut asked = take_asked(&mut at);
    at.request(3, id, ask(7));
    let mut of_writer = None;
    while let Some(next) = asked.pop() {
        if next.of == 2 {
            of_writer = Some(next);
        } else {
            at.hear(next.of, next.answer(0, InventoryPage::default(), None));
            asked.extend(take_asked(&mut at));
        }
    }
    at.wait(TURN);
    assert!(at.gauge("recovering shards") > 0);
    // The last one, so that one turn drops the copy here and answers the held asks.
    at.hear(2, of_writer.expect("it was asked").answer(50, InventoryPage::default(), None));
    at.take_mail();
    at.wait(TURN);
    assert_eq!(at.gauge("recovering shards"), 0);
    let told = at.take_answers(id);
    assert!(!told.iter().any(|(_, answer)| matches!(answer, DirectoryAnswer::Inline { .. })), "{told:?}");
}

/// Its second withdrawal of the put may reach the owner after its ask.
#[test]
fn a_node_that_is_sent_its_abandoned_put_reports_the_copy() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(2);
    let Request::PutSmall { header, payload, .. } = put_small(id, SMALL) else { panic!() };
    let call = at.ask(Request::PutSmall { id, header, payload, timeout_ms: Some(3) });
    at.wait(TURN);
    assert_eq!(failed(&at, call), ErrorKind::TimedOut);
    let said = at.take_requests(id);
    let put = said.iter().find_map(|request| match request {
        DirectoryRequest::Announce { report, .. } => Some(report.edition),
        _ => None,
    });
    let edition = put.expect("it was put");
    let call = at.ask(get(id));
    let asked = last_ask(&mut at, id);
    at.take_mail();
    let stamp = Stamp::from_ms(7);
    at.answer(2, id, DirectoryAnswer::Verdict { edition, verdict: Verdict::Accepted(stamp) });
    at.answer(
        2,
        id,
        DirectoryAnswer::Inline {
            ask: asked,
            edition,
            header: put_report(1, edition, SMALL).header,
            payload: Blob(vec![7; SMALL as usize]),
            stamp: Some(stamp),
        },
    );
    assert!(matches!(at.reply(call), Some(Reply::View { .. })));
    let said = at.take_requests(id);
    let withdrew = said.iter().position(|request| matches!(request, DirectoryRequest::Withdraw { .. }));
    let announced = said.iter().position(|request| matches!(request, DirectoryRequest::Announce { .. }));
    assert!(withdrew.is_some() && announced > withdrew, "{said:?}");
}

//! A delete of many ids has a bounded number of open requests, and delays no other call.

use std::time::Duration;

use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_types::{ErrorKind, ObjectId};

use crate::node::Node;
use crate::requests::delete;

/// Questions of one delete that may be unanswered at a time, and that one turn asks.
const UNANSWERED_MAX: usize = 1024;
const PER_TURN: usize = 256;

/// Longer than a delete takes to ask for all that it may.
const ASKING: Duration = Duration::from_millis(20);

fn owned_by_other(at: &mut Node, name: &str, count: usize) -> Vec<ObjectId> {
    let ids = (0..).map(|number| ObjectId::from_name(&format!("{name} {number}")));
    ids.filter(|&id| at.owner_of(id) == 2).take(count).collect()
}

fn delete_all(ids: &[ObjectId]) -> Request {
    Request::Delete { ids: ids.to_vec(), timeout_ms: None }
}

/// Takes the deletes that node 2 was asked for so far.
fn take_asked(at: &mut Node) -> Vec<(ObjectId, u64)> {
    let mail = at.take_mail().into_iter();
    mail.filter_map(|(_, message)| match message {
        PeerMessage::Directory { id, request: DirectoryRequest::Delete { token }, .. } => Some((id, token)),
        _ => None,
    })
    .collect()
}

fn confirm(at: &mut Node, asked: &[(ObjectId, u64)]) {
    for &(id, token) in asked {
        at.answer(2, id, DirectoryAnswer::DeleteDone { token, deletion: None });
    }
}

#[test]
fn a_long_delete_has_a_bounded_number_of_questions_open() {
    let mut at = Node::among(2, 0);
    let ids = owned_by_other(&mut at, "object", 3 * UNANSWERED_MAX + 7);
    let call = at.ask(delete_all(&ids));
    let mut all = take_asked(&mut at);
    assert_eq!(all.len(), PER_TURN, "one turn");
    at.wait(ASKING);
    all.extend(take_asked(&mut at));
    assert_eq!(all.len(), UNANSWERED_MAX);
    let mut open = all.clone();
    while !open.is_empty() {
        assert_eq!(at.reply(call), None);
        confirm(&mut at, &open);
        at.wait(ASKING);
        open = take_asked(&mut at);
        assert!(open.len() <= UNANSWERED_MAX);
        all.extend(&open);
    }
    assert_eq!(at.reply(call), Some(&Reply::Done));
    let mut asked: Vec<_> = all.into_iter().map(|(id, _)| id).collect();
    asked.sort();
    let mut expected = ids;
    expected.sort();
    assert_eq!(asked, expected, "each once");
}

#[test]
fn a_short_delete_does_not_wait_for_a_long_one() {
    let mut at = Node::among(2, 0);
    let long = owned_by_other(&mut at, "object", 4 * UNANSWERED_MAX);
    let short = owned_by_other(&mut at, "other", 1)[0];
    at.ask(delete_all(&long));
    take_asked(&mut at);
    let call = at.ask(delete(short));
    let asked = take_asked(&mut at);
    assert!(asked.len() <= PER_TURN);
    let its = asked.into_iter().find(|&(id, _)| id == short).expect("asked in the turn of its call");
    confirm(&mut at, &[its]);
    assert_eq!(at.reply(call), Some(&Reply::Done));
}

#[test]
fn ids_that_a_delete_did_not_ask_about_count_as_unconfirmed() {
    let mut at = Node::among(2, 0);
    let ids = owned_by_other(&mut at, "object", 2 * UNANSWERED_MAX);
    let call = at.ask(Request::Delete { ids: ids.clone(), timeout_ms: Some(100) });
    at.wait(ASKING);
    let asked = take_asked(&mut at);
    confirm(&mut at, &asked[..10]);
    at.wait(Duration::from_millis(100));
    let Some(Reply::Failed(error)) = at.reply(call) else { panic!("{:?}", at.reply(call)) };
    assert_eq!(error.kind, ErrorKind::TimedOut);
    assert!(error.message.contains(&format!("{} delete(s)", ids.len() - 10)), "{}", error.message);
    at.wait(ASKING);
    take_asked(&mut at);
    confirm(&mut at, &asked);
    at.wait(ASKING);
    assert_eq!(take_asked(&mut at), [], "nobody waits for it");
}

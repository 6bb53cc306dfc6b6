//! Who has the right to make an object, when its owner changes or was told something else.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_words::client::Reply;
use hoplite_words::peer::{Deletion, DirectoryAnswer, DirectoryRequest, PeerMessage, Scope, Verdict};
use hoplite_words::{Claim, ErrorKind, FoldOrder, ObjectId, Stamp};

use crate::inventory::take_inventory;
use crate::node::{node, Node, ME};
use crate::puts::{failed, put};
use crate::recovery::{copies, id_moving, take_asked};
use crate::requests::{
    announce_unjudged, claim_of, delete, edition, put_report, reduce, verdict, writing_report, SIZE,
};
use crate::resync::claims;

const STORE: u64 = 64 << 20;
const MOMENT: Duration = Duration::from_millis(50);

fn judge(at: &mut Node, owner: u16, target: ObjectId, claim: Claim, verdict: Verdict) {
    at.answer(owner, target, DirectoryAnswer::ClaimVerdict { claim, verdict });
}

/// Its backup had heard of the deletion before the owner died, and the holder had not.
#[test]
fn a_delete_waits_for_holders_that_a_new_owner_hears_of() {
    let mut at = Node::among(3, STORE);
    let id = id_moving(&mut at, 3, ME, 3);
    let stamp = Stamp::from_ms(at.now.as_millis() as u64 + 1000);
    at.answer(3, id, DirectoryAnswer::Deleted { deletion: Deletion { stamp, age_ms: 0 } });
    let call = at.ask(delete(id));
    at.take_mail();
    at.members_answer = false;
    at.crash(3);
    at.wait(MOMENT);
    let mut asked = take_asked(&mut at).into_iter();
    let asked = asked.find(|asked| asked.scope == Scope::All && asked.is_about(id.shard())).expect("asked");
    at.hear(2, asked.answer(0, copies(&[(id, put_report(9, edition(5), SIZE))]), None));
    at.wait(MOMENT);
    let told = at.take_answers(id);
    assert!(told.iter().any(|(to, answer)| *to == 2 && matches!(answer, DirectoryAnswer::Deleted { .. })));
    assert_eq!(at.reply(call), None, "node 2 serves it still");
    at.hear(2, PeerMessage::DeletionHeard { id });
    assert_eq!(at.reply(call), Some(&Reply::Done));
}

#[test]
fn the_size_of_what_was_given_up_binds_nobody() {
    let mut at = Node::among(7, STORE);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce_unjudged(2, writing_report(2, 1, edition(5), SIZE)));
    at.request(3, id, DirectoryRequest::Claim { seq: 1, claim: claim_of(3, edition(8)) });
    at.request(2, id, DirectoryRequest::Withdraw { seq: 2, edition: edition(5) });
    at.take_mail();
    at.request(4, id, announce_unjudged(4, writing_report(4, 1, edition(6), 2 * SIZE)));
    assert_eq!(at.take_answers(id), [], "it waits for what becomes of the claim");
}

/// A coordinator that is the root, and sums up.
fn folding() -> (Node, ObjectId, u64, Claim, Stamp) {
    let mut at = Node::among(3, STORE);
    let (target, source) = (at.id_owned_by(3), at.id_owned_by(ME));
    put(&mut at, source, SIZE);
    at.take_mail();
    let call = at.ask(reduce(target, &[source], 1, FoldOrder::Arrival));
    let claim = claims(&mut at, target)[0];
    let stamp = Stamp::from_ms(700);
    judge(&mut at, 3, target, claim, Verdict::Accepted(stamp));
    let (_, folding) = at.folds.iter().next().expect("it folds");
    let (_, edition) = at.identity_of(folding.out);
    at.answer(3, target, verdict(edition, Verdict::Accepted(stamp)));
    at.pause(Duration::from_secs(3));
    at.wait(Duration::from_secs(1));
    assert!(
        claims(&mut at, target).contains(&claim),
        "it was held for dead and asks for the right once more"
    );
    let fold = *at.folds.keys().next().expect("it folds still");
    at.end_fold(fold);
    assert_eq!(at.reply(call), None, "nothing is final without the right");
    (at, target, call, claim, stamp)
}

#[test]
fn nothing_is_committed_without_the_right_to_the_target() {
    let (mut at, target, call, claim, _) = folding();
    judge(&mut at, 3, target, claim, Verdict::Exists(Stamp::from_ms(900)));
    assert_eq!(failed(&at, call), ErrorKind::AlreadyExists);
}

#[test]
fn what_was_summed_up_meanwhile_is_committed_when_the_right_is_confirmed() {
    let (mut at, target, call, claim, stamp) = folding();
    judge(&mut at, 3, target, claim, Verdict::Accepted(stamp));
    assert!(matches!(at.reply(call), Some(Reply::Reduced { .. })), "{:?}", at.reply(call));
}

#[test]
fn a_later_owners_word_that_the_target_is_deleted_counts() {
    let mut at = Node::among(3, STORE);
    let target = id_moving(&mut at, 3, 2, 3);
    let source = at.id_owned_by(ME);
    at.take_mail();
    let call = at.ask(reduce(target, &[source], 1, FoldOrder::Arrival));
    let claim = claims(&mut at, target)[0];
    judge(&mut at, 3, target, claim, Verdict::Accepted(Stamp::from_ms(700)));
    at.crash(3);
    assert_eq!(take_inventory(&mut at, 2, &[target.shard()]).page.claims.len(), 1);
    judge(&mut at, 2, target, claim, Verdict::Deleted);
    assert_eq!(failed(&at, call), ErrorKind::Deleted);
    at.handle(Input::PeerBroken { node: node(2) });
    at.wait(MOMENT);
    at.assert_consistent();
}

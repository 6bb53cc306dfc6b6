//! The claim to an object, when its owner changes or the claimant was paused.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{Deletion, DirectoryAnswer, DirectoryRequest, PeerMessage, Scope, Verdict};
use hoplite_types::{Blob, Claim, ErrorKind, FoldOrder, ObjectId, ReductionId, Stamp};

use crate::crashes::{reduction, root_assignment};
use crate::inventory::take_inventory;
use crate::node::{node, Node, ME};
use crate::puts::{created, failed, put};
use crate::recovery::{copies, id_moving, take_asked};
use crate::reduces::take_assignments;
use crate::requests::{
    accepted, announce, announce_unaccepted, claim_of, create, delete, edition, object, put_report, reduce,
    verdict, writing_report, SIZE, SMALL,
};
use crate::resync::claims;

const STORE: u64 = 64 << 20;
const MOMENT: Duration = Duration::from_millis(50);

fn judge(at: &mut Node, owner: u16, target: ObjectId, claim: Claim, verdict: Verdict) {
    at.answer(owner, target, DirectoryAnswer::ClaimVerdict { claim, verdict });
}

/// The backup had heard of the deletion before the owner died, and the claimant had not.
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
    at.hear(2, PeerMessage::DeletionAck { id });
    assert_eq!(at.reply(call), Some(&Reply::Done));
}

#[test]
fn the_size_of_an_abandoned_writing_binds_no_later_one() {
    let mut at = Node::among(7, STORE);
    let id = at.id_owned_by(ME);
    at.request(2, id, announce_unaccepted(2, writing_report(2, 1, edition(5), SIZE)));
    at.request(3, id, DirectoryRequest::Claim { seq: 1, claim: claim_of(3, edition(8)) });
    at.request(2, id, DirectoryRequest::Withdraw { seq: 2, edition: edition(5) });
    at.take_mail();
    at.request(4, id, announce_unaccepted(4, writing_report(4, 1, edition(6), 2 * SIZE)));
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
fn no_target_is_committed_without_an_accepted_claim() {
    let (mut at, target, call, claim, _) = folding();
    judge(&mut at, 3, target, claim, Verdict::Exists(Stamp::from_ms(900)));
    assert_eq!(failed(&at, call), ErrorKind::AlreadyExists);
}

#[test]
fn a_sum_made_meanwhile_is_committed_when_the_claim_is_confirmed() {
    let (mut at, target, call, claim, stamp) = folding();
    judge(&mut at, 3, target, claim, Verdict::Accepted(stamp));
    assert!(matches!(at.reply(call), Some(Reply::Reduced { .. })), "{:?}", at.reply(call));
}

#[test]
fn a_later_owners_verdict_that_the_target_is_deleted_counts() {
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

/// It has heard no other node since, and another owner may have accepted another claim.
#[test]
fn a_node_that_was_paused_repeats_its_claims_before_it_uses_them() {
    let mut at = Node::among(3, STORE);
    let (target, written, source) = (at.id_owned_by(3), object("written"), at.id_owned_by(ME));
    let owner = at.owner_of(written);
    put(&mut at, source, SIZE);
    at.take_mail();
    let create = at.ask(create(written, SIZE));
    let copy = created(&at, create);
    let (_, of) = at.identity_of(copy);
    at.answer(owner, written, verdict(of, Verdict::Accepted(Stamp::from_ms(700))));
    let sum = at.ask(reduce(target, &[source], 1, FoldOrder::Arrival));
    let claim = claims(&mut at, target)[0];
    let stamp = Stamp::from_ms(700);
    judge(&mut at, 3, target, claim, Verdict::Accepted(stamp));
    let (&fold, folding) = at.folds.iter().next().expect("it folds");
    let (_, of_sum) = at.identity_of(folding.out);
    at.answer(3, target, verdict(of_sum, Verdict::Accepted(stamp)));
    at.handle(Input::StoodStill { time: Duration::from_secs(3) });
    at.end_fold(fold);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!((at.reply(sum), at.reply(seal)), (None, None));
    judge(&mut at, 3, target, claim, Verdict::Accepted(stamp));
    at.answer(3, target, verdict(of_sum, Verdict::Accepted(stamp)));
    at.answer(owner, written, verdict(of, Verdict::Accepted(Stamp::from_ms(700))));
    assert!(matches!(at.reply(sum), Some(Reply::Reduced { .. })), "{:?}", at.reply(sum));
    assert_eq!(at.reply(seal), Some(&Reply::Done));
}

/// It repeats its claim to the target. Meanwhile the root reports that it is done, and dies.
#[test]
fn a_root_that_died_is_told_no_commit_when_the_claim_is_confirmed() {
    let mut at = Node::among(4, STORE);
    let target = at.id_owned_by(4);
    let ours = (0..).map(|number| object(&format!("source {number}")));
    let sources: Vec<_> = ours.filter(|&id| at.owner_of(id) == ME).take(2).collect();
    at.ask(reduce(target, &sources, 2, FoldOrder::Arrival));
    let claim = claims(&mut at, target)[0];
    let accepted = Verdict::Accepted(Stamp::from_ms(700));
    judge(&mut at, 4, target, claim, accepted);
    for (&source, holder) in sources.iter().zip([2, 3]) {
        at.request(holder, source, announce(put_report(1, edition(u64::from(holder)), SIZE)));
    }
    at.wait(Duration::from_millis(100));
    let assignments = take_assignments(&mut at);
    let (root, assignment) =
        assignments.into_iter().rfind(|(_, assignment)| assignment.root).expect("all sources are there");
    at.handle(Input::StoodStill { time: Duration::from_secs(3) });
    for number in 1..100 {
        let reduction = ReductionId { coordinator: node(ME), number };
        at.hear(
            root,
            PeerMessage::RootDone { reduction, slot: assignment.slot, attempt: assignment.attempt },
        );
    }
    at.kill(root);
    at.take_mail();
    judge(&mut at, 4, target, claim, accepted);
    let said = at.take_mail();
    assert!(!said.iter().any(|(_, message)| matches!(message, PeerMessage::Commit { .. })), "{said:?}");
}

/// An owner tells of another content while the sum is being made.
#[test]
fn a_small_sum_whose_target_exists_by_the_time_it_is_made_ends() {
    let mut at = Node::among(2, STORE);
    let (source, target) = (object("source"), object("target"));
    at.take_mail();
    let (mut first, mut second) = (at.owner_of(source), at.owner_of(target));
    let mut number = 0;
    let (mut source, mut target) = (source, target);
    while (first, second) != (2, 2) {
        number += 1;
        (source, target) = (object(&format!("source {number}")), object(&format!("target {number}")));
        (first, second) = (at.owner_of(source), at.owner_of(target));
    }
    let call = at.ask(reduce(target, &[source], 1, FoldOrder::Arrival));
    let claim = claims(&mut at, target)[0];
    judge(&mut at, 2, target, claim, Verdict::Accepted(Stamp::from_ms(700)));
    let report = put_report(1, edition(10), SMALL);
    let payload = Some(Blob(vec![1; SMALL as usize]));
    at.answer(2, source, DirectoryAnswer::Copy { node: node(2), report, payload });
    at.wait(MOMENT);
    let (&fold, folding) = at.folds.iter().next().expect("it folds");
    let (_, of) = at.identity_of(folding.out);
    at.answer(2, target, verdict(of, Verdict::Exists(Stamp::from_ms(900))));
    judge(&mut at, 2, target, claim, Verdict::Exists(Stamp::from_ms(900)));
    if at.folds.contains_key(&fold) {
        at.end_fold(fold);
    }
    assert_eq!(failed(&at, call), ErrorKind::AlreadyExists);
}

/// Otherwise the target would be lost with its root, although the node ends in order.
#[test]
fn a_leaver_waits_for_the_commit_of_its_finished_target() {
    let mut at = Node::among(3, STORE);
    let (target, mine) = (at.id_owned_by(2), at.id_owned_by(ME));
    put(&mut at, mine, SIZE);
    let assignment = root_assignment(&mut at, target, mine);
    let of = assignment.edition;
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment });
    let (_, written) = at.identity_of(*at.copies.keys().next().expect("it was put"));
    at.request(3, mine, announce(put_report(5, written, SIZE)));
    at.answer(2, target, accepted(of));
    let &fold = at.folds.keys().next().expect("it folds");
    at.end_fold(fold);
    at.handle(Input::Leave { within: Duration::from_secs(10) });
    at.wait(MOMENT);
    assert!(!at.left, "the commit is on its way");
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    at.wait(Duration::from_millis(100));
    assert!(at.left);
}

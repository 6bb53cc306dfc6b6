//! The effect of an owner's verdict on a copy or a reduction.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, PeerMessage, SlotFailure, Verdict};
use hoplite_types::{CopyId, ErrorKind, FoldOrder, ObjectId, Stamp};

use crate::crashes::{reduction, root_assignment};
use crate::gets::{last_ask, lend};
use crate::inventory::take_inventory;
use crate::node::{node, Node, CLIENT, ME};
use crate::puts::{announced, created, failed, put, viewed};
use crate::recovery::{id_moving, take_asked};
use crate::reduces::take_assignments;
use crate::requests::{
    accepted, announce, announce_unaccepted, create, edition, get, inline_of, put_report, put_small, reduce,
    verdict, SIZE, SMALL,
};
use crate::resync::claims;

const STORE: u64 = 16 << 20;

/// A reduction called here, whose sources are there, onto a target of node 2.
fn called() -> (Node, u64, ObjectId) {
    let mut at = Node::among(3, STORE);
    let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
    at.request(3, source, announce(put_report(1, edition(5), SIZE)));
    at.take_mail();
    let call = at.ask(reduce(target, &[source], 1, FoldOrder::Arrival));
    (at, call, target)
}

fn claim_verdict(at: &mut Node, from: u16, target: ObjectId, verdict: Verdict) {
    let claim = claims(at, target)[0];
    at.answer(from, target, DirectoryAnswer::ClaimVerdict { claim, verdict });
}

#[test]
fn a_reduction_assigns_no_slot_before_its_claim_is_accepted() {
    let (mut at, call, target) = called();
    let claim = claims(&mut at, target)[0];
    let verdict = Verdict::Accepted(Stamp::from_ms(700));
    let accepted = DirectoryAnswer::ClaimVerdict { claim, verdict };
    at.answer(3, target, accepted.clone());
    assert_eq!(take_assignments(&mut at), [], "that was not who was asked");
    at.answer(2, target, accepted);
    let assignments = take_assignments(&mut at);
    let [(3, assignment)] = &assignments[..] else { panic!("{assignments:?}") };
    assert_eq!((assignment.claim, assignment.stamp), (claim, Stamp::from_ms(700)));
    assert_eq!(at.reply(call), None);
}

/// Otherwise failed slots would be assigned again at once, each time the verdict is repeated.
#[test]
fn a_claim_that_is_accepted_once_more_starts_nothing() {
    let (mut at, _, target) = called();
    let claim = claims(&mut at, target)[0];
    let accepted = DirectoryAnswer::ClaimVerdict { claim, verdict: Verdict::Accepted(Stamp::from_ms(700)) };
    at.answer(2, target, accepted.clone());
    let given = |at: &mut Node| {
        at.take_mail().into_iter().find_map(|(_, message)| match message {
            PeerMessage::AssignSlot { reduction, assignment } => {
                Some((reduction, assignment.slot, assignment.attempt))
            }
            _ => None,
        })
    };
    // The second time it rests.
    for _ in 0..2 {
        let (reduction, slot, attempt) =
            given(&mut at).expect("it is accepted, or let go for the first time");
        at.hear(3, PeerMessage::SlotFailed { reduction, slot, attempt, failure: SlotFailure::LetGo(0) });
    }
    assert_eq!(given(&mut at), None);
    at.answer(2, target, accepted);
    assert_eq!(take_assignments(&mut at), []);
}

#[test]
fn a_reduction_whose_claim_is_refused_fails_and_gives_it_up() {
    for (word, kind) in [
        (Verdict::Exists(Stamp::from_ms(5)), ErrorKind::AlreadyExists),
        (Verdict::Deleted, ErrorKind::Deleted),
    ] {
        let (mut at, call, target) = called();
        claim_verdict(&mut at, 2, target, word);
        assert_eq!(failed(&at, call), kind);
        let said = at.take_requests(target);
        assert!(matches!(said[..], [DirectoryRequest::ReleaseClaim { .. }]), "{said:?}");
        assert_eq!(at.status().reductions, 0);
    }
}

#[test]
fn a_claim_that_is_accepted_too_late_is_released() {
    let (mut at, call, target) = called();
    let claim = claims(&mut at, target)[0];
    at.ask(Request::Cancel { call });
    at.handle(Input::ClientGone { client: CLIENT });
    at.take_mail();
    let verdict = Verdict::Accepted(Stamp::from_ms(700));
    at.answer(2, target, DirectoryAnswer::ClaimVerdict { claim, verdict });
    assert_eq!(at.take_requests(target), [DirectoryRequest::ReleaseClaim { claim, made: false }]);
}

#[test]
fn a_put_that_is_accepted_too_late_is_withdrawn() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let writing = announced(&mut at, id);
    at.ask(Request::Abort { copy });
    at.take_mail();
    at.answer(2, id, verdict(writing, Verdict::Accepted(Stamp::from_ms(700))));
    let said = at.take_requests(id);
    assert!(
        matches!(said[..], [DirectoryRequest::Withdraw { edition, .. }] if edition == writing),
        "{said:?}"
    );
}

/// Another owner was asked meanwhile, which knows of a deletion. Only the stamps tell which came first.
#[test]
fn a_put_that_a_former_owner_accepted_is_offered_once_more_before_it_counts_as_deleted() {
    for stands in [true, false] {
        let id = id_moving(&mut Node::among(3, STORE), 3, 2, 3);
        let mut at = Node::among(2, STORE);
        let call = at.ask(put_small(id, SMALL));
        let writing = announced(&mut at, id);
        at.join(3);
        at.wait(Duration::from_secs(2));
        assert_eq!(announced(&mut at, id), writing, "of the new owner");
        let stamp = Stamp::from_ms(700);
        at.answer(2, id, verdict(writing, Verdict::Accepted(stamp)));
        assert_eq!(at.reply(call), None, "that was not who was asked last");
        at.take_mail();
        at.answer(3, id, verdict(writing, Verdict::Deleted));
        let said = at.take_requests(id);
        let [DirectoryRequest::Announce { report, .. }] = &said[..] else { panic!("{said:?}") };
        assert_eq!((report.stamp, report.edition), (Some(stamp), writing));
        assert_eq!(at.reply(call), None);
        let word = if stands { Verdict::Accepted(stamp) } else { Verdict::Deleted };
        at.answer(3, id, verdict(writing, word));
        match stands {
            true => assert_eq!(at.reply(call), Some(&Reply::Done)),
            false => assert_eq!(failed(&at, call), ErrorKind::Deleted),
        }
    }
}

/// A cached copy of an object of node 2's, whose content was accepted at 5 ms.
fn cached() -> (Node, ObjectId, CopyId) {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let call = at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.end_receive(transfer);
    let copy = viewed(&at, call);
    at.ask(Request::Release { copy });
    at.take_mail();
    (at, id, copy)
}

#[test]
fn a_complete_copy_goes_if_a_later_content_exists_and_for_nothing_else() {
    let (mut at, id, copy) = cached();
    let harmless = [
        (edition(5), Verdict::Exists(Stamp::from_ms(4))),
        (edition(5), Verdict::Exists(Stamp::from_ms(5))),
        (edition(5), Verdict::Abandoned),
        (edition(6), Verdict::Exists(Stamp::from_ms(9))),
    ];
    for (about, word) in harmless {
        at.answer(2, id, verdict(about, word));
        assert!(at.copies.contains_key(&copy), "{word:?}");
    }
    at.answer(2, id, verdict(edition(5), Verdict::Exists(Stamp::from_ms(6))));
    assert!(!at.copies.contains_key(&copy));
    assert_eq!(at.removed, [id], "clients that have kept it must ask again");
    let said = at.take_requests(id);
    assert!(matches!(said[..], [DirectoryRequest::Withdraw { .. }]), "{said:?}");
}

/// A node believed itself the owner before it heard of the real one, to which it forwards requests.
#[test]
fn an_owner_pulls_from_nodes_whose_requests_were_forwarded_to_it() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    at.members_answer = false;
    let request = announce_unaccepted(2, put_report(1, edition(5), SIZE));
    at.hear(3, PeerMessage::Directory { origin: node(2), hops: 1, id, request });
    let asked = take_asked(&mut at);
    assert!(asked.iter().any(|asked| asked.of == 2 && asked.is_about(id.shard())), "{asked:?}");
}

#[test]
fn a_node_that_the_owner_asks_repeats_its_reports_to_another_owner() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    take_inventory(&mut at, 3, &[id.shard()]);
    assert_eq!(at.owner_of(id), 3);
    let call = at.ask(put_small(id, SMALL));
    let writing = announced(&mut at, id);
    at.answer(2, id, accepted(writing));
    assert_eq!(at.reply(call), None, "it counts as somebody who was the owner");
    take_inventory(&mut at, 2, &[id.shard()]);
    assert_eq!(at.owner_of(id), 2);
    at.answer(2, id, accepted(writing));
    assert_eq!(at.reply(call), Some(&Reply::Done));
}

/// It may have been paused while another node took over, and may have accepted another content since.
#[test]
fn a_complete_copy_stays_whatever_a_node_says_that_is_not_its_owner() {
    let (mut at, id, copy) = cached();
    at.answer(3, id, verdict(edition(5), Verdict::Exists(Stamp::from_ms(6))));
    assert!(at.copies.contains_key(&copy));
}

#[test]
fn a_content_that_was_accepted_once_more_has_the_later_time() {
    let (mut at, id, _) = cached();
    for ms in [600, 400] {
        at.answer(2, id, verdict(edition(5), Verdict::Accepted(Stamp::from_ms(ms))));
    }
    let told = take_inventory(&mut at, 2, &[id.shard()]).page.copies;
    assert_eq!(told[0].1.stamp, Some(Stamp::from_ms(600)));
}

#[test]
fn a_part_of_an_abandoned_edition_is_dropped_and_the_object_asked_for_anew() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.take_mail();
    at.answer(2, id, verdict(edition(5), Verdict::Abandoned));
    assert!(!at.receives.contains_key(&transfer));
    let asks = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Ask { have: None, .. });
    assert!(at.take_requests(id).iter().any(asks));
}

/// Its caller was promised that it stays.
#[test]
fn a_put_whose_content_lost_fetches_the_other_one_and_pins_it() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SMALL));
    let copy = created(&at, call);
    let writing = announced(&mut at, id);
    at.answer(2, id, verdict(writing, Verdict::Accepted(Stamp::from_ms(700))));
    at.ask(Request::Seal { copy, timeout_ms: None });
    at.take_mail();
    at.answer(2, id, verdict(writing, Verdict::Exists(Stamp::from_ms(800))));
    assert!(!at.copies.contains_key(&copy));
    let ask = last_ask(&mut at, id);
    at.answer(2, id, inline_of(ask, edition(9), SMALL));
    let kept = |request: &DirectoryRequest| {
        matches!(request, DirectoryRequest::Announce { report: CopyReport { pinned: true, complete: true, edition: e, .. }, .. }
            if *e == edition(9))
    };
    assert!(at.take_requests(id).iter().any(kept));
}

#[test]
fn a_root_that_its_targets_owner_refuses_reports_it_and_releases_its_slot() {
    let mut at = Node::among(2, STORE);
    let (target, source) = (at.id_owned_by(2), at.id_owned_by(ME));
    put(&mut at, source, SIZE);
    let assignment = root_assignment(&mut at, target, source);
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment: assignment.clone() });
    at.take_mail();
    at.answer(2, target, verdict(assignment.edition, Verdict::Exists(Stamp::from_ms(900))));
    assert!(at.folds.is_empty());
    let failure = SlotFailure::Refused(Verdict::Exists(Stamp::from_ms(900)));
    let failed = PeerMessage::SlotFailed { reduction: reduction(2), slot: 0, attempt: 0, failure };
    assert!(at.take_mail().contains(&(node(2), failed)));
    at.hear(2, PeerMessage::ReleaseSlots { reduction: reduction(2) });
    assert_eq!(at.status().copies, 1);
}

#[test]
fn a_reduction_whose_root_is_refused_fails() {
    for (why, kind) in [
        (Verdict::Exists(Stamp::from_ms(900)), ErrorKind::AlreadyExists),
        (Verdict::Deleted, ErrorKind::Deleted),
    ] {
        let (mut at, call, target) = called();
        claim_verdict(&mut at, 2, target, Verdict::Accepted(Stamp::from_ms(700)));
        let mail = at.take_mail();
        let assignment = mail.into_iter().find_map(|(_, message)| match message {
            PeerMessage::AssignSlot { reduction, assignment } => Some((reduction, assignment)),
            _ => None,
        });
        let (reduction, assignment) = assignment.expect("the root is assigned");
        let (slot, attempt, failure) = (assignment.slot, assignment.attempt, SlotFailure::Refused(why));
        at.hear(3, PeerMessage::SlotFailed { reduction, slot, attempt, failure });
        assert_eq!(failed(&at, call), kind);
        let Some(Reply::Failed(error)) = at.reply(call) else { unreachable!("it failed") };
        assert!(error.message.contains(&target.to_string()), "{error:?}");
    }
}

/// The owner's later message that the target was deleted is lost with a connection. So a coordinator whose claim was
/// accepted repeats it.
#[test]
fn an_accepted_claim_is_repeated_when_the_connection_to_its_owner_has_broken() {
    let (mut at, call, target) = called();
    let claim = claims(&mut at, target)[0];
    let of = |verdict| DirectoryAnswer::ClaimVerdict { claim, verdict };
    at.answer(2, target, of(Verdict::Accepted(Stamp::from_ms(700))));
    at.take_mail();
    at.handle(Input::PeerBroken { node: node(2) });
    at.wait(Duration::from_millis(100));
    assert_eq!(claims(&mut at, target), [claim]);
    at.answer(2, target, of(Verdict::Deleted));
    assert_eq!(failed(&at, call), ErrorKind::Deleted);
}

/// Its root may have made the target by then, so the verdict that it exists is expected.
#[test]
fn a_repeated_claim_to_a_target_that_was_made_meanwhile_ends_nothing() {
    let (mut at, call, target) = called();
    let claim = claims(&mut at, target)[0];
    let stamp = Stamp::from_ms(700);
    let of = |verdict| DirectoryAnswer::ClaimVerdict { claim, verdict };
    at.answer(2, target, of(Verdict::Accepted(stamp)));
    at.handle(Input::PeerBroken { node: node(2) });
    at.wait(Duration::from_millis(100));
    at.answer(2, target, of(Verdict::Exists(stamp)));
    assert_eq!(at.reply(call), None);
}

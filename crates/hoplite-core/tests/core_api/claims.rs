//! Claims: one at a time may write an object's content, and of two contents only one is accepted.

use hoplite_types::peer::{CopyReport, DirectoryAnswer, DirectoryRequest, Verdict};
use hoplite_types::{Claim, Dtype, Edition, Header, ObjectId, Stamp};

use crate::node::{node, Node, ME};
use crate::requests::{
    announce, announce_unaccepted, ask, claim_of, edition, put_report, received_report, verdict,
    writing_report, SIZE,
};

/// An owner among seven members, and an object of its own.
struct Owner {
    at: Node,
    id: ObjectId,
}

impl Owner {
    fn new() -> Self {
        let mut at = Node::among(7, 8 << 20);
        let id = at.id_owned_by(ME);
        Owner { at, id }
    }

    /// The answers to the request.
    fn request(&mut self, from: u16, request: DirectoryRequest) -> Vec<(u16, DirectoryAnswer)> {
        self.at.request(from, self.id, request);
        self.at.assert_consistent();
        self.at.take_answers(self.id)
    }

    fn claim(&mut self, claim: Claim) -> Vec<(u16, DirectoryAnswer)> {
        self.request(claim.by.addr.port(), DirectoryRequest::Claim { seq: 1, claim })
    }

    fn release(&mut self, claim: Claim) -> Vec<(u16, DirectoryAnswer)> {
        self.request(claim.by.addr.port(), DirectoryRequest::ReleaseClaim { claim, made: false })
    }

    /// A coordinator's claim is accepted. Returns the stamp.
    fn accepted(&mut self, claim: Claim) -> Stamp {
        accepted_in(&self.claim(claim), claim).expect("nobody is in its way")
    }

    /// Node `root` reports a target for the reduction that has this claim, complete or not.
    fn make(
        &mut self,
        root: u16,
        claim: Claim,
        stamp: Option<Stamp>,
        complete: bool,
    ) -> Vec<(u16, DirectoryAnswer)> {
        let report = root_report(claim, stamp, complete);
        self.request(root, DirectoryRequest::Announce { report, payload: None, wants_verdict: !complete })
    }
}

/// The edition of the target that is made under a claim.
fn target_of(claim: Claim) -> Edition {
    edition(claim.number + 100)
}

fn root_report(claim: Claim, stamp: Option<Stamp>, complete: bool) -> CopyReport {
    let seq = if complete { 2 } else { 1 };
    let claim_left = Some(claim).filter(|_| !complete);
    CopyReport { complete, stamp, claim: claim_left, ..put_report(seq, target_of(claim), SIZE) }
}

fn accepted_in(answers: &[(u16, DirectoryAnswer)], claim: Claim) -> Option<Stamp> {
    answers.iter().find_map(|(to, answer)| match answer {
        DirectoryAnswer::ClaimVerdict { claim: about, verdict: Verdict::Accepted(stamp) }
            if *about == claim =>
        {
            assert_eq!(node(*to), claim.by);
            Some(*stamp)
        }
        _ => None,
    })
}

fn refused(claim: Claim, verdict: Verdict) -> (u16, DirectoryAnswer) {
    (claim.by.addr.port(), DirectoryAnswer::ClaimVerdict { claim, verdict })
}

fn is_accepted(answers: &[(u16, DirectoryAnswer)], to: u16) -> bool {
    let accepted = |(told, answer): &(u16, DirectoryAnswer)| {
        *told == to && matches!(answer, DirectoryAnswer::Verdict { verdict: Verdict::Accepted(_), .. })
    };
    answers.iter().any(accepted)
}

fn two_claims() -> (Claim, Claim) {
    (claim_of(2, edition(8)), claim_of(3, edition(9)))
}

#[test]
fn the_second_of_two_coordinators_is_told_that_the_target_exists() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    let stamp = owner.accepted(first);
    assert_eq!(owner.claim(second), [], "it waits for what becomes of the first");
    assert!(is_accepted(&owner.make(4, first, Some(stamp), false), 4));
    assert_eq!(owner.make(4, first, Some(stamp), true), [refused(second, Verdict::Exists(stamp))]);
    assert_eq!(owner.claim(second), [refused(second, Verdict::Exists(stamp))]);
}

#[test]
fn a_repeated_claim_gets_the_same_answer() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    let stamp = owner.accepted(first);
    owner.claim(second);
    owner.claim(second);
    assert_eq!(owner.claim(first), [refused(first, Verdict::Accepted(stamp))]);
    assert!(accepted_in(&owner.release(first), second).is_some_and(|later| later > stamp));
    assert_eq!(owner.release(second), []);
    assert_eq!(owner.at.status().entries, 0);
}

#[test]
fn a_released_claim_lets_the_next_one_go_when_no_writing_is_under_it() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    let stamp = owner.accepted(first);
    owner.make(4, first, Some(stamp), false);
    owner.claim(second);
    assert_eq!(owner.release(first), [], "its root may just be sealing");
    let withdrawn = DirectoryRequest::Withdraw { seq: 2, edition: target_of(first) };
    assert!(accepted_in(&owner.request(4, withdrawn), second).is_some());
}

#[test]
fn a_target_that_is_sealed_all_the_same_ends_a_released_claim() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    let stamp = owner.accepted(first);
    owner.make(4, first, Some(stamp), false);
    owner.claim(second);
    owner.release(first);
    assert_eq!(owner.make(4, first, Some(stamp), true), [refused(second, Verdict::Exists(stamp))]);
}

#[test]
fn a_waiting_claim_can_be_released() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    owner.accepted(first);
    owner.claim(second);
    owner.release(second);
    assert_eq!(owner.release(first), []);
    assert_eq!(owner.at.status().entries, 0);
}

#[test]
fn the_claim_of_a_dead_coordinator_ends() {
    for works in [false, true] {
        let mut owner = Owner::new();
        let (first, second) = two_claims();
        let stamp = owner.accepted(first);
        if works {
            owner.make(4, first, Some(stamp), false);
        }
        owner.claim(second);
        owner.at.crash(2);
        let answers = owner.at.take_answers(owner.id);
        assert_eq!(accepted_in(&answers, second).is_some(), !works);
        if works {
            owner.at.crash(4);
            let answers = owner.at.take_answers(owner.id);
            assert!(accepted_in(&answers, second).is_some(), "its root is dead as well");
        }
    }
}

#[test]
fn the_waiting_claim_of_a_dead_node_ends() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    owner.accepted(first);
    owner.claim(second);
    owner.at.crash(3);
    assert_eq!(owner.release(first), []);
    assert_eq!(owner.at.status().entries, 0);
}

#[test]
fn a_root_that_is_faster_than_its_coordinator_waits_for_it() {
    let mut owner = Owner::new();
    let (claim, other) = two_claims();
    assert_eq!(owner.make(4, claim, None, false), []);
    assert_eq!(owner.make(5, other, None, false), []);
    let answers = owner.claim(claim);
    assert!(accepted_in(&answers, claim).is_some() && is_accepted(&answers, 4));
    assert!(!is_accepted(&answers, 5), "that works for another one");
}

#[test]
fn puts_of_the_same_kind_wait_behind_a_writing_and_are_told_that_it_exists() {
    let mut owner = Owner::new();
    let (first, second) = (edition(5), edition(6));
    let answers = owner.request(2, announce_unaccepted(2, writing_report(2, 1, first, SIZE)));
    let [(2, DirectoryAnswer::Verdict { verdict: Verdict::Accepted(stamp), .. })] = answers[..] else {
        panic!("{answers:?}")
    };
    for complete in [false, true] {
        let report = CopyReport { complete, ..put_report(1, second, SIZE) };
        assert_eq!(owner.request(3, announce_unaccepted(3, report)), []);
    }
    let report = CopyReport { stamp: Some(stamp), ..put_report(2, first, SIZE) };
    assert_eq!(owner.request(2, announce(report)), [(3, verdict(second, Verdict::Exists(stamp)))]);
    let late = owner.request(4, announce_unaccepted(4, put_report(1, edition(7), SIZE)));
    assert_eq!(late, [(4, verdict(edition(7), Verdict::Exists(stamp)))]);
}

#[test]
fn a_put_of_another_size_or_kind_is_refused_at_once() {
    for complete in [false, true] {
        let mut owner = Owner::new();
        let first = CopyReport { complete, ..put_report(1, edition(5), SIZE) };
        owner.request(2, announce_unaccepted(2, first));
        let larger = put_report(1, edition(6), 2 * SIZE);
        let other_kind =
            CopyReport { header: Header::array(Dtype::F32, SIZE / 4), ..put_report(1, edition(7), SIZE) };
        for report in [larger, other_kind] {
            let refused = verdict(report.edition, Verdict::OtherKind(SIZE));
            assert_eq!(owner.request(3, announce_unaccepted(3, report)), [(3, refused)]);
        }
    }
}

#[test]
fn a_put_that_is_given_up_or_dies_lets_the_next_one_go() {
    for dies in [false, true] {
        let mut owner = Owner::new();
        owner.request(2, announce_unaccepted(2, writing_report(2, 1, edition(5), SIZE)));
        owner.request(3, announce_unaccepted(3, writing_report(3, 1, edition(6), SIZE)));
        owner.request(4, announce_unaccepted(4, writing_report(4, 1, edition(7), SIZE)));
        let answers = match dies {
            true => {
                owner.at.crash(2);
                owner.at.take_answers(owner.id)
            }
            false => owner.request(2, DirectoryRequest::Withdraw { seq: 2, edition: edition(5) }),
        };
        assert!(is_accepted(&answers, 3) && !is_accepted(&answers, 4), "in order of arrival: {answers:?}");
    }
}

/// The release was forwarded and overtook the root's report, or that report was held during a recovery.
#[test]
fn a_coordinator_that_gave_up_before_its_own_root_was_decided_is_asked_again_when_that_goes() {
    let mut owner = Owner::new();
    let (claim, other) = two_claims();
    owner.release(claim);
    let root = claim.by.addr.port();
    assert!(is_accepted(&owner.make(root, claim, None, false), root));
    assert_eq!(owner.claim(other), [], "the claim stands again");
    let withdraw = DirectoryRequest::Withdraw { seq: 2, edition: target_of(claim) };
    let answers = owner.request(root, withdraw);
    assert!(accepted_in(&answers, claim).is_some(), "{answers:?}");
    let answers = owner.release(claim);
    assert!(accepted_in(&answers, other).is_some(), "{answers:?}");
}

#[test]
fn claims_and_puts_wait_for_each_other() {
    let mut owner = Owner::new();
    let (claim, _) = two_claims();
    owner.request(4, announce_unaccepted(4, writing_report(4, 1, edition(5), SIZE)));
    assert_eq!(owner.claim(claim), []);
    owner.request(5, announce_unaccepted(5, writing_report(5, 1, edition(6), SIZE)));
    let answers = owner.request(4, DirectoryRequest::Withdraw { seq: 2, edition: edition(5) });
    let stamp = accepted_in(&answers, claim).expect("it was the first to wait");
    assert!(!is_accepted(&answers, 5));
    owner.make(6, claim, Some(stamp), false);
    let answers = owner.make(6, claim, Some(stamp), true);
    assert_eq!(answers, [(5, verdict(edition(6), Verdict::Exists(stamp)))]);
}

#[test]
fn a_claim_is_refused_when_the_object_exists() {
    let mut owner = Owner::new();
    let (claim, _) = two_claims();
    owner.request(4, announce(put_report(1, edition(5), SIZE)));
    assert_eq!(owner.claim(claim), [refused(claim, Verdict::Exists(Stamp::from_ms(5)))]);
    owner.at.crash(4);
    owner.at.take_mail();
    owner.accepted(claim);
}

/// Their owners knew nothing of each other: the network was split.
#[test]
fn the_later_of_two_complete_contents_stays() {
    for later_first in [false, true] {
        let mut owner = Owner::new();
        let mut reports = [(2, put_report(1, edition(5), SIZE)), (3, put_report(1, edition(6), SIZE))];
        if later_first {
            reports.reverse();
        }
        owner.request(4, DirectoryRequest::Subscribe { bytes_max: None });
        let [(first, report), (second, other)] = reports;
        owner.request(first, announce(report));
        let answers = owner.request(second, announce(other));
        let refused = (2, verdict(edition(5), Verdict::Exists(Stamp::from_ms(6))));
        assert!(answers.contains(&refused), "{answers:?}");
        let gone = (4, DirectoryAnswer::CopyGone { node: node(2) });
        assert_eq!(answers.contains(&gone), !later_first, "the watcher knew of it");
        owner.request(5, ask(1));
        assert_eq!(owner.at.status().entries, 1);
    }
}

/// Also before one that was accepted later.
#[test]
fn a_complete_content_stays_before_one_that_is_being_written() {
    let writing = || announce(writing_report(3, 1, edition(6), SIZE));
    let complete = || announce(put_report(1, edition(5), SIZE));
    let refused = || (3, verdict(edition(6), Verdict::Exists(Stamp::from_ms(5))));

    let mut owner = Owner::new();
    owner.request(2, complete());
    assert_eq!(owner.request(3, writing()), [refused()]);

    let mut owner = Owner::new();
    owner.request(3, writing());
    owner.request(4, announce(received_report(1, edition(6), SIZE, Some(node(3)))));
    let abandoned = (4, verdict(edition(6), Verdict::Abandoned));
    assert_eq!(owner.request(2, complete()), [refused(), abandoned]);
    assert_eq!(owner.request(3, writing()), [refused()], "and it is not taken for the other one");
}

/// The same copy was told to two owners, one after the other.
#[test]
fn the_later_of_two_stamps_of_a_content_counts() {
    let mut owner = Owner::new();
    let report =
        |from_ms: u64| CopyReport { stamp: Some(Stamp::from_ms(from_ms)), ..put_report(1, edition(5), SIZE) };
    assert_eq!(owner.request(2, announce(report(500))), []);
    let received = |from_ms: u64| CopyReport {
        stamp: Some(Stamp::from_ms(from_ms)),
        ..received_report(1, edition(5), SIZE, None)
    };
    let told = owner.request(3, announce(received(400)));
    assert_eq!(told, [(3, verdict(edition(5), Verdict::Accepted(Stamp::from_ms(500))))]);
    assert_eq!(owner.request(4, announce(received(600))), []);
    let claim = two_claims().0;
    assert_eq!(owner.claim(claim), [refused(claim, Verdict::Exists(Stamp::from_ms(600)))]);
}

/// Its claim was accepted by two owners, and its root uses the stamp of the first.
#[test]
fn a_target_that_was_accepted_twice_exists_once_it_is_complete() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    let stamp = owner.accepted(first);
    let earlier = Some(Stamp::from_ms(1));
    owner.make(4, first, earlier, false);
    owner.make(4, first, earlier, true);
    owner.request(2, DirectoryRequest::ReleaseClaim { claim: first, made: true });
    assert_eq!(owner.claim(second), [refused(second, Verdict::Exists(stamp))]);
}

/// Its root has sealed it, and dies before the owner hears of that.
#[test]
fn a_target_that_was_made_is_lost_with_its_root_and_can_be_made_again() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    let stamp = owner.accepted(first);
    owner.make(4, first, Some(stamp), false);
    owner.request(5, DirectoryRequest::Subscribe { bytes_max: None });
    let made = DirectoryRequest::ReleaseClaim { claim: first, made: true };
    owner.request(2, made);
    assert_eq!(owner.claim(second), [refused(second, Verdict::Exists(stamp))]);
    owner.at.crash(4);
    assert!(owner.at.take_answers(owner.id).contains(&(5, DirectoryAnswer::Lost)));
    owner.accepted(second);
}

/// The owner hears so before it hears of the root.
#[test]
fn a_target_that_was_made_counts_when_its_root_reports_it() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    let stamp = owner.accepted(first);
    owner.request(2, DirectoryRequest::ReleaseClaim { claim: first, made: true });
    owner.make(4, first, Some(stamp), true);
    assert_eq!(owner.claim(second), [refused(second, Verdict::Exists(stamp))]);
}

#[test]
fn a_lost_target_leaves_a_later_claim_alone() {
    let mut owner = Owner::new();
    let (first, second) = two_claims();
    owner.accepted(first);
    owner.release(first);
    owner.accepted(second);
    owner.request(4, announce_unaccepted(4, put_report(1, edition(5), SIZE)));
    let answers = owner.request(2, DirectoryRequest::MarkLost { claim: first });
    assert_eq!(answers, [], "the put still waits");
    assert!(is_accepted(&owner.release(second), 4));
}

#[test]
fn parts_that_no_sender_can_complete_are_given_up() {
    let mut owner = Owner::new();
    let part = CopyReport { stamp: None, claim: None, ..received_report(1, edition(5), SIZE, Some(node(9))) };
    assert_eq!(owner.request(2, announce(part)), [(2, verdict(edition(5), Verdict::Abandoned))]);
    owner.request(3, announce(writing_report(3, 1, edition(6), SIZE)));
    owner.request(4, announce(received_report(1, edition(6), SIZE, Some(node(3)))));
    let answers = owner.request(3, DirectoryRequest::Withdraw { seq: 2, edition: edition(6) });
    assert_eq!(answers, [(4, verdict(edition(6), Verdict::Abandoned))]);
}

/// The owner that accepted it is gone, and told its writer nothing before.
#[test]
fn a_put_is_accepted_although_another_node_has_its_bytes() {
    let mut owner = Owner::new();
    owner.request(3, announce(received_report(1, edition(5), SIZE, None)));
    let stamp = received_report(1, edition(5), SIZE, None).stamp.unwrap();
    let answers = owner.request(2, announce_unaccepted(2, put_report(1, edition(5), SIZE)));
    assert!(answers.contains(&(2, verdict(edition(5), Verdict::Accepted(stamp)))), "{answers:?}");
    // A delete reaches it, too.
    let told = owner.request(4, DirectoryRequest::Delete { token: 1 });
    for holder in [2, 3] {
        let is_it = |(to, answer): &(u16, DirectoryAnswer)| {
            *to == holder && matches!(answer, DirectoryAnswer::Deleted { .. })
        };
        assert!(told.iter().any(is_it), "{holder}: {told:?}");
    }
}

//! A new owner collects all that members know of its shards before it decides.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::Request;
use hoplite_types::peer::{
    CopyReport, Cursor, Deletion, DirectoryAnswer, DirectoryRequest, InventoryPage, PeerMessage, Scope,
    ShardQuery, Verdict,
};
use hoplite_types::{ErrorKind, ObjectId, Shard, Stamp};

use crate::gets::lend;
use crate::losses::get_or_lost;
use crate::node::{node, Node, ME};
use crate::puts::failed;
use crate::requests::{
    announce, announce_unaccepted, ask, claim_of, edition, object, put_report, received_report, unaccepted,
    writing_report, SIZE,
};

/// Longer than a turn of the owner's own, and than all of them after a change of members.
const MOMENT: Duration = Duration::from_millis(50);

/// A question for an inventory.
#[derive(Clone, Debug)]
pub struct Asked {
    pub of: u16,
    pub round: u64,
    pub scope: Scope,
    pub shards: Vec<ShardQuery>,
    pub from: Option<Cursor>,
    pub fresh: bool,
}

impl Asked {
    pub fn is_about(&self, shard: Shard) -> bool {
        self.shards.iter().any(|query| query.shard == shard)
    }

    /// The answer of the asked node: `page`, the last one or not.
    pub fn answer(&self, since: u64, page: InventoryPage, next: Option<Cursor>) -> PeerMessage {
        let (round, clock) = (self.round, Stamp::from_ms(0));
        PeerMessage::Inventory { round, since, page, unchanged: Vec::new(), next, clock }
    }
}

/// The nodes that were asked for inventories since the mail was last taken.
pub fn take_asked(at: &mut Node) -> Vec<Asked> {
    let mail = at.take_mail().into_iter();
    let asked = mail.filter_map(|(to, message)| match message {
        PeerMessage::InventoryRequest { round, scope, shards, from, fresh, .. } => {
            Some(Asked { of: to.addr.port(), round, scope, shards, from, fresh })
        }
        _ => None,
    });
    asked.collect()
}

/// The node that was asked answers with all it has.
pub fn answer(at: &mut Node, asked: &Asked, page: InventoryPage) {
    at.hear(asked.of, asked.answer(0, page, None));
    at.wait(MOMENT);
}

pub fn copies(reports: &[(ObjectId, CopyReport)]) -> InventoryPage {
    InventoryPage { copies: reports.to_vec(), ..InventoryPage::default() }
}

/// An id of `owner`, of the members `2..=last`, that is another one's without it.
pub fn id_moving(at: &mut Node, owner: u16, next: u16, last: u16) -> ObjectId {
    let mut others = Node::alone(0);
    (2..=last).filter(|&number| number != owner).for_each(|number| others.join(number));
    let ids = (0..).map(|number| object(&format!("inherited {number}")));
    let mut fitting = ids.filter(|&id| at.owner_of(id) == owner && others.owner_of(id) == next);
    fitting.next().expect("hashing is even")
}

/// We own this id from now on, since node 3 is dead, and have asked node 2 for what it knows of it.
struct Inherited {
    at: Node,
    id: ObjectId,
    asked: Asked,
}

impl Inherited {
    fn new() -> Self {
        Self::told_before(|_, _| ())
    }

    /// While node 3 was the owner, we were told something.
    fn told_before(tell: impl FnOnce(&mut Node, ObjectId)) -> Self {
        let mut at = Node::among(3, 8 << 20);
        let id = id_moving(&mut at, 3, ME, 3);
        tell(&mut at, id);
        at.take_mail();
        at.members_answer = false;
        at.crash(3);
        at.wait(MOMENT);
        let asked = take_asked(&mut at);
        let asked = asked.into_iter().find(|asked| asked.scope == Scope::All && asked.is_about(id.shard()));
        let asked = asked.expect("node 2 may know of it");
        assert_eq!(asked.of, 2);
        Inherited { at, id, asked }
    }

    fn answer(&mut self, page: InventoryPage) {
        answer(&mut self.at, &self.asked, page);
        assert_eq!(self.at.gauge("recovering shards"), 0);
        self.at.assert_consistent();
    }

    fn told(&mut self) -> Vec<(u16, DirectoryAnswer)> {
        self.at.take_answers(self.id)
    }

    fn request(&mut self, from: u16, request: DirectoryRequest) {
        self.at.request(from, self.id, request);
    }
}

#[test]
fn a_new_owner_asks_for_the_shards_that_are_new_to_it_and_knows_nothing_yet() {
    let mut at = Node::among(3, 8 << 20);
    let ours = at.id_owned_by(ME);
    let inherited = id_moving(&mut at, 3, ME, 3);
    at.take_mail();
    at.members_answer = false;
    at.crash(3);
    let asked = take_asked(&mut at);
    let [asked] = &asked[..] else { panic!("only node 2 is left: {asked:?}") };
    assert_eq!((asked.of, asked.scope, asked.from, asked.fresh), (2, Scope::All, None, false));
    assert!(asked.shards.iter().all(|query| query.digest.is_none()));
    assert!(asked.shards.windows(2).all(|two| two[0].shard < two[1].shard), "in order");
    assert!(asked.is_about(inherited.shard()));
    assert!(!asked.is_about(ours.shard()));
    assert_eq!(at.gauge("recovering shards"), asked.shards.len() as u64);
}

#[test]
fn requests_wait_until_all_members_have_answered() {
    let mut inherited = Inherited::new();
    inherited.request(2, ask(4));
    inherited.request(2, DirectoryRequest::Locate { token: 7 });
    let report = unaccepted(2, writing_report(2, 5, edition(6), SIZE));
    inherited.request(2, DirectoryRequest::Announce { report, payload: None, wants_verdict: true });
    inherited.request(2, DirectoryRequest::Subscribe { bytes_max: None });
    let ours = inherited.at.ask(Request::Locate { id: inherited.id, timeout_ms: None });
    inherited.at.wait(Duration::from_millis(500));
    assert_eq!((inherited.told(), inherited.at.reply(ours)), (vec![], None));
    assert_eq!(inherited.at.gauge("held requests"), 5);
    inherited.answer(copies(&[(inherited.id, put_report(9, edition(5), SIZE))]));
    let told = inherited.told();
    let is_there = |wanted: fn(&DirectoryAnswer) -> bool| told.iter().any(|(_, answer)| wanted(answer));
    assert!(is_there(
        |answer| matches!(answer, DirectoryAnswer::Located { token: 7, copies, .. } if copies.len() == 1)
    ));
    assert!(is_there(|answer| matches!(answer, DirectoryAnswer::Copy { .. })));
    assert!(is_there(|answer| matches!(
        answer,
        DirectoryAnswer::Verdict { verdict: Verdict::Exists(_), .. }
    )));
    assert!(inherited.at.reply(ours).is_some());
    assert_eq!(inherited.at.gauge("held requests"), 0);
}

#[test]
fn reports_of_accepted_contents_are_applied_at_once() {
    let mut inherited = Inherited::new();
    inherited.request(2, announce(put_report(9, edition(5), SIZE)));
    assert_eq!((inherited.at.status().entries, inherited.at.gauge("held requests")), (1, 0));
    inherited.request(2, DirectoryRequest::Withdraw { seq: 10, edition: edition(5) });
    assert_eq!(inherited.at.status().entries, 0, "and taken back at once");
    inherited.answer(InventoryPage::default());
}

/// A node has given up a content for an older one, by the verdict of an owner in between. That verdict is the last.
#[test]
fn a_content_that_is_given_up_before_recovery_ends_refuses_no_put() {
    let mut inherited = Inherited::new();
    inherited.request(2, announce(put_report(9, edition(5), SIZE)));
    inherited.at.take_mail();
    let page = copies(&[(inherited.id, put_report(12, edition(1), SIZE))]);
    let message = inherited.asked.answer(10, page, None);
    inherited.at.hear(2, message);
    inherited.at.wait(MOMENT);
    assert_eq!(inherited.at.gauge("recovering shards"), 0);
    let told = inherited.told();
    let refusal = |(_, answer): &(u16, DirectoryAnswer)| {
        matches!(answer, DirectoryAnswer::Verdict { verdict: Verdict::Exists(_), .. })
    };
    assert!(!told.iter().any(refusal), "{told:?}");
    inherited.request(2, DirectoryRequest::Locate { token: 7 });
    let told = inherited.told();
    let [(2, DirectoryAnswer::Located { copies, .. })] = &told[..] else { panic!("{told:?}") };
    assert_eq!(copies.len(), 1);
    inherited.at.assert_consistent();
}

#[test]
fn an_older_content_is_refused_once_all_are_heard() {
    let mut inherited = Inherited::new();
    inherited.request(2, announce(put_report(9, edition(5), SIZE)));
    inherited.request(4, announce(put_report(9, edition(1), SIZE)));
    let refused = |told: Vec<(u16, DirectoryAnswer)>| {
        let exists = |answer: &DirectoryAnswer| matches!(answer, DirectoryAnswer::Verdict { edition: e, verdict: Verdict::Exists(_) } if *e == edition(1));
        told.into_iter().filter(|(_, answer)| exists(answer)).map(|(to, _)| to).collect::<Vec<_>>()
    };
    assert_eq!(refused(inherited.told()), []);
    inherited.answer(copies(&[(inherited.id, put_report(12, edition(5), SIZE))]));
    assert_eq!(refused(inherited.told()), [4]);
}

/// Otherwise partial copies of a running writing would count as parts of an abandoned one.
#[test]
fn held_reports_of_writers_come_before_those_of_their_receivers() {
    let mut inherited = Inherited::new();
    inherited.request(2, DirectoryRequest::Ask { ask: 4, have: Some(edition(6)), failed: Some(node(3)) });
    inherited.request(2, announce_unaccepted(2, writing_report(2, 5, edition(6), SIZE)));
    inherited.answer(InventoryPage::default());
    let told = inherited.told();
    let accepted = |answer: &DirectoryAnswer| {
        matches!(answer, DirectoryAnswer::Verdict { verdict: Verdict::Accepted(_), .. })
    };
    assert!(told.iter().all(|(_, answer)| *answer != DirectoryAnswer::Lost), "{told:?}");
    assert!(told.iter().any(|(_, answer)| accepted(answer)), "{told:?}");
}

#[test]
fn repeated_and_cancelled_requests_are_not_held_twice() {
    let mut inherited = Inherited::new();
    let claim = claim_of(2, edition(8));
    for seq in 1..=3 {
        inherited.request(2, ask(seq));
        inherited.request(2, DirectoryRequest::Subscribe { bytes_max: None });
        inherited.request(2, DirectoryRequest::Claim { seq, claim });
        inherited.request(2, announce_unaccepted(2, writing_report(2, seq, edition(6), SIZE)));
        inherited.request(2, DirectoryRequest::Delete { token: 5 });
        assert_eq!(inherited.at.gauge("held requests"), 5);
    }
    inherited.request(2, DirectoryRequest::CancelAsk { ask: 3 });
    inherited.request(2, DirectoryRequest::Unsubscribe);
    inherited.request(2, DirectoryRequest::ReleaseClaim { claim, made: false });
    inherited.request(2, DirectoryRequest::Withdraw { seq: 9, edition: edition(6) });
    assert_eq!(inherited.at.gauge("held requests"), 1, "a deletion cannot be taken back");
    inherited.answer(InventoryPage::default());
    let told = inherited.told();
    assert!(told.iter().any(|(_, answer)| matches!(answer, DirectoryAnswer::Deleted { .. })), "{told:?}");
}

#[test]
fn a_page_that_is_not_the_last_one_is_followed_by_the_next() {
    let mut inherited = Inherited::new();
    inherited.request(2, ask(4));
    let next = Cursor { shard: inherited.id.shard(), section: 0, after: inherited.id };
    let report = put_report(9, edition(5), SIZE);
    let first = inherited.asked.answer(7, copies(&[(inherited.id, report)]), Some(next));
    inherited.at.hear(2, first.clone());
    let asked = take_asked(&mut inherited.at);
    let [again] = &asked[..] else { panic!("{asked:?}") };
    assert_eq!((again.round, again.from), (inherited.asked.round, Some(next)));
    let open = inherited.asked.shards.iter().filter(|query| query.shard >= next.shard);
    assert_eq!(again.shards, open.copied().collect::<Vec<_>>(), "those before it are done");
    inherited.at.wait(MOMENT);
    assert!(inherited.at.gauge("recovering shards") > 0);
    assert_eq!(inherited.told(), []);
    inherited.asked = again.clone();
    inherited.answer(InventoryPage::default());
    assert_eq!(inherited.at.status().entries, 1, "of the first page");
}

#[test]
fn an_answer_of_another_round_is_ignored() {
    let mut inherited = Inherited::new();
    let old = Asked { round: inherited.asked.round - 1, ..inherited.asked.clone() };
    inherited.at.hear(2, old.answer(0, copies(&[(inherited.id, put_report(1, edition(5), SIZE))]), None));
    assert_eq!(inherited.at.status().entries, 0);
    assert!(inherited.at.gauge("recovering shards") > 0);
}

/// It is asked again first: the question or its answer may be lost.
#[test]
fn a_member_that_does_not_answer_is_given_up_after_five_seconds_and_asked_again_later() {
    let mut inherited = Inherited::new();
    inherited.request(2, DirectoryRequest::Locate { token: 7 });
    inherited.at.wait(Duration::from_millis(4900));
    let repeated = take_asked(&mut inherited.at);
    assert!(!repeated.is_empty());
    assert!(repeated.iter().all(|asked| asked.round == inherited.asked.round && asked.of == 2));
    assert!(inherited.at.gauge("recovering shards") > 0);
    inherited.at.wait(Duration::from_millis(200));
    assert_eq!(inherited.at.gauge("recovering shards"), 0);
    assert!(matches!(inherited.told()[..], [(2, DirectoryAnswer::Located { token: 7, .. })]));
    inherited.at.wait(Duration::from_secs(8));
    let later = take_asked(&mut inherited.at);
    assert!(later
        .iter()
        .any(|asked| asked.round > inherited.asked.round && asked.is_about(inherited.id.shard())));
}

/// Until then its copies are unknown here, and a delete must not have to wait for long.
#[test]
fn a_member_whose_answer_came_too_late_is_asked_again_at_once() {
    let mut inherited = Inherited::new();
    inherited.at.wait(Duration::from_millis(5100));
    take_asked(&mut inherited.at);
    inherited.at.wait(Duration::from_secs(1));
    assert!(take_asked(&mut inherited.at).is_empty(), "it was given up");
    inherited.at.hear(2, inherited.asked.answer(0, InventoryPage::default(), None));
    let asked = take_asked(&mut inherited.at);
    assert!(asked.iter().any(|asked| asked.of == 2 && asked.round > inherited.asked.round), "{asked:?}");
}

/// It may have been believed dead, and the messages in its sockets may be from before that.
#[test]
fn an_owner_that_was_paused_accepts_nothing_before_it_has_heard_the_others() {
    for (millis, waits) in [(100, false), (1000, true)] {
        let mut at = Node::among(3, 8 << 20);
        let id = at.id_owned_by(ME);
        at.members_answer = false;
        at.take_mail();
        at.handle(Input::StoodStill { time: Duration::from_millis(millis) });
        at.request(2, id, announce_unaccepted(2, writing_report(2, 1, edition(5), SIZE)));
        at.wait(MOMENT);
        let mail = at.take_mail();
        let asks = |message: &PeerMessage| matches!(message, PeerMessage::InventoryRequest { .. });
        assert_eq!(mail.iter().filter(|(_, message)| asks(message)).count(), if waits { 2 } else { 0 });
        let is_answer = |message: &PeerMessage| matches!(message, PeerMessage::Answer { .. });
        assert_eq!(mail.iter().any(|(_, message)| is_answer(message)), !waits);
        assert_eq!(at.gauge("recovering shards") > 0, waits);
    }
}

/// The answers wait in its sockets.
#[test]
fn an_owner_that_was_paused_gives_no_member_up() {
    let mut inherited = Inherited::new();
    inherited.at.pause(Duration::from_secs(6));
    inherited.at.wait(Duration::from_millis(900));
    let repeated = take_asked(&mut inherited.at);
    assert!(!repeated.is_empty() && repeated.iter().all(|asked| asked.of == 2), "{repeated:?}");
    assert!(inherited.at.gauge("recovering shards") > 0);
}

/// Many pages take their time.
#[test]
fn a_member_that_answers_page_by_page_is_not_given_up() {
    let mut inherited = Inherited::new();
    for number in 0..10 {
        inherited.at.wait(Duration::from_millis(900));
        let after = ObjectId([number; ObjectId::LEN]);
        let next = Some(Cursor { shard: inherited.id.shard(), section: 0, after });
        let page = inherited.asked.answer(7, InventoryPage::default(), next);
        inherited.at.hear(2, page);
    }
    inherited.at.wait(Duration::from_millis(1500));
    assert!(inherited.at.gauge("recovering shards") > 0, "the next page is late, and asked for again");
}

#[test]
fn recovery_does_not_wait_for_dead_members() {
    let mut inherited = Inherited::new();
    inherited.request(ME, DirectoryRequest::Locate { token: 7 });
    inherited.at.crash(2);
    inherited.at.wait(MOMENT);
    assert_eq!(inherited.at.gauge("recovering shards"), 0);
}

#[test]
fn a_member_that_comes_up_meanwhile_is_asked_as_well() {
    let mut inherited = Inherited::new();
    inherited.at.join(4);
    let asked = take_asked(&mut inherited.at);
    let newcomer = asked.iter().find(|asked| asked.of == 4 && asked.scope == Scope::All).cloned();
    let newcomer = newcomer.expect("it may know of them");
    for id in (0..100).map(|number| object(&format!("object {number}"))) {
        let is_its = inherited.at.owner_of(id) == 4;
        assert!(!(is_its && newcomer.is_about(id.shard())), "it would take us for the owner of its own");
    }
    answer(&mut inherited.at, &inherited.asked, InventoryPage::default());
    assert!(inherited.at.gauge("recovering shards") > 0);
    inherited.asked = newcomer;
    inherited.answer(InventoryPage::default());
}

#[test]
fn objects_backed_up_for_a_dead_owner_are_lost_unless_a_copy_is_found() {
    for found in [true, false] {
        let mut inherited =
            Inherited::told_before(|at, id| at.hear(3, PeerMessage::BackupIds { ids: vec![id] }));
        let call = inherited.at.ask(get_or_lost(inherited.id));
        inherited.at.wait(MOMENT);
        assert_eq!(inherited.at.reply(call), None, "others may have it");
        let report = received_report(1, edition(5), SIZE, None);
        inherited.answer(if found { copies(&[(inherited.id, report)]) } else { InventoryPage::default() });
        match found {
            true => assert_eq!(inherited.at.receives.len(), 1, "its bytes are on their way"),
            false => assert_eq!(failed(&inherited.at, call), ErrorKind::Lost),
        }
    }
}

#[test]
fn losses_that_others_remember_are_remembered_here() {
    let mut inherited = Inherited::new();
    let call = inherited.at.ask(get_or_lost(inherited.id));
    let lost = vec![(inherited.id, 30_000)];
    inherited.answer(InventoryPage { lost, ..InventoryPage::default() });
    assert_eq!(failed(&inherited.at, call), ErrorKind::Lost);
}

#[test]
fn deletions_that_others_know_stand_here() {
    let mut inherited = Inherited::new();
    let call = inherited.at.ask(get_or_lost(inherited.id));
    let tombstones = vec![(inherited.id, Deletion { stamp: Stamp::from_ms(700), age_ms: 0 })];
    let report = put_report(9, edition(5), SIZE);
    inherited.answer(InventoryPage { tombstones, ..copies(&[(inherited.id, report)]) });
    assert_eq!(failed(&inherited.at, call), ErrorKind::Deleted);
    assert!(matches!(inherited.told()[..], [(2, DirectoryAnswer::Deleted { .. })]), "its holder missed it");
}

/// The former owner died together with the only holder, so only the asker knows of the object.
#[test]
fn part_of_an_object_proves_to_a_new_owner_that_it_is_lost() {
    let mut inherited = Inherited::new();
    inherited.request(2, DirectoryRequest::Ask { ask: 4, have: Some(edition(5)), failed: Some(node(3)) });
    assert_eq!(inherited.told(), [], "others may hold it");
    inherited.answer(InventoryPage::default());
    assert!(inherited.told().contains(&(2, DirectoryAnswer::Lost)));
}

/// A receiver has not yet noticed that its sender is dead, and so has not asked for the rest.
#[test]
fn part_of_an_object_whose_sender_is_dead_proves_that_it_is_lost() {
    let mut inherited = Inherited::new();
    let call = inherited.at.ask(get_or_lost(inherited.id));
    let part = received_report(9, edition(5), SIZE, Some(node(3)));
    inherited.answer(copies(&[(inherited.id, part)]));
    assert_eq!(failed(&inherited.at, call), ErrorKind::Lost);
}

/// The owner decides by these asks when all inventories are here. None may come late, however many gets wait.
#[test]
fn a_new_owner_is_asked_for_the_rest_of_each_part_before_it_is_told_of_the_part() {
    const PARTS: usize = 300;
    let mut at = Node::among(4, 64 << 20);
    let mut without_3 = Node::alone(0);
    [2, 4].into_iter().for_each(|number| without_3.join(number));
    let ids = (0..).map(|number| object(&format!("part {number}")));
    let moves = |&id: &ObjectId| at.owner_of(id) == 3 && without_3.owner_of(id) == 2;
    let ids: BTreeSet<_> = ids.filter(moves).take(PARTS).collect();
    for &id in &ids {
        at.ask(get_or_lost(id));
        let transfer = lend(&mut at, 3, id, 4, edition(5), 100_000);
        at.break_receive(transfer, 1000);
    }
    at.take_mail();
    let shards: BTreeSet<_> = ids.iter().map(|id| id.shard()).collect();
    let shards = shards.into_iter().map(|shard| ShardQuery { shard, digest: None }).collect();
    let (round, scope, clock) = (1, Scope::All, Stamp::from_ms(0));
    at.hear(2, PeerMessage::InventoryRequest { round, scope, shards, from: None, fresh: false, clock });
    let (mut asked, mut told) = (BTreeSet::new(), BTreeSet::new());
    for (to, message) in at.take_mail() {
        match message {
            PeerMessage::Directory { id, request: DirectoryRequest::Ask { have: Some(_), .. }, .. } => {
                assert_eq!(to, node(2));
                asked.insert(id);
            }
            PeerMessage::Inventory { page, .. } => {
                told.extend(page.copies.into_iter().map(|(id, _)| id));
                assert!(told.is_subset(&asked), "{} asked for, {} told", asked.len(), told.len());
            }
            _ => {}
        }
    }
    assert_eq!(told, ids);
}

#[test]
fn part_of_an_object_whose_sender_lives_proves_nothing() {
    let mut inherited = Inherited::new();
    let call = inherited.at.ask(get_or_lost(inherited.id));
    let part = received_report(9, edition(5), SIZE, Some(node(2)));
    inherited.answer(copies(&[(inherited.id, part)]));
    assert_eq!(inherited.at.reply(call), None, "its sender may have given it up");
}

#[test]
fn a_claim_that_the_dead_owner_had_accepted_stands() {
    let mut inherited = Inherited::new();
    let (first, second) = (claim_of(2, edition(8)), claim_of(2, edition(9)));
    inherited.request(2, DirectoryRequest::Claim { seq: 1, claim: second });
    let claims = vec![(inherited.id, first, Some(Stamp::from_ms(700)))];
    inherited.answer(InventoryPage { claims, ..InventoryPage::default() });
    inherited.request(2, announce_unaccepted(2, put_report(9, edition(5), SIZE)));
    assert_eq!(inherited.told(), [], "it was the first");
    inherited.request(2, DirectoryRequest::ReleaseClaim { claim: first, made: false });
    let told = inherited.told();
    assert!(
        matches!(told[..], [(2, DirectoryAnswer::ClaimVerdict { claim, .. })] if claim == second),
        "{told:?}"
    );
}

/// Neither had been accepted: the first to ask the new owner is.
#[test]
fn one_of_two_claims_that_no_owner_has_accepted_is_accepted() {
    let mut inherited = Inherited::new();
    let (ours, theirs) = (claim_of(2, edition(8)), claim_of(2, edition(9)));
    inherited.request(2, DirectoryRequest::Claim { seq: 1, claim: ours });
    let claims = vec![(inherited.id, theirs, None)];
    inherited.answer(InventoryPage { claims, ..InventoryPage::default() });
    let told = inherited.told();
    let accepted: Vec<_> = told
        .iter()
        .filter_map(|(_, answer)| match answer {
            DirectoryAnswer::ClaimVerdict { claim, verdict: Verdict::Accepted(_) } => Some(*claim),
            _ => None,
        })
        .collect();
    assert_eq!(accepted, [ours]);
    assert_eq!(told.len(), 1, "the other waits: {told:?}");
}

/// A node that misses an answer asks again.
#[test]
fn the_last_of_too_many_held_requests_are_dropped() {
    const HELD_MAX: u64 = 65_536;
    let mut inherited = Inherited::new();
    let shards: BTreeSet<_> = inherited.asked.shards.iter().map(|query| query.shard).collect();
    let ids = (0u128..).map(|number| ObjectId(number.to_le_bytes()));
    for id in ids.filter(|id| shards.contains(&id.shard())).take(HELD_MAX as usize + 5) {
        inherited.at.request(2, id, DirectoryRequest::Locate { token: 1 });
    }
    let held = inherited.at.status().gauges.into_iter().find(|gauge| gauge.name == "held requests");
    let held = held.expect("there is such a gauge");
    assert_eq!((held.value, held.limit, held.met), (HELD_MAX, HELD_MAX, 5));
    inherited.request(2, announce(put_report(9, edition(5), SIZE)));
    assert_eq!(inherited.at.status().entries, 1, "what need not wait is taken");
    answer(&mut inherited.at, &inherited.asked, InventoryPage::default());
    while inherited.at.gauge("recovering shards") > 0 {
        inherited.at.wait(MOMENT);
    }
    let located = inherited.at.take_mail();
    let is_located = |(_, message): &&(_, PeerMessage)| {
        matches!(message, PeerMessage::Answer { answer: DirectoryAnswer::Located { .. }, .. })
    };
    assert_eq!(located.iter().filter(is_located).count() as u64, HELD_MAX);
}

//! A node that joins a cluster learns the members, and their knowledge of its shards, before it decides or asks.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, InventoryPage, PeerMessage, Scope};
use hoplite_types::{NodeId, ObjectId, Stamp};

use crate::inventory::take_inventory;
use crate::node::{node, Node, ME};
use crate::puts::created;
use crate::recovery::{answer, copies, take_asked, Asked};
use crate::requests::{accepted, announce, ask, create, edition, get, object, put_report, SIZE};

const STORE: u64 = 8 << 20;

/// Longer than gossip takes to let a node in, and shorter than the answer with all members may take.
const WELCOME: Duration = Duration::from_millis(300);

/// We have heard of one member at least, and have asked it for all.
fn starting_beside(last: u16) -> Node {
    let mut at = Node::starting_beside(last, STORE);
    while asked_for_members(&at.mail).is_empty() {
        at.wait(Duration::from_millis(1));
    }
    at
}

fn tell_members(at: &mut Node, last: u16) {
    let members = (2..=last).map(|number| (node(number), 0)).collect();
    at.hear(2, PeerMessage::Members { members, partial: false });
}

/// Answers every inventory request with an empty page. Returns the requests.
fn answer_all(at: &mut Node) -> Vec<Asked> {
    let mut all = Vec::new();
    loop {
        let asked = take_asked(at);
        if asked.is_empty() {
            return all;
        }
        asked.iter().for_each(|asked| answer(at, asked, InventoryPage::default()));
        all.extend(asked);
    }
}

fn asked_for_members(mail: &[(NodeId, PeerMessage)]) -> Vec<u16> {
    let asked = mail.iter().filter(|(_, message)| *message == PeerMessage::MembersRequest);
    asked.map(|(to, _)| to.addr.port()).collect()
}

/// An id that is owned by that node when all of `2..=last` are members.
fn id_owned_by(number: u16, last: u16) -> ObjectId {
    Node::among(last, 0).id_owned_by(number)
}

#[test]
fn a_joiner_asks_for_all_members_before_anything_else() {
    let mut at = starting_beside(3);
    assert_eq!(asked_for_members(&at.mail), [2]);
    at.ask(get(id_owned_by(2, 3)));
    at.ask(get(id_owned_by(ME, 3)));
    at.wait(WELCOME);
    let asks = |(_, message): &&(NodeId, PeerMessage)| {
        matches!(message, PeerMessage::InventoryRequest { .. } | PeerMessage::Directory { .. })
    };
    assert_eq!(at.mail.iter().find(asks), None, "whoever is asked takes us for an owner");
}

#[test]
fn many_members_are_added_in_turns_and_asked_when_all_are_known() {
    const LAST: u16 = 200;
    let mut at = starting_beside(3);
    tell_members(&mut at, LAST);
    let known = at.status().members.len();
    assert!((3..LAST as usize).contains(&known), "{known} members after one turn");
    assert_eq!(take_asked(&mut at).len(), 0, "not all members are known");
    at.wait(Duration::from_millis(1));
    assert_eq!(at.status().members.len(), LAST as usize);
    let mut asked = BTreeSet::new();
    let mut open = take_asked(&mut at);
    while !open.is_empty() {
        for asked_now in open {
            let again = !asked.insert(asked_now.of);
            assert!(!again || asked_now.scope == Scope::Past, "{} was asked already", asked_now.of);
            at.hear(asked_now.of, asked_now.answer(0, InventoryPage::default(), None));
        }
        open = take_asked(&mut at);
    }
    assert_eq!(asked.len(), LAST as usize - 1);
}

#[test]
fn a_joiner_asks_all_members_only_about_its_own_shards() {
    let mut at = starting_beside(3);
    tell_members(&mut at, 3);
    assert!([2, 3].iter().all(|&number| at.status().members.contains(&node(number))));
    let asked = answer_all(&mut at);
    assert!(asked.iter().all(|asked| asked.shards.len() <= 1024));
    let asked: Vec<_> = asked.into_iter().filter(|asked| asked.scope == Scope::All).collect();
    let mut others = Node::among(3, 0);
    for number in 0..200 {
        let id = object(&format!("object {number}"));
        let asked_of = asked.iter().filter(|asked| asked.is_about(id.shard())).map(|asked| asked.of);
        let expected: &[u16] = if others.owner_of(id) == ME { &[2, 3] } else { &[] };
        // Some are asked twice: requests from before they knew us may be lost.
        assert_eq!(asked_of.collect::<BTreeSet<_>>(), expected.iter().copied().collect(), "{number}");
    }
}

#[test]
fn requests_of_clients_are_sent_when_the_node_has_joined() {
    let (theirs, ours) = (id_owned_by(2, 2), id_owned_by(ME, 2));
    let mut at = starting_beside(2);
    at.ask(get(theirs));
    let call = at.ask(Request::Locate { id: ours, timeout_ms: None });
    tell_members(&mut at, 2);
    let asked = take_asked(&mut at);
    at.wait(WELCOME);
    assert_eq!((at.take_requests(theirs), at.reply(call)), (vec![], None), "node 2 has not answered");
    at.members_answer = true;
    asked.iter().for_each(|asked| answer(&mut at, asked, InventoryPage::default()));
    at.wait(WELCOME);
    assert!(at.take_requests(theirs).iter().any(|request| matches!(request, DirectoryRequest::Ask { .. })));
    assert!(matches!(at.reply(call), Some(Reply::Located { .. })));
}

#[test]
fn a_put_waits_for_its_verdict_until_its_node_has_joined() {
    let theirs = id_owned_by(2, 2);
    let mut at = starting_beside(2);
    let call = at.ask(create(theirs, SIZE));
    let copy = created(&at, call);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    at.wait(WELCOME);
    assert_eq!((at.take_requests(theirs), at.reply(seal)), (vec![], None));
    at.members_answer = true;
    tell_members(&mut at, 2);
    at.wait(WELCOME);
    let announces = |request: &DirectoryRequest| matches!(request, DirectoryRequest::Announce { report, wants_verdict: true, .. } if report.complete);
    assert!(at.take_requests(theirs).iter().any(announces));
}

/// Its owner has asked for an inventory before it was complete, and nothing is said of it until we have joined.
#[test]
fn a_put_that_is_accepted_before_its_node_has_joined_is_reported_when_it_is_complete() {
    let theirs = id_owned_by(2, 2);
    let mut at = starting_beside(2);
    let call = at.ask(create(theirs, SIZE));
    let copy = created(&at, call);
    let told = take_inventory(&mut at, 2, &[theirs.shard()]).page.copies;
    let [(_, report)] = &told[..] else { panic!("{told:?}") };
    assert!(!report.complete);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    // Long enough for open questions to be repeated.
    at.wait(Duration::from_millis(1100));
    at.answer(2, theirs, accepted(report.edition));
    assert_eq!(at.reply(seal), Some(&Reply::Done));
    let said = at.take_requests(theirs);
    assert!(matches!(&said[..], [DirectoryRequest::Announce { report, .. }] if report.complete), "{said:?}");
}

#[test]
fn a_joiner_answers_when_its_shard_is_recovered() {
    let id = id_owned_by(ME, 2);
    let mut at = starting_beside(2);
    at.request(2, id, DirectoryRequest::Locate { token: 7 });
    tell_members(&mut at, 2);
    let asked = take_asked(&mut at);
    let about = asked.iter().find(|asked| asked.is_about(id.shard())).expect("somebody waits for it");
    answer(&mut at, about, copies(&[(id, put_report(9, edition(5), SIZE))]));
    let answers = at.take_answers(id);
    assert!(
        matches!(&answers[..], [(2, DirectoryAnswer::Located { token: 7, copies, .. })] if copies.len() == 1),
        "{answers:?}"
    );
}

/// A shard of the last ones would be asked about last.
#[test]
fn shards_with_waiting_requests_are_recovered_first() {
    let mut others = Node::among(2, 0);
    let ids = (0..).map(|number| object(&format!("wanted {number}")));
    let mut late = ids.filter(|id| id.shard().index() > 4000);
    let id = late.find(|&id| others.owner_of(id) == ME).expect("hashing is even");
    for waits in [false, true] {
        let mut at = starting_beside(2);
        if waits {
            at.request(2, id, ask(1));
        }
        at.take_mail();
        tell_members(&mut at, 2);
        let asked = take_asked(&mut at);
        let first = asked.iter().find(|asked| asked.scope == Scope::All).expect("it asks");
        assert_eq!((first.shards.len(), first.is_about(id.shard())), (1024, waits));
        assert!(first.shards.windows(2).all(|two| two[0].shard < two[1].shard), "in order, for the cursor");
    }
}

#[test]
fn a_joiner_says_that_it_is_fresh_until_it_has_objects() {
    for writes in [false, true] {
        let mut at = starting_beside(2);
        if writes {
            at.ask(create(object("x"), SIZE));
        }
        tell_members(&mut at, 2);
        let asked = take_asked(&mut at);
        assert!(!asked.is_empty() && asked.iter().all(|asked| asked.fresh != writes));
    }
}

#[test]
fn a_member_that_has_just_started_is_not_asked_for_its_inventory() {
    for fresh in [true, false] {
        let mut at = Node::among(2, STORE);
        at.members_answer = false;
        at.take_mail();
        at.join(3);
        let (scope, clock) = (Scope::All, Stamp::from_ms(0));
        at.hear(
            3,
            PeerMessage::InventoryRequest { round: 1, scope, shards: vec![], from: None, fresh, clock },
        );
        at.wait(WELCOME);
        let asked = answer_all(&mut at).into_iter().any(|asked| asked.of == 3 && asked.scope == Scope::All);
        assert_eq!(asked, !fresh);
    }
}

#[test]
fn a_joiner_asks_another_member_if_one_does_not_list_all() {
    let mut at = starting_beside(3);
    at.wait(Duration::from_millis(1100));
    let asked = asked_for_members(&at.mail);
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked.contains(&2) && asked.contains(&3), "{asked:?}");
    at.take_mail();
    at.wait(Duration::from_secs(5));
    let asked = asked_for_members(&at.mail);
    assert_eq!(asked.len(), 5, "eight in all");
    assert!(!take_asked(&mut at).is_empty(), "those that are known count as all");
}

#[test]
fn a_node_that_reaches_no_member_continues_alone() {
    let mut at = Node::starting_beside(1, STORE);
    let call = at.ask(Request::Locate { id: object("x"), timeout_ms: None });
    at.wait(Duration::from_millis(1900));
    assert_eq!(at.reply(call), None);
    at.wait(Duration::from_millis(200));
    assert!(at.reply(call).is_some());
    at.request(7, object("x"), announce(put_report(1, edition(5), SIZE)));
    assert_eq!(at.status().entries, 1);
}

#[test]
fn a_member_lists_all_members_and_itself_to_a_newcomer() {
    let mut at = Node::among(4, STORE);
    at.hear(9, PeerMessage::MembersRequest);
    let told = at.take_mail().into_iter().find_map(|(to, message)| match message {
        PeerMessage::Members { members, .. } if to == node(9) => Some(members),
        _ => None,
    });
    let mut members: Vec<_> = told.expect("it is answered").iter().map(|(member, _)| *member).collect();
    members.sort();
    assert_eq!(members, (ME..=4).chain([9]).map(node).collect::<Vec<_>>(), "it is one from now on");
}

/// Each of two nodes that join at the same time asks every member. The second one hears of the first.
#[test]
fn newcomers_are_told_of_each_other() {
    let mut at = Node::among(2, STORE);
    at.wait(Duration::from_secs(20));
    let told = |at: &mut Node, newcomer: u16| {
        let (scope, clock) = (Scope::All, Stamp::from_ms(0));
        at.take_mail();
        at.hear(
            newcomer,
            PeerMessage::InventoryRequest { round: 1, scope, shards: vec![], from: None, fresh: true, clock },
        );
        let told = at.take_mail().into_iter().find_map(|(to, message)| match message {
            PeerMessage::Members { members, .. } if to == node(newcomer) => Some(members),
            _ => None,
        });
        told.map(|members| members.into_iter().map(|(member, _)| member).collect::<Vec<_>>())
    };
    assert_eq!(told(&mut at, 8), None);
    assert_eq!(told(&mut at, 9), Some(vec![node(8)]));
    assert_eq!(told(&mut at, 8), Some(vec![node(9)]));
    assert_eq!(told(&mut at, 2), None, "it is no newcomer");
}

/// It may hear of another newcomer before the seed has answered.
#[test]
fn a_node_that_is_joining_itself_gives_a_partial_list_of_members() {
    let mut at = Node::starting_beside(1, STORE);
    at.wait(Duration::from_millis(10));
    at.take_mail();
    at.hear(9, PeerMessage::MembersRequest);
    let told = at.take_mail().into_iter().find_map(|(to, message)| match message {
        PeerMessage::Members { partial, .. } if to == node(9) => Some(partial),
        _ => None,
    });
    assert_eq!(told, Some(true), "it knows no more itself");
    at.hear(9, PeerMessage::Members { members: vec![(node(ME), 0), (node(9), 0)], partial: true });
    let call = at.ask(Request::Locate { id: object("x"), timeout_ms: None });
    at.wait(WELCOME);
    assert_eq!((answer_all(&mut at).len(), at.reply(call)), (0, None), "its seed may know more");
    at.wait(Duration::from_secs(4));
    answer_all(&mut at);
    assert!(at.reply(call).is_some(), "nobody else is there");
}

#[test]
fn a_joiner_does_not_wait_for_seeds_that_are_joining_too() {
    let mut at = starting_beside(2);
    at.hear(2, PeerMessage::Members { members: vec![(node(ME), 0), (node(2), 0)], partial: true });
    at.wait(Duration::from_millis(5));
    assert_ne!(answer_all(&mut at).len(), 0);
}

//! Resync: messages that a broken connection, or a false death, may have lost are repeated.

use std::time::Duration;

use hoplite_core::Input;
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{
    CopyReport, DirectoryAnswer, DirectoryRequest, InventoryPage, PeerMessage, Scope, Verdict,
};
use hoplite_types::{Blob, Claim, ErrorKind, FoldOrder, NodeId, ObjectId, Shard, Stamp};

use crate::gets::lend;
use crate::inventory::{digest_of, take_inventory};
use crate::losses::get_or_lost;
use crate::node::{node, Node, ME};
use crate::puts::{announced, created, failed, put};
use crate::recovery::{copies, take_asked, Asked};
use crate::requests::{
    accepted, announce, announce_unaccepted, ask, claim_of, create, delete, edition, get, object, put_report,
    put_small, received_report, reduce, unaccepted, verdict, writing_report, SIZE, SMALL,
};

pub const STORE: u64 = 16 << 20;

/// Longer than the pause after which a peer is told again.
pub const SETTLED: Duration = Duration::from_millis(100);

/// Longer than any pause between two repetitions.
pub const A_WHILE: Duration = Duration::from_secs(9);

fn break_connection(at: &mut Node, number: u16) {
    at.handle(Input::PeerBroken { node: node(number) });
    at.wait(SETTLED);
}

/// The nodes that were asked to resync.
pub fn asked_to_resync(at: &mut Node) -> Vec<u16> {
    let mail = at.take_mail().into_iter();
    let asked = mail.filter(|(_, message)| matches!(message, PeerMessage::ResyncRequest { .. }));
    asked.map(|(to, _)| to.addr.port()).collect()
}

/// The request for the inventory of node `of` about a shard.
fn asked_about(asked: &[Asked], of: u16, shard: Shard) -> Option<&Asked> {
    asked.iter().find(|asked| asked.of == of && asked.scope == Scope::All && asked.is_about(shard))
}

/// We own an object, node 2 has reported it, and the connection to node 2 broke. Returns the inventory request that
/// node 2 gets.
fn broken_after(report: impl FnOnce(&mut Node, ObjectId)) -> (Node, ObjectId, Asked) {
    let mut at = Node::among(4, STORE);
    let id = at.id_owned_by(ME);
    report(&mut at, id);
    at.members_answer = false;
    at.take_mail();
    break_connection(&mut at, 2);
    let asked = take_asked(&mut at);
    let about = asked_about(&asked, 2, id.shard()).expect("it may have said more").clone();
    (at, id, about)
}

/// Node 2 sends its inventory. Reports with smaller numbers than `since` are out of date.
fn tell(at: &mut Node, asked: &Asked, since: u64, page: InventoryPage) {
    let (round, clock) = (asked.round, Stamp::from_ms(0));
    let (unchanged, next) = (Vec::new(), None);
    at.hear(asked.of, PeerMessage::Inventory { round, since, page, unchanged, next, clock });
    // Entries that it does not repeat are removed in later turns.
    at.wait(Duration::from_millis(2));
}

#[test]
fn a_peer_with_a_new_connection_is_asked_for_differences() {
    let (mut at, id, asked) = broken_after(|at, id| {
        at.request(2, id, announce(put_report(5, edition(5), SIZE)));
        at.request(3, id, announce(received_report(5, edition(5), SIZE, None)));
    });
    let query = asked.shards.iter().find(|query| query.shard == id.shard()).expect("it is about that");
    assert_eq!(query.digest, Some(digest_of(id, edition(5), true, true)), "of what node 2 has alone");
    let others = asked.shards.iter().filter(|query| query.shard != id.shard());
    assert!(others.into_iter().all(|query| query.digest == Some(0)));
    assert_eq!(at.gauge("recovering shards"), 0, "it stays the owner meanwhile");
    assert_eq!(asked.of, 2);
}

/// It may receive from another sender than the one that it was lent, and that sender may be about to be lent it.
#[test]
fn no_digest_is_relied_on_for_an_object_that_the_peer_receives() {
    let (_, id, asked) = broken_after(|at, id| {
        at.request(3, id, announce(put_report(5, edition(5), SIZE)));
        at.request(2, id, ask(7));
    });
    let query = asked.shards.iter().find(|query| query.shard == id.shard()).expect("it is about that");
    assert_eq!(query.digest, None);
}

#[test]
fn no_digest_is_relied_on_for_an_object_that_the_peer_writes() {
    let unsure: [fn(&mut Node, ObjectId); 4] = [
        |at, id| at.request(2, id, announce(writing_report(2, 5, edition(5), SIZE))),
        |at, id| {
            at.request(3, id, announce(writing_report(3, 5, edition(6), SIZE)));
            at.request(2, id, announce_unaccepted(2, writing_report(2, 5, edition(5), SIZE)));
        },
        |at, id| {
            at.request(2, id, DirectoryRequest::Claim { seq: 5, claim: claim_of(2, edition(5)) });
        },
        // It puts together the target of node 3, as others do.
        |at, id| {
            let claim = claim_of(3, edition(6));
            at.request(3, id, DirectoryRequest::Claim { seq: 5, claim });
            let report = put_report(5, edition(6), SIZE);
            let part = CopyReport { complete: false, pinned: false, claim: Some(claim), ..report };
            at.request(2, id, announce(part));
        },
    ];
    for report in unsure {
        let (_, id, asked) = broken_after(report);
        let query = asked.shards.iter().find(|query| query.shard == id.shard());
        assert_eq!(query.expect("it is about that").digest, None);
    }
}

#[test]
fn copies_that_an_inventory_does_not_repeat_are_gone() {
    let (mut at, id, asked) = broken_after(|at, id| {
        at.request(4, id, DirectoryRequest::Subscribe { bytes_max: None });
        at.request(2, id, announce(put_report(5, edition(5), SIZE)));
        at.request(3, id, announce(received_report(5, edition(5), SIZE, None)));
    });
    tell(&mut at, &asked, 6, InventoryPage::default());
    let answers = at.take_answers(id);
    assert!(answers.contains(&(4, DirectoryAnswer::CopyGone { node: node(2) })), "{answers:?}");
    assert!(answers.contains(&(3, DirectoryAnswer::Pin)), "another copy is to stay: {answers:?}");
    at.assert_consistent();
}

#[test]
fn copies_reported_since_an_inventory_began_are_not_gone() {
    for since in [5, 6] {
        let (mut at, id, asked) = broken_after(|at, id| {
            at.request(2, id, announce(put_report(5, edition(5), SIZE)));
        });
        let page = if since == 5 { vec![] } else { vec![(id, put_report(9, edition(5), SIZE))] };
        tell(&mut at, &asked, since, copies(&page));
        assert_eq!(at.status().entries, 1);
    }
}

#[test]
fn shards_that_are_the_same_are_left_as_they_are() {
    let (mut at, id, asked) = broken_after(|at, id| {
        at.request(2, id, announce(put_report(5, edition(5), SIZE)));
    });
    let (round, unchanged, clock) = (asked.round, vec![id.shard()], Stamp::from_ms(0));
    let page = InventoryPage::default();
    at.hear(2, PeerMessage::Inventory { round, since: 100, page, unchanged, next: None, clock });
    assert_eq!(at.status().entries, 1);
}

#[test]
fn a_claim_that_is_not_repeated_lets_the_next_one_go() {
    let claim = claim_of(2, edition(5));
    for repeated in [true, false] {
        let (mut at, id, asked) = broken_after(|at, id| {
            at.request(2, id, DirectoryRequest::Claim { seq: 5, claim });
            at.request(3, id, announce_unaccepted(3, writing_report(3, 5, edition(6), SIZE)));
        });
        let claims = vec![(id, claim, Some(Stamp::from_ms(700)))];
        let page =
            InventoryPage { claims: claims.into_iter().filter(|_| repeated).collect(), ..Default::default() };
        tell(&mut at, &asked, 6, page);
        let next = at.take_answers(id);
        let is_accepted =
            matches!(next[..], [(3, DirectoryAnswer::Verdict { verdict: Verdict::Accepted(_), .. })]);
        assert_eq!(is_accepted, !repeated, "{next:?}");
    }
}

/// The node withdrew the put, and the withdrawal was lost.
#[test]
fn a_small_put_that_is_not_repeated_was_given_up() {
    let (mut at, id, asked) = broken_after(|at, id| {
        let report = unaccepted(2, put_report(5, edition(5), SMALL));
        let payload = Some(Blob(vec![7; SMALL as usize]));
        at.request(2, id, DirectoryRequest::Announce { report, payload, wants_verdict: true });
        assert_eq!(at.status().copies, 1, "its bytes are kept here");
    });
    tell(&mut at, &asked, 6, InventoryPage::default());
    assert_eq!((at.status().copies, at.status().entries, at.gauge("lost ids")), (0, 0, 0));
    let call = at.ask(get_or_lost(id));
    assert_eq!(at.reply(call), None, "it waits for a put");
}

/// The answer that lent it may be lost, and the asker is not at fault.
#[test]
fn a_receiver_that_reports_no_copy_is_lent_its_sender_again() {
    let (mut at, id, asked) = broken_after(|at, id| {
        at.request(3, id, announce(put_report(5, edition(5), SIZE)));
        at.request(2, id, ask(4));
    });
    tell(&mut at, &asked, 6, InventoryPage::default());
    let lent = at.take_answers(id);
    let [(2, DirectoryAnswer::Lend { ask: 4, sender, .. })] = lent[..] else { panic!("{lent:?}") };
    assert_eq!(sender, node(3));
}

/// The owner lent it a sender that died. It never heard of that, and has nothing: when the sender is back, others may
/// have it.
#[test]
fn a_receiver_that_has_no_copy_does_not_keep_a_sender_that_came_back() {
    // No node streams behind a partial copy of it.
    const SENT_WHOLE: u64 = 64 << 10;
    let mut at = Node::among(6, STORE);
    let id = at.id_owned_by(ME);
    at.request(3, id, announce(put_report(5, edition(5), SENT_WHOLE)));
    at.request(2, id, ask(4));
    at.request(4, id, announce(received_report(5, edition(5), SENT_WHOLE, None)));
    at.members_answer = false;
    break_connection(&mut at, 2);
    let asked = take_asked(&mut at);
    let about = asked_about(&asked, 2, id.shard()).expect("it may have said more").clone();
    at.kill(3);
    tell(&mut at, &about, 6, InventoryPage::default());
    at.join(3);
    at.wait(SETTLED);
    at.request(3, id, announce(put_report(7, edition(5), SENT_WHOLE)));
    at.take_answers(id);
    at.request(5, id, ask(1));
    at.request(6, id, ask(1));
    let lent = at.take_answers(id).into_iter().filter_map(|(to, answer)| match answer {
        DirectoryAnswer::Lend { sender, .. } => Some((to, sender.addr.port())),
        _ => None,
    });
    let lent: std::collections::BTreeMap<_, _> = lent.collect();
    assert_eq!(lent.keys().copied().collect::<Vec<_>>(), [5, 6], "{lent:?}");
    assert_ne!(lent[&5], lent[&6]);
}

#[test]
fn open_requests_are_repeated_on_a_new_connection() {
    let mut at = Node::among(2, STORE);
    let mut ids = (0..).map(|number| object(&format!("asked for {number}")));
    let mut next = || ids.find(|&id| at.owner_of(id) == 2).expect("hashing is even");
    let [read, written, gone, located, target, watched] = [(); 6].map(|()| next());
    at.ask(get(read));
    at.ask(put_small(written, SMALL));
    at.ask(delete(gone));
    at.ask(Request::Locate { id: located, timeout_ms: None });
    at.ask(reduce(target, &[watched], 1, FoldOrder::Arrival));
    let first = at.take_mail();
    break_connection(&mut at, 2);
    let again = at.take_mail();
    let about = |mail: &[(NodeId, PeerMessage)], id: ObjectId| -> Vec<_> {
        let requests = mail.iter().filter_map(|(_, message)| match message {
            PeerMessage::Directory { id: about, request, .. } if *about == id => {
                Some(std::mem::discriminant(request))
            }
            _ => None,
        });
        requests.collect()
    };
    for id in [read, written, gone, located, target] {
        assert_eq!(about(&again, id), about(&first, id), "{id}");
    }
    let subscribe = std::mem::discriminant(&DirectoryRequest::Subscribe { bytes_max: None });
    assert!(about(&again, watched).contains(&subscribe));
}

#[test]
fn a_loss_that_was_not_heard_is_asked_for_again() {
    let mut at = Node::among(2, STORE);
    let id = at.id_owned_by(2);
    let call = at.ask(get_or_lost(id));
    at.take_mail();
    break_connection(&mut at, 2);
    let again = at.take_requests(id);
    assert!(matches!(again[..], [DirectoryRequest::Ask { .. }]), "{again:?}");
    at.answer(2, id, DirectoryAnswer::Lost);
    assert_eq!(failed(&at, call), ErrorKind::Lost);
}

#[test]
fn a_backup_asks_its_owner_again_on_a_new_connection() {
    let mut at = Node::among(2, STORE);
    let theirs = at.id_owned_by(2);
    at.members_answer = false;
    break_connection(&mut at, 2);
    let mut asked = take_asked(&mut at);
    // First about shards that are ours, page by page.
    while let Some(all) = asked.iter().find(|asked| asked.scope == Scope::All).cloned() {
        tell(&mut at, &all, 0, InventoryPage::default());
        asked = take_asked(&mut at);
    }
    while let Some(past) = asked.first().cloned() {
        assert_eq!(past.scope, Scope::Past);
        assert!(past.shards.iter().all(|query| query.digest.is_none()));
        let lost = if past.is_about(theirs.shard()) { vec![(theirs, 0)] } else { Vec::new() };
        tell(&mut at, &past, 0, InventoryPage { lost, ..InventoryPage::default() });
        asked = take_asked(&mut at);
    }
    assert_eq!(at.gauge("backup ids"), 1);
}

/// Messages from a node believed dead are dropped. The request to resync that it gets when it is back may get lost.
#[test]
fn a_member_that_came_back_is_asked_to_resync_also_on_the_next_connection() {
    let mut at = Node::among(3, STORE);
    at.kill(3);
    at.take_mail();
    at.join(3);
    at.wait(SETTLED);
    assert_eq!(asked_to_resync(&mut at), [3]);
    at.wait(A_WHILE);
    assert_eq!(asked_to_resync(&mut at), []);
    at.handle(Input::PeerBroken { node: node(3) });
    break_connection(&mut at, 3);
    assert_eq!(asked_to_resync(&mut at), [3]);
}

#[test]
fn a_member_that_died_is_not_asked_for_anything() {
    let mut at = Node::among(3, STORE);
    at.members_answer = false;
    at.handle(Input::PeerBroken { node: node(3) });
    at.crash(3);
    at.wait(SETTLED);
    assert!(at.take_mail().iter().all(|(to, _)| *to != node(3)));
}

#[test]
fn a_node_that_asks_for_a_resync_gets_our_requests_and_is_asked_for_its_inventory() {
    let mut at = Node::among(3, STORE);
    let theirs = at.id_owned_by(3);
    at.ask(get(theirs));
    at.members_answer = false;
    at.take_mail();
    at.hear(3, PeerMessage::ResyncRequest { epoch: 0 });
    at.wait(SETTLED);
    let asks = |(to, message): &(_, PeerMessage)| {
        *to == node(3)
            && matches!(message, PeerMessage::Directory { request: DirectoryRequest::Ask { .. }, .. })
    };
    assert!(at.mail.iter().any(asks));
    let asked = take_asked(&mut at);
    assert!(asked.iter().any(|asked| asked.of == 3 && asked.scope == Scope::All));
}

/// This node is paused for so long that the others believe it dead, and it hears of that.
fn stand_still(at: &mut Node) {
    at.pause(Duration::from_secs(3));
    at.wait(Duration::from_secs(1));
}

#[test]
fn a_node_that_was_held_for_dead_hears_all_others_before_it_decides_again() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    put(&mut at, id, SIZE);
    at.members_answer = false;
    stand_still(&mut at);
    assert!(at.gauge("recovering shards") > 0);
    let call = at.ask(Request::Locate { id, timeout_ms: None });
    assert_eq!(at.reply(call), None);
    at.members_answer = true;
    at.wait(A_WHILE);
    assert_eq!(at.gauge("recovering shards"), 0);
    let Some(Reply::Located { copies, .. }) = at.reply(call) else { panic!("{:?}", at.reply(call)) };
    assert_eq!(copies.len(), 1);
}

/// When it comes back, it knows none of the nodes that believe it dead.
#[test]
fn a_node_that_was_cut_off_from_all_hears_them_before_it_decides_again() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    put(&mut at, id, SIZE);
    at.cut_off = true;
    at.wait(Duration::from_secs(10));
    assert_eq!(at.status().members, [node(ME)]);
    at.members_answer = false;
    at.cut_off = false;
    while at.status().members.len() < 3 {
        at.wait(Duration::from_millis(10));
    }
    let call = at.ask(Request::Locate { id, timeout_ms: None });
    assert_eq!(at.reply(call), None);
    at.members_answer = true;
    at.wait(A_WHILE);
    let Some(Reply::Located { copies, .. }) = at.reply(call) else { panic!("{:?}", at.reply(call)) };
    assert_eq!(copies.len(), 1);
}

/// The owner may have accepted the claim of another node meanwhile.
#[test]
fn a_node_that_was_held_for_dead_asks_for_its_verdicts_again() {
    let mut at = Node::among(3, STORE);
    let (id, target) = (at.id_owned_by(2), at.id_owned_by(3));
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let writing = announced(&mut at, id);
    at.answer(2, id, accepted(writing));
    let call = at.ask(reduce(target, &[object("never comes")], 1, FoldOrder::Arrival));
    let claim = claims(&mut at, target)[0];
    let stamp = Stamp::from_ms(700);
    at.answer(3, target, DirectoryAnswer::ClaimVerdict { claim, verdict: Verdict::Accepted(stamp) });
    stand_still(&mut at);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    assert_eq!(at.reply(seal), None, "not on the strength of the verdict of before");
    let mail = at.take_mail();
    let asks_again = |(_, message): &(_, PeerMessage)| {
        matches!(message, PeerMessage::Directory { id: about, request: DirectoryRequest::Announce { wants_verdict: true, report, .. }, .. }
            if *about == id && report.stamp.is_none())
    };
    assert!(mail.iter().any(asks_again));
    let claims_again = |(_, message): &(_, PeerMessage)| {
        matches!(message, PeerMessage::Directory { id: about, request: DirectoryRequest::Claim { claim: again, .. }, .. }
            if *about == target && *again == claim)
    };
    assert!(mail.iter().any(claims_again));
    at.answer(2, id, verdict(writing, Verdict::OtherKind(7)));
    assert_eq!(failed(&at, seal), ErrorKind::AlreadyExists);
    at.answer(3, target, DirectoryAnswer::ClaimVerdict { claim, verdict: Verdict::Exists(stamp) });
    assert_eq!(failed(&at, call), ErrorKind::AlreadyExists);
}

/// The claims of reductions here to the target.
pub fn claims(at: &mut Node, target: ObjectId) -> Vec<Claim> {
    let requests = at.take_requests(target).into_iter();
    let claims = requests.filter_map(|request| match request {
        DirectoryRequest::Claim { claim, .. } => Some(claim),
        _ => None,
    });
    claims.collect()
}

/// Complete copies are final: no owner is asked whether they may stay.
#[test]
fn a_node_that_was_held_for_dead_keeps_its_sealed_copies() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    let transfer = lend(&mut at, 2, id, 3, edition(5), SIZE);
    at.end_receive(transfer);
    stand_still(&mut at);
    let told = take_inventory(&mut at, 2, &[id.shard()]);
    assert!(matches!(&told.page.copies[..], [(_, report)] if report.stamp == Some(Stamp::from_ms(5))));
}

/// Connections that break together cause one repetition, or two, but not one each.
#[test]
fn subscriptions_are_repeated_a_few_at_a_time_however_many_connections_broke() {
    const WATCHED: usize = 5_000;
    let mut at = Node::among(11, STORE);
    let ids: Vec<_> = (0..WATCHED).map(|number| object(&format!("watched {number}"))).collect();
    let count = WATCHED as u32;
    at.ask(Request::Wait { ids, count, timeout_ms: None, fail_if_lost: false, known_lost: vec![] });
    let said = |at: &mut Node| {
        let is_it = |message: &PeerMessage| {
            matches!(message, PeerMessage::Directory { request: DirectoryRequest::Subscribe { .. }, .. })
        };
        at.take_mail().iter().filter(|(_, message)| is_it(message)).count()
    };
    at.wait(Duration::from_secs(20));
    said(&mut at);
    (2..=11).for_each(|number| at.handle(Input::PeerBroken { node: node(number) }));
    let mut in_all = 0;
    for _ in 0..150 {
        at.wait(Duration::from_millis(5));
        let now = said(&mut at);
        assert!(now <= 3 * 256, "{now} in 5 ms");
        in_all += now;
    }
    assert!((WATCHED * 9 / 10..=3 * WATCHED).contains(&in_all), "{in_all}");
}

#[test]
fn a_connection_that_breaks_again_and_again_delays_no_other() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    at.take_mail();
    for _ in 0..20 {
        at.handle(Input::PeerBroken { node: node(3) });
        at.wait(Duration::from_millis(500));
    }
    let again = at.take_requests(id).len();
    assert!(again >= 2, "asked {again} times in 10 s");
}

#[test]
fn waiting_nodes_hear_of_a_loss_when_its_owner_does() {
    let (mut at, id, asked) = broken_after(|at, id| at.request(3, id, ask(4)));
    tell(&mut at, &asked, 6, InventoryPage { lost: vec![(id, 0)], ..InventoryPage::default() });
    let told = at.take_answers(id);
    assert!(told.contains(&(3, DirectoryAnswer::Lost)), "{told:?}");
}

/// The withdrawal of its part may be lost, and no digest repeats it.
#[test]
fn no_digest_is_relied_on_for_an_object_of_which_the_peer_has_a_part() {
    let (mut at, id, asked) = broken_after(|at, id| {
        at.request(3, id, announce(put_report(5, edition(5), SIZE)));
        let part = CopyReport { complete: false, ..received_report(5, edition(5), SIZE, None) };
        at.request(2, id, announce(part));
    });
    let query = asked.shards.iter().find(|query| query.shard == id.shard()).expect("it is about that");
    assert_eq!(query.digest, None);
    tell(&mut at, &asked, 6, InventoryPage::default());
    at.request(3, id, DirectoryRequest::Withdraw { seq: 6, edition: edition(5) });
    assert_eq!(at.status().entries, 0);
}

/// Its messages that end asks and subscriptions may be lost, and nothing else would ever end these.
#[test]
fn a_peer_with_a_new_connection_takes_back_asks_and_subscriptions() {
    let mut at = Node::among(3, STORE);
    let (ours, theirs) = (at.id_owned_by(ME), at.id_owned_by(2));
    at.request(2, ours, ask(4));
    at.request(2, ours, DirectoryRequest::Subscribe { bytes_max: None });
    at.take_mail();
    break_connection(&mut at, 2);
    let (copies, nodes) = (Vec::new(), Vec::new());
    let said = [DirectoryAnswer::NotYet { ask: 4, copies }, DirectoryAnswer::Holders { nodes }];
    let heard = at.take_answers(ours);
    assert!(said.iter().all(|said| heard.contains(&(2, said.clone()))), "{heard:?}");
    for answer in said {
        at.answer(2, theirs, answer);
    }
    assert_eq!(
        at.take_requests(theirs),
        [DirectoryRequest::CancelAsk { ask: 4 }, DirectoryRequest::Unsubscribe]
    );
}

/// In turns of some 256: a node that watches ten thousand objects must not delay others.
#[test]
fn open_asks_and_subscriptions_are_listed_a_few_at_a_time() {
    const COUNT: usize = 3000;
    let mut at = Node::among(2, STORE);
    let names = (0..).map(|number| object(&format!("object {number}")));
    let ours: Vec<_> = names.filter(|&id| at.owner_of(id) == ME).take(COUNT).collect();
    for &id in &ours {
        at.request(2, id, DirectoryRequest::Subscribe { bytes_max: None });
    }
    at.take_mail();
    let told = |at: &mut Node| {
        let is_it = |message: &PeerMessage| {
            matches!(message, PeerMessage::Answer { answer: DirectoryAnswer::Holders { .. }, .. })
        };
        at.take_mail().iter().filter(|(_, message)| is_it(message)).count()
    };
    at.handle(Input::PeerBroken { node: node(2) });
    let mut turns = vec![told(&mut at)];
    for _ in 0..1000 {
        at.wait(Duration::from_micros(100));
        turns.push(told(&mut at));
    }
    assert_eq!(turns.iter().sum::<usize>(), COUNT);
    assert!(turns.iter().all(|&told| told <= 300), "{:?}", turns.iter().max());
}

//! A node's inventory of the shards that it is asked about, page by page.

use std::time::Duration;

use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{
    Cursor, Deletion, DirectoryAnswer, DirectoryRequest, InventoryPage, PeerMessage, Scope, ShardQuery,
    SlotAssignment, Verdict,
};
use hoplite_types::{limits, mix64, Blob, Edition, Encoding, FoldOrder, Header, ObjectId, Shard, Stamp};

use crate::crashes::{reduction, root_assignment};
use crate::gets::lend;
use crate::node::{node, Node, ME};
use crate::puts::{announced, created, put};
use crate::recovery::id_moving;
use crate::recovery_anew::query;
use crate::requests::{
    accepted, announce, create, edition, get, object, put_report, put_small, reduce, SIZE,
};

const STORE: u64 = 8 << 20;

/// Items of one page at most.
const ITEMS: usize = 512;

/// One page, as it was sent.
#[derive(Debug)]
pub struct Told {
    pub since: u64,
    pub page: InventoryPage,
    pub unchanged: Vec<Shard>,
    pub next: Option<Cursor>,
    pub clock: Stamp,
}

impl Told {
    fn copies(&self) -> Vec<ObjectId> {
        self.page.copies.iter().map(|(id, _)| *id).collect()
    }
}

fn without_digest(shards: &[Shard]) -> Vec<ShardQuery> {
    shards.iter().map(|&shard| ShardQuery { shard, digest: None }).collect()
}

/// Node `from` asks for an inventory. Returns the page that it gets.
fn ask_for_page(
    at: &mut Node,
    from: u16,
    scope: Scope,
    shards: Vec<ShardQuery>,
    cursor: Option<Cursor>,
) -> Option<Told> {
    let clock = Stamp::from_ms(0);
    at.take_mail();
    at.hear(
        from,
        PeerMessage::InventoryRequest { round: 9, scope, shards, from: cursor, fresh: false, clock },
    );
    at.take_mail().into_iter().find_map(|(to, message)| match message {
        PeerMessage::Inventory { round: 9, since, page, unchanged, next, clock } if to == node(from) => {
            Some(Told { since, page, unchanged, next, clock })
        }
        _ => None,
    })
}

/// The inventory of these shards, sent to `from` as their owner, if it fits into one page.
pub fn take_inventory(at: &mut Node, from: u16, shards: &[Shard]) -> Told {
    let told =
        ask_for_page(at, from, Scope::All, without_digest(shards), None).expect("it is answered at once");
    assert_eq!(told.next, None);
    told
}

/// Page after page, as node 2 asks for them.
fn take_pages(at: &mut Node, shards: &[Shard]) -> Vec<Told> {
    let mut pages: Vec<Told> = Vec::new();
    loop {
        let cursor = pages.last().and_then(|page| page.next);
        let open = shards.iter().copied().filter(|&shard| cursor.is_none_or(|at| shard >= at.shard));
        let open: Vec<_> = open.collect();
        pages.push(ask_for_page(at, 2, Scope::All, without_digest(&open), cursor).expect("a page"));
        if pages.last().is_some_and(|page| page.next.is_none()) {
            return pages;
        }
    }
}

/// The first ids of a shard, in order.
pub fn ids_of(shard: Shard, count: usize) -> Vec<ObjectId> {
    let ids = (0u128..).map(|number| ObjectId(number.to_be_bytes()));
    ids.filter(|id| id.shard() == shard).take(count).collect()
}

/// Some shards of node 2, in order.
fn shards_of_2(at: &mut Node, count: usize) -> Vec<Shard> {
    let mut shards = Vec::new();
    for number in 0.. {
        let id = object(&format!("object {number}"));
        if at.owner_of(id) == 2 && !shards.contains(&id.shard()) {
            shards.push(id.shard());
        }
        if shards.len() == count {
            break;
        }
    }
    shards.sort_unstable();
    shards
}

#[test]
fn a_page_has_512_items_at_most_and_the_next_continues_behind_it() {
    let mut at = Node::among(2, STORE);
    let shard = shards_of_2(&mut at, 1)[0];
    let ids = ids_of(shard, ITEMS + 88);
    for &id in ids.iter().rev() {
        at.ask(put_small(id, 8));
    }
    let pages = take_pages(&mut at, &[shard]);
    assert_eq!(pages.iter().map(|told| told.page.copies.len()).collect::<Vec<_>>(), [ITEMS, 88]);
    assert_eq!(pages[0].next, Some(Cursor { shard, section: 0, after: ids[ITEMS - 1] }));
    assert_eq!(pages.iter().flat_map(Told::copies).collect::<Vec<_>>(), ids, "each once, in order");
    let last_seq = |told: &Told| told.page.copies.iter().map(|(_, report)| report.seq).max();
    assert!(pages[1].since > last_seq(&pages[0]).expect("it has some"));
    assert!(pages.iter().all(|told| told.page.copies.iter().all(|(_, report)| report.seq > told.since)));
}

#[test]
fn a_page_ends_in_the_middle_of_shards_as_well() {
    let mut at = Node::among(2, STORE);
    let shards = shards_of_2(&mut at, 4);
    let ids: Vec<_> = shards.iter().flat_map(|&shard| ids_of(shard, 300)).collect();
    for &id in &ids {
        at.ask(put_small(id, 8));
    }
    let pages = take_pages(&mut at, &shards);
    assert_eq!(pages.iter().map(|told| told.page.copies.len()).collect::<Vec<_>>(), [ITEMS, ITEMS, 176]);
    assert_eq!(pages.iter().flat_map(Told::copies).collect::<Vec<_>>(), ids);
    // Shards before the cursor that are named again are not sent again.
    let again = ask_for_page(&mut at, 2, Scope::All, without_digest(&shards), pages[1].next).expect("a page");
    assert_eq!(again.copies(), pages[2].copies());
}

#[test]
fn long_headers_make_short_pages() {
    let mut at = Node::among(2, STORE);
    let shard = shards_of_2(&mut at, 1)[0];
    let ids = ids_of(shard, 70);
    let descr = "x".repeat(8000);
    for &id in &ids {
        let header = Header { encoding: Encoding::Array, descr: descr.clone(), ..Header::default() };
        at.ask(Request::PutSmall { id, header, payload: Blob(vec![0; 8]), timeout_ms: None });
    }
    let pages = take_pages(&mut at, &[shard]);
    // The 33rd is the first with which it is 256 KiB.
    assert_eq!(pages.iter().map(|told| told.page.copies.len()).collect::<Vec<_>>(), [33, 33, 4]);
    assert_eq!(pages.iter().flat_map(Told::copies).collect::<Vec<_>>(), ids);
}

/// The last copies share a page with the first deletions.
#[test]
fn copies_claims_deletions_and_losses_follow_one_another_over_the_pages() {
    let mut at = Node::among(3, STORE);
    let shard = id_moving(&mut at, 3, 2, 3).shard();
    let ids = ids_of(shard, ITEMS + 8);
    let (copies, rest) = ids.split_at(ITEMS - 2);
    let (target, deleted, lost) = (rest[0], &rest[1..4], &rest[4..6]);
    at.hear(3, PeerMessage::BackupIds { ids: lost.to_vec() });
    at.crash(3);
    for &id in copies {
        at.ask(put_small(id, 8));
    }
    at.ask(reduce(target, &[object("never comes")], 1, FoldOrder::Arrival));
    for &id in deleted {
        at.answer(
            2,
            id,
            DirectoryAnswer::Deleted { deletion: Deletion { stamp: Stamp::from_ms(700), age_ms: 0 } },
        );
    }
    let pages = take_pages(&mut at, &[shard]);
    let counts = pages.iter().map(|Told { page, .. }| {
        [page.copies.len(), page.claims.len(), page.tombstones.len(), page.lost.len()]
    });
    assert_eq!(counts.collect::<Vec<_>>(), [[ITEMS - 2, 1, 1, 0], [0, 0, 2, 2]]);
    let tombstones = pages.iter().flat_map(|told| told.page.tombstones.clone());
    let tombstones: Vec<_> = tombstones.map(|(id, deletion)| (id, deletion.stamp)).collect();
    assert_eq!(tombstones, [0, 1, 2].map(|at| (deleted[at], Stamp::from_ms(700))));
    assert_eq!(pages[1].page.lost, [(lost[0], 0), (lost[1], 0)]);
}

#[test]
fn copies_are_reported_as_they_are() {
    let mut at = Node::among(3, STORE);
    let (written, read) = (at.id_owned_by(2), at.id_owned_by(3));
    let call = at.ask(create(written, SIZE));
    created(&at, call);
    at.ask(get(read));
    lend(&mut at, 3, read, 3, edition(5), SIZE);
    let mut shards = [written.shard(), read.shard()];
    shards.sort_unstable();
    let told = take_inventory(&mut at, 2, &shards).page.copies;
    let report = |id| &told.iter().find(|(about, _)| *about == id).expect("it is told").1;
    let (writing, part) = (report(written), report(read));
    assert_eq!(
        (writing.complete, writing.pinned, writing.upstream, writing.stamp),
        (false, true, None, None)
    );
    assert_eq!(writing.claim.map(|claim| claim.by), Some(node(ME)));
    assert_eq!((part.complete, part.pinned, part.upstream), (false, false, Some(node(3))));
    assert_eq!((part.edition, part.stamp, part.claim), (edition(5), Some(Stamp::from_ms(5)), None));
}

#[test]
fn partial_sums_are_not_reported() {
    let mut at = Node::among(2, STORE);
    let source = at.id_owned_by(ME);
    put(&mut at, source, SIZE);
    let sum = ObjectId::partial_sum(reduction(2), 0);
    let assignment = SlotAssignment { root: false, ..root_assignment(&mut at, sum, source) };
    at.hear(2, PeerMessage::AssignSlot { reduction: reduction(2), assignment });
    assert_eq!(at.folds.len(), 1);
    assert_eq!(take_inventory(&mut at, 2, &[sum.shard()]).copies(), []);
}

#[test]
fn claims_are_reported_with_their_stamps() {
    let mut at = Node::among(2, STORE);
    let target = at.id_owned_by(2);
    at.ask(reduce(target, &[object("never comes")], 1, FoldOrder::Arrival));
    let claim = at.take_requests(target).into_iter().find_map(|request| match request {
        DirectoryRequest::Claim { claim, .. } => Some(claim),
        _ => None,
    });
    let claim = claim.expect("it wants the target");
    assert_eq!(take_inventory(&mut at, 2, &[target.shard()]).page.claims, [(target, claim, None)]);
    let stamp = Stamp::from_ms(700);
    let verdict = Verdict::Accepted(stamp);
    at.answer(2, target, DirectoryAnswer::ClaimVerdict { claim, verdict });
    assert_eq!(take_inventory(&mut at, 2, &[target.shard()]).page.claims, [(target, claim, Some(stamp))]);
}

/// A copy's part of the digest of its shard. Both sides compute it: it is part of the protocol.
pub fn digest_of(id: ObjectId, edition: Edition, complete: bool, pinned: bool) -> u64 {
    let (low, high) = id.0.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let flags = u64::from(complete) | u64::from(pinned) << 1;
    let edition = mix64(edition.writing ^ mix64(u64::from(edition.attempt) << 2 | flags));
    mix64(word(low) ^ mix64(word(high) ^ edition))
}

#[test]
fn copies_of_a_shard_with_the_right_digest_are_not_reported() {
    let mut at = Node::among(2, STORE);
    let shards = shards_of_2(&mut at, 3);
    let [empty, right, wrong] = shards[..] else { unreachable!("three") };
    let [first, second] = ids_of(right, 2)[..] else { unreachable!("two") };
    let mut editions = Vec::new();
    for id in [first, second, ids_of(wrong, 1)[0]] {
        at.ask(put_small(id, 8));
        editions.push(announced(&mut at, id));
    }
    let gone = ids_of(right, 3)[2];
    at.answer(
        2,
        gone,
        DirectoryAnswer::Deleted { deletion: Deletion { stamp: Stamp::from_ms(700), age_ms: 0 } },
    );
    let digest = digest_of(first, editions[0], true, true) ^ digest_of(second, editions[1], true, true);
    let wrong_digest = digest_of(ids_of(wrong, 1)[0], editions[2], false, true);
    let digests = [(empty, 0), (right, digest), (wrong, wrong_digest)];
    let queries = digests.map(|(shard, digest)| ShardQuery { shard, digest: Some(digest) }).to_vec();
    let told = ask_for_page(&mut at, 2, Scope::All, queries, None).expect("a page");
    assert_eq!(told.unchanged, [empty, right]);
    assert_eq!(told.copies(), [ids_of(wrong, 1)[0]]);
    let tombstones: Vec<_> =
        told.page.tombstones.iter().map(|(id, deletion)| (*id, deletion.stamp)).collect();
    assert_eq!(tombstones, [(gone, Stamp::from_ms(700))], "deletions are told all the same");
}

/// They change all the time, and both sides hear of them by other ways.
#[test]
fn partial_copies_do_not_count_in_a_digest() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    lend(&mut at, 2, id, 3, edition(5), SIZE);
    let query = ShardQuery { shard: id.shard(), digest: Some(0) };
    let told = ask_for_page(&mut at, 2, Scope::All, vec![query], None).expect("a page");
    assert_eq!((told.unchanged, told.page.copies), (vec![id.shard()], vec![]));
}

/// A backup asks the owner for facts that no other node knows.
#[test]
fn a_backup_hears_of_deletions_losses_and_only_copies_of_the_owner() {
    let mut at = Node::among(3, STORE);
    let shard = at.id_owned_by(ME).shard();
    let ids = ids_of(shard, 4);
    put(&mut at, ids[0], 8);
    let report = put_report(1, edition(5), 8);
    at.request(3, ids[1], announce(report.clone()));
    at.request(2, ids[2], announce(report));
    at.crash(2);
    at.request(3, ids[3], DirectoryRequest::Delete { token: 1 });
    let told = ask_for_page(&mut at, 3, Scope::Past, without_digest(&[shard]), None).expect("a page");
    assert_eq!((told.copies(), told.next), (vec![], None));
    assert_eq!(told.page.tombstones.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [ids[3]]);
    let lost: Vec<_> = told.page.lost.iter().map(|(id, _)| *id).collect();
    assert_eq!(lost, [ids[0], ids[2]], "node 3 has the other one, and can tell of it itself");
    assert_eq!(at.owner_of(ids[0]), ME, "a backup is no owner");
}

#[test]
fn after_an_inventory_only_the_verdict_of_the_node_that_asked_counts() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let writing = announced(&mut at, id);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    take_inventory(&mut at, 3, &[id.shard()]);
    at.answer(2, id, accepted(writing));
    assert_eq!(at.reply(seal), None, "the new owner may not know of that");
    at.answer(3, id, accepted(writing));
    assert_eq!(at.reply(seal), Some(&Reply::Done));
}

/// An owner that asks twice for one page takes in the first answer: perhaps that of a moment before.
#[test]
fn a_copy_sealed_after_an_inventory_reported_it_complete_is_still_announced() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    let call = at.ask(create(id, SIZE));
    let copy = created(&at, call);
    let writing = announced(&mut at, id);
    let seal = at.ask(Request::Seal { copy, timeout_ms: None });
    let told = take_inventory(&mut at, 2, &[id.shard()]);
    assert!(told.page.copies[0].1.complete);
    at.take_mail();
    at.answer(2, id, accepted(writing));
    assert_eq!(at.reply(seal), Some(&Reply::Done));
    let said = at.take_requests(id);
    let complete = |said: &DirectoryRequest| match said {
        DirectoryRequest::Announce { report, .. } => report.complete && report.stamp.is_some(),
        _ => false,
    };
    assert!(said.iter().any(complete), "{said:?}");
}

/// It has heard of a change of members before us; or it was wrong.
#[test]
fn a_node_that_asks_for_all_counts_as_the_owner_for_a_while() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(2);
    at.ask(get(id));
    let asks = |at: &mut Node| {
        let mail = at.take_mail().into_iter();
        let asks = mail.filter_map(|(to, message)| match message {
            PeerMessage::Directory { id: about, request: DirectoryRequest::Ask { .. }, .. }
                if about == id =>
            {
                Some(to.addr.port())
            }
            _ => None,
        });
        asks.collect::<Vec<_>>()
    };
    assert_eq!(asks(&mut at), [2]);
    let shards = without_digest(&[id.shard()]);
    let (scope, clock) = (Scope::All, Stamp::from_ms(0));
    at.hear(3, PeerMessage::InventoryRequest { round: 1, scope, shards, from: None, fresh: false, clock });
    assert_eq!(asks(&mut at), [3], "open questions are asked again");
    at.wait(Duration::from_secs(12));
    assert_eq!(asks(&mut at).last(), Some(&2));
    assert_eq!(at.owner_of(id), 2);
}

/// A member that asks us knows us, and gave the shard up when it came to know us.
#[test]
fn a_member_that_asks_about_a_shard_of_ours_is_not_taken_for_its_owner() {
    let mut at = Node::among(3, STORE);
    let id = at.id_owned_by(ME);
    put(&mut at, id, SIZE);
    take_inventory(&mut at, 3, &[id.shard()]);
    assert_eq!((at.owner_of(id), at.status().entries), (ME, 1));
}

#[test]
fn every_inventory_carries_the_clock() {
    let mut at = Node::among(2, STORE);
    let before = take_inventory(&mut at, 2, &[]).clock;
    assert!(before.ms() >= at.now.as_millis() as u64);
    let clock = Stamp::from_ms(before.ms() + 3_600_000);
    let (round, scope, shards) = (1, Scope::All, Vec::new());
    at.hear(2, PeerMessage::InventoryRequest { round, scope, shards, from: None, fresh: false, clock });
    assert!(take_inventory(&mut at, 2, &[]).clock >= clock);
}

#[test]
fn a_request_about_a_shard_that_does_not_exist_is_not_answered() {
    let mut at = Node::among(2, STORE);
    for scope in [Scope::All, Scope::Past] {
        let none = Shard(limits::SHARDS as u16);
        assert!(ask_for_page(&mut at, 2, scope, without_digest(&[none]), None).is_none());
    }
}

#[test]
fn a_request_about_too_many_shards_is_not_answered() {
    let mut at = Node::among(2, STORE);
    let shards: Vec<_> = Shard::all().take(1025).collect();
    assert!(ask_for_page(&mut at, 2, Scope::Past, without_digest(&shards), None).is_none());
    assert!(ask_for_page(&mut at, 2, Scope::Past, without_digest(&shards[1..]), None).is_some());
}

/// A digest stands for copies alone.
#[test]
fn claims_are_reported_even_where_the_digest_is_right() {
    let mut at = Node::among(2, STORE);
    let target = at.id_owned_by(2);
    at.ask(reduce(target, &[object("never comes")], 1, FoldOrder::Arrival));
    at.take_mail();
    at.hear(2, query(target, false, Some(0)));
    let told = at.take_mail().into_iter().find_map(|(_, message)| match message {
        PeerMessage::Inventory { page, unchanged, .. } => Some((page.claims.len(), unchanged)),
        _ => None,
    });
    assert_eq!(told, Some((1, vec![target.shard()])));
}

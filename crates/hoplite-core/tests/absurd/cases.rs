//! Defects found by drawn messages, one test each.

use std::time::Duration;

use hoplite_core::io::{ClientId, Event};
use hoplite_core::{Input, Output};
use hoplite_types::client::{Gauge, Reply, Request, Status};
use hoplite_types::limits::CALLS_MAX;
use hoplite_types::peer::{
    Child, CopyReport, Cursor, Deletion, DirectoryAnswer, DirectoryRequest, InventoryPage, PeerMessage,
    Scope, ShardQuery, SlotAssignment, Source,
};
use hoplite_types::{
    Blob, Claim, Dtype, Edition, ErrorKind, Header, NodeId, ObjectId, Op, ReductionId, Shard, Stamp,
    TransferId,
};

use crate::draw::{node, Tape};
use crate::node::Node;

const EDITION: Edition = Edition { writing: 1, attempt: 0 };

fn named(name: &str) -> ObjectId {
    ObjectId::from_name(name)
}

fn said(at: &Node) -> impl Iterator<Item = (NodeId, &PeerMessage)> {
    at.outputs.iter().filter_map(|output| match output {
        Output::Peer { to, message, .. } => Some((*to, message)),
        _ => None,
    })
}

fn status(at: &mut Node) -> Status {
    match at.call(Request::Status) {
        Some(Reply::Status(status)) => status,
        other => panic!("{other:?}"),
    }
}

fn gauge(at: &mut Node, name: &str) -> Gauge {
    let gauges = status(at).gauges;
    gauges.into_iter().find(|gauge| gauge.name == name).expect("it is reported")
}

fn bad_messages(at: &mut Node) -> u64 {
    gauge(at, "messages of peers that cannot be right").met
}

/// Node 2 sends this message, which is rejected.
fn refuse(at: &mut Node, message: PeerMessage) {
    let before = bad_messages(at);
    let what = format!("{message:?}");
    at.hear(node(2), message);
    let is_it =
        |output: &Output| matches!(output, Output::Event(Event::BadMessage { from, .. }) if *from == node(2));
    assert!(at.outputs.len() == 1 && is_it(&at.outputs[0]), "{what}: {:?}", at.outputs);
    assert_eq!(bad_messages(at), before + 1, "{what}");
}

fn report(size: u64) -> CopyReport {
    CopyReport {
        seq: 1,
        edition: EDITION,
        size,
        header: Header::array(Dtype::U8, size),
        complete: true,
        pinned: true,
        upstream: None,
        leaving: false,
        stamp: Some(Stamp::from_ms(5)),
        claim: None,
    }
}

fn announce(report: CopyReport, payload: Option<Blob>) -> PeerMessage {
    let request = DirectoryRequest::Announce { report, payload, wants_verdict: false };
    PeerMessage::Directory { origin: node(2), hops: 0, id: named("x"), request }
}

fn deleted(stamp: Stamp) -> DirectoryAnswer {
    DirectoryAnswer::Deleted { deletion: Deletion { stamp, age_ms: 0 } }
}

fn reduction() -> ReductionId {
    ReductionId { coordinator: node(2), number: 1 }
}

/// An assignment that a node accepts: a root that waits for the stream of node 3.
fn assignment(slot: u32, out: ObjectId) -> SlotAssignment {
    SlotAssignment {
        slot,
        attempt: 0,
        out,
        edition: EDITION,
        root: true,
        size: 1 << 17,
        header: Header::default(),
        dtype: Dtype::F32,
        op: Op::Sum,
        divide_by: None,
        sources: Vec::new(),
        children: vec![child(7)],
        open: false,
        version: 1,
        lacking: false,
        offset: 0,
        part_bytes: None,
        claim: reduction().claim(),
        stamp: Stamp::from_ms(5),
        epoch: 0,
    }
}

fn child(slot: u32) -> Child {
    Child { slot, node: node(3), id: ObjectId::partial_sum(reduction(), slot), edition: EDITION }
}

fn sit(assignment: SlotAssignment) -> PeerMessage {
    PeerMessage::AssignSlot { reduction: reduction(), assignment }
}

/// A target that is put together from two parts of node 3.
fn allgather(slot: u32, out: ObjectId) -> SlotAssignment {
    SlotAssignment { part_bytes: Some(1 << 16), children: vec![child(7), child(8)], ..assignment(slot, out) }
}

fn inventory_request(shards: Vec<ShardQuery>, from: Option<Cursor>) -> PeerMessage {
    let (round, scope, fresh, clock) = (1, Scope::All, false, Stamp::from_ms(5));
    PeerMessage::InventoryRequest { round, scope, shards, from, fresh, clock }
}

#[test]
fn shards_that_do_not_exist() {
    let mut at = Node::new();
    let query = |number| ShardQuery { shard: Shard(number), digest: None };
    for number in [4096, u16::MAX] {
        refuse(&mut at, inventory_request(vec![query(number)], None));
        let cursor = Cursor { shard: Shard(number), section: 0, after: named("x") };
        refuse(&mut at, inventory_request(vec![query(0)], Some(cursor)));
    }
    refuse(&mut at, inventory_request(vec![query(0); 4097], None));
    at.hear(node(2), inventory_request(vec![query(4095)], None));
    assert!(said(&at).any(|(to, message)| to == node(2) && matches!(message, PeerMessage::Inventory { .. })));
}

#[test]
fn sizes_that_no_object_has() {
    let mut at = Node::new();
    for size in [u64::MAX, u64::MAX - 63, (1 << 47) + 1] {
        let header = Header::default();
        let answer = DirectoryAnswer::Lend {
            ask: 1,
            sender: node(3),
            edition: EDITION,
            size,
            header: header.clone(),
            stamp: None,
        };
        refuse(&mut at, PeerMessage::Answer { id: named("x"), answer });
        refuse(&mut at, announce(CopyReport { header, ..report(size) }, None));
    }
}

#[test]
fn headers_and_bytes_that_do_not_fit() {
    let mut at = Node::new();
    refuse(&mut at, announce(CopyReport { size: 101, ..report(100) }, None));
    refuse(&mut at, announce(report(65_537), Some(Blob(vec![0; 65_537]))));
    let (header, payload) = (Header::array(Dtype::F32, 3), Blob(vec![0; 11]));
    let answer = DirectoryAnswer::Inline { ask: 1, edition: EDITION, header, payload, stamp: None };
    refuse(&mut at, PeerMessage::Answer { id: named("x"), answer });
}

#[test]
fn lists_that_are_too_long() {
    let mut at = Node::new();
    refuse(&mut at, PeerMessage::Members { members: vec![(node(5), 0); 4097], partial: false });
    let answer = DirectoryAnswer::Holders { nodes: vec![node(5); 4097] };
    refuse(&mut at, PeerMessage::Answer { id: named("x"), answer });
    refuse(&mut at, PeerMessage::BackupIds { ids: vec![named("x"); 65_537] });
    let sources = vec![named("x"); 4097];
    let commit =
        PeerMessage::Commit { reduction: reduction(), attempt: 0, id: named("y"), edition: EDITION, sources };
    refuse(&mut at, commit);
}

#[test]
fn impossible_times() {
    let mut at = Node::new();
    let late = Stamp(Stamp::LATEST.0 + 1);
    refuse(&mut at, announce(CopyReport { stamp: Some(late), ..report(100) }, None));
    let answer = deleted(Stamp(u64::MAX));
    refuse(&mut at, PeerMessage::Answer { id: named("x"), answer });
}

#[test]
fn a_claim_in_the_name_of_another() {
    let mut at = Node::new();
    let claim = Claim { number: 1, by: node(4) };
    let request = DirectoryRequest::Claim { seq: 1, claim };
    refuse(&mut at, PeerMessage::Directory { origin: node(2), hops: 0, id: named("x"), request });
}

#[test]
fn impossible_slots() {
    let mut at = Node::new();
    let (out, source) = (named("out"), Source { id: named("source"), edition: EDITION });
    let good = assignment(1, out);
    let whole = allgather(1, out);
    let part = ObjectId::target_part(reduction(), 7);
    for bad in [
        SlotAssignment { part_bytes: Some(0), ..whole.clone() },
        SlotAssignment { part_bytes: Some(1 << 17), ..whole.clone() },
        SlotAssignment { size: 0, ..whole.clone() },
        SlotAssignment { sources: vec![source.clone()], ..whole.clone() },
        SlotAssignment { children: vec![child(7), child(7)], ..whole.clone() },
        SlotAssignment { out: part, ..whole },
        SlotAssignment { size: 1002, ..good.clone() },
        SlotAssignment { offset: 2, ..good.clone() },
        SlotAssignment { divide_by: Some(0), ..good.clone() },
        SlotAssignment { divide_by: Some(2), dtype: Dtype::I32, ..good.clone() },
        SlotAssignment { children: Vec::new(), ..good.clone() },
        SlotAssignment { sources: vec![source.clone(); 2], ..good.clone() },
        SlotAssignment { sources: vec![Source { id: out, ..source }], ..good.clone() },
        SlotAssignment { children: vec![Child { id: out, ..child(7) }], ..good.clone() },
    ] {
        refuse(&mut at, sit(bad));
    }
    at.hear(node(2), sit(good));
    assert!(at.outputs.iter().any(|output| matches!(output, Output::Fold { .. })), "{:?}", at.outputs);
}

#[test]
fn a_slot_that_becomes_another_in_one_attempt() {
    let mut at = Node::new();
    let told = SlotAssignment { open: true, ..assignment(1, named("out")) };
    at.hear(node(2), sit(told.clone()));
    let newer = SlotAssignment { version: 2, ..told };
    for other in [
        SlotAssignment { children: vec![child(8)], ..newer.clone() },
        SlotAssignment { size: 1 << 16, ..newer.clone() },
        SlotAssignment { root: false, out: ObjectId::partial_sum(reduction(), 1), ..newer.clone() },
    ] {
        refuse(&mut at, sit(other));
    }
    at.hear(node(2), sit(SlotAssignment { children: vec![child(7), child(8)], open: false, ..newer }));
    let amended = at.outputs.iter().any(|output| matches!(output, Output::AmendFold { .. }));
    assert!(amended, "{:?}", at.outputs);
}

#[test]
fn two_targets_of_the_same_parts() {
    let mut at = Node::new();
    at.hear(node(2), sit(allgather(1, named("one"))));
    // The first target loses its parts, and becomes useless.
    at.hear(node(2), sit(allgather(2, named("other"))));
    assert_eq!(at.objects().len(), 3, "one target and its two parts");
    at.hear(node(2), PeerMessage::ReleaseSlots { reduction: reduction() });
    assert!(at.objects().is_empty());
}

#[test]
fn a_part_that_is_deleted_takes_the_whole_with_it() {
    let mut at = Node::new();
    at.hear(node(2), sit(allgather(1, named("whole"))));
    let answer = deleted(Stamp::from_ms(9));
    at.hear(node(2), PeerMessage::Answer { id: ObjectId::target_part(reduction(), 7), answer });
    assert!(at.objects().is_empty());
}

#[test]
fn a_committed_target_that_is_deleted() {
    let mut at = Node::new();
    at.hear(node(2), sit(allgather(1, named("whole"))));
    let (id, edition) = (named("whole"), EDITION);
    at.hear(
        node(2),
        PeerMessage::Commit { reduction: reduction(), attempt: 0, id, edition, sources: Vec::new() },
    );
    let answer = deleted(Stamp::from_ms(9));
    at.hear(node(2), PeerMessage::Answer { id, answer });
    assert_eq!((at.objects(), status(&mut at).reductions), (Vec::new(), 0));
}

#[test]
fn a_pull_under_a_number_that_is_taken() {
    let mut at = Node::new();
    let id = named("x");
    let put =
        Request::PutSmall { id, header: Header::default(), payload: Blob(vec![0; 9]), timeout_ms: None };
    at.call(put);
    let copy = at.outputs.iter().find_map(|output| match output {
        Output::Open { copy, .. } => Some(*copy),
        _ => None,
    });
    let (_, edition) = at.core.identity_of(copy.expect("it is opened")).expect("it is open");
    let pull = PeerMessage::Pull { transfer: TransferId(1), id, edition, offset: 0, patient: false };
    let sends = |at: &Node| at.outputs.iter().filter(|output| matches!(output, Output::Send { .. })).count();
    at.hear(node(2), pull.clone());
    assert_eq!(sends(&at), 1);
    at.hear(node(2), pull);
    assert_eq!(sends(&at), 0, "it runs already");
    at.hear(node(2), PeerMessage::CancelPull { transfer: TransferId(1) });
    assert_eq!(status(&mut at).transfers, 0);
}

#[test]
fn an_inventory_without_end() {
    let mut at = Node::new();
    // A node that comes up is asked for its inventory.
    at.wait(Duration::from_millis(200));
    let asked = said(&at).find_map(|(to, message)| match message {
        PeerMessage::InventoryRequest { round, shards, .. } if to == node(2) => {
            Some((*round, shards[0].shard))
        }
        _ => None,
    });
    let (round, shard) = asked.expect("it is a new member");
    let next = Some(Cursor { shard, section: 2, after: named("x") });
    let clock = Stamp::from_ms(5);
    let page = PeerMessage::Inventory {
        round,
        since: 1,
        page: InventoryPage::default(),
        unchanged: Vec::new(),
        next,
        clock,
    };
    let asks_on = |at: &Node| said(at).any(|(_, m)| matches!(m, PeerMessage::InventoryRequest { .. }));
    at.hear(node(2), page.clone());
    assert!(asks_on(&at), "there is more");
    at.hear(node(2), page);
    assert!(!asks_on(&at), "it was here before");
}

#[test]
fn strangers_are_asked_for_nothing() {
    let mut at = Node::new();
    let stranger = node(7);
    at.hear(stranger, PeerMessage::ResyncRequest { epoch: u64::MAX });
    at.wait(Duration::from_millis(200));
    assert!(said(&at).all(|(to, _)| to != stranger));
    let id = named("x");
    assert_eq!(at.call(Request::Prefetch { ids: vec![id], nodes: vec![stranger] }), Some(Reply::Done));
    assert!(said(&at).all(|(to, _)| to != stranger), "{:?}", at.outputs);
    // As the object's owner, when the others are gone.
    at.wait(Duration::from_secs(20));
    let request = DirectoryRequest::Bring { nodes: vec![stranger] };
    at.hear(node(4), PeerMessage::Directory { origin: node(4), hops: 0, id, request });
    assert!(said(&at).all(|(to, _)| to != stranger), "{:?}", at.outputs);
}

#[test]
fn a_deletion_does_not_wait_for_strangers() {
    let mut at = Node::new();
    at.wait(Duration::from_secs(20));
    let id = named("x");
    let (request, stranger) = (DirectoryRequest::Subscribe { bytes_max: None }, node(7));
    at.hear(stranger, PeerMessage::Directory { origin: stranger, hops: 0, id, request });
    let answer = deleted(Stamp::from_ms(20_000));
    at.hear(node(4), PeerMessage::Answer { id, answer });
    assert!(said(&at).any(|(to, message)| to == stranger && matches!(message, PeerMessage::Answer { .. })));
    assert_eq!(gauge(&mut at, "deletes under way").value, 0);
}

#[test]
fn a_node_does_not_receive_from_itself() {
    let mut at = Node::new();
    let asked = (0..20).find_map(|number| {
        let id = named(&number.to_string());
        let get = Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: false };
        at.handle(Input::Client { client: ClientId(1), call: number, request: get });
        said(&at).find_map(|(to, message)| match message {
            PeerMessage::Directory { request: DirectoryRequest::Ask { ask, .. }, .. } => Some((id, to, *ask)),
            _ => None,
        })
    });
    let (id, owner, ask) = asked.expect("another one owns one of them");
    let (sender, header) = (node(1), Header::default());
    let answer = DirectoryAnswer::Lend { ask, sender, edition: EDITION, size: 1 << 17, header, stamp: None };
    at.hear(owner, PeerMessage::Answer { id, answer });
    assert_eq!((bad_messages(&mut at), at.objects()), (1, Vec::new()));
}

#[test]
fn an_object_with_a_stamp_in_the_future_can_be_deleted() {
    let mut at = Node::new();
    let id = named("x");
    let report = CopyReport { stamp: Some(Stamp::LATEST), ..report(100) };
    let request =
        DirectoryRequest::Announce { report, payload: Some(Blob(vec![0; 100])), wants_verdict: false };
    // As its owner, when the others are gone.
    at.wait(Duration::from_secs(20));
    at.hear(node(4), PeerMessage::Directory { origin: node(4), hops: 0, id, request });
    assert_eq!(at.objects(), [id], "a small one is kept beside its entry");
    assert_eq!(at.call(Request::Delete { ids: vec![id], timeout_ms: None }), Some(Reply::Done));
    assert!(at.objects().is_empty() && at.core.remembers_deletion(id));
    at.wait(Duration::from_secs(700));
    assert!(!at.core.remembers_deletion(id), "its ten minutes are over");
}

#[test]
fn far_too_many_prefetches() {
    let mut at = Node::new();
    let request = Request::Prefetch { ids: vec![named("x"); 65_536], nodes: vec![node(2); 65_536] };
    match at.call(request) {
        Some(Reply::Failed(error)) => assert_eq!(error.kind, ErrorKind::BadArgument),
        other => panic!("{other:?}"),
    }
    assert_eq!(at.outputs.len(), 1);
}

/// A partial sum, by a guessed id.
fn partial_sum() -> (ObjectId, SlotAssignment) {
    let out = ObjectId::partial_sum(reduction(), 1);
    (out, SlotAssignment { root: false, ..assignment(1, out) })
}

fn assert_fetches_nothing(at: &Node) {
    let left: Vec<_> = at.core.leftovers().into_iter().filter(|left| left.starts_with("fetches")).collect();
    assert!(left.is_empty(), "{left:#?}");
}

#[test]
fn far_too_many_calls() {
    let mut at = Node::new();
    let client = ClientId(1);
    let get = |id| Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: false };
    for call in 0..CALLS_MAX as u64 {
        at.handle(Input::Client { client, call, request: get(named("x")) });
    }
    let refused = |at: &Node| {
        at.outputs.iter().any(|output| match output {
            Output::Reply { reply: Reply::Failed(error), .. } => error.kind == ErrorKind::LimitReached,
            _ => false,
        })
    };
    assert!(!refused(&at));
    at.handle(Input::Client { client, call: u64::MAX, request: get(named("y")) });
    assert!(refused(&at));
    let Gauge { value, limit, met, .. } = gauge(&mut at, "open calls of one client");
    assert_eq!((value, limit, met), (CALLS_MAX as u64, CALLS_MAX as u64, 1));
    // Other clients are not affected, and a call that ends makes space for another.
    assert!(at.call(get(named("y"))).is_none());
    at.handle(Input::Client { client, call: u64::MAX, request: Request::Cancel { call: 7 } });
    at.handle(Input::Client { client, call: u64::MAX, request: get(named("y")) });
    assert!(!refused(&at));
    // Calls are forgotten a few at a time, so that no other caller waits for long.
    at.handle(Input::ClientGone { client });
    assert!(gauge(&mut at, "open calls of one client").value > 1);
    at.wait(Duration::from_secs(1));
    assert_eq!(gauge(&mut at, "open calls of one client").value, 1);
}

#[test]
fn a_get_of_a_partial_sum() {
    let mut at = Node::new();
    let (id, assignment) = partial_sum();
    let get = Request::Get { id, timeout_ms: Some(100), partial: false, fail_if_lost: false };
    at.handle(Input::Client { client: ClientId(1), call: 1, request: get });
    at.hear(node(2), sit(assignment));
    at.wait(Duration::from_secs(1));
    at.hear(node(2), PeerMessage::ReleaseSlots { reduction: reduction() });
    assert_fetches_nothing(&at);
}

#[test]
fn a_prefetch_of_a_partial_sum() {
    let mut at = Node::new();
    let (id, assignment) = partial_sum();
    let prefetch = Request::Prefetch { ids: vec![id], nodes: Vec::new() };
    at.call(prefetch.clone());
    at.hear(node(2), sit(assignment));
    at.end_a_job(&mut Tape::new(&[0, 0]));
    at.call(prefetch);
    at.hear(node(2), PeerMessage::ReleaseSlots { reduction: reduction() });
    assert_fetches_nothing(&at);
}

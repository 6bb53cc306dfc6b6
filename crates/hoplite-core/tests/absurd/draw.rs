//! Draws every message that a peer or client can send, from a tape of numbers. A shorter tape gives fewer messages, so
//! a failing case shrinks.
//!
//! Ids, nodes and editions come from small pools, so that messages relate to each other. Numbers are sensible ones and
//! those at which arithmetic breaks.

use std::net::{Ipv4Addr, SocketAddr};

use hoplite_types::client::{Location, Request};
use hoplite_types::peer::{
    Child, CopyReport, Cursor, Deletion, DirectoryAnswer, DirectoryRequest, InventoryPage, PeerMessage,
    Scope, ShardQuery, SlotAssignment, SlotFailure, Source, Verdict,
};
use hoplite_types::{
    Blob, Claim, CopyId, Dtype, Edition, Encoding, FoldOrder, Header, NodeId, ObjectId, Op, ReductionId,
    Shard, Stamp, TransferId,
};

/// Where arithmetic breaks, and the limits with their neighbours.
const ABSURD: [u64; 20] = [
    u64::MAX,
    u64::MAX - 63,
    1 << 63,
    (1 << 63) - 1,
    1 << 62,
    (1 << 47) + 1,
    1 << 47,
    1 << 32,
    u32::MAX as u64,
    1 << 31,
    65_537,
    65_536,
    5000,
    4097,
    4096,
    4095,
    255,
    65,
    64,
    63,
];

/// Sizes of objects that a node of this test could hold, and one that it could not.
const SIZES: [u64; 6] = [1 << 17, 8, 1000, 0, 1 << 20, 1 << 40];

pub struct Tape<'a>(std::slice::Iter<'a, u64>);

impl<'a> Tape<'a> {
    pub fn new(numbers: &'a [u64]) -> Self {
        Tape(numbers.iter())
    }

    pub fn is_over(&self) -> bool {
        self.0.len() == 0
    }

    fn next(&mut self) -> u64 {
        self.0.next().copied().unwrap_or_default()
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    /// A small number that names something, or an absurd one.
    pub fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => self.one_of(&ABSURD),
            _ => self.below(50) as u64,
        }
    }

    fn number32(&mut self) -> u32 {
        match self.below(6) {
            0 => self.one_of(&ABSURD) as u32,
            _ => self.below(3) as u32,
        }
    }

    fn size(&mut self) -> u64 {
        match self.below(6) {
            0 => self.one_of(&ABSURD),
            _ => self.one_of(&SIZES),
        }
    }

    fn option<T>(&mut self, draw: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flag().then(|| draw(self))
    }

    /// A few of them.
    fn few<T>(&mut self, mut draw: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(4)).map(|_| draw(self)).collect()
    }

    /// A few of them, or far too many: as many as one frame has.
    fn list<T: Clone>(&mut self, mut draw: impl FnMut(&mut Self) -> T) -> Vec<T> {
        match self.below(40) {
            0 => vec![draw(self); self.one_of(&[65_537, 5000, 4097])],
            _ => self.few(draw),
        }
    }
}

pub fn node(number: u16) -> NodeId {
    NodeId { addr: ([127, 0, 0, 1], number).into(), incarnation: 1 }
}

/// Not the tested node: messages in its name are lies.
pub fn other_node(tape: &mut Tape) -> NodeId {
    match any_node(tape) {
        me if me == node(1) => node(2),
        other => other,
    }
}

pub fn any_node(tape: &mut Tape) -> NodeId {
    match tape.below(12) {
        0 => NodeId { addr: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), incarnation: tape.number() },
        1 => NodeId { incarnation: tape.number(), ..node(2) },
        number => node(1 + number as u16 % 4),
    }
}

fn object(tape: &mut Tape) -> ObjectId {
    match tape.below(10) {
        0 => ObjectId::partial_sum(reduction(tape), tape.number32()),
        1 => ObjectId::target_part(reduction(tape), tape.number32()),
        2 => ObjectId::brought_source(reduction(tape), tape.below(3)),
        name => ObjectId::from_name(&name.to_string()),
    }
}

fn edition(tape: &mut Tape) -> Edition {
    match tape.below(8) {
        0 => Edition { writing: tape.number(), attempt: tape.number32() },
        1 => Edition { writing: 2, attempt: 0 },
        _ => Edition { writing: 1, attempt: 0 },
    }
}

fn reduction(tape: &mut Tape) -> ReductionId {
    match tape.below(4) {
        0 => ReductionId { coordinator: any_node(tape), number: tape.number() },
        _ => ReductionId { coordinator: node(2), number: 1 },
    }
}

fn reduction_of(tape: &mut Tape, coordinator: NodeId) -> ReductionId {
    let number = if tape.below(4) == 0 { tape.number() } else { 1 };
    ReductionId { coordinator, number }
}

fn claim(tape: &mut Tape) -> Claim {
    match tape.flag() {
        true => reduction(tape).claim(),
        false => Claim { number: tape.number(), by: any_node(tape) },
    }
}

fn stamp(tape: &mut Tape) -> Stamp {
    match tape.below(6) {
        0 => Stamp(tape.one_of(&ABSURD)),
        1 => Stamp::LATEST,
        _ => Stamp::from_ms(tape.number()),
    }
}

fn deletion(tape: &mut Tape) -> Deletion {
    Deletion { stamp: stamp(tape), age_ms: tape.number() }
}

fn shard(tape: &mut Tape) -> Shard {
    match tape.below(4) {
        0 => Shard(tape.one_of(&ABSURD) as u16),
        _ => object(tape).shard(),
    }
}

fn dtype(tape: &mut Tape) -> Dtype {
    tape.one_of(&[Dtype::U8, Dtype::F32, Dtype::F64, Dtype::Bf16, Dtype::I64])
}

/// Mostly one that an object of this size can have.
fn header(tape: &mut Tape, size: u64) -> Header {
    match tape.below(8) {
        0 => Header {
            encoding: tape.one_of(&[Encoding::Array, Encoding::Pickle, Encoding::Bytes]),
            dtype: tape.option(dtype),
            shape: match tape.below(4) {
                0 => vec![1; 65],
                _ => tape.few(Tape::size),
            },
            descr: "x".repeat(tape.one_of(&[1, 0, 9000])),
        },
        1 => Header::default(),
        _ => {
            let dtype = dtype(tape);
            Header::array(dtype, size / dtype.size() as u64)
        }
    }
}

/// Mostly as long as the object.
fn payload(tape: &mut Tape, size: u64) -> Blob {
    let bytes = match tape.below(6) {
        0 => tape.one_of(&[0, 65_537, 7]),
        _ => size.min(65_536) as usize,
    };
    Blob(vec![1; bytes])
}

fn verdict(tape: &mut Tape) -> Verdict {
    match tape.below(5) {
        0 => Verdict::Accepted(stamp(tape)),
        1 => Verdict::Deleted,
        2 => Verdict::OtherKind(tape.size()),
        3 => Verdict::Exists(stamp(tape)),
        _ => Verdict::Abandoned,
    }
}

fn report(tape: &mut Tape) -> CopyReport {
    let size = tape.size();
    CopyReport {
        seq: tape.number(),
        edition: edition(tape),
        size,
        header: header(tape, size),
        complete: tape.flag(),
        pinned: tape.flag(),
        upstream: tape.option(any_node),
        leaving: tape.flag(),
        stamp: tape.option(stamp),
        claim: tape.option(claim),
    }
}

fn location(tape: &mut Tape) -> Location {
    Location { node: any_node(tape), complete: tape.flag(), pinned: tape.flag(), edition: edition(tape) }
}

fn cursor(tape: &mut Tape) -> Cursor {
    Cursor { shard: shard(tape), section: tape.number() as u8, after: object(tape) }
}

fn page(tape: &mut Tape) -> InventoryPage {
    InventoryPage {
        copies: tape.few(|tape| (object(tape), report(tape))),
        claims: tape.list(|tape| (object(tape), claim(tape), tape.option(stamp))),
        tombstones: tape.list(|tape| (object(tape), deletion(tape))),
        lost: tape.list(|tape| (object(tape), tape.number())),
    }
}

fn child(tape: &mut Tape) -> Child {
    Child { slot: tape.number32(), node: any_node(tape), id: object(tape), edition: edition(tape) }
}

fn assignment(tape: &mut Tape, reduction: ReductionId) -> SlotAssignment {
    let (size, dtype) = (tape.size(), dtype(tape));
    let (slot, root) = (tape.number32(), tape.flag());
    let sources = tape.list(|tape| Source { id: object(tape), edition: edition(tape) });
    let children = tape.list(child);
    let odd = tape.size();
    let parts = tape.one_of(&[None, None, None, Some(0), Some(odd), Some(size), Some(size / 2)]);
    SlotAssignment {
        slot,
        attempt: tape.number32(),
        out: if root { object(tape) } else { ObjectId::partial_sum(reduction, slot) },
        edition: edition(tape),
        root,
        size,
        header: match tape.flag() {
            true => Header::default(),
            false => header(tape, size),
        },
        dtype,
        op: tape.one_of(&[Op::Sum, Op::Mean, Op::Max]),
        divide_by: tape.option(Tape::number32),
        sources: if parts.is_some() && tape.flag() { Vec::new() } else { sources },
        children,
        open: tape.flag(),
        version: tape.number32(),
        lacking: tape.flag(),
        offset: if tape.flag() { 0 } else { tape.size() },
        part_bytes: parts,
        claim: reduction.claim(),
        stamp: stamp(tape),
        epoch: tape.number(),
    }
}

fn request_to_owner(tape: &mut Tape, origin: NodeId) -> DirectoryRequest {
    let claim = |tape: &mut Tape| match tape.below(8) {
        0 => claim(tape),
        _ => Claim { number: tape.number(), by: origin },
    };
    match tape.below(13) {
        0 => {
            let report = report(tape);
            let payload = tape.option(|tape| payload(tape, report.size));
            DirectoryRequest::Announce { report, payload, wants_verdict: tape.flag() }
        }
        1 => DirectoryRequest::Withdraw { seq: tape.number(), edition: edition(tape) },
        2 => DirectoryRequest::Ask {
            ask: tape.number(),
            have: tape.option(edition),
            failed: tape.option(any_node),
        },
        3 => DirectoryRequest::CancelAsk { ask: tape.number() },
        4 => DirectoryRequest::Subscribe { bytes_max: tape.option(Tape::size) },
        5 => DirectoryRequest::Unsubscribe,
        6 => DirectoryRequest::Delete { token: tape.number() },
        7 => DirectoryRequest::Locate { token: tape.number() },
        8 => DirectoryRequest::Claim { seq: tape.number(), claim: claim(tape) },
        9 => DirectoryRequest::ReleaseClaim { claim: claim(tape), made: tape.flag() },
        10 => DirectoryRequest::MarkLost { claim: claim(tape) },
        11 => DirectoryRequest::Bring { nodes: tape.list(any_node) },
        _ => DirectoryRequest::PinRefused,
    }
}

fn answer_of_owner(tape: &mut Tape) -> DirectoryAnswer {
    match tape.below(14) {
        0 => DirectoryAnswer::Verdict { edition: edition(tape), verdict: verdict(tape) },
        1 | 2 => {
            let size = tape.size();
            DirectoryAnswer::Lend {
                ask: tape.number(),
                sender: any_node(tape),
                edition: edition(tape),
                size,
                header: header(tape, size),
                stamp: tape.option(stamp),
            }
        }
        3 => {
            let size = tape.size();
            DirectoryAnswer::Inline {
                ask: tape.number(),
                edition: edition(tape),
                header: header(tape, size),
                payload: payload(tape, size),
                stamp: tape.option(stamp),
            }
        }
        4 => DirectoryAnswer::Deleted { deletion: deletion(tape) },
        5 => DirectoryAnswer::Lost,
        6 => {
            let report = report(tape);
            let payload = tape.option(|tape| payload(tape, report.size));
            DirectoryAnswer::Copy { node: any_node(tape), report, payload }
        }
        7 => DirectoryAnswer::CopyGone { node: any_node(tape) },
        8 => DirectoryAnswer::DeleteDone { token: tape.number(), deletion: tape.option(deletion) },
        9 => DirectoryAnswer::Located {
            token: tape.number(),
            size: tape.option(Tape::size),
            copies: tape.list(location),
            deleted: tape.flag(),
        },
        10 => DirectoryAnswer::Pin,
        11 => DirectoryAnswer::AskAgain { edition: edition(tape), sender: any_node(tape) },
        12 => match tape.flag() {
            true => DirectoryAnswer::NotYet { ask: tape.number(), copies: tape.list(location) },
            false => DirectoryAnswer::Holders { nodes: tape.list(any_node) },
        },
        _ => DirectoryAnswer::ClaimVerdict { claim: claim(tape), verdict: verdict(tape) },
    }
}

/// A message that `from` may send. It may lie, but not in the name of other nodes.
pub fn message(tape: &mut Tape, from: NodeId) -> PeerMessage {
    let transfer = |tape: &mut Tape| TransferId(tape.number());
    match tape.below(32) {
        0..=3 => {
            let origin = other_node(tape);
            let (hops, id) = (tape.number() as u8, object(tape));
            PeerMessage::Directory { origin, hops, id, request: request_to_owner(tape, origin) }
        }
        4..=6 => PeerMessage::Answer { id: object(tape), answer: answer_of_owner(tape) },
        7 => PeerMessage::Pull {
            transfer: transfer(tape),
            id: object(tape),
            edition: edition(tape),
            offset: tape.size(),
            patient: tape.flag(),
        },
        8 => PeerMessage::CancelPull { transfer: transfer(tape) },
        9 => PeerMessage::PullRefused { transfer: transfer(tape) },
        10..=12 => {
            let reduction = reduction_of(tape, from);
            PeerMessage::AssignSlot { reduction, assignment: assignment(tape, reduction) }
        }
        13 => PeerMessage::SlotFailed {
            reduction: reduction(tape),
            slot: tape.number32(),
            attempt: tape.number32(),
            failure: match tape.below(6) {
                0 => SlotFailure::Child(tape.number32()),
                1 => SlotFailure::Source(object(tape)),
                2 => SlotFailure::NoSpace,
                3 => SlotFailure::Taken,
                4 => SlotFailure::LetGo(tape.number()),
                _ => SlotFailure::Refused(verdict(tape)),
            },
        },
        14 => PeerMessage::SlotHeld {
            reduction: reduction(tape),
            slot: tape.number32(),
            attempt: tape.number32(),
        },
        15 => PeerMessage::RootDone {
            reduction: reduction(tape),
            slot: tape.number32(),
            attempt: tape.number32(),
        },
        16 => PeerMessage::Commit {
            reduction: reduction_of(tape, from),
            attempt: tape.number32(),
            id: object(tape),
            edition: edition(tape),
            sources: tape.list(object),
        },
        17 => PeerMessage::ReleaseSlots { reduction: reduction(tape) },
        18 => PeerMessage::Prefetch { id: object(tape) },
        19 => PeerMessage::Ping { sent_ns: tape.number() },
        20 => PeerMessage::Pong { sent_ns: tape.number() },
        21 => PeerMessage::Committed { reduction: reduction(tape), sealed: tape.flag() },
        22 => PeerMessage::Check { transfer: transfer(tape) },
        23 => PeerMessage::Checked { transfer: transfer(tape), watermark: tape.size() },
        24 => PeerMessage::ResyncRequest { epoch: tape.number() },
        25 => PeerMessage::DeletionAck { id: object(tape) },
        26 => PeerMessage::BackupIds { ids: tape.list(object) },
        27 => PeerMessage::InventoryRequest {
            round: tape.number(),
            scope: tape.one_of(&[Scope::All, Scope::Past]),
            shards: tape.list(|tape| ShardQuery { shard: shard(tape), digest: tape.option(Tape::number) }),
            from: tape.option(cursor),
            fresh: tape.flag(),
            clock: stamp(tape),
        },
        28 => PeerMessage::Inventory {
            round: tape.number(),
            since: tape.number(),
            page: page(tape),
            unchanged: tape.list(shard),
            next: tape.option(cursor),
            clock: stamp(tape),
        },
        29 => match tape.flag() {
            true => PeerMessage::MembersRequest,
            false => PeerMessage::Members {
                members: tape.list(|tape| (any_node(tape), tape.number32())),
                partial: tape.flag(),
            },
        },
        30 => PeerMessage::SlotNeedsSpace {
            reduction: reduction(tape),
            slot: tape.number32(),
            attempt: tape.number32(),
        },
        _ => match tape.below(5) {
            0 => PeerMessage::Goodbye,
            1 => PeerMessage::ReleaseSlot {
                reduction: reduction(tape),
                slot: tape.number32(),
                attempt: tape.number32(),
            },
            _ => PeerMessage::Preempt {
                reduction: reduction(tape),
                slot: tape.number32(),
                attempt: tape.number32(),
            },
        },
    }
}

pub fn request(tape: &mut Tape) -> Request {
    let timeout_ms = tape.option(Tape::number);
    let copy = |tape: &mut Tape| CopyId(tape.number());
    match tape.below(16) {
        0 | 1 => {
            let size = tape.size();
            Request::Create {
                id: object(tape),
                size,
                header: header(tape, size),
                timeout_ms,
                keep: tape.flag(),
            }
        }
        2 => {
            let size = tape.size();
            let (header, payload) = (header(tape, size), payload(tape, size));
            Request::PutSmall { id: object(tape), header, payload, timeout_ms }
        }
        3 => Request::Progress { copy: copy(tape), watermark: tape.size() },
        4 => Request::Seal { copy: copy(tape), timeout_ms },
        5 => Request::Abort { copy: copy(tape) },
        6 | 7 => {
            Request::Get { id: object(tape), timeout_ms, partial: tape.flag(), fail_if_lost: tape.flag() }
        }
        8 => Request::Release { copy: copy(tape) },
        9 => Request::Delete { ids: tape.list(object), timeout_ms },
        10 => Request::Reduce {
            target: object(tape),
            sources: tape.list(object),
            num_objects: tape.number32(),
            op: tape.one_of(&[Op::Sum, Op::Mean]),
            order: tape.one_of(&[FoldOrder::Arrival, FoldOrder::Fixed]),
            timeout_ms,
            to_sources: tape.flag(),
        },
        11 => Request::Wait {
            ids: tape.list(object),
            count: tape.number32(),
            timeout_ms,
            fail_if_lost: tape.flag(),
            known_lost: tape.list(object),
        },
        12 => Request::Prefetch { ids: tape.list(object), nodes: tape.list(any_node) },
        13 => Request::Locate { id: object(tape), timeout_ms },
        14 => Request::Cancel { call: tape.number() },
        _ => match tape.flag() {
            true => Request::Status,
            false => Request::Hello { version: tape.number32(), pid: tape.number32() },
        },
    }
}

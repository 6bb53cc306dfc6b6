//! Constructors of requests, reports and editions.

use hoplite_types::client::Request;
use hoplite_types::peer::{CopyReport, Deletion, DirectoryAnswer, DirectoryRequest, Verdict};
use hoplite_types::{Blob, Claim, Dtype, Edition, FoldOrder, Header, NodeId, ObjectId, Op, Stamp};

use crate::node::{node, Node};

/// Large enough to be streamed.
pub const SIZE: u64 = 1 << 20;

/// Small enough to travel inside messages.
pub const SMALL: u64 = 1000;

pub fn object(name: &str) -> ObjectId {
    ObjectId::from_name(name)
}

pub fn array(bytes: u64) -> Header {
    Header::array(Dtype::U8, bytes)
}

pub fn edition(writing: u64) -> Edition {
    Edition { writing, attempt: 0 }
}

pub fn create(id: ObjectId, size: u64) -> Request {
    Request::Create { id, size, header: array(size), timeout_ms: None, keep: false }
}

/// With a view of its memory.
pub fn create_kept(id: ObjectId, size: u64) -> Request {
    Request::Create { id, size, header: array(size), timeout_ms: None, keep: true }
}

pub fn put_small(id: ObjectId, size: u64) -> Request {
    let payload = Blob(vec![0; size as usize]);
    Request::PutSmall { id, header: array(size), payload, timeout_ms: None }
}

pub fn get(id: ObjectId) -> Request {
    Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: false }
}

pub fn get_partial(id: ObjectId) -> Request {
    Request::Get { id, timeout_ms: None, partial: true, fail_if_lost: false }
}

pub fn delete(id: ObjectId) -> Request {
    Request::Delete { ids: vec![id], timeout_ms: None }
}

pub fn reduce(target: ObjectId, sources: &[ObjectId], k: u32, order: FoldOrder) -> Request {
    let sources = sources.to_vec();
    Request::Reduce {
        target,
        sources,
        num_objects: k,
        op: Op::Sum,
        order,
        timeout_ms: None,
        to_sources: false,
    }
}

/// When owners have accepted a writing, in these tests: before they begin, and later for larger numbers.
pub fn stamp_of(edition: Edition) -> Stamp {
    Stamp::from_ms(edition.writing % 1000)
}

/// The claim under which a client of that node writes.
pub fn claim_of(by: u16, edition: Edition) -> Claim {
    Claim { number: edition.writing, by: node(by) }
}

/// A report of a pinned copy: a put that an owner has accepted.
pub fn put_report(seq: u64, edition: Edition, size: u64) -> CopyReport {
    CopyReport {
        seq,
        edition,
        size,
        header: array(size),
        complete: true,
        pinned: true,
        upstream: None,
        leaving: false,
        stamp: Some(stamp_of(edition)),
        claim: None,
    }
}

/// The report of node `by` of what it is writing, which an owner has accepted.
pub fn writing_report(by: u16, seq: u64, edition: Edition, size: u64) -> CopyReport {
    let claim = Some(claim_of(by, edition));
    CopyReport { complete: false, claim, ..put_report(seq, edition, size) }
}

/// The same report of node `by` before any owner has accepted its writing.
pub fn unaccepted(by: u16, report: CopyReport) -> CopyReport {
    CopyReport { stamp: None, claim: Some(claim_of(by, report.edition)), ..report }
}

/// A report of a copy that is, or was, received.
pub fn received_report(seq: u64, edition: Edition, size: u64, upstream: Option<NodeId>) -> CopyReport {
    let complete = upstream.is_none();
    CopyReport { complete, pinned: false, upstream, ..put_report(seq, edition, size) }
}

pub fn announce(report: CopyReport) -> DirectoryRequest {
    DirectoryRequest::Announce { report, payload: None, wants_verdict: false }
}

/// A node asks whether what it writes may be the object's content.
pub fn announce_unaccepted(by: u16, report: CopyReport) -> DirectoryRequest {
    DirectoryRequest::Announce { report: unaccepted(by, report), payload: None, wants_verdict: true }
}

pub fn ask(ask: u64) -> DirectoryRequest {
    DirectoryRequest::Ask { ask, have: None, failed: None }
}

/// An owner's answer that lends `sender` for this edition.
pub fn lend_of(ask: u64, sender: u16, edition: Edition, size: u64) -> DirectoryAnswer {
    let (header, stamp) = (array(size), Some(stamp_of(edition)));
    DirectoryAnswer::Lend { ask, sender: node(sender), edition, size, header, stamp }
}

/// The object itself, in answer to an ask.
pub fn inline_of(ask: u64, edition: Edition, size: u64) -> DirectoryAnswer {
    let payload = Blob(vec![1; size as usize]);
    DirectoryAnswer::Inline { ask, edition, header: array(size), payload, stamp: Some(stamp_of(edition)) }
}

/// An owner's verdict on a copy of that edition.
pub fn verdict(edition: Edition, verdict: Verdict) -> DirectoryAnswer {
    DirectoryAnswer::Verdict { edition, verdict }
}

pub fn accepted(edition: Edition) -> DirectoryAnswer {
    verdict(edition, Verdict::Accepted(stamp_of(edition)))
}

/// An owner's answer that the object was deleted a moment ago, after all writings.
pub fn deleted(at: &Node) -> DirectoryAnswer {
    DirectoryAnswer::Deleted {
        deletion: Deletion { stamp: Stamp::from_ms(at.now.as_millis() as u64 + 1000), age_ms: 0 },
    }
}

//! Requests, reports and editions as tests write them.

use hoplite_words::client::Request;
use hoplite_words::peer::{CopyReport, DirectoryRequest};
use hoplite_words::{Dtype, Edition, FoldOrder, Header, NodeId, ObjectId, Op};

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
    Request::Create { id, size, header: array(size), timeout_ms: None }
}

pub fn put_small(id: ObjectId, size: u64) -> Request {
    let payload = hoplite_words::Blob(vec![0; size as usize]);
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

/// A report of a pinned copy: a put.
pub fn put_report(seq: u64, edition: Edition, size: u64, complete: bool) -> CopyReport {
    CopyReport {
        seq,
        edition,
        size,
        header: array(size),
        complete,
        pinned: true,
        upstream: None,
        leaving: false,
    }
}

/// A report of a copy that is, or was, received.
pub fn received_report(seq: u64, edition: Edition, size: u64, upstream: Option<NodeId>) -> CopyReport {
    let complete = upstream.is_none();
    CopyReport { seq, edition, size, header: array(size), complete, pinned: false, upstream, leaving: false }
}

pub fn announce(report: CopyReport) -> DirectoryRequest {
    DirectoryRequest::Announce { report, payload: None, wants_verdict: false }
}

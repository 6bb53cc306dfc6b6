//! What a request is about, in words, and whether it keeps to the limits.

use std::fmt;

use hoplite_words::client::Request;
use hoplite_words::limits::{IDS_MAX, INLINE_BYTES_MAX, SOURCES_MAX};
use hoplite_words::{Error, ErrorKind, ObjectId, Result};

/// Names a call in error messages.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) verb: &'static str,
    pub(crate) id: Option<ObjectId>,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            Some(id) => write!(f, "{} {id}", self.verb),
            None => f.write_str(self.verb),
        }
    }
}

impl Subject {
    pub(crate) fn of(request: &Request) -> Subject {
        let (verb, id) = match request {
            Request::Hello { .. } => ("hello", None),
            Request::Create { id, .. } => ("create", Some(*id)),
            Request::PutSmall { id, .. } => ("put", Some(*id)),
            Request::Progress { .. } => ("progress", None),
            Request::Seal { .. } => ("seal", None),
            Request::Abort { .. } => ("abort", None),
            Request::Get { id, .. } => ("get", Some(*id)),
            Request::Release { .. } => ("release", None),
            Request::Delete { ids, .. } => ("delete", single(ids)),
            Request::Reduce { target, .. } => ("reduce into", Some(*target)),
            Request::Wait { ids, .. } => ("wait", single(ids)),
            Request::Prefetch { ids, .. } => ("prefetch", single(ids)),
            Request::Locate { id, .. } => ("locate", Some(*id)),
            Request::Status => ("status", None),
            Request::Cancel { .. } => ("cancel", None),
        };
        Subject { verb, id }
    }
}

fn single(ids: &[ObjectId]) -> Option<ObjectId> {
    match ids {
        [id] => Some(*id),
        _ => None,
    }
}

/// Refuses what the node would refuse, and what would not fit a frame.
pub(crate) fn check_limits(request: &Request) -> Result<()> {
    match request {
        Request::Create { size, header, .. } => header.validate(*size),
        Request::PutSmall { header, payload, .. } => {
            within("bytes in one frame", payload.0.len(), INLINE_BYTES_MAX as usize)?;
            header.validate(payload.0.len() as u64)
        }
        Request::Delete { ids, .. } | Request::Wait { ids, .. } => within("ids", ids.len(), IDS_MAX),
        Request::Prefetch { ids, nodes } => {
            within("ids", ids.len(), IDS_MAX)?;
            within("nodes", nodes.len(), IDS_MAX)
        }
        Request::Reduce { sources, .. } => within("sources", sources.len(), SOURCES_MAX),
        _ => Ok(()),
    }
}

fn within(what: &str, count: usize, limit: usize) -> Result<()> {
    if count <= limit {
        return Ok(());
    }
    Err(Error::new(ErrorKind::BadArgument, format!("{count} {what}, at most {limit} are allowed")))
}

//! Names requests in error messages.

use std::fmt;

use hoplite_types::client::Request;
use hoplite_types::ObjectId;

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

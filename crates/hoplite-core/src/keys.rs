//! Names by which components refer to each other's work.

use hoplite_types::{NodeId, TransferId};

use crate::io::ClientId;

/// Identifies a stream that was requested from us: the receiver's node, and its number for the transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PullKey {
    pub to: NodeId,
    pub transfer: TransferId,
}

/// A reason to watch an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Watcher {
    /// A wait, and the object's place in its list.
    Call(ClientId, u64, usize),
    Reduction(u64),
    /// We are leaving, and wait for the object to be handed over.
    Leave,
    /// A fetch that waits for space here has no open ask at the owner; through its subscription it is notified if the
    /// object is deleted.
    Fetch,
}

/// A call, slot or prefetch here that needs the complete object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Want {
    Call(ClientId, u64),
    Reduction(u64),
    Prefetch,
}

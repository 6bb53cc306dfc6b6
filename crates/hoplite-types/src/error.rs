//! One error for the public edge: its kind says whose fault it is and how to react.

use minicbor::{Decode, Encode};

use crate::ObjectId;

/// The kind of an error, from the caller's point of view. Stable: these numbers are on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum ErrorKind {
    /// The time-out passed before the awaited event.
    #[n(0)]
    TimedOut,
    /// The object was deleted.
    #[n(1)]
    Deleted,
    /// The last complete copy of the object died with its node.
    #[n(2)]
    Lost,
    /// The store has no space, now or (larger than the store) ever.
    #[n(3)]
    StoreFull,
    /// The id is in use for an object of another size or kind.
    #[n(4)]
    AlreadyExists,
    /// Sizes, dtypes or shapes do not fit together.
    #[n(5)]
    Mismatch,
    /// The call is not valid.
    #[n(6)]
    BadArgument,
    /// A required node cannot be reached, or the local daemon is gone.
    #[n(7)]
    NodeUnreachable,
    /// The writer abandoned the object, or the call was cancelled.
    #[n(8)]
    Aborted,
    /// The two ends speak different versions of the protocol.
    #[n(9)]
    VersionMismatch,
    /// A bug in Hoplite.
    #[n(10)]
    Internal,
    /// A limit of the node is reached: clients, descriptors, open calls. The message names it.
    #[n(11)]
    LimitReached,
}

impl ErrorKind {
    /// Whether the same call may succeed later without a change by anyone.
    pub const fn is_retryable(self) -> bool {
        matches!(
            self,
            ErrorKind::TimedOut
                | ErrorKind::Lost
                | ErrorKind::StoreFull
                | ErrorKind::NodeUnreachable
                | ErrorKind::LimitReached
        )
    }
}

/// An error as users see it. The message names node, object and bytes done of total where they apply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Encode, Decode)]
#[error("{message}")]
pub struct Error {
    #[n(0)]
    pub kind: ErrorKind,
    #[n(1)]
    pub message: String,
    /// The one object that the error is about, if there is one.
    #[n(2)]
    pub object: Option<ObjectId>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), object: None }
    }

    /// Returns the same error, about this object.
    pub fn about(self, object: ObjectId) -> Self {
        Error { object: Some(object), ..self }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Returns `BadArgument` unless `holds`.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::BadArgument, otherwise())),
    }
}

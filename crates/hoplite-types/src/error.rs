//! One error for the public edge: its kind says whose fault it is and how to react.

use minicbor::{Decode, Encode};

use crate::ObjectId;

/// What went wrong, from the caller's point of view. Stable: these numbers are on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum ErrorKind {
    /// The time given was up before the thing waited for happened.
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
    /// The id is taken by an object of another size or kind.
    #[n(4)]
    AlreadyExists,
    /// Sizes, dtypes or shapes do not fit together.
    #[n(5)]
    Mismatch,
    /// The call makes no sense as written.
    #[n(6)]
    BadArgument,
    /// A node that is needed cannot be reached, or the local daemon is gone.
    #[n(7)]
    NodeUnreachable,
    /// The writer gave the object up, or the call was cancelled.
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
    /// Whether the same call may succeed later without anyone changing it.
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

/// An error as users see it; the message names node, object and bytes done of total where they apply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Encode, Decode)]
#[error("{message}")]
pub struct Error {
    #[n(0)]
    pub kind: ErrorKind,
    #[n(1)]
    pub message: String,
    /// The one object it is about, where there is one.
    #[n(2)]
    pub object: Option<ObjectId>,
}

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), object: None }
    }

    /// The same, about this object.
    pub fn about(self, object: ObjectId) -> Self {
        Error { object: Some(object), ..self }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// `BadArgument`, unless it holds.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::BadArgument, otherwise())),
    }
}

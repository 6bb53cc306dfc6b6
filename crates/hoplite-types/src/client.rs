//! The messages between a client and its node over the Unix socket.
//!
//! Order: `Hello`, answered by `Welcome` (with the arena's file descriptor beside it); then calls, each with a number
//! that the client chooses and the reply repeats. Calls are answered in any order; `Progress`, `Release` and `Cancel`
//! are never answered.

use std::collections::BTreeSet;

use minicbor::{Decode, Encode};

use crate::error::ensure;
use crate::{limits, Blob, CopyId, Edition, Error, FoldOrder, Header, NodeId, ObjectId, Op, Result};

/// Bumped with every change that an older peer would misread.
pub const CLIENT_PROTOCOL_VERSION: u32 = 6;

/// One frame from a client.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Call {
    /// Repeated in the reply; 0 for requests that have none.
    #[n(0)]
    pub call: u64,
    #[n(1)]
    pub request: Request,
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum Request {
    /// First frame of a connection. Answered by `Welcome`.
    #[n(0)]
    Hello {
        #[n(0)]
        version: u32,
        #[n(1)]
        pid: u32,
    },
    /// Reserve space for a new object and announce it. Answered by `Created` or `Done` (the object
    /// is complete on this node already, with this size: nothing to write).
    #[n(1)]
    Create {
        #[n(0)]
        id: ObjectId,
        #[n(1)]
        size: u64,
        #[n(2)]
        header: Header,
        #[n(3)]
        timeout_ms: Option<u64>,
        /// With a view of the memory: it goes to nobody else before a `Release`, whatever becomes of the object.
        #[n(4)]
        keep: bool,
    },
    /// A whole small object in one frame (`INLINE_BYTES_MAX`). Answered by `Done`.
    #[n(2)]
    PutSmall {
        #[n(0)]
        id: ObjectId,
        #[n(1)]
        header: Header,
        #[n(2)]
        payload: Blob,
        #[n(3)]
        timeout_ms: Option<u64>,
    },
    /// The writer's watermark, sent only when the progress block asks for it.
    #[n(3)]
    Progress {
        #[n(0)]
        copy: CopyId,
        #[n(1)]
        watermark: u64,
    },
    /// All bytes are written. Answered by `Done` once the directory has accepted the object; if it has
    /// not in time, or the call is cancelled, the object is withdrawn.
    #[n(4)]
    Seal {
        #[n(0)]
        copy: CopyId,
        #[n(1)]
        timeout_ms: Option<u64>,
    },
    /// The writer gives up. Answered by `Done`.
    #[n(5)]
    Abort {
        #[n(0)]
        copy: CopyId,
    },
    /// Answered by `View` or `Small`: when the object is complete here, or (`partial`) as soon as a
    /// copy is being written here, to be followed through its progress block.
    #[n(6)]
    Get {
        #[n(0)]
        id: ObjectId,
        #[n(1)]
        timeout_ms: Option<u64>,
        #[n(2)]
        partial: bool,
        /// Fail with `Lost` when the last complete copy dies, instead of waiting for a new put.
        #[n(3)]
        fail_if_lost: bool,
    },
    /// A view is no longer used. One for each `View` received, and for each `Created` with one.
    #[n(7)]
    Release {
        #[n(0)]
        copy: CopyId,
    },
    /// Answered by `Done` when the directory owners have recorded it.
    #[n(8)]
    Delete {
        #[n(0)]
        ids: Vec<ObjectId>,
        #[n(1)]
        timeout_ms: Option<u64>,
    },
    /// Answered by `Reduced` when the reduction is committed.
    #[n(9)]
    Reduce {
        #[n(0)]
        target: ObjectId,
        #[n(1)]
        sources: Vec<ObjectId>,
        #[n(2)]
        num_objects: u32,
        #[n(3)]
        op: Op,
        #[n(4)]
        order: FoldOrder,
        #[n(5)]
        timeout_ms: Option<u64>,
        /// Afterwards bring the target to every node that gave a source (allreduce).
        #[n(6)]
        to_sources: bool,
    },
    /// Answered by `Ready` when `count` of `ids` are complete somewhere, or the time is up.
    #[n(10)]
    Wait {
        #[n(0)]
        ids: Vec<ObjectId>,
        #[n(1)]
        count: u32,
        #[n(2)]
        timeout_ms: Option<u64>,
        /// Fail with `Lost` when the last complete copy of one of them dies, instead of waiting on.
        #[n(3)]
        fail_if_lost: bool,
        /// Of these the caller knows: their loss is no reason to fail.
        #[n(4)]
        known_lost: Vec<ObjectId>,
    },
    /// Bring the objects to `nodes` (empty: here) without mapping them. Answered by `Done` at once.
    #[n(11)]
    Prefetch {
        #[n(0)]
        ids: Vec<ObjectId>,
        #[n(1)]
        nodes: Vec<NodeId>,
    },
    /// Answered by `Located`.
    #[n(12)]
    Locate {
        #[n(0)]
        id: ObjectId,
        #[n(1)]
        timeout_ms: Option<u64>,
    },
    /// Answered by `Status`.
    #[n(13)]
    Status,
    /// The caller no longer waits for that call (time-out, Ctrl-C); its reply, if any, is dropped.
    #[n(14)]
    Cancel {
        #[n(0)]
        call: u64,
    },
}

impl Request {
    /// Checks limits, and that its parts fit together: what every node refuses, whatever it holds.
    ///
    /// # Errors
    /// `BadArgument`, which says what cannot be.
    pub fn validate(&self) -> Result<()> {
        match self {
            Request::Create { size, header, .. } => header.validate(*size),
            Request::PutSmall { header, payload, .. } => {
                limits::at_most("bytes in one frame", payload.0.len(), limits::INLINE_BYTES_MAX as usize)?;
                header.validate(payload.0.len() as u64)
            }
            Request::Delete { ids, .. } => limits::at_most("ids", ids.len(), limits::IDS_MAX),
            Request::Wait { ids, count, known_lost, .. } => {
                limits::at_most("ids", ids.len(), limits::IDS_MAX)?;
                limits::at_most("ids known as lost", known_lost.len(), limits::IDS_MAX)?;
                let distinct = ids.iter().collect::<BTreeSet<_>>().len();
                ensure(distinct == ids.len() && *count as usize <= ids.len(), || {
                    format!("wait for {count} of {} ids ({distinct} distinct)", ids.len())
                })
            }
            Request::Prefetch { ids, nodes } => {
                // Each is a message of its own.
                let messages = ids.len().saturating_mul(nodes.len().max(1));
                limits::at_most("ids, counted for each node,", messages, limits::IDS_MAX)
            }
            Request::Reduce { target, sources, num_objects, .. } => {
                limits::at_most("sources", sources.len(), limits::SOURCES_MAX)?;
                let n = sources.len();
                ensure((1..=n).contains(&(*num_objects as usize)), || {
                    format!("cannot reduce the first {num_objects} of {n} sources")
                })?;
                let distinct: BTreeSet<_> = sources.iter().collect();
                ensure(distinct.len() == n, || {
                    format!("a source is listed more than once ({} distinct of {n})", distinct.len())
                })?;
                ensure(!distinct.contains(target), || format!("the target {target} is one of the sources"))
            }
            Request::Hello { .. }
            | Request::Progress { .. }
            | Request::Seal { .. }
            | Request::Abort { .. }
            | Request::Get { .. }
            | Request::Release { .. }
            | Request::Locate { .. }
            | Request::Status
            | Request::Cancel { .. } => Ok(()),
        }
    }
}

impl Request {
    /// Whether its answer may be a while.
    pub fn may_wait(&self) -> bool {
        match self {
            Request::Create { .. }
            | Request::PutSmall { .. }
            | Request::Get { .. }
            | Request::Delete { .. }
            | Request::Reduce { .. }
            | Request::Wait { .. }
            | Request::Locate { .. } => true,
            // A seal too, but of an object that was created: to refuse that would lose it.
            Request::Seal { .. } => false,
            Request::Hello { .. }
            | Request::Progress { .. }
            | Request::Abort { .. }
            | Request::Release { .. }
            | Request::Prefetch { .. }
            | Request::Status
            | Request::Cancel { .. } => false,
        }
    }
}

/// One frame from the node.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Answer {
    #[n(0)]
    pub call: u64,
    #[n(1)]
    pub reply: Reply,
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum Reply {
    /// Comes with the arena's file descriptor (SCM_RIGHTS).
    #[n(0)]
    Welcome {
        #[n(0)]
        version: u32,
        #[n(1)]
        node: NodeId,
        #[n(2)]
        arena_bytes: u64,
    },
    #[n(1)]
    Done,
    /// Write `size` bytes at `offset` of the arena; its progress block lies before it.
    #[n(2)]
    Created {
        #[n(0)]
        copy: CopyId,
        #[n(1)]
        offset: u64,
        /// There is a view of it to release, as was asked for.
        #[n(2)]
        kept: bool,
    },
    #[n(3)]
    View {
        #[n(0)]
        copy: CopyId,
        /// Where the data starts in the arena.
        #[n(1)]
        offset: u64,
        #[n(2)]
        size: u64,
        #[n(3)]
        header: Header,
        /// False only for `partial` gets.
        #[n(4)]
        sealed: bool,
    },
    #[n(4)]
    Reduced {
        /// Which sources went in, in fold order.
        #[n(0)]
        sources: Vec<ObjectId>,
    },
    #[n(5)]
    Ready {
        #[n(0)]
        ids: Vec<ObjectId>,
    },
    #[n(6)]
    Located {
        #[n(0)]
        size: Option<u64>,
        #[n(1)]
        copies: Vec<Location>,
    },
    #[n(7)]
    Status(#[n(0)] Status),
    #[n(8)]
    Failed(#[n(0)] Error),
    /// Instead of a `View` of a complete object of up to `ANSWER_BYTES_MAX`: there is nothing to release.
    #[n(9)]
    Small {
        #[n(0)]
        header: Header,
        #[n(1)]
        payload: Blob,
    },
}

/// Where a copy of an object is, and how far.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Location {
    #[n(0)]
    pub node: NodeId,
    #[n(1)]
    pub complete: bool,
    #[n(2)]
    pub pinned: bool,
    #[n(3)]
    pub edition: Edition,
}

/// A node's account of itself.
#[derive(Clone, PartialEq, Debug, Default, Encode, Decode)]
pub struct Status {
    #[n(0)]
    pub node: Option<NodeId>,
    #[n(1)]
    pub members: Vec<NodeId>,
    #[n(2)]
    pub store_bytes: u64,
    #[n(3)]
    pub used_bytes: u64,
    /// Copies held here, partial ones included.
    #[n(4)]
    pub copies: u64,
    /// Objects whose directory entry (tombstones not counted) lives here.
    #[n(5)]
    pub entries: u64,
    #[n(6)]
    pub tombstones: u64,
    #[n(7)]
    pub transfers: u64,
    #[n(8)]
    pub reductions: u64,
    #[n(9)]
    pub clients: u64,
    /// Since the daemon started.
    #[n(10)]
    pub sent_bytes: u64,
    #[n(11)]
    pub received_bytes: u64,
    #[n(12)]
    pub folded_bytes: u64,
    #[n(13)]
    pub evicted_copies: u64,
    /// Measured links: peer, one-way latency in nanoseconds, bytes per second (0: not yet known).
    #[n(14)]
    pub links: Vec<Link>,
    /// Every bounded queue and table of the node.
    #[n(15)]
    pub gauges: Vec<Gauge>,
}

/// A queue, table or number of connections that has a limit.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Gauge {
    #[n(0)]
    pub name: String,
    /// How full it is.
    #[n(1)]
    pub value: u64,
    #[n(2)]
    pub limit: u64,
    /// How often something was refused, dropped or ended early because the limit was met, since the start.
    #[n(3)]
    pub met: u64,
}

/// What has been measured of the way to a peer.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Link {
    #[n(0)]
    pub peer: NodeId,
    #[n(1)]
    pub latency_ns: u64,
    #[n(2)]
    pub bytes_per_s: u64,
}

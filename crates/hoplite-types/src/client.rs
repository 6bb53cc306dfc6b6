//! The messages between a client and its node over the Unix socket.
//!
//! Order: `Hello`, answered by `Welcome` (with the arena's file descriptor beside it); then calls, each with a number
//! that the client chooses and the reply repeats. Calls are answered in any order; `Progress`, `Release` and `Cancel`
//! are never answered.

use std::collections::BTreeSet;

use minicbor::{Decode, Encode};

use crate::error::ensure;
use crate::{limits, Blob, CopyId, Edition, Error, FoldOrder, Header, NodeId, ObjectId, Op, Result};

/// Incremented with every change that an older peer would misread.
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
    /// Reserves space for a new object and announces it. Answered by `Created`, or by `Done` if the object is
    /// complete on this node already, with this size: there is nothing to write.
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
        /// Also gives the client a view of the memory. Until a `Release`, nothing else uses the memory, even if the
        /// object is gone.
        #[n(4)]
        keep: bool,
    },
    /// Puts a small object (up to `INLINE_BYTES_MAX`) in one frame. Answered by `Done`.
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
    /// The writer's watermark. Sent only when the progress block asks for it.
    #[n(3)]
    Progress {
        #[n(0)]
        copy: CopyId,
        #[n(1)]
        watermark: u64,
    },
    /// All bytes are written. Answered by `Done` once the directory has accepted the object. If it does not in time,
    /// or if the call is cancelled, the object is withdrawn.
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
    /// Answered by `View` or `Small` when the object is complete here. With `partial`, answered as soon as a copy is
    /// being written here; the client follows it through its progress block.
    #[n(6)]
    Get {
        #[n(0)]
        id: ObjectId,
        #[n(1)]
        timeout_ms: Option<u64>,
        #[n(2)]
        partial: bool,
        /// Fails with `Lost` when the last complete copy is lost, instead of waiting for a new put.
        #[n(3)]
        fail_if_lost: bool,
    },
    /// A view is no longer used. Sent once for each `View` received, and for each `Created` with a view.
    #[n(7)]
    Release {
        #[n(0)]
        copy: CopyId,
    },
    /// Answered by `Done` when the directory owners have recorded the deletion.
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
        /// Also brings the target to every node that supplied a source (allreduce).
        #[n(6)]
        to_sources: bool,
    },
    /// Answered by `Ready` when `count` of `ids` are complete on some node, or when the time is up.
    #[n(10)]
    Wait {
        #[n(0)]
        ids: Vec<ObjectId>,
        #[n(1)]
        count: u32,
        #[n(2)]
        timeout_ms: Option<u64>,
        /// Fails with `Lost` when the last complete copy of one of them is lost, instead of waiting on.
        #[n(3)]
        fail_if_lost: bool,
        /// The caller knows that these are lost: their loss does not make the call fail.
        #[n(4)]
        known_lost: Vec<ObjectId>,
    },
    /// Brings the objects to `nodes` (empty: to this node) without mapping them. Answered by `Done` at once.
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
    /// The caller no longer waits for this call (time-out, Ctrl-C). A later reply to it is dropped.
    #[n(14)]
    Cancel {
        #[n(0)]
        call: u64,
    },
}

impl Request {
    /// Checks limits and consistency: rejects what every node must refuse, whatever its state.
    ///
    /// # Errors
    /// `BadArgument`; the message names the violation.
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
                // Each pair of an id and a node is one message.
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
    /// Whether the answer may take long. Beyond `CALLS_MAX` open calls, such a call is refused.
    pub fn may_wait(&self) -> bool {
        match self {
            Request::Create { .. }
            | Request::PutSmall { .. }
            | Request::Get { .. }
            | Request::Delete { .. }
            | Request::Reduce { .. }
            | Request::Wait { .. }
            | Request::Locate { .. } => true,
            // A seal may take long, too. But its object was created already: a refusal would lose it.
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
    /// The arena's file descriptor comes with it (SCM_RIGHTS).
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
    /// The client writes `size` bytes at `offset` of the arena. The progress block lies before `offset`.
    #[n(2)]
    Created {
        #[n(0)]
        copy: CopyId,
        #[n(1)]
        offset: u64,
        /// The client has a view to release, as it requested.
        #[n(2)]
        kept: bool,
    },
    #[n(3)]
    View {
        #[n(0)]
        copy: CopyId,
        /// The offset of the data in the arena.
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
        /// The sources that were reduced, in fold order.
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
    /// Replaces a `View` of a complete object of up to `ANSWER_BYTES_MAX`. There is nothing to release.
    #[n(9)]
    Small {
        #[n(0)]
        header: Header,
        #[n(1)]
        payload: Blob,
    },
}

/// The node that has a copy of an object, and how much of it.
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

/// The state of a node, as it reports it.
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
    /// Objects whose directory entry (tombstones not counted) is on this node.
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

/// The fill level of a queue, table or number of connections that has a limit.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Gauge {
    #[n(0)]
    pub name: String,
    /// The current fill level.
    #[n(1)]
    pub value: u64,
    #[n(2)]
    pub limit: u64,
    /// How often the limit was met since the start: something was refused, dropped or ended early.
    #[n(3)]
    pub met: u64,
}

/// Measurements of the link to a peer.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Link {
    #[n(0)]
    pub peer: NodeId,
    #[n(1)]
    pub latency_ns: u64,
    #[n(2)]
    pub bytes_per_s: u64,
}

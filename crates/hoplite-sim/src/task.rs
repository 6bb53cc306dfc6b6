//! The tasks of clients. A task is one call and its steps.

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_types::client::{Request, Status};
use hoplite_types::{CopyId, Dtype, Error, ErrorKind, NodeId, ObjectId, Op};

use crate::masses::Stretch;

/// One task of a client. Numbers are unique in the world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TaskId(pub u64);

/// The end of a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Seal,
    /// The client aborts after so many bytes.
    AbortAt(u64),
    /// The client stops after so many bytes until it is told to go on.
    HoldAt(u64),
    /// The client dies after so many bytes.
    DieAt(u64),
}

#[derive(Clone, Debug)]
pub enum Spec {
    /// Create an object, write it in pieces with pauses, and end the put.
    Put {
        id: ObjectId,
        size: u64,
        dtype: Option<Dtype>,
        piece: u64,
        pause: Duration,
        ending: Ending,
        /// The number of the content, if there are several of this size.
        variant: u8,
        /// How long after its last write the client keeps the memory. `None`: the client does not ask to keep it.
        keep: Option<Duration>,
    },
    PutSmall {
        id: ObjectId,
        size: u64,
        dtype: Option<Dtype>,
        variant: u8,
    },
    /// Get an object, hold the view for a while, release it. The copy of a partial get is read as it grows.
    Get {
        id: ObjectId,
        partial: bool,
        fail_if_lost: bool,
        hold: Duration,
    },
    /// Put many small objects, a limited number at a time.
    PutMany {
        stretch: Stretch,
        size: u64,
        window: usize,
    },
    Delete {
        ids: Vec<ObjectId>,
    },
    /// Delete many objects in one call.
    DeleteMany {
        stretch: Stretch,
    },
    Reduce {
        target: ObjectId,
        sources: Vec<ObjectId>,
        num_objects: u32,
        op: Op,
        fixed: bool,
        to_sources: bool,
    },
    Wait {
        ids: Vec<ObjectId>,
        count: u32,
        fail_if_lost: bool,
    },
    Prefetch {
        ids: Vec<ObjectId>,
        nodes: Vec<NodeId>,
    },
    Locate {
        id: ObjectId,
    },
    Status,
}

/// The outcome of a task.
#[derive(Clone, Debug)]
pub enum Outcome {
    Done,
    /// The client saw the sealed content, and it was right.
    Viewed,
    Reduced,
    Ready,
    Located,
    Status(Box<Status>),
    Failed(Error),
    Cancelled,
    /// The client has died, or its node has.
    Vanished,
}

/// The phase of a task.
///
/// ```text
/// Waiting ─> Calling ─> Writing ─> Calling(seal/abort) ─> Over
///               ├─> Following ─> (again) Calling | Over
///               ├─> Holding ─> Over
///               └─> Over
/// ```
#[derive(Clone, PartialEq, Debug)]
pub enum Phase {
    Waiting,
    /// Waits for an answer. `timed`: the task's time-out is running.
    Calling {
        call: u64,
        timed: bool,
    },
    Writing {
        copy: CopyId,
        at: u64,
    },
    Following {
        copy: CopyId,
        read: Vec<u8>,
    },
    Holding {
        copy: CopyId,
    },
    PuttingMany,
    Over,
}

impl Phase {
    pub fn name(&self) -> &'static str {
        match self {
            Phase::Waiting => "not begun",
            Phase::Calling { .. } => "unanswered",
            Phase::Writing { .. } => "writing",
            Phase::Following { .. } => "following",
            Phase::Holding { .. } => "holding",
            Phase::PuttingMany => "putting",
            Phase::Over => "over",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Task {
    pub client: ClientId,
    pub spec: Spec,
    pub timeout: Option<Duration>,
    /// Errors that are accepted. Any other error fails the run.
    pub may_fail: Vec<ErrorKind>,
    pub phase: Phase,
    pub started: Duration,
    pub outcome: Option<Outcome>,
    /// The copy whose memory the client keeps, and the bytes that it has written there.
    pub kept: Option<(CopyId, u64)>,
    /// How to make the object again if it is lost, before the call is repeated.
    pub remake: Option<Spec>,
    pub remakes: u32,
}

impl Spec {
    /// Every object of the task, once.
    pub fn objects(&self) -> Vec<ObjectId> {
        match self {
            Spec::Put { id, .. } | Spec::PutSmall { id, .. } | Spec::Get { id, .. } | Spec::Locate { id } => {
                vec![*id]
            }
            Spec::Delete { ids } | Spec::Wait { ids, .. } => ids.clone(),
            Spec::Reduce { target, sources, .. } => sources.iter().chain([target]).copied().collect(),
            Spec::DeleteMany { stretch } => stretch.ids().collect(),
            // Each of these puts is recorded on its own.
            Spec::PutMany { .. } | Spec::Prefetch { .. } | Spec::Status => Vec::new(),
        }
    }

    /// Whether the task waits for this object.
    pub fn gets(&self, object: ObjectId) -> bool {
        matches!(self, Spec::Get { id, .. } if *id == object)
    }

    /// Whether the task writes this object.
    pub fn puts(&self, object: ObjectId) -> bool {
        matches!(self, Spec::Put { id, .. } | Spec::PutSmall { id, .. } if *id == object)
    }

    /// The object that exists when this task is done.
    pub fn made(&self) -> Option<ObjectId> {
        match self {
            Spec::Put { id, ending: Ending::Seal, .. } | Spec::PutSmall { id, .. } => Some(*id),
            Spec::Reduce { target, .. } => Some(*target),
            _ => None,
        }
    }
}

impl Task {
    /// A task that must not fail.
    pub fn new(client: ClientId, spec: Spec) -> Self {
        Task {
            client,
            spec,
            timeout: None,
            may_fail: Vec::new(),
            phase: Phase::Waiting,
            started: Duration::ZERO,
            outcome: None,
            kept: None,
            remake: None,
            remakes: 0,
        }
    }

    pub fn within(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    pub fn may_fail(mut self, kinds: &[ErrorKind]) -> Self {
        self.may_fail.extend_from_slice(kinds);
        self
    }

    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    pub fn is_out_of_time(&self, now: Duration) -> bool {
        self.timeout.is_some_and(|timeout| now >= self.started + timeout)
    }

    /// The time-out to send now: the rest of the task's.
    pub fn timeout_ms(&self, now: Duration) -> Option<u64> {
        self.timeout
            .map(|timeout| (self.started + timeout).saturating_sub(now).as_nanos().div_ceil(1_000_000) as u64)
    }
}

/// The request of a task that needs no further steps to send: all but puts.
pub fn plain_request(spec: &Spec, timeout_ms: Option<u64>) -> Option<Request> {
    Some(match spec.clone() {
        Spec::Put { .. } | Spec::PutSmall { .. } | Spec::PutMany { .. } => return None,
        Spec::Get { id, partial, fail_if_lost, .. } => Request::Get { id, timeout_ms, partial, fail_if_lost },
        Spec::Delete { ids } => Request::Delete { ids, timeout_ms },
        Spec::DeleteMany { stretch } => Request::Delete { ids: stretch.ids().collect(), timeout_ms },
        Spec::Reduce { target, sources, num_objects, op, fixed, to_sources } => Request::Reduce {
            target,
            sources,
            num_objects,
            op,
            order: if fixed { hoplite_types::FoldOrder::Fixed } else { hoplite_types::FoldOrder::Arrival },
            timeout_ms,
            to_sources,
        },
        Spec::Wait { ids, count, fail_if_lost } => {
            Request::Wait { ids, count, timeout_ms, fail_if_lost, known_lost: Vec::new() }
        }
        Spec::Prefetch { ids, nodes } => Request::Prefetch { ids, nodes },
        Spec::Locate { id } => Request::Locate { id, timeout_ms },
        Spec::Status => Request::Status,
    })
}

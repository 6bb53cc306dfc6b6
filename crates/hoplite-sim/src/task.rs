//! The tasks of clients: each is one call, with the steps that belong to it.

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_types::client::{Request, Status};
use hoplite_types::{CopyId, Dtype, Error, ErrorKind, NodeId, ObjectId, Op};

use crate::masses::Stretch;

/// One task of a client; numbered across the world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TaskId(pub u64);

/// How a put ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Seal,
    /// Gives up after so many bytes.
    AbortAt(u64),
    /// Writes so many bytes and then nothing, until it is told to go on.
    HoldAt(u64),
    /// Its client dies after so many bytes.
    DieAt(u64),
}

#[derive(Clone, Debug)]
pub enum Spec {
    /// Create, write in pieces with pauses, end.
    Put {
        id: ObjectId,
        size: u64,
        dtype: Option<Dtype>,
        piece: u64,
        pause: Duration,
        ending: Ending,
        /// Which of several contents of this size.
        variant: u8,
        /// How long after its last write the client keeps the memory; `None`: it does not ask for that.
        keep: Option<Duration>,
    },
    PutSmall {
        id: ObjectId,
        size: u64,
        dtype: Option<Dtype>,
        variant: u8,
    },
    /// Get, keep the view for a while, release it. A partial get is read as it grows.
    Get {
        id: ObjectId,
        partial: bool,
        fail_if_lost: bool,
        hold: Duration,
    },
    /// Put many small objects, so many at a time.
    PutMany {
        stretch: Stretch,
        size: u64,
        window: usize,
    },
    Delete {
        ids: Vec<ObjectId>,
    },
    /// In one call.
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

/// What has become of a task.
#[derive(Clone, Debug)]
pub enum Outcome {
    Done,
    /// The sealed content was seen and was right.
    Viewed,
    Reduced,
    Ready,
    Located,
    Status(Box<Status>),
    Failed(Error),
    Cancelled,
    /// Its client is gone.
    Vanished,
}

/// Where a task is.
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
    /// `timed`: the task's time-out is running.
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
    /// Failures that are fine; any other fails the run.
    pub may_fail: Vec<ErrorKind>,
    pub phase: Phase,
    pub started: Duration,
    pub outcome: Option<Outcome>,
    /// The copy whose memory its client keeps, and how much it has written there.
    pub kept: Option<(CopyId, u64)>,
    /// What to do when the object it is about is lost, before asking for it again.
    pub remake: Option<Spec>,
    pub remakes: u32,
}

impl Spec {
    /// Every object it is about, once.
    pub fn objects(&self) -> Vec<ObjectId> {
        match self {
            Spec::Put { id, .. } | Spec::PutSmall { id, .. } | Spec::Get { id, .. } | Spec::Locate { id } => {
                vec![*id]
            }
            Spec::Delete { ids } | Spec::Wait { ids, .. } => ids.clone(),
            Spec::Reduce { target, sources, .. } => sources.iter().chain([target]).copied().collect(),
            Spec::DeleteMany { stretch } => stretch.ids().collect(),
            // Each begins and ends for itself.
            Spec::PutMany { .. } | Spec::Prefetch { .. } | Spec::Status => Vec::new(),
        }
    }

    /// Whether it waits for this object to come.
    pub fn gets(&self, object: ObjectId) -> bool {
        matches!(self, Spec::Get { id, .. } if *id == object)
    }

    /// Whether it writes this object.
    pub fn puts(&self, object: ObjectId) -> bool {
        matches!(self, Spec::Put { id, .. } | Spec::PutSmall { id, .. } if *id == object)
    }

    /// The object that is there when this is done.
    pub fn made(&self) -> Option<ObjectId> {
        match self {
            Spec::Put { id, ending: Ending::Seal, .. } | Spec::PutSmall { id, .. } => Some(*id),
            Spec::Reduce { target, .. } => Some(*target),
            _ => None,
        }
    }
}

impl Task {
    /// The failures of a task that nothing stands in the way of: none.
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

    /// The timeout to send now: what is left of the task's.
    pub fn timeout_ms(&self, now: Duration) -> Option<u64> {
        self.timeout
            .map(|timeout| (self.started + timeout).saturating_sub(now).as_nanos().div_ceil(1_000_000) as u64)
    }
}

/// The request that is sent as it is: everything but puts.
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

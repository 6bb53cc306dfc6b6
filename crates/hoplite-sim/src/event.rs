//! The events of a world's queue: everything that can happen next.

use std::net::SocketAddr;
use std::time::Duration;

use hoplite_core::io::{ClientId, FoldId, Input, SendId};
use hoplite_types::client::{Reply, Request};
use hoplite_types::peer::{PeerMessage, Seal};
use hoplite_types::{CopyId, NodeId, TransferId};

use crate::data_plane::FlowId;
use crate::fault::Fault;
use crate::net::TroubleId;
use crate::task::TaskId;
use crate::world::{ControlLinkId, Place, Suspects};

#[derive(Debug)]
pub(crate) enum SimEvent {
    /// The node's first moment.
    Boot {
        place: Place,
    },
    /// The data plane or a connection reports to the core; `frees` are the copies this job held.
    Report {
        place: Place,
        input: Input,
        frees: Vec<CopyId>,
    },
    Tick {
        place: Place,
    },
    /// A dial of so long ago reaches the other host.
    Dial {
        link: ControlLinkId,
        waited: Duration,
    },
    Control {
        link: ControlLinkId,
        to: NodeId,
        message: PeerMessage,
        said: Duration,
    },
    /// What a cut held up gets through.
    LinkFreed {
        link: ControlLinkId,
    },
    /// The caller finds its link broken, or (`gone`) refused.
    LinkLost {
        link: ControlLinkId,
        gone: bool,
    },
    /// The one who was called finds the link at its end.
    LinkClosed {
        link: ControlLinkId,
        from: NodeId,
        to: NodeId,
    },
    PeerLost {
        place: Place,
        node: NodeId,
    },
    Datagram {
        from: usize,
        to: SocketAddr,
        bytes: Vec<u8>,
    },
    Call {
        client: ClientId,
        call: u64,
        request: Request,
    },
    ClientGone {
        client: ClientId,
    },
    Answer {
        client: ClientId,
        call: u64,
        reply: Reply,
    },
    SendStep {
        place: Place,
        send: SendId,
    },
    /// A stream's connection could not be made.
    DialFailed {
        place: Place,
        send: SendId,
    },
    FoldStep {
        place: Place,
        fold: FoldId,
    },
    Flow {
        flow: FlowId,
        event: FlowEvent,
    },
    /// What a cut or a stall held up gets through.
    FlowFreed {
        flow: FlowId,
    },
    /// Time to see whether something that may be so for a while has passed.
    Verdict(Suspects),
    /// Time to see whether a stream has brought anything since.
    StallCheck {
        place: Place,
        transfer: TransferId,
    },
    Task {
        task: TaskId,
        event: TaskEvent,
    },
    Fault(Fault),
    /// A process that has said goodbye ends.
    Exit {
        place: Place,
    },
    /// The end of something that passes.
    Relief(Relief),
    /// A slow node gets round to it.
    Late(Box<SimEvent>),
}

impl SimEvent {
    /// The control message that arrives, if it is one.
    pub fn control(&self) -> Option<(ControlLinkId, &PeerMessage)> {
        match self {
            SimEvent::Control { link, message, .. } => Some((*link, message)),
            SimEvent::Late(inner) => inner.control(),
            _ => None,
        }
    }
}

/// What happens on a stream, at the receiver unless said otherwise.
#[derive(Debug)]
pub(crate) enum FlowEvent {
    Head,
    Bytes {
        at: u64,
        bytes: Vec<u8>,
    },
    Trailer(Seal),
    /// The sender closed the connection.
    Cut,
    /// At the sender: the receiver closed it, or was never there.
    Reset,
    /// At the sender: the receiver has taken so many bytes.
    Credit(u64),
}

impl FlowEvent {
    pub fn is_at_sender(&self) -> bool {
        matches!(self, FlowEvent::Reset | FlowEvent::Credit(_))
    }
}

/// Something that passes has passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Relief {
    /// A cut or a delay.
    Net(TroubleId),
    /// The kernels lose patience with what a cut holds up.
    Patience(TroubleId),
    /// ... with a host without power.
    HostPatience(Place),
    Resume(TroubleId, Place),
    Slow(TroubleId, Place),
    /// Nothing that waits for its moment strikes any more.
    Disarm,
    /// Every fault is over.
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TaskEvent {
    Start,
    Step,
    /// After a loss.
    Again,
    Cancel,
    /// Its time is long up: it must have been answered.
    Overdue,
    /// Its client lets go of the memory that it wrote.
    LetGo,
}

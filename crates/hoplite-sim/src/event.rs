//! The events of a world's queue.

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
    /// A node starts.
    Boot {
        place: Place,
    },
    /// The data plane or a connection reports to the core. `frees` are the copies that the job held.
    Report {
        place: Place,
        input: Input,
        frees: Vec<CopyId>,
    },
    Tick {
        place: Place,
    },
    /// A dial reaches the other host; `waited` is the time since its start.
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
    /// Messages that a cut held up get through.
    LinkFreed {
        link: ControlLinkId,
    },
    /// The caller finds its link broken, or refused (`gone`).
    LinkLost {
        link: ControlLinkId,
        gone: bool,
    },
    /// The callee finds its link closed.
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
    /// The connection of a stream could not be made.
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
    /// Stream events that a cut or a stall held up get through.
    FlowFreed {
        flow: FlowId,
    },
    /// Checks whether a temporary breach of a rule has ended.
    Verdict(Suspects),
    /// Checks whether a stream has delivered anything since the last check.
    StallCheck {
        place: Place,
        transfer: TransferId,
    },
    Task {
        task: TaskId,
        event: TaskEvent,
    },
    Fault(Fault),
    /// A process ends in good order.
    Exit {
        place: Place,
    },
    /// A temporary trouble ends.
    Relief(Relief),
    /// A slow node handles a delayed event.
    Late(Box<SimEvent>),
}

impl SimEvent {
    /// The control message that arrives, if this event is one.
    pub fn control(&self) -> Option<(ControlLinkId, &PeerMessage)> {
        match self {
            SimEvent::Control { link, message, .. } => Some((*link, message)),
            SimEvent::Late(inner) => inner.control(),
            _ => None,
        }
    }
}

/// An event of a stream, at the receiver unless said otherwise.
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
    /// At the sender: the receiver closed the connection, or never existed.
    Reset,
    /// At the sender: the receiver has consumed so many bytes.
    Credit(u64),
}

impl FlowEvent {
    pub fn is_at_sender(&self) -> bool {
        matches!(self, FlowEvent::Reset | FlowEvent::Credit(_))
    }
}

/// The end of a temporary trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Relief {
    /// A cut or a delay.
    Net(TroubleId),
    /// The kernels' time-out for connections across a cut.
    Patience(TroubleId),
    /// The kernels' time-out for connections to a host without power.
    HostPatience(Place),
    Resume(TroubleId, Place),
    Slow(TroubleId, Place),
    /// Faults that still wait for their trigger are dropped.
    Disarm,
    /// All faults end.
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TaskEvent {
    Start,
    Step,
    /// Repeat the call after a loss.
    Again,
    Cancel,
    /// The task's time-out is long past, so it must have been answered.
    Overdue,
    /// The client releases the memory that it wrote.
    LetGo,
}

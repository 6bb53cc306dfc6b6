//! Everything that can happen next in a world.

use std::net::SocketAddr;

use hoplite_core::io::{ClientId, FoldId, Input, SendId};
use hoplite_words::client::{Reply, Request};
use hoplite_words::peer::{PeerMessage, Seal};
use hoplite_words::{CopyId, NodeId};

use crate::fault::Fault;
use crate::net::LineId;
use crate::plane::FlowId;
use crate::task::TaskId;
use crate::world::Place;

#[derive(Debug)]
pub(crate) enum Happening {
    /// The node's first moment.
    Boot {
        place: Place,
    },
    /// The carry plane or a connection reports to the core; `frees` are the copies this job held.
    Report {
        place: Place,
        input: Input,
        frees: Vec<CopyId>,
    },
    Tick {
        place: Place,
    },
    Control {
        from: NodeId,
        to: NodeId,
        message: PeerMessage,
    },
    LineBroken {
        place: Place,
        peer: NodeId,
        line: LineId,
    },
    Datagram {
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
    FoldStep {
        place: Place,
        fold: FoldId,
    },
    Flow {
        flow: FlowId,
        event: FlowEvent,
    },
    Task {
        task: TaskId,
        event: TaskEvent,
    },
    Fault(Fault),
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TaskEvent {
    Start,
    Step,
    Cancel,
    /// Its time is long up: it must have been answered.
    Overdue,
}

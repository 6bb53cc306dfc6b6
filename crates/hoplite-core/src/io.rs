//! The one way in (`Input`) and the one queue out (`Output`) of the deciding core.
//!
//! A driver (the daemon, or the simulator) calls [`crate::Core::handle`] with an [`Input`] and the
//! time, then carries out every [`Output`] **in order**; effects that finish later come back as
//! inputs. Nothing in here blocks, reads a clock, or touches object bytes.
//!
//! # Copies and their bytes
//! The core decides where in the arena each copy lies. Between `Open` and `Close` the driver keeps, per copy, a
//! watermark (contiguous bytes present) and the seal once there is one, and wakes the copy's followers. One writer
//! advances the watermark: a client (`Advance`), a `Receive`, a `Fold` or a `Write`. A copy that is written through
//! windows stays at 0 until it is `Filled`. Any number of `Send`s and `Fold`s read behind the watermark.
//!
//! A `Receive`, `Send` or `Fold` that was started always ends in exactly one `*Ended` input, even
//! when it was stopped; until then the core keeps the arena space of every copy it touches.

use std::net::SocketAddr;
use std::time::Duration;

use hoplite_types::client::{Reply, Request};
use hoplite_types::limits::PROGRESS_BLOCK_BYTES;
use hoplite_types::peer::{PeerMessage, Seal};
use hoplite_types::{Connections, CopyId, Dtype, Error, NodeId, ObjectId, Op, ReductionId, TransferId};

/// A client connection, numbered by the driver; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u64);

/// One stream out of this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SendId(pub u64);

/// One fold running on this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FoldId(pub u64);

/// Where a copy lies in the arena: its data, and the 64 bytes of its progress block. The block is right
/// before the data, except for a *window*: a copy whose data is part of another one's, with a block elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Extent {
    pub block: u64,
    pub offset: u64,
    pub size: u64,
}

impl Extent {
    /// Data right behind its block.
    pub fn behind_block(block: u64, size: u64) -> Self {
        Extent { block, offset: block + PROGRESS_BLOCK_BYTES, size }
    }

    pub fn is_window(&self) -> bool {
        self.block + PROGRESS_BLOCK_BYTES != self.offset
    }
}

/// An event for the core.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all inputs are messages; boxing each costs more")]
pub enum Input {
    /// A client sent a request (never `Hello`, which the driver answers itself).
    Client { client: ClientId, call: u64, request: Request },
    /// Its connection is gone.
    ClientGone { client: ClientId },
    /// A control message arrived.
    Peer { from: NodeId, message: PeerMessage },
    /// The control connection to `node` broke or could not be made; messages to it may be lost. The driver redials: at
    /// once if the connection had been made before, so that a dead peer is noticed even without messages for it;
    /// otherwise when there is something to send.
    PeerBroken { node: NodeId },
    /// The host of `node` answers, but refuses connections there, or reports that another process has the address now:
    /// the process is gone. Not used for silence, which may pass.
    PeerGone { node: NodeId },
    /// This process did not run for `time`, or got no processor. Messages that peers sent meanwhile come next, and may
    /// be out of date.
    StoodStill { time: Duration },
    /// A gossip datagram arrived.
    Datagram { bytes: Vec<u8> },
    /// A `Receive` is over after `watermark` bytes of the copy; `Ok` if the trailer came.
    ReceiveEnded { transfer: TransferId, watermark: u64, outcome: Result<Seal, Broken> },
    /// A `Receive` or a fold's stream has brought nothing for [`crate::Config::stall_after`], and its connection has
    /// not broken. Repeated each time that long has passed without a byte; `watermark` is the number of bytes that the
    /// stream has brought so far, counted from the object's start.
    ReceiveStalled { transfer: TransferId, watermark: u64 },
    /// A `Send` is over.
    SendEnded { send: SendId, outcome: Result<(), Broken> },
    /// A `Send` is over before it began: no connection could be made for it.
    SendNotBegun { send: SendId },
    /// One of a fold's streams broke; the fold stands still until it is stopped.
    FoldStreamBroken { fold: FoldId, transfer: TransferId },
    /// A fold is over: `Ok` when every input was folded to its end and sealed.
    FoldEnded { fold: FoldId, outcome: Result<(), Broken> },
    /// The rate of a transfer from `peer`, without the time it waited for its own upstream.
    Measured { peer: NodeId, bytes_per_s: u64 },
    /// All `bytes` of a `Send` were taken by the kernel at this rate, and it hardly waited for its own upstream.
    /// Comes before its end.
    SendMeasured { send: SendId, bytes: u64, bytes_per_s: u64 },
    /// The daemon is about to end: hand over copies that only this node holds, for at most `within`, then say
    /// goodbye. Answered by [`Output::Left`].
    Leave { within: Duration },
    /// `Core::next_deadline` has come.
    Tick,
}

/// A stream or fold ended before its time (connection lost, told to stop, input aborted).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broken;

/// An effect for the driver to carry out.
#[derive(Clone, PartialEq, Debug)]
pub enum Output {
    Reply {
        client: ClientId,
        call: u64,
        reply: Reply,
    },
    /// Send a control message, in order per peer. With `attach`, the bytes of that copy, all of
    /// which are written, become the message's payload (see [`attach`]) before it leaves.
    Peer {
        to: NodeId,
        message: PeerMessage,
        attach: Option<CopyId>,
    },
    /// Send a gossip datagram.
    Datagram {
        to: SocketAddr,
        bytes: Vec<u8>,
    },

    /// A new copy, with nothing written.
    Open {
        copy: CopyId,
        extent: Extent,
    },
    /// The client that writes this copy has written up to here.
    Advance {
        copy: CopyId,
        watermark: u64,
    },
    /// Write the whole object (small ones) and advance to its end.
    Write {
        copy: CopyId,
        bytes: Vec<u8>,
    },
    /// All bytes of this copy are in its extent: there is a sealed window for each.
    Filled {
        copy: CopyId,
    },
    /// This aborted copy, all of whose bytes were written, becomes another writing. It is opened anew in its place,
    /// with the watermark at its end.
    Reopen {
        copy: CopyId,
        extent: Extent,
    },
    /// Final: the watermark is at the end, trailers may go out.
    Seal {
        copy: CopyId,
        seal: Seal,
    },
    /// This writing is abandoned: all readers that follow it must break off. `Close` comes later.
    Abort {
        copy: CopyId,
    },
    /// A complete copy of this object, which was given to gets here, serves no new reader: the copies that clients
    /// cached of it are no longer valid. `Close` comes later.
    Removed {
        object: ObjectId,
    },
    /// The copy is unused; forget it.
    Close {
        copy: CopyId,
    },

    /// Expect `transfer` on a bulk connection from `from` and write it into `copy` from `offset`.
    Receive {
        transfer: TransferId,
        from: NodeId,
        copy: CopyId,
        offset: u64,
    },
    StopReceive {
        transfer: TransferId,
    },
    /// Stream `copy` from `offset` to `to` as the watermark moves, then the trailer once sealed. It uses so many
    /// connections at once, shared with all other sends of its `group` to that node, if it has one.
    Send {
        send: SendId,
        to: NodeId,
        transfer: TransferId,
        copy: CopyId,
        offset: u64,
        connections: Connections,
        group: Option<ReductionId>,
    },
    StopSend {
        send: SendId,
    },
    /// Fold `sources` and `streams` into `out`.
    Fold {
        fold: FoldId,
        out: CopyId,
        rule: FoldRule,
        inputs: FoldInputs,
    },
    /// More inputs for a fold without readers yet; replaces `open`. A fold that broke meanwhile is left alone.
    AmendFold {
        fold: FoldId,
        rule: FoldRule,
        added: FoldInputs,
    },
    StopFold {
        fold: FoldId,
    },
    /// The answer to [`Input::Leave`]: once the outputs before it are sent, the daemon may end.
    Left,
    /// Nothing to carry out: an event to log or count.
    Event(Event),
}

/// The computation of a fold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoldRule {
    pub op: Op,
    pub dtype: Dtype,
    /// The offset in the `sources` of the part that is folded; its length is the output's size.
    pub offset: u64,
    /// For a mean, at its root: divide the finished sum by this.
    pub divide_by: Option<u32>,
    /// Inputs are still missing: publish nothing, and do not end.
    pub open: bool,
}

/// The inputs of a fold. Fold order per element: streams as they come, then `sources` in order;
/// with a single stream that is `((stream ∘ s0) ∘ s1) ∘ …`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoldInputs {
    /// Copies on this node; each is read behind its watermark and must be sealed in the end.
    pub sources: Vec<CopyId>,
    /// Transfers from these nodes, each of the output's length from offset 0.
    pub streams: Vec<(TransferId, NodeId)>,
}

/// Typed event about something the core did; the source of logs, metrics and test assertions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    MemberUp {
        node: NodeId,
    },
    MemberDown {
        node: NodeId,
    },
    Evicted {
        copy: CopyId,
        bytes: u64,
    },
    TransferBroken {
        transfer: TransferId,
        from: NodeId,
        bytes: u64,
        size: u64,
    },
    /// A peer sent an invalid message; it was dropped.
    BadMessage {
        from: NodeId,
        error: Error,
    },
}

/// Puts the bytes of an attached copy into its message.
pub fn attach(message: &mut PeerMessage, bytes: Vec<u8>) {
    use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest};
    match message {
        PeerMessage::Directory { request: DirectoryRequest::Announce { payload, .. }, .. }
        | PeerMessage::Answer { answer: DirectoryAnswer::Copy { payload, .. }, .. } => {
            *payload = Some(hoplite_types::Blob(bytes));
        }
        PeerMessage::Answer { answer: DirectoryAnswer::Inline { payload, .. }, .. } => {
            *payload = hoplite_types::Blob(bytes);
        }
        other => unreachable!("{other:?} carries no payload"),
    }
}

//! What nodes say to each other over their control connections, and in front of bulk data.

use minicbor::{Decode, Encode};

use crate::client::Location;
use crate::{Blob, Dtype, Edition, Header, NodeId, ObjectId, Op, ReductionId, TransferId};

/// Bumped with every change that an older peer would misread.
pub const PEER_PROTOCOL_VERSION: u32 = 2;

/// First frame on every connection between nodes.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct PeerHello {
    #[n(0)]
    pub version: u32,
    #[n(1)]
    pub from: NodeId,
    /// Whom the caller believes to be calling. If that is somebody else, it is told so by a `PeerRefusal`.
    #[n(2)]
    pub to: NodeId,
    #[n(3)]
    pub purpose: Purpose,
}

/// The only thing that is ever said on a connection by the one who was called: who lives at the address,
/// and what it speaks. Then the connection is closed.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct PeerRefusal {
    #[n(0)]
    pub version: u32,
    #[n(1)]
    pub node: NodeId,
}

/// What a connection between nodes is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Purpose {
    /// `PeerMessage` frames, one way: from the caller.
    #[n(0)]
    Control,
    /// Bulk bytes, one way: each transfer is a `BulkHead`, raw bytes, a `Trailer`.
    #[n(1)]
    Bulk,
}

/// In front of the raw bytes of a transfer.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct BulkHead {
    #[n(0)]
    pub transfer: TransferId,
    #[n(1)]
    pub offset: u64,
    #[n(2)]
    pub size: u64,
}

/// What makes a copy final: sent behind the last byte, and only by a copy that is sealed itself.
/// A receiver with all bytes but no seal does not have the object yet.
#[derive(Clone, PartialEq, Debug, Default, Encode, Decode)]
pub struct Seal {
    /// For reduction targets: the sources that went in. Empty otherwise.
    #[n(0)]
    pub sources: Vec<ObjectId>,
}

/// A node's report of its own copy.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct CopyReport {
    /// Grows with every report of the node: an older report never beats a newer one.
    #[n(0)]
    pub seq: u64,
    #[n(1)]
    pub edition: Edition,
    #[n(2)]
    pub size: u64,
    #[n(3)]
    pub header: Header,
    #[n(4)]
    pub complete: bool,
    #[n(5)]
    pub pinned: bool,
    /// From whom it is being received, if it is.
    #[n(6)]
    pub upstream: Option<NodeId>,
    /// The node is about to end: what only it holds must be brought elsewhere.
    #[n(7)]
    pub leaving: bool,
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum PeerMessage {
    /// To the shard owner of `id`; passed on if the receiver is not the owner in its own view.
    #[n(0)]
    Directory {
        #[n(0)]
        origin: NodeId,
        #[n(1)]
        hops: u8,
        #[n(2)]
        id: ObjectId,
        #[n(3)]
        request: DirectoryRequest,
    },
    /// From a shard owner.
    #[n(1)]
    Answer {
        #[n(0)]
        id: ObjectId,
        #[n(1)]
        answer: DirectoryAnswer,
    },
    /// Receiver to sender: stream `id` from `offset` under `transfer`.
    #[n(2)]
    Pull {
        #[n(0)]
        transfer: TransferId,
        #[n(1)]
        id: ObjectId,
        #[n(2)]
        edition: Edition,
        #[n(3)]
        offset: u64,
        /// The copy is about to exist there (a slot being seated): wait for it a little.
        #[n(4)]
        patient: bool,
    },
    /// Receiver to sender: stop.
    #[n(3)]
    Unpull {
        #[n(0)]
        transfer: TransferId,
    },
    /// Sender to receiver: there will be no (more) bytes.
    #[n(4)]
    PullRefused {
        #[n(0)]
        transfer: TransferId,
    },
    /// Coordinator to a seated node: (re)configure a slot. The whole of what the slot is now.
    #[n(5)]
    Seat {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        seat: Seat,
    },
    /// Seated node to coordinator: the slot stands still. Repeated until something is done about it.
    #[n(6)]
    SeatFailed {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
        #[n(3)]
        trouble: SeatTrouble,
    },
    /// Seated node to coordinator, now and then: this slot is still held here. Answered by whatever got
    /// lost: `Disband`, `Commit`, or a newer `Seat`.
    #[n(7)]
    SeatHeld {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
    /// Root to coordinator: every byte of this attempt is here.
    #[n(8)]
    RootDone {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        attempt: u32,
    },
    /// Coordinator to root: seal `id`. Repeated until it is answered by `Committed`.
    #[n(9)]
    Commit {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        attempt: u32,
        #[n(2)]
        id: ObjectId,
        #[n(3)]
        edition: Edition,
        #[n(4)]
        sources: Vec<ObjectId>,
    },
    /// Coordinator to every seated node: the reduction is over; let go of partial sums.
    #[n(10)]
    Disband {
        #[n(0)]
        reduction: ReductionId,
    },
    /// Pull this object without anyone waiting for it.
    #[n(11)]
    Prefetch {
        #[n(0)]
        id: ObjectId,
    },
    /// Measures the round trip; answered by `Pong` with the same number.
    #[n(12)]
    Ping {
        #[n(0)]
        sent_ns: u64,
    },
    #[n(13)]
    Pong {
        #[n(0)]
        sent_ns: u64,
    },
    /// Root to coordinator: the target is sealed here; or it is not, and never will be.
    #[n(14)]
    Committed {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        sealed: bool,
    },
    /// Receiver to sender: nothing comes, although the connection stands. Answered by `Checked`, or by
    /// `PullRefused` if nothing of the kind is being sent.
    #[n(15)]
    Check {
        #[n(0)]
        transfer: TransferId,
    },
    /// Sender to receiver: at least so many bytes of the object are here to be sent; the seal counts as
    /// one more.
    #[n(16)]
    Checked {
        #[n(0)]
        transfer: TransferId,
        #[n(1)]
        watermark: u64,
    },
    /// To a node that was taken for dead and is back: what it said meanwhile was not listened to.
    #[n(17)]
    SayAgain,
    /// To the owner of a deleted object: what was here of it is dropped.
    #[n(18)]
    DeletionHeard {
        #[n(0)]
        id: ObjectId,
    },
    /// An owner to whoever would own these ids without it: they are, or were, complete, and nobody else could
    /// tell of that.
    #[n(19)]
    Remember {
        #[n(0)]
        ids: Vec<ObjectId>,
    },
    /// To a shard owner: every copy of its objects that is here has been reported to it with a number from
    /// `since` on. Older reports of this node are out of date: their withdrawal was lost.
    #[n(20)]
    AllSaid {
        #[n(0)]
        since: u64,
        /// Stands for the members that the sender knows: who knows others may own other objects than the
        /// sender thinks, and draws no conclusion.
        #[n(1)]
        members: u64,
    },
    /// Seated node to coordinator, while it goes on: the slot waits for room. Answered by `MakeWay` once
    /// the reduction needs nothing but room.
    #[n(21)]
    SeatCrowded {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
    /// Coordinator to seated node: all sources are complete. Other reductions that hold the room are to
    /// give it up, if they are later ones or lack a source.
    #[n(22)]
    MakeWay {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum DirectoryRequest {
    /// A copy exists (or changed). `payload` for small complete objects. If `wants_verdict`, the
    /// owner answers `Verdict` (a put waits for it).
    #[n(0)]
    Announce {
        #[n(0)]
        report: CopyReport,
        #[n(1)]
        payload: Option<Blob>,
        #[n(2)]
        wants_verdict: bool,
    },
    /// The origin holds no copy of `edition` any more.
    #[n(1)]
    Withdraw {
        #[n(0)]
        seq: u64,
        #[n(1)]
        edition: Edition,
    },
    /// Lend me a sender (blocking: answered when there is one). `failed` did not deliver.
    #[n(2)]
    Ask {
        #[n(0)]
        ask: u64,
        #[n(1)]
        have: Option<Edition>,
        #[n(2)]
        failed: Option<NodeId>,
    },
    /// Not interested any more.
    #[n(3)]
    Unask {
        #[n(0)]
        ask: u64,
    },
    /// Push every change of this object's copies to the origin.
    #[n(4)]
    Subscribe,
    #[n(5)]
    Unsubscribe,
    #[n(6)]
    Delete {
        #[n(0)]
        token: u64,
    },
    #[n(7)]
    Locate {
        #[n(0)]
        token: u64,
    },
    /// Between owners when membership changes: this id is deleted.
    #[n(8)]
    Bury {
        /// How much longer the tombstone stands.
        #[n(0)]
        ttl_ms: u64,
    },
    /// Between owners, and from coordinators: a complete copy existed. If none is left, it is lost.
    #[n(9)]
    Mourn {
        /// How much longer to remember that.
        #[n(0)]
        ttl_ms: u64,
    },
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum DirectoryAnswer {
    #[n(0)]
    Verdict {
        #[n(0)]
        edition: Edition,
        #[n(1)]
        verdict: Verdict,
    },
    #[n(1)]
    Lend {
        #[n(0)]
        ask: u64,
        #[n(1)]
        sender: NodeId,
        #[n(2)]
        edition: Edition,
        #[n(3)]
        size: u64,
        #[n(4)]
        header: Header,
    },
    /// The object itself, in answer to an ask.
    #[n(2)]
    Inline {
        #[n(0)]
        ask: u64,
        #[n(1)]
        edition: Edition,
        #[n(2)]
        header: Header,
        #[n(3)]
        payload: Blob,
    },
    /// To holders, askers, subscribers and whoever would be the next owner.
    #[n(3)]
    Deleted {
        /// How much longer the tombstone stands.
        #[n(0)]
        ttl_ms: u64,
    },
    /// To askers and subscribers: the last complete copy is gone and nobody is writing another.
    #[n(4)]
    Lost,
    /// To subscribers: `node` has this copy.
    #[n(5)]
    Copy {
        #[n(0)]
        node: NodeId,
        #[n(1)]
        report: CopyReport,
    },
    /// To subscribers: `node` has it no more.
    #[n(6)]
    CopyGone {
        #[n(0)]
        node: NodeId,
    },
    #[n(7)]
    DeleteDone {
        #[n(0)]
        token: u64,
    },
    #[n(8)]
    Located {
        #[n(0)]
        token: u64,
        #[n(1)]
        size: Option<u64>,
        #[n(2)]
        copies: Vec<Location>,
        #[n(3)]
        deleted: bool,
    },
    /// The object is to stay on this node: no other copy is certain to. Who has none yet gets one.
    #[n(9)]
    Pin,
    /// There is a better sender than this one: the chain behind it leads back to the receiver, or it serves
    /// others too. Whoever still receives from it is to ask for another.
    #[n(10)]
    AskAgain {
        #[n(0)]
        edition: Edition,
        #[n(1)]
        sender: NodeId,
    },
    /// To an ask that was repeated: no sender is free yet; who has the object, and how (some of them).
    #[n(11)]
    NotYet {
        #[n(0)]
        ask: u64,
        #[n(1)]
        copies: Vec<Location>,
    },
    /// To subscribers, from an owner that knows all there is: these nodes have a copy, and nobody else.
    #[n(12)]
    Holders {
        #[n(0)]
        nodes: Vec<NodeId>,
    },
}

/// The directory's word on a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Verdict {
    #[n(0)]
    Accepted,
    #[n(1)]
    Deleted,
    #[n(2)]
    OtherSize(#[n(0)] u64),
}

/// Why a slot stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum SeatTrouble {
    /// The stream from this child slot broke off.
    #[n(0)]
    Child(#[n(0)] u32),
    /// A source that should be on the seated node is not (or not in that edition).
    #[n(1)]
    Source(#[n(0)] ObjectId),
    /// The partial sum will never fit into the store.
    #[n(2)]
    NoRoom,
    /// The target's id is taken there.
    #[n(3)]
    Taken,
    /// The node let go of the slot: it took the coordinator for dead, or another reduction needed the room.
    #[n(4)]
    LetGo,
}

/// One slot of a reduction tree as its node must run it: fold `sources` and the streams of
/// `children` into `out`.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Seat {
    #[n(0)]
    pub slot: u32,
    /// Bumped when what was folded so far must be thrown away.
    #[n(1)]
    pub attempt: u32,
    /// The id the result goes by: the target at the root, a partial sum elsewhere.
    #[n(2)]
    pub out: ObjectId,
    /// The edition of `out`.
    #[n(3)]
    pub edition: Edition,
    #[n(4)]
    pub root: bool,
    #[n(5)]
    pub size: u64,
    #[n(6)]
    pub header: Header,
    #[n(7)]
    pub dtype: Dtype,
    #[n(8)]
    pub op: Op,
    /// At the root of a mean: how many sources to divide by.
    #[n(9)]
    pub divide_by: Option<u32>,
    /// Sources on this node, in fold order.
    #[n(10)]
    pub sources: Vec<Source>,
    #[n(11)]
    pub children: Vec<Child>,
    /// More inputs will be named later: fold what there is, but publish nothing yet.
    #[n(12)]
    pub open: bool,
    /// Grows with every change of the seat: one that comes late, by an older connection, changes nothing.
    #[n(13)]
    pub version: u32,
    /// Some source may be incomplete: the slot gives up its room to a reduction that needs nothing else.
    #[n(14)]
    pub lacking: bool,
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Source {
    #[n(0)]
    pub id: ObjectId,
    #[n(1)]
    pub edition: Edition,
}

/// A child slot, as its parent needs to know it in order to pull from it.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Child {
    #[n(0)]
    pub slot: u32,
    #[n(1)]
    pub node: NodeId,
    #[n(2)]
    pub id: ObjectId,
    #[n(3)]
    pub edition: Edition,
}

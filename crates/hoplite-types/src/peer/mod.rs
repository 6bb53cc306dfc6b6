//! The messages between nodes: on their control connections, and in front of bulk data.

mod directory;
mod slots;
mod validate;

use minicbor::{Decode, Encode};

use crate::{Edition, NodeId, ObjectId, ReductionId, Shard, Stamp, TransferId};
pub use directory::{
    CopyReport, Cursor, Deletion, DirectoryAnswer, DirectoryRequest, InventoryPage, ShardQuery, Verdict,
};
pub use slots::{Child, SlotAssignment, SlotFailure, Source};

/// Incremented with every change that an older peer would misread.
pub const PEER_PROTOCOL_VERSION: u32 = 13;

/// First frame on every connection between nodes.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct PeerHello {
    #[n(0)]
    pub version: u32,
    #[n(1)]
    pub from: NodeId,
    /// The node that the caller means to reach. Any other node answers `PeerRefusal`.
    #[n(2)]
    pub to: NodeId,
    #[n(3)]
    pub purpose: Purpose,
    /// Set if this bulk connection is one of several that carry their transfers together.
    #[n(4)]
    pub part: Option<BundlePart>,
}

/// The position of a connection in its bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BundlePart {
    /// Chosen by the caller; never reused.
    #[n(0)]
    pub bundle: u64,
    /// From 0 on: the order in which the connections are used.
    #[n(1)]
    pub number: u8,
    #[n(2)]
    pub of: u8,
}

/// The only frame that a listener ever sends on a connection: its own id and protocol version. Then it closes the
/// connection.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct PeerRefusal {
    #[n(0)]
    pub version: u32,
    #[n(1)]
    pub node: NodeId,
}

/// The purpose of a connection between nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Purpose {
    /// `PeerMessage` frames, one way: from the caller.
    #[n(0)]
    Control,
    /// Bulk bytes, one way: `BulkFrame`s, and raw bytes behind some of them.
    #[n(1)]
    Bulk,
}

/// The next item on a bulk connection: a whole transfer, or part of a transfer that shares the connection with
/// others. Shared transfers begin, bring pieces and end in any order. A whole transfer can follow when all of them
/// have ended.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum BulkFrame {
    /// All raw bytes of the transfer follow, then its `Seal`.
    #[n(0)]
    Whole(#[n(0)] BulkHead),
    /// A transfer that comes in pieces begins.
    #[n(1)]
    Begin(#[n(0)] BulkHead),
    /// Its next `bytes` raw bytes follow.
    #[n(2)]
    Piece {
        #[n(0)]
        transfer: TransferId,
        #[n(1)]
        bytes: u32,
    },
    /// It ends: every byte has come.
    #[n(3)]
    End {
        #[n(0)]
        transfer: TransferId,
        #[n(1)]
        seal: Seal,
    },
    /// It is aborted: no more bytes of it will come.
    #[n(4)]
    Abort {
        #[n(0)]
        transfer: TransferId,
    },
}

/// The transfer to expect.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct BulkHead {
    #[n(0)]
    pub transfer: TransferId,
    #[n(1)]
    pub offset: u64,
    #[n(2)]
    pub size: u64,
}

/// The extent of an inventory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Scope {
    /// Everything; sent to an owner.
    #[n(0)]
    All,
    /// Deletions and losses, which only an owner may know of; sent to its backup.
    #[n(1)]
    Past,
}

/// The record that makes a copy final. It is sent behind the last byte, and only from a sealed copy. A receiver with
/// all bytes but no seal does not have the object yet.
#[derive(Clone, PartialEq, Debug, Default, Encode, Decode)]
pub struct Seal {
    /// For reduction targets: the sources that were reduced. Empty otherwise.
    #[n(0)]
    pub sources: Vec<ObjectId>,
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum PeerMessage {
    /// To the shard owner of `id`; forwarded if the receiver is not the owner in its own view.
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
        /// The copy is about to exist there (a slot that is being assigned): the sender waits for it for a while.
        #[n(4)]
        patient: bool,
    },
    /// Receiver to sender: stop.
    #[n(3)]
    CancelPull {
        #[n(0)]
        transfer: TransferId,
    },
    /// Sender to receiver: no (more) bytes will come.
    #[n(4)]
    PullRefused {
        #[n(0)]
        transfer: TransferId,
    },
    /// Coordinator to a slot's node: configure the slot. Always the complete assignment.
    #[n(5)]
    AssignSlot {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        assignment: SlotAssignment,
    },
    /// The slot's node to the coordinator: the slot has stopped. Resent until the coordinator acts on it.
    #[n(6)]
    SlotFailed {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
        #[n(3)]
        failure: SlotFailure,
    },
    /// The slot's node to the coordinator, from time to time: this slot is still held here. The answer is any message
    /// that was lost: `ReleaseSlots`, `Commit`, or a newer `AssignSlot`.
    #[n(7)]
    SlotHeld {
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
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
    /// Coordinator to root, and to all others that put `id` together from its parts: seal it. Resent until the root
    /// answers `Committed`.
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
    /// Coordinator to every node with a slot: the reduction has ended; release its partial sums.
    #[n(10)]
    ReleaseSlots {
        #[n(0)]
        reduction: ReductionId,
    },
    /// Pull this object, although no call waits for it.
    #[n(11)]
    Prefetch {
        #[n(0)]
        id: ObjectId,
    },
    /// Measures the round trip. Answered by `Pong` with the same number.
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
    /// Root to coordinator: the target is sealed here, or it never will be.
    #[n(14)]
    Committed {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        sealed: bool,
    },
    /// Receiver to sender: no bytes arrive, although the connection is up. Answered by `Checked`, or by `PullRefused`
    /// if this transfer is not being sent and was not sent before.
    #[n(15)]
    Check {
        #[n(0)]
        transfer: TransferId,
    },
    /// Sender to receiver: at least `watermark` bytes of the object are here to be sent; the seal counts as one more.
    /// `u64::MAX` once all of it has been sent.
    #[n(16)]
    Checked {
        #[n(0)]
        transfer: TransferId,
        #[n(1)]
        watermark: u64,
    },
    /// To a node that was believed dead and has rejoined: its messages were dropped meanwhile. Resent on each new
    /// connection to it, since the request may have been lost with the previous one.
    #[n(17)]
    ResyncRequest {
        /// The number of deaths that the sender has noticed. The sender has released all slots assigned before.
        #[n(0)]
        epoch: u64,
    },
    /// To the owner of a deleted object: the copy that was here is dropped.
    #[n(18)]
    DeletionAck {
        #[n(0)]
        id: ObjectId,
    },
    /// From an owner to the backup owner of these ids: they are or were complete, and no other node could report it.
    #[n(19)]
    BackupIds {
        #[n(0)]
        ids: Vec<ObjectId>,
    },
    /// An owner requests all that a node knows of these shards; or a backup owner requests what only their owner
    /// knows. Answered by `Inventory`, page by page.
    #[n(20)]
    InventoryRequest {
        #[n(0)]
        round: u64,
        #[n(1)]
        scope: Scope,
        #[n(2)]
        shards: Vec<ShardQuery>,
        /// The end of the previous page.
        #[n(3)]
        from: Option<Cursor>,
        /// The requesting node has just started and has no inventory of its own.
        #[n(4)]
        fresh: bool,
        #[n(5)]
        clock: Stamp,
    },
    #[n(24)]
    Inventory {
        #[n(0)]
        round: u64,
        /// Copies that were reported with smaller sequence numbers, and are not in this inventory, are gone.
        #[n(1)]
        since: u64,
        #[n(2)]
        page: InventoryPage,
        /// Shards whose digest was right: their copies are left out.
        #[n(3)]
        unchanged: Vec<Shard>,
        /// The start of the next page; `None` if this is the last.
        #[n(4)]
        next: Option<Cursor>,
        #[n(5)]
        clock: Stamp,
    },
    /// From a joining node to the first member that it finds. Answered by `Members`.
    #[n(25)]
    MembersRequest,
    #[n(26)]
    Members {
        /// With the number of times that each was declared dead while it lived.
        #[n(0)]
        members: Vec<(NodeId, u32)>,
        /// The sender does not know all members itself yet.
        #[n(1)]
        partial: bool,
    },
    /// The slot's node to the coordinator, repeatedly: the slot waits for space. Answered by `Preempt` once the
    /// reduction lacks nothing but space.
    #[n(21)]
    SlotNeedsSpace {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
    /// Coordinator to the slot's node: all sources are complete. Other reductions that hold the space must give it
    /// up, if they come later in the order or lack a source.
    #[n(22)]
    Preempt {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
    /// Coordinator to a node that reports a slot which is no longer its own: it discards the slot's partial sum.
    #[n(27)]
    ReleaseSlot {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
    /// The last frame on a control connection that its caller closes because it is idle. Nothing is lost.
    #[n(23)]
    Goodbye,
}

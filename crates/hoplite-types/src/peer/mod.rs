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

/// Bumped with every change that an older peer would misread.
pub const PEER_PROTOCOL_VERSION: u32 = 13;

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
    /// Of a bulk connection that is one of several which carry their transfers together.
    #[n(4)]
    pub part: Option<BundlePart>,
}

/// Which connection of which bundle this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct BundlePart {
    /// Numbered by the caller; never reused.
    #[n(0)]
    pub bundle: u64,
    /// From 0 on: the order in which the connections take their turns.
    #[n(1)]
    pub number: u8,
    #[n(2)]
    pub of: u8,
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
    /// Bulk bytes, one way: `BulkFrame`s, and raw bytes behind some of them.
    #[n(1)]
    Bulk,
}

/// What comes next on a bulk connection: a transfer by itself, or part of one that shares the connection with
/// others. Those that share it begin, bring pieces, and end in any order; a transfer by itself can follow when
/// all of them have ended.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum BulkFrame {
    /// All of its raw bytes follow, then its `Seal`.
    #[n(0)]
    Whole(#[n(0)] BulkHead),
    /// A transfer that comes in pieces.
    #[n(1)]
    Begin(#[n(0)] BulkHead),
    /// Its next so many raw bytes follow.
    #[n(2)]
    Piece {
        #[n(0)]
        transfer: TransferId,
        #[n(1)]
        bytes: u32,
    },
    /// Its end: every byte has come.
    #[n(3)]
    End {
        #[n(0)]
        transfer: TransferId,
        #[n(1)]
        seal: Seal,
    },
    /// No more will come of it.
    #[n(4)]
    Abort {
        #[n(0)]
        transfer: TransferId,
    },
}

/// What a transfer is to bring.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct BulkHead {
    #[n(0)]
    pub transfer: TransferId,
    #[n(1)]
    pub offset: u64,
    #[n(2)]
    pub size: u64,
}

/// How much an inventory is to tell.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
#[cbor(index_only)]
pub enum Scope {
    /// Everything: to an owner.
    #[n(0)]
    All,
    /// Deletions and losses, which only an owner may know of: to its backup.
    #[n(1)]
    Past,
}

/// What makes a copy final: sent behind the last byte, and only by a copy that is sealed itself.
/// A receiver with all bytes but no seal does not have the object yet.
#[derive(Clone, PartialEq, Debug, Default, Encode, Decode)]
pub struct Seal {
    /// For reduction targets: the sources that went in. Empty otherwise.
    #[n(0)]
    pub sources: Vec<ObjectId>,
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
        /// The copy is about to exist there (a slot that is being assigned): wait for it a little.
        #[n(4)]
        patient: bool,
    },
    /// Receiver to sender: stop.
    #[n(3)]
    CancelPull {
        #[n(0)]
        transfer: TransferId,
    },
    /// Sender to receiver: there will be no (more) bytes.
    #[n(4)]
    PullRefused {
        #[n(0)]
        transfer: TransferId,
    },
    /// Coordinator to a slot's node: (re)configure the slot. The whole of what the slot is now.
    #[n(5)]
    AssignSlot {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        assignment: SlotAssignment,
    },
    /// The slot's node to the coordinator: the slot stands still. Repeated until something is done about it.
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
    /// The slot's node to the coordinator, now and then: this slot is still held here. Answered by whatever got
    /// lost: `ReleaseSlots`, `Commit`, or a newer `AssignSlot`.
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
    /// Coordinator to root, and to all others that put `id` together from its parts: seal it. Repeated until
    /// the root answers by `Committed`.
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
    /// Coordinator to every node with a slot: the reduction is over; let go of partial sums.
    #[n(10)]
    ReleaseSlots {
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
    /// `PullRefused` if nothing of the kind is, or was, being sent.
    #[n(15)]
    Check {
        #[n(0)]
        transfer: TransferId,
    },
    /// Sender to receiver: at least so many bytes of the object are here to be sent; the seal counts as
    /// one more. `u64::MAX` once all of it has been sent.
    #[n(16)]
    Checked {
        #[n(0)]
        transfer: TransferId,
        #[n(1)]
        watermark: u64,
    },
    /// To a node that was taken for dead and is back: what it said meanwhile was not listened to. Said again on
    /// each new connection to it, since it may have been lost with the one before.
    #[n(17)]
    ResyncRequest {
        /// Of how many deaths the sender has taken note: slots that were assigned before are let go.
        #[n(0)]
        epoch: u64,
    },
    /// To the owner of a deleted object: what was here of it is dropped.
    #[n(18)]
    DeletionAck {
        #[n(0)]
        id: ObjectId,
    },
    /// An owner to the backup owner of these ids: they are, or were, complete, and nobody else could tell of that.
    #[n(19)]
    BackupIds {
        #[n(0)]
        ids: Vec<ObjectId>,
    },
    /// An owner asks for all that a node knows of these shards; or a backup owner asks their owner what only it
    /// knows. Answered by `Inventory`, page by page.
    #[n(20)]
    InventoryRequest {
        #[n(0)]
        round: u64,
        #[n(1)]
        scope: Scope,
        #[n(2)]
        shards: Vec<ShardQuery>,
        /// Where the page before ended.
        #[n(3)]
        from: Option<Cursor>,
        /// The asking node has just started: it has nothing to tell itself.
        #[n(4)]
        fresh: bool,
        #[n(5)]
        clock: Stamp,
    },
    #[n(24)]
    Inventory {
        #[n(0)]
        round: u64,
        /// Copies that were reported with smaller numbers and are not in this inventory are gone.
        #[n(1)]
        since: u64,
        #[n(2)]
        page: InventoryPage,
        /// Shards whose digest was right: nothing is said of their copies.
        #[n(3)]
        unchanged: Vec<Shard>,
        /// Where to go on; none if this was all.
        #[n(4)]
        next: Option<Cursor>,
        #[n(5)]
        clock: Stamp,
    },
    /// From a node that joins, to the first member it hears of; answered by `Members`.
    #[n(25)]
    MembersRequest,
    #[n(26)]
    Members {
        /// With how often each was declared dead while it lived.
        #[n(0)]
        members: Vec<(NodeId, u32)>,
        /// Who says so does not know all of them itself yet.
        #[n(1)]
        partial: bool,
    },
    /// The slot's node to the coordinator, while it goes on: the slot waits for space. Answered by `Preempt` once
    /// the reduction needs nothing but space.
    #[n(21)]
    SlotNeedsSpace {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
    /// Coordinator to the slot's node: all sources are complete. Other reductions that hold the space are to
    /// give it up, if they are later ones or lack a source.
    #[n(22)]
    Preempt {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
    /// Coordinator to a node that speaks of a slot which is not its own any more: what it has summed up there goes.
    #[n(27)]
    ReleaseSlot {
        #[n(0)]
        reduction: ReductionId,
        #[n(1)]
        slot: u32,
        #[n(2)]
        attempt: u32,
    },
    /// The last frame on a control connection that its caller closes because it is idle: nothing is lost.
    #[n(23)]
    Goodbye,
}

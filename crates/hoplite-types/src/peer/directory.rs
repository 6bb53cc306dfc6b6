//! The requests of holders and receivers to the owner of an id, and its answers.

use minicbor::{Decode, Encode};

use crate::client::Location;
use crate::{Blob, Claim, Edition, Header, NodeId, ObjectId, Shard, Stamp};

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
    /// When an owner accepted its content; none until one has.
    #[n(8)]
    pub stamp: Option<Stamp>,
    /// Of a copy that may still be sealed on its own: by which right.
    #[n(9)]
    pub claim: Option<Claim>,
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
    CancelAsk {
        #[n(0)]
        ask: u64,
    },
    /// Push every change of this object's copies to the origin.
    #[n(4)]
    Subscribe {
        /// And the object itself, if it has no more bytes than this: nothing more is pushed once that was sent.
        #[n(0)]
        bytes_max: Option<u64>,
    },
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
    /// A coordinator wants to make the object; answered by `ClaimVerdict`, perhaps only when others that had a
    /// claim before it have given theirs up.
    #[n(8)]
    Claim {
        #[n(0)]
        seq: u64,
        #[n(1)]
        claim: Claim,
    },
    /// The reduction that had this claim is over.
    #[n(9)]
    ReleaseClaim {
        #[n(0)]
        claim: Claim,
        /// Its target was sealed somewhere.
        #[n(1)]
        made: bool,
    },
    /// From a coordinator: the object was complete under this claim, and its node died before anybody else had it.
    #[n(10)]
    MarkLost {
        #[n(0)]
        claim: Claim,
    },
    /// Those of these nodes that neither have the object nor ask for it are to be told to prefetch it.
    #[n(11)]
    Bring {
        #[n(0)]
        nodes: Vec<NodeId>,
    },
    /// In answer to `Pin`: the store here has no space for the object.
    #[n(12)]
    PinRefused,
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
        #[n(5)]
        stamp: Option<Stamp>,
    },
    /// The object itself, in answer to an ask. Who asked counts as a holder from now on, as if it had reported
    /// a complete copy with its question, unless it says otherwise.
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
        #[n(4)]
        stamp: Option<Stamp>,
    },
    /// To all that have to do with the object, and to the backup owner. Answered by `DeletionAck`.
    #[n(3)]
    Deleted {
        /// What was accepted later stays.
        #[n(0)]
        deletion: Deletion,
    },
    /// To askers and subscribers: the last complete copy is gone and nobody is writing another.
    #[n(4)]
    Lost,
    /// To subscribers: `node` has this copy. `payload` for small complete objects, once to each who asked for it.
    #[n(5)]
    Copy {
        #[n(0)]
        node: NodeId,
        #[n(1)]
        report: CopyReport,
        #[n(2)]
        payload: Option<Blob>,
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
        /// For who asked to remember, unless the id stands for something newer by now.
        #[n(1)]
        deletion: Option<Deletion>,
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
    /// The object is to stay on this node: no other copy is certain to. Who has none yet gets one. Repeated until
    /// the copy is reported as pinned, or `PinRefused` is the answer.
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
    /// To a coordinator, about its claim.
    #[n(13)]
    ClaimVerdict {
        #[n(0)]
        claim: Claim,
        #[n(1)]
        verdict: Verdict,
    },
}

/// When an object was deleted: by the cluster's clock, and how long ago that is, in milliseconds. The clock may have
/// jumped since.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Deletion {
    #[n(0)]
    pub stamp: Stamp,
    #[n(1)]
    pub age_ms: u64,
}

/// The owner's word on a copy or a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Verdict {
    /// What is written under this claim is the object's content.
    #[n(0)]
    Accepted(#[n(0)] Stamp),
    #[n(1)]
    Deleted,
    /// The object exists with this size, and another size or kind.
    #[n(2)]
    OtherKind(#[n(0)] u64),
    /// The object exists, of the same size and kind, with the content that was accepted then.
    #[n(3)]
    Exists(#[n(0)] Stamp),
    /// The writing of which this copy is a part was given up.
    #[n(4)]
    Abandoned,
}

/// What an owner wants to hear of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ShardQuery {
    #[n(0)]
    pub shard: Shard,
    /// Stands for the copies there that the asked node is known to have; none if the owner is new.
    #[n(1)]
    pub digest: Option<u64>,
}

/// Where an inventory that did not fit into one page goes on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub struct Cursor {
    #[n(0)]
    pub shard: Shard,
    #[n(1)]
    pub section: u8,
    #[n(2)]
    pub after: ObjectId,
}

/// One page of what a node knows of the shards it was asked about.
#[derive(Clone, PartialEq, Debug, Default, Encode, Decode)]
pub struct InventoryPage {
    /// Its copies.
    #[n(0)]
    pub copies: Vec<(ObjectId, CopyReport)>,
    /// Targets that reductions it coordinates have a claim to, and when that was accepted.
    #[n(1)]
    pub claims: Vec<(ObjectId, Claim, Option<Stamp>)>,
    /// Objects that it heard were deleted.
    #[n(2)]
    pub tombstones: Vec<(ObjectId, Deletion)>,
    /// Objects that were complete somewhere, as their dead owners told it; and how long ago, in milliseconds.
    #[n(3)]
    pub lost: Vec<(ObjectId, u64)>,
}

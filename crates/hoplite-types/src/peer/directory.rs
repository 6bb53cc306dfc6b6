//! The requests of holders and receivers to the owner of an id, and its answers.

use minicbor::{Decode, Encode};

use crate::client::Location;
use crate::{Blob, Claim, Edition, Header, NodeId, ObjectId, Shard, Stamp};

/// A node's report of its own copy.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct CopyReport {
    /// Grows with every report of the node, so that an older report never replaces a newer one.
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
    /// The sender from which the copy is being received, if it is.
    #[n(6)]
    pub upstream: Option<NodeId>,
    /// The node is about to end: objects that only it holds must be copied elsewhere.
    #[n(7)]
    pub leaving: bool,
    /// When an owner accepted its content; `None` before that.
    #[n(8)]
    pub stamp: Option<Stamp>,
    /// For a copy that may still be sealed on its own: the claim under which it is written.
    #[n(9)]
    pub claim: Option<Claim>,
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub enum DirectoryRequest {
    /// A copy exists, or has changed. `payload` is for small complete objects. If `wants_verdict`, the owner answers
    /// `Verdict`; a put waits for it.
    #[n(0)]
    Announce {
        #[n(0)]
        report: CopyReport,
        #[n(1)]
        payload: Option<Blob>,
        #[n(2)]
        wants_verdict: bool,
    },
    /// The origin has no copy of `edition` any more.
    #[n(1)]
    Withdraw {
        #[n(0)]
        seq: u64,
        #[n(1)]
        edition: Edition,
    },
    /// Asks for a sender; answered when there is one. `failed` did not deliver.
    #[n(2)]
    Ask {
        #[n(0)]
        ask: u64,
        #[n(1)]
        have: Option<Edition>,
        #[n(2)]
        failed: Option<NodeId>,
    },
    /// The origin no longer needs a sender.
    #[n(3)]
    CancelAsk {
        #[n(0)]
        ask: u64,
    },
    /// Requests that every change of this object's copies is pushed to the origin.
    #[n(4)]
    Subscribe {
        /// Also requests the object itself, if it has no more bytes than this. Nothing more is pushed after it.
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
    /// A coordinator wants to make the object. Answered by `ClaimVerdict`, possibly only after earlier claims have
    /// been released.
    #[n(8)]
    Claim {
        #[n(0)]
        seq: u64,
        #[n(1)]
        claim: Claim,
    },
    /// The reduction that had this claim has ended.
    #[n(9)]
    ReleaseClaim {
        #[n(0)]
        claim: Claim,
        /// Its target was sealed on some node.
        #[n(1)]
        made: bool,
    },
    /// From a coordinator: the object was complete under this claim, and its node died before any other node had a
    /// copy.
    #[n(10)]
    MarkLost {
        #[n(0)]
        claim: Claim,
    },
    /// Asks the owner to have these nodes prefetch the object, except those that have it or have asked for it.
    #[n(11)]
    Bring {
        #[n(0)]
        nodes: Vec<NodeId>,
    },
    /// Answers `Pin`: the store here has no space for the object.
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
    /// The object itself, as the answer to an ask. From now on the asker counts as a holder, as if its ask had
    /// reported a complete copy, unless it reports otherwise.
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
    /// To all nodes involved with the object, and to the backup owner. Answered by `DeletionAck`.
    #[n(3)]
    Deleted {
        /// Content that was accepted after this deletion stays.
        #[n(0)]
        deletion: Deletion,
    },
    /// To askers and subscribers: the last complete copy is gone, and no node is writing another.
    #[n(4)]
    Lost,
    /// To subscribers: `node` has this copy. `payload` is for small complete objects, once for each subscriber that
    /// requested it.
    #[n(5)]
    Copy {
        #[n(0)]
        node: NodeId,
        #[n(1)]
        report: CopyReport,
        #[n(2)]
        payload: Option<Blob>,
    },
    /// To subscribers: `node` has no copy any more.
    #[n(6)]
    CopyGone {
        #[n(0)]
        node: NodeId,
    },
    #[n(7)]
    DeleteDone {
        #[n(0)]
        token: u64,
        /// For the requester to remember. `None` if the id has newer content by now.
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
    /// The node must keep the object, since no other copy is certain to stay. A node without a copy gets one. Resent
    /// until the copy is reported as pinned, or `PinRefused` is answered.
    #[n(9)]
    Pin,
    /// There is a better sender than `sender`: its upstream chain leads back to the receiver, or it also serves
    /// others. A node that still receives from it must ask for another.
    #[n(10)]
    AskAgain {
        #[n(0)]
        edition: Edition,
        #[n(1)]
        sender: NodeId,
    },
    /// Answers a repeated ask: no sender is free yet. Lists some of the copies.
    #[n(11)]
    NotYet {
        #[n(0)]
        ask: u64,
        #[n(1)]
        copies: Vec<Location>,
    },
    /// To subscribers, from an owner with complete knowledge of the object: exactly these nodes have a copy.
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

/// The time when an object was deleted: by the cluster's clock, and as an age in milliseconds, since the clock may
/// have jumped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Deletion {
    #[n(0)]
    pub stamp: Stamp,
    #[n(1)]
    pub age_ms: u64,
}

/// The owner's decision on a copy or a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum Verdict {
    /// Content written under this claim becomes the object's content.
    #[n(0)]
    Accepted(#[n(0)] Stamp),
    #[n(1)]
    Deleted,
    /// The object exists with this size; its size or kind differs from that of the new one.
    #[n(2)]
    OtherKind(#[n(0)] u64),
    /// The object exists, of the same size and kind, with the content that was accepted at that time.
    #[n(3)]
    Exists(#[n(0)] Stamp),
    /// The writing to which this copy belongs was abandoned.
    #[n(4)]
    Abandoned,
}

/// An owner's request for what a node knows of a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub struct ShardQuery {
    #[n(0)]
    pub shard: Shard,
    /// The digest of the copies that the asked node is known to have in the shard; `None` if the owner is new.
    #[n(1)]
    pub digest: Option<u64>,
}

/// The position at which the next page of an inventory starts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Encode, Decode)]
pub struct Cursor {
    #[n(0)]
    pub shard: Shard,
    #[n(1)]
    pub section: u8,
    #[n(2)]
    pub after: ObjectId,
}

/// One page of what a node knows of the shards that it was asked about.
#[derive(Clone, PartialEq, Debug, Default, Encode, Decode)]
pub struct InventoryPage {
    /// Copies on this node.
    #[n(0)]
    pub copies: Vec<(ObjectId, CopyReport)>,
    /// Targets to which reductions that this node coordinates have a claim, and the stamp of its acceptance.
    #[n(1)]
    pub claims: Vec<(ObjectId, Claim, Option<Stamp>)>,
    /// Objects whose deletion was reported to this node.
    #[n(2)]
    pub tombstones: Vec<(ObjectId, Deletion)>,
    /// Objects that were complete on some node, as reported by owners that are dead now; with the age in
    /// milliseconds.
    #[n(3)]
    pub lost: Vec<(ObjectId, u64)>,
}

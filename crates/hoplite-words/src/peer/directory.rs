//! What holders and askers say to the owner of an id, and its answers.

use minicbor::{Decode, Encode};

use crate::client::Location;
use crate::{Blob, Edition, Header, NodeId};

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
    /// Those of these nodes that neither have the object nor ask for it are to be told to prefetch it.
    #[n(10)]
    Bring {
        #[n(0)]
        nodes: Vec<NodeId>,
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

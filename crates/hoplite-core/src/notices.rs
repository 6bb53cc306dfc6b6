//! Notices: events of a component that concern components above it. `settle` hands them on before the next message. So no
//! component calls one above it.

use hoplite_types::client::Reply;
use hoplite_types::peer::CopyReport;
use hoplite_types::{Blob, CopyId, Edition, Error, NodeId, ObjectId, Stamp, TransferId};

use crate::io::{ClientId, FoldId};
use crate::keys::{Want, Watcher};

/// The kinds of news about a watched object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum News {
    /// Its set of copies has changed.
    Change,
    Lost,
    Deleted,
}

/// An event inside this node.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A copy of the object was opened here, under this name.
    Opened(ObjectId),
    /// A public copy of the object is sealed.
    Sealed {
        copy: CopyId,
        object: ObjectId,
    },
    /// The copy serves no new reader. Public ones were known to the directory.
    Doomed {
        copy: CopyId,
        object: ObjectId,
        public: bool,
    },
    /// A reader of a copy of the object is done with it.
    Released(ObjectId),
    /// The object's owner was told, with this number, that the object is not here.
    Withdrawn {
        object: ObjectId,
        seq: u64,
    },
    /// A client or another node was given bytes that came from elsewhere.
    Shown {
        object: ObjectId,
        edition: Edition,
    },
    /// There is news of a watched object, for one of its watchers.
    Watched {
        watcher: Watcher,
        object: ObjectId,
        news: News,
    },
    /// A small source of a reduction came with the news of it.
    SourceCame {
        number: u64,
        object: ObjectId,
        report: CopyReport,
        payload: Blob,
    },
    /// Copies of some sources of a reduction went with their nodes.
    SourcesGone(u64),
    /// The object is wanted, and here.
    Wanted {
        object: ObjectId,
        want: Want,
    },
    /// The object is wanted, and its owner knows that it is lost.
    LostTo {
        object: ObjectId,
        want: Want,
    },
    /// The last complete copy of a wanted object is gone.
    Lost(ObjectId),
    /// A wanted object will not come: those who want it are to fail.
    Failing(ObjectId),
    /// The owner knows of no copy of a wanted object.
    Nowhere(ObjectId),
    /// No copy of the object will come here, unless it is wanted anew.
    NotComing(ObjectId),
    /// The sender of the object broke off: what waits for the copy here need not wait for more bytes.
    BrokenOff(ObjectId),
    /// A sealed copy is pinned from now on.
    Pinned(CopyId),
    /// The owner seems to have a different view of our copy.
    ReportAgain(CopyId),
    /// A part of this copy has arrived, or broke off.
    PartEnded(CopyId),
    FoldStreamBroken {
        fold: FoldId,
        transfer: TransferId,
    },
    /// A call of reduce has run out of time, after so long.
    ReductionTimedOut {
        number: u64,
        waited: String,
    },
    /// The copy that a client writes gave way: a reduction was given the right to the object at this time.
    GaveWay {
        copy: CopyId,
        stamp: Stamp,
    },
    /// A message of another node cannot be right.
    BadMessage {
        from: NodeId,
        error: Error,
    },
    /// A call has an answer.
    Answer {
        client: ClientId,
        call: u64,
        reply: Reply,
    },
    /// All members are known to a node that joins them.
    MembersKnown,
}

//! What a component lets those above it know. It pushes a notice, and `settle` hands it on, before any other message is
//! handled. So no component calls one above it.

use hoplite_types::peer::CopyReport;
use hoplite_types::{Blob, CopyId, Edition, ObjectId};

use crate::subscriptions::{News, Watcher};

/// An event inside this node.
#[derive(Debug)]
pub(crate) enum Notice {
    /// A copy of the object was opened here, under this name.
    Opened(ObjectId),
    /// A public copy of the object is sealed.
    Sealed { copy: CopyId, object: ObjectId },
    /// The copy serves no new reader. Public ones were known to the directory.
    Doomed { copy: CopyId, object: ObjectId, public: bool },
    /// A reader of a copy of the object is done with it.
    Released(ObjectId),
    /// The object's owner was told, with this number, that the object is not here.
    Withdrawn { object: ObjectId, seq: u64 },
    /// A client or another node was given bytes that came from elsewhere.
    Shown { object: ObjectId, edition: Edition },
    /// There is news of a watched object, for one of its watchers.
    Watched { watcher: Watcher, object: ObjectId, news: News },
    /// A small source of a reduction came with the news of it.
    SourceCame { number: u64, object: ObjectId, report: CopyReport, payload: Blob },
    /// Copies of some sources of a reduction went with their nodes.
    SourcesGone(u64),
    /// Work is over that this node has to do before it leaves.
    WorkEnded,
}

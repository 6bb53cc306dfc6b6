//! Bundles of which not every connection is here yet.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hoplite_words::peer::BundlePart;
use hoplite_words::NodeId;
use tokio::net::TcpStream;

use crate::bundle::Bundle;

/// How long a bundle may take from its first connection to its last: they are dialled at the same time.
pub const BUNDLE_FORMING_TIMEOUT: Duration = Duration::from_secs(5);

/// Bundles that may be forming at a time; a caller's are refused beyond that.
pub const BUNDLES_FORMING_MAX: usize = 256;

/// A caller, and its number for the bundle.
pub(crate) type Key = (NodeId, u64);

/// One slot for each connection.
type Slots = Vec<Option<TcpStream>>;

#[derive(Debug, Default)]
pub(crate) struct Forming(Mutex<HashMap<Key, Slots>>);

/// What came of one more connection.
#[derive(Debug)]
pub(crate) enum Joined {
    /// It was the first: who brings it sees to it that the bundle does not form for ever.
    Begun,
    Waiting,
    Complete(Bundle),
    /// It does not fit what came before, or there are too many bundles: it is closed, and the bundle with it.
    Refused,
}

impl Forming {
    /// `part` is sound in itself.
    pub(crate) fn join(&self, from: NodeId, part: BundlePart, stream: TcpStream) -> Joined {
        let key = (from, part.bundle);
        let mut forming = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = !forming.contains_key(&key);
        if begun && forming.len() >= BUNDLES_FORMING_MAX {
            return Joined::Refused;
        }
        let slots = forming.entry(key).or_insert_with(|| (0..part.of).map(|_| None).collect());
        if slots.len() != usize::from(part.of) || slots[usize::from(part.number)].is_some() {
            forming.remove(&key);
            return Joined::Refused;
        }
        slots[usize::from(part.number)] = Some(stream);
        if slots.iter().all(Option::is_some) {
            let slots = forming.remove(&key).expect("just filled");
            return Joined::Complete(Bundle::new(slots.into_iter().flatten().collect()));
        }
        if begun {
            Joined::Begun
        } else {
            Joined::Waiting
        }
    }

    /// Closes the connections of a bundle that is still forming; false if it is none.
    pub(crate) fn give_up(&self, key: Key) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key).is_some()
    }
}

//! Bundles some of whose connections have not arrived yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hoplite_types::peer::BundlePart;
use hoplite_types::NodeId;

use crate::bundle::Bundle;
use crate::listen::Accepted;
use crate::meter::Meter;

/// Longest time between the first and the last connection of a bundle. They are dialled at the same time.
pub const BUNDLE_FORMING_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit on the bundles that are forming at a time. Further bundles are refused.
pub const BUNDLES_FORMING_MAX: usize = 256;

/// The caller, and its number for the bundle.
pub(crate) type Key = (NodeId, u64);

/// One slot for each connection.
type Slots = Vec<Option<Accepted>>;

#[derive(Debug)]
pub(crate) struct Forming {
    bundles: Mutex<HashMap<Key, Slots>>,
    meter: Arc<Meter>,
}

/// The result of adding a connection.
#[derive(Debug)]
pub(crate) enum Joined {
    /// It was the first. The code that added it must give the bundle up if it stays incomplete.
    Begun,
    Waiting,
    Complete(Bundle),
    /// It does not fit the earlier ones, or there are too many bundles. It is closed, and so is its bundle.
    Refused,
}

impl Forming {
    pub(crate) fn new(meter: Arc<Meter>) -> Self {
        Forming { bundles: Mutex::default(), meter }
    }

    /// `part` must be valid by itself.
    pub(crate) fn join(&self, from: NodeId, part: BundlePart, accepted: Accepted) -> Joined {
        let mut forming = self.bundles.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = self.add(&mut forming, from, part, accepted);
        self.meter.set(forming.len());
        joined
    }

    fn add(
        &self,
        forming: &mut HashMap<Key, Slots>,
        from: NodeId,
        part: BundlePart,
        accepted: Accepted,
    ) -> Joined {
        let key = (from, part.bundle);
        let begun = !forming.contains_key(&key);
        if begun && forming.len() >= BUNDLES_FORMING_MAX {
            self.meter.on_met();
            return Joined::Refused;
        }
        let slots = forming.entry(key).or_insert_with(|| (0..part.of).map(|_| None).collect());
        if slots.len() != usize::from(part.of) || slots[usize::from(part.number)].is_some() {
            forming.remove(&key);
            return Joined::Refused;
        }
        slots[usize::from(part.number)] = Some(accepted);
        if slots.iter().all(Option::is_some) {
            let slots = forming.remove(&key).expect("just filled");
            return Joined::Complete(Bundle::accepted(slots.into_iter().flatten().collect()));
        }
        if begun {
            Joined::Begun
        } else {
            Joined::Waiting
        }
    }

    /// Closes the connections of a bundle that is still forming. Returns false if it is not forming.
    pub(crate) fn give_up(&self, key: Key) -> bool {
        let mut forming = self.bundles.lock().unwrap_or_else(PoisonError::into_inner);
        let given_up = forming.remove(&key).is_some();
        self.meter.set(forming.len());
        given_up
    }
}

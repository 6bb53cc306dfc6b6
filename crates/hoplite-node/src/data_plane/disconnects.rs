//! Closes idle connections of peers that are gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use hoplite_types::NodeId;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::Notify;

/// One notification per peer that has connections here.
#[derive(Debug, Default)]
pub(super) struct Disconnects(Mutex<HashMap<NodeId, Arc<Notify>>>);

impl Disconnects {
    /// Completes when `peer` is next declared gone.
    pub(super) fn watch(&self, peer: NodeId) -> OwnedNotified {
        let mut bells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !bells.contains_key(&peer) {
            // Peers come and go for ever: remove those without connections.
            bells.retain(|_, bell| Arc::strong_count(bell) > 1);
        }
        // It is notified from now on, polled or not.
        bells.entry(peer).or_default().clone().notified_owned()
    }

    /// The peer is gone.
    pub(super) fn on_gone(&self, peer: NodeId) {
        let mut bells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = bells.remove(&peer) {
            bell.notify_waiters();
        }
    }
}

//! Which transfers are expected here, from whom, and what is to become of them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hoplite_words::{NodeId, TransferId};
use tokio::sync::mpsc;

use super::fold::Command;
use super::receive::Receive;

/// What to do with a transfer when it arrives.
#[derive(Debug)]
pub(super) enum Expected {
    /// Carry it out, on the spot.
    Receive(Box<Receive>),
    /// Hand the connection to the fold it belongs to.
    FoldStream(mpsc::UnboundedSender<Command>),
}

/// Filled by the control thread before the sender is told to start, emptied by whichever
/// connection brings the transfer.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<HashMap<TransferId, (NodeId, Expected)>>);

impl Arrivals {
    pub(super) fn expect(&self, transfer: TransferId, from: NodeId, expected: Expected) {
        self.lock().insert(transfer, (from, expected));
    }

    /// The transfer has arrived on a connection from `from`; only that peer can claim it, once.
    pub(super) fn claim(&self, transfer: TransferId, from: NodeId) -> Option<Expected> {
        let mut expected = self.lock();
        match expected.get(&transfer) {
            Some((sender, _)) if *sender == from => expected.remove(&transfer).map(|(_, what)| what),
            _ => None,
        }
    }

    /// It is not wanted any more.
    pub(super) fn forget(&self, transfer: TransferId) {
        // Dropped outside of the lock: a `Receive` reports its end when dropped.
        let forgotten = self.lock().remove(&transfer);
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TransferId, (NodeId, Expected)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

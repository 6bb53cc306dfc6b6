//! The transfers that are expected here: their sender, and what to do with each when it arrives.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hoplite_core::io::Input;
use hoplite_types::{NodeId, TransferId};
use tokio::sync::mpsc;

use super::fold::{Command, SharedSum};
use super::receive::Receive;
use super::stall_timer::StallTimer;

/// The handling of a transfer when it arrives.
#[derive(Debug)]
pub(super) enum Expected {
    /// Run it at once.
    Receive(Box<Receive>),
    /// Hand the bundle to the fold of this stream. If others share the bundle, put the bytes into the fold's sum.
    FoldStream { orders: mpsc::UnboundedSender<Command>, sum: SharedSum },
}

impl Expected {
    /// The number of bytes present before its first byte.
    fn watermark(&self) -> u64 {
        match self {
            Expected::Receive(receive) => receive.offset,
            Expected::FoldStream { .. } => 0,
        }
    }
}

#[derive(Debug)]
struct Awaited {
    from: NodeId,
    expected: Expected,
    stall_timer: StallTimer,
}

/// The control thread adds an entry before the sender is asked to start. The connection that brings the transfer
/// removes it.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<HashMap<TransferId, Awaited>>);

impl Arrivals {
    pub(super) fn expect(&self, transfer: TransferId, from: NodeId, expected: Expected) {
        let awaited = Awaited { from, expected, stall_timer: StallTimer::new(Instant::now()) };
        self.lock().insert(transfer, awaited);
    }

    /// The transfer has arrived on a connection from `from`. Only that peer can claim it, once.
    pub(super) fn claim(&self, transfer: TransferId, from: NodeId) -> Option<Expected> {
        let mut awaited = self.lock();
        match awaited.get(&transfer) {
            Some(known) if known.from == from => awaited.remove(&transfer).map(|known| known.expected),
            _ => None,
        }
    }

    /// The transfer is not wanted any more.
    pub(super) fn forget(&self, transfer: TransferId) {
        // Dropped outside of the lock: a `Receive` reports its end when dropped.
        let forgotten = self.lock().remove(&transfer);
        drop(forgotten);
    }

    /// Reports the transfers that have been awaited for another `after`.
    pub(super) fn stalled(&self, now: Instant, after: Duration) -> Vec<Input> {
        let report = |(&transfer, known): (_, &mut Awaited)| {
            let watermark = known.expected.watermark();
            known
                .stall_timer
                .is_reportable(now, after)
                .then_some(Input::ReceiveStalled { transfer, watermark })
        };
        self.lock().iter_mut().filter_map(report).collect()
    }

    /// The earliest time at which [`Arrivals::stalled`] may report something.
    pub(super) fn next_due(&self, after: Duration) -> Option<Instant> {
        self.lock().values().map(|known| known.stall_timer.due(after)).min()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TransferId, Awaited>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

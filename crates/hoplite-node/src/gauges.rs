//! The fill levels of all bounded queues and tables outside the core.

use hoplite_net::{Meter, Meters as Arriving};
use hoplite_types::client::Gauge;
use tokio::sync::mpsc::WeakSender;

use crate::clients::{self, ClientEvent, CLIENT_OUTBOX_BYTES_MAX};
use crate::node::Node;

/// The meters of incoming connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doors {
    pub(crate) clients: clients::Meters,
    pub(crate) peers: Arriving,
    /// Weak, so that it does not keep the queue open.
    pub(crate) calls: Option<WeakSender<ClientEvent>>,
}

impl Node {
    pub(crate) fn gauges(&mut self) -> Vec<Gauge> {
        let mut gauges = Vec::new();
        gauges.extend(self.doors.clients.gauges());
        gauges.extend(self.doors.peers.gauges());
        if let Some(calls) = self.doors.calls.as_ref().and_then(WeakSender::upgrade) {
            let waiting = Meter::new("calls of clients that wait", calls.max_capacity());
            waiting.set(calls.max_capacity() - calls.capacity());
            gauges.push(waiting.gauge());
        }
        let waiting = self.clients.values().map(|outbox| outbox.bytes() as u64).max();
        gauges.push(Gauge {
            name: "bytes that wait for the slowest client".to_owned(),
            value: waiting.unwrap_or(0),
            limit: CLIENT_OUTBOX_BYTES_MAX as u64,
            met: self.unresponsive_clients,
        });
        gauges.extend(self.links.gauges());
        gauges.push(self.readers.gauge());
        gauges.extend(self.data_plane.gauges());
        gauges
    }
}

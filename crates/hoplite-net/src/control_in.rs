//! Control connections dialled by peers: one per peer, each read by a task of its own.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use hoplite_types::client::Gauge;
use hoplite_types::peer::PeerMessage;
use hoplite_types::NodeId;
use hoplite_wire::decode;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use crate::control_out::{ConnectionId, ControlEvent};
use crate::frames::FrameError;
use crate::meter::Meter;

/// Limit on the peers whose control connections are read at a time; a further connection is closed. Larger than any
/// cluster tried.
pub const CONTROL_ACCEPTED_MAX: usize = 4096;

/// The tasks that read control messages from peers. Events of replaced or forgotten connections may still be queued:
/// check [`ControlReaders::is_current`].
#[derive(Debug)]
pub struct ControlReaders {
    events: mpsc::Sender<ControlEvent>,
    readers: HashMap<NodeId, Reader>,
    /// Connections that ended with goodbye and have been replaced, while messages that were read from them are still
    /// queued.
    closing: BTreeSet<(ConnectionId, NodeId)>,
    connections: u64,
    meter: Arc<Meter>,
}

#[derive(Debug)]
struct Reader {
    connection: ConnectionId,
    task: AbortHandle,
    goodbye: Arc<AtomicBool>,
}

impl Reader {
    /// The connection ended with goodbye: none of its messages is lost.
    fn said_goodbye(&self) -> bool {
        self.goodbye.load(Ordering::Acquire)
    }
}

impl ControlReaders {
    /// Starts with no connections. Messages that are read go to `events`.
    pub fn new(events: mpsc::Sender<ControlEvent>) -> Self {
        let meter = Meter::new("control connections taken", CONTROL_ACCEPTED_MAX);
        ControlReaders { events, readers: HashMap::new(), closing: BTreeSet::new(), connections: 0, meter }
    }

    /// From now on reads `stream`, which `from` dialled. A peer dials again only when it has given up its former
    /// connection: the rest of that one is dropped, unless it ended with goodbye. Returns true if there was such a
    /// former connection, so that the peer's last messages may be lost. Must be called inside a runtime.
    pub fn admit(&mut self, from: NodeId, stream: TcpStream) -> bool {
        if self.readers.len() >= CONTROL_ACCEPTED_MAX && !self.readers.contains_key(&from) {
            warn!(peer = %from, "closed: as many peers as {CONTROL_ACCEPTED_MAX} are read already");
            self.meter.on_met();
            return false;
        }
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let goodbye = Arc::new(AtomicBool::new(false));
        let reading = read(stream, from, connection, self.events.clone(), goodbye.clone());
        let task = tokio::spawn(reading).abort_handle();
        let former = self.readers.insert(from, Reader { connection, task, goodbye });
        self.meter.set(self.readers.len());
        match former {
            Some(former) if former.said_goodbye() => {
                self.closing.insert((former.connection, from));
                false
            }
            Some(former) => {
                former.task.abort();
                true
            }
            None => false,
        }
    }

    /// Whether this is the current connection of `from`, or an earlier one that ended with goodbye.
    pub fn is_current(&self, from: NodeId, connection: ConnectionId) -> bool {
        self.readers.get(&from).is_some_and(|reader| reader.connection == connection)
            || self.closing.contains(&(connection, from))
    }

    /// Records a [`ControlEvent::Closed`]. Returns false if it can be ignored: the connection was not the current one
    /// any more, or it ended with goodbye.
    pub fn on_closed(&mut self, from: NodeId, connection: ConnectionId) -> bool {
        if self.closing.remove(&(connection, from)) || !self.is_current(from, connection) {
            return false;
        }
        let closed = self.readers.remove(&from);
        self.meter.set(self.readers.len());
        closed.is_some_and(|reader| !reader.said_goodbye())
    }

    /// Closes the connection of a peer that is no member any more. If the peer was cut off, the connection would end
    /// only long after the peer is back.
    pub fn forget(&mut self, from: NodeId) {
        if let Some(reader) = self.readers.remove(&from) {
            reader.task.abort();
        }
        self.closing.retain(|&(_, peer)| peer != from);
        self.meter.set(self.readers.len());
    }

    pub fn gauge(&self) -> Gauge {
        self.meter.gauge()
    }
}

/// Reads the messages of `from`, until its connection ends.
async fn read(
    mut stream: TcpStream,
    from: NodeId,
    connection: ConnectionId,
    events: mpsc::Sender<ControlEvent>,
    goodbye: Arc<AtomicBool>,
) {
    let ended = relay_frames(&mut stream, from, connection, &events).await;
    if let Ok(Relayed::Goodbye) = ended {
        // Set before the stream is closed: from then on the peer may dial again.
        goodbye.store(true, Ordering::Release);
    }
    match ended {
        Ok(Relayed::Goodbye) => debug!(peer = %from, "the peer closes its idle control connection"),
        Ok(Relayed::Unheard) | Err(FrameError::Closed) => {
            debug!(peer = %from, "the peer closed its control connection")
        }
        Err(FrameError::Io(error)) => info!(peer = %from, %error, "the peer's control connection broke"),
        Err(error) => warn!(peer = %from, %error, "the peer sent what is no message; connection closed"),
    }
    let _ = events.send(ControlEvent::Closed { from, connection }).await;
}

/// The reason why reading stopped.
enum Relayed {
    Goodbye,
    /// The receiver of the events is gone.
    Unheard,
}

async fn relay_frames(
    stream: &mut TcpStream,
    from: NodeId,
    connection: ConnectionId,
    events: &mpsc::Sender<ControlEvent>,
) -> Result<Relayed, FrameError> {
    let mut deframer = hoplite_wire::Deframer::new();
    loop {
        while let Some(frame) = deframer.next_frame()? {
            let message = decode(&frame)?;
            if let PeerMessage::Goodbye = message {
                return Ok(Relayed::Goodbye);
            }
            if events.send(ControlEvent::Message { from, connection, message }).await.is_err() {
                return Ok(Relayed::Unheard);
            }
        }
        if stream.read_buf(deframer.buffer_mut()).await? == 0 {
            return Err(FrameError::Closed);
        }
    }
}

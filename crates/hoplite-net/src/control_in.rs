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

/// Peers whose control connections are read at a time; a further one's is closed. More than any cluster that this
/// was tried with has members.
pub const CONTROL_ACCEPTED_MAX: usize = 4096;

/// Who reads what peers say. Events of connections that were replaced or forgotten may still be on their
/// way: ask [`ControlReaders::is_current`].
#[derive(Debug)]
pub struct ControlReaders {
    events: mpsc::Sender<ControlEvent>,
    readers: HashMap<NodeId, Reader>,
    /// Connections that ended with goodbye and have been followed by another, while what was said on them was
    /// still on its way.
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
    /// Nothing that was said on it is lost.
    fn said_goodbye(&self) -> bool {
        self.goodbye.load(Ordering::Acquire)
    }
}

impl ControlReaders {
    /// No connections yet; what is read goes to `events`.
    pub fn new(events: mpsc::Sender<ControlEvent>) -> Self {
        let meter = Meter::new("control connections taken", CONTROL_ACCEPTED_MAX);
        ControlReaders { events, readers: HashMap::new(), closing: BTreeSet::new(), connections: 0, meter }
    }

    /// Reads `stream`, which `from` dialled, from now on. A peer dials again only when it has given its
    /// former connection up: what is left of that one is dropped, unless it ended with goodbye. True if there was
    /// one, so that what the peer said last may be lost. Must be called inside a runtime.
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

    /// Whether this is the connection that `from` speaks on, or what was said before it in order.
    pub fn is_current(&self, from: NodeId, connection: ConnectionId) -> bool {
        self.readers.get(&from).is_some_and(|reader| reader.connection == connection)
            || self.closing.contains(&(connection, from))
    }

    /// Takes note of a [`ControlEvent::Closed`]. False if nobody needs to know: it was not the current connection
    /// any more, or it ended with goodbye.
    pub fn on_closed(&mut self, from: NodeId, connection: ConnectionId) -> bool {
        if self.closing.remove(&(connection, from)) || !self.is_current(from, connection) {
            return false;
        }
        let closed = self.readers.remove(&from);
        self.meter.set(self.readers.len());
        closed.is_some_and(|reader| !reader.said_goodbye())
    }

    /// Closes the connection of a peer that is no member any more: if it was cut off, its end would come
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

/// Reads what `from` says, until it ends.
async fn read(
    mut stream: TcpStream,
    from: NodeId,
    connection: ConnectionId,
    events: mpsc::Sender<ControlEvent>,
    goodbye: Arc<AtomicBool>,
) {
    let ended = relay_frames(&mut stream, from, connection, &events).await;
    if let Ok(Relayed::Goodbye) = ended {
        // Before the stream is closed: then the peer may dial again at any time.
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

/// Why no more is read.
enum Relayed {
    Goodbye,
    /// Nobody takes what is read.
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

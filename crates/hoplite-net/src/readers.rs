//! Control connections that peers dialled: one per peer, read on a task each.

use std::collections::HashMap;

use hoplite_wire::decode;
use hoplite_words::NodeId;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use crate::control::{ConnectionId, ControlEvent};
use crate::frames::FrameError;

/// Who reads what peers say. Events of connections that were replaced or forgotten may still be on their
/// way: ask [`ControlReaders::is_current`].
#[derive(Debug)]
pub struct ControlReaders {
    events: mpsc::Sender<ControlEvent>,
    readers: HashMap<NodeId, Reader>,
    connections: u64,
}

#[derive(Debug)]
struct Reader {
    connection: ConnectionId,
    task: AbortHandle,
}

impl ControlReaders {
    /// No connections yet; what is read goes to `events`.
    pub fn new(events: mpsc::Sender<ControlEvent>) -> Self {
        ControlReaders { events, readers: HashMap::new(), connections: 0 }
    }

    /// Reads `stream`, which `from` dialled, from now on. A peer dials again only when it has given its
    /// former connection up: what is left of that one is dropped. True if there was one, so that what
    /// the peer said last may be lost. Must be called inside a runtime.
    pub fn admit(&mut self, from: NodeId, stream: TcpStream) -> bool {
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        let task = tokio::spawn(read(stream, from, connection, self.events.clone())).abort_handle();
        let former = self.readers.insert(from, Reader { connection, task });
        former.map(|former| former.task.abort()).is_some()
    }

    /// Whether this is the connection that `from` speaks on.
    pub fn is_current(&self, from: NodeId, connection: ConnectionId) -> bool {
        self.readers.get(&from).is_some_and(|reader| reader.connection == connection)
    }

    /// Takes note of a [`ControlEvent::Closed`]. False if it was not the current connection any more, so
    /// that nobody needs to know.
    pub fn on_closed(&mut self, from: NodeId, connection: ConnectionId) -> bool {
        self.is_current(from, connection) && self.readers.remove(&from).is_some()
    }

    /// Closes the connection of a peer that is no member any more: if it was cut off, its end would come
    /// only long after the peer is back.
    pub fn forget(&mut self, from: NodeId) {
        if let Some(reader) = self.readers.remove(&from) {
            reader.task.abort();
        }
    }
}

/// Reads what `from` says, until it ends.
async fn read(
    mut stream: TcpStream,
    from: NodeId,
    connection: ConnectionId,
    events: mpsc::Sender<ControlEvent>,
) {
    match relay_frames(&mut stream, from, connection, &events).await {
        Ok(()) | Err(FrameError::Closed) => debug!(peer = %from, "the peer closed its control connection"),
        Err(FrameError::Io(error)) => info!(peer = %from, %error, "the peer's control connection broke"),
        Err(error) => warn!(peer = %from, %error, "the peer sent what is no message; connection closed"),
    }
    let _ = events.send(ControlEvent::Closed { from, connection }).await;
}

async fn relay_frames(
    stream: &mut TcpStream,
    from: NodeId,
    connection: ConnectionId,
    events: &mpsc::Sender<ControlEvent>,
) -> Result<(), FrameError> {
    let mut deframer = hoplite_wire::Deframer::new();
    loop {
        while let Some(frame) = deframer.next_frame()? {
            let message = decode(&frame)?;
            if events.send(ControlEvent::Message { from, connection, message }).await.is_err() {
                return Ok(());
            }
        }
        if stream.read_buf(deframer.buffer_mut()).await? == 0 {
            return Err(FrameError::Closed);
        }
    }
}

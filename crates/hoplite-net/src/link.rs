//! One control connection dialled here, from its first try to its end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use hoplite_types::limits::SHORTAGE_PATIENCE;
use hoplite_types::peer::{PeerRefusal, Purpose, PEER_PROTOCOL_VERSION};
use hoplite_types::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, info};

use crate::control_out::{ControlEvent, LinkEnd};
use crate::dial::dial;
use crate::hello::RefusalReader;
use crate::outbox::Outbox;
use crate::shortage::{is_shortage, Shortage};

/// Pauses between two tries during a shortage.
const SHORTAGE_PAUSE_MIN: Duration = Duration::from_millis(5);
const SHORTAGE_PAUSE_MAX: Duration = Duration::from_millis(320);

/// How long a peer may take to read the messages before goodbye. Later messages wait for that.
const CLOSING_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct LinkRun {
    pub(crate) me: NodeId,
    pub(crate) to: NodeId,
    pub(crate) generation: u64,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) shortage: Arc<Shortage>,
    /// Goodbye is the last message in the outbox.
    pub(crate) closing: Arc<AtomicBool>,
}

/// The reason why a link ended, if this node did not end it.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("the peer closed it")]
    Closed,
    #[error("turned away: {:?} answers there{}", .0.node, other_version(.0.version))]
    Refused(PeerRefusal),
    #[error("the peer did not read all of it within {CLOSING_MAX:?}")]
    Unread,
    #[error(transparent)]
    Io(#[from] io::Error),
}

fn other_version(version: u32) -> String {
    match version {
        PEER_PROTOCOL_VERSION => String::new(),
        other => format!(", which speaks protocol version {other} and not {PEER_PROTOCOL_VERSION}"),
    }
}

impl LinkError {
    fn proves_gone(&self, to: NodeId) -> bool {
        match self {
            // A node that announces another address may be reachable through the address that we dialled.
            LinkError::Refused(by) => by.node.addr == to.addr && by.node.incarnation != to.incarnation,
            LinkError::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            LinkError::Closed | LinkError::Unread => false,
        }
    }
}

impl LinkRun {
    pub(crate) async fn run(self, pause: Duration, events: mpsc::Sender<ControlEvent>) {
        let mut made = None;
        let outcome = tokio::select! {
            biased;
            () = self.outbox.closed() => Ok(()),
            outcome = self.carry(pause, &mut made) => outcome,
        };
        // Before the event, so that nothing more is queued for a link that has ended.
        self.outbox.close();
        match &outcome {
            Ok(()) => debug!(peer = %self.to, "control connection closed"),
            Err(error) => info!(peer = %self.to, %error, "control connection lost"),
        }
        let up = match &outcome {
            Err(LinkError::Refused(_)) => None,
            // The peer's kernel accepted the connection, but no process read the hello.
            Err(LinkError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset && made.is_none() => {
                Some(Duration::ZERO)
            }
            _ => made.map(|made: Instant| made.elapsed()),
        };
        // Unless the link was given up: then it was not closed in order.
        let idle_closed = outcome.is_ok() && made.is_some() && self.closing.load(Ordering::Acquire);
        let gone = outcome.is_err_and(|error| error.proves_gone(self.to));
        let end = LinkEnd { node: self.to, gone, generation: self.generation, up, idle_closed };
        let _ = events.send(ControlEvent::LinkBroken(end)).await;
    }

    async fn carry(&self, pause: Duration, made: &mut Option<Instant>) -> Result<(), LinkError> {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let mut stream = self.dial().await?;
        debug!(peer = %self.to, "control connection made");
        *made = Some(Instant::now());
        let mut refusal = RefusalReader::default();
        let mut outcome = self.write_frames(&mut stream, &mut refusal).await;
        if outcome.is_ok() && self.closing.load(Ordering::Acquire) {
            outcome = finish_close(&mut stream, &mut refusal).await;
        }
        if outcome.is_err() {
            // The refusal may have arrived before a write of ours failed.
            let _ = refusal.read(&stream);
        }
        match refusal.take() {
            Some(refusal) => Err(LinkError::Refused(refusal)),
            None => outcome,
        }
    }

    /// Dials; retries during a shortage on this host, which says nothing about the peer and may end soon.
    async fn dial(&self) -> Result<TcpStream, LinkError> {
        let mut waiting = None;
        let mut pause = SHORTAGE_PAUSE_MIN;
        loop {
            let error = match dial(self.me, self.to, Purpose::Control).await {
                Ok(stream) => return Ok(stream),
                Err(error) if is_shortage(&error) => error,
                Err(error) => return Err(error.into()),
            };
            let freed = self.shortage.on_error(&error, "no control connection");
            let (since, _counted) = waiting.get_or_insert_with(|| (Instant::now(), self.shortage.waiting()));
            if since.elapsed() >= SHORTAGE_PATIENCE {
                return Err(error.into());
            }
            if !freed {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(SHORTAGE_PAUSE_MAX);
            }
        }
    }

    async fn write_frames(
        &self,
        stream: &mut TcpStream,
        refusal: &mut RefusalReader,
    ) -> Result<(), LinkError> {
        loop {
            let frames = tokio::select! {
                biased;
                ended = refusal.wait(stream) => {
                    return Err(ended.map_or_else(LinkError::Io, |()| LinkError::Closed));
                }
                frames = self.outbox.take() => frames,
            };
            match frames {
                Some(frames) => stream.write_all(&frames).await?,
                None => return Ok(()),
            }
            if self.closing.load(Ordering::Acquire) && self.outbox.is_empty() {
                // That was goodbye. The peer now closes the connection, which is its regular end.
                return Ok(());
            }
        }
    }
}

/// Waits until the peer has read everything.
async fn finish_close(stream: &mut TcpStream, refusal: &mut RefusalReader) -> Result<(), LinkError> {
    stream.shutdown().await?;
    match tokio::time::timeout(CLOSING_MAX, refusal.wait(stream)).await {
        Ok(ended) => Ok(ended?),
        Err(_) => Err(LinkError::Unread),
    }
}

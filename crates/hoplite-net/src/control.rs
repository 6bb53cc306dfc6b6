//! Control connections: those dialled here, one per peer there is something to say to, and those
//! that peers dialled.
//!
//! ```text
//! (nothing) ──send──▶ Open: wait out the back-off, dial, write ──broke, overflow──▶ Broken
//!                      ▲                                                             │
//!                      └───────────────────────send──────────────────────────────────┘
//! ```
//! A link that breaks loses what was queued; the owner hears of it and decides what to say again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hoplite_wire::decode;
use hoplite_words::peer::{PeerMessage, Purpose};
use hoplite_words::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use crate::dial::dial;
use crate::frames::FrameError;
use crate::outbox::{Outbox, OutboxFull};
use crate::pool::closed_by_peer;

/// Bytes that may wait for one peer: some hundred inline objects, or a whole directory's worth of
/// announcements after a change of members. A peer this far behind is given up and told anew.
pub const CONTROL_OUTBOX_BYTES_MAX: usize = 64 << 20;

/// Pause before dialling a peer again after the first failure; doubled with each further one.
const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// Longest pause: what a peer that comes back has to wait for us at most.
const BACKOFF_MAX: Duration = Duration::from_millis(640);

/// What happens on control connections.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all events are messages; boxing each costs more")]
pub enum ControlEvent {
    /// A frame from a connection that `from` dialled.
    Message { from: NodeId, message: PeerMessage },
    /// The connection that `from` dialled is gone.
    Closed { from: NodeId },
    /// The link dialled here is gone; pass it to [`ControlLinks::on_broken`].
    LinkBroken { node: NodeId, generation: u64 },
}

/// The peer does not take what is sent to it: its link was given up, like a broken one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overflow;

/// The links dialled here.
#[derive(Debug)]
pub struct ControlLinks {
    me: NodeId,
    events: mpsc::Sender<ControlEvent>,
    links: HashMap<NodeId, Link>,
    generations: u64,
}

#[derive(Debug)]
struct Link {
    generation: u64,
    failures: u32,
    state: LinkState,
}

#[derive(Debug)]
enum LinkState {
    Open(Arc<Outbox>),
    Broken,
}

impl ControlLinks {
    /// No links yet; what happens to them goes to `events`.
    pub fn new(me: NodeId, events: mpsc::Sender<ControlEvent>) -> Self {
        ControlLinks { me, events, links: HashMap::new(), generations: 0 }
    }

    /// Queues `message` for `to`, dialling it if need be. Must be called inside a runtime.
    ///
    /// # Errors
    /// [`Overflow`] if more than [`CONTROL_OUTBOX_BYTES_MAX`] wait; everything queued is dropped.
    pub fn send(&mut self, to: NodeId, message: &PeerMessage) -> Result<(), Overflow> {
        // At most twice: an outbox made just now takes the message.
        loop {
            let outbox = self.outbox(to);
            match outbox.push(message) {
                Ok(()) => return Ok(()),
                Err(full @ OutboxFull::Full { .. }) => {
                    warn!(peer = %to, %full, "the peer does not keep up; dropping the connection");
                    outbox.close();
                    self.on_failure(to);
                    return Err(Overflow);
                }
                // Broken a moment ago, and the event is still on its way.
                Err(OutboxFull::Closed) => self.on_failure(to),
            }
        }
    }

    /// Takes note of a [`ControlEvent::LinkBroken`]. False if the peer was forgotten meanwhile, so
    /// that nobody needs to know.
    pub fn on_broken(&mut self, node: NodeId, generation: u64) -> bool {
        if self.links.get(&node).is_some_and(|link| link.generation == generation) {
            self.on_failure(node);
        }
        self.links.contains_key(&node)
    }

    /// Forgets a peer that is no member any more, and what waits for it.
    pub fn forget(&mut self, node: NodeId) {
        if let Some(Link { state: LinkState::Open(outbox), .. }) = self.links.remove(&node) {
            outbox.close();
        }
    }

    /// The link to `node` works: its next failure is a first one. A message from it is taken as
    /// proof, since a one-way connection has none of its own.
    pub fn on_alive(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.failures = 0;
        }
    }

    fn on_failure(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.failures = link.failures.saturating_add(1);
            link.state = LinkState::Broken;
        }
    }

    fn outbox(&mut self, to: NodeId) -> Arc<Outbox> {
        let fresh = Link { generation: 0, failures: 0, state: LinkState::Broken };
        let link = self.links.entry(to).or_insert(fresh);
        if let LinkState::Open(outbox) = &link.state {
            return outbox.clone();
        }
        self.generations += 1;
        link.generation = self.generations;
        let outbox = Arc::new(Outbox::new(CONTROL_OUTBOX_BYTES_MAX));
        link.state = LinkState::Open(outbox.clone());
        let run = LinkRun { me: self.me, to, generation: link.generation, outbox: outbox.clone() };
        tokio::spawn(run.run(backoff(link.failures), self.events.clone()));
        outbox
    }
}

fn backoff(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => BACKOFF_MIN.saturating_mul(1 << (n - 1).min(16)).min(BACKOFF_MAX),
    }
}

struct LinkRun {
    me: NodeId,
    to: NodeId,
    generation: u64,
    outbox: Arc<Outbox>,
}

impl LinkRun {
    async fn run(self, pause: Duration, events: mpsc::Sender<ControlEvent>) {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let outcome = tokio::select! {
            biased;
            () = self.outbox.closed() => Ok(()),
            outcome = self.carry() => outcome,
        };
        // Before the event, so that nothing more is queued for a link that is gone.
        self.outbox.close();
        match outcome {
            Ok(()) => info!(peer = %self.to, "control connection closed"),
            Err(error) => info!(peer = %self.to, %error, "control connection lost"),
        }
        let _ = events.send(ControlEvent::LinkBroken { node: self.to, generation: self.generation }).await;
    }

    async fn carry(&self) -> std::io::Result<()> {
        let mut stream = dial(self.me, self.to, Purpose::Control).await?;
        debug!(peer = %self.to, "control connection made");
        loop {
            let frames = tokio::select! {
                biased;
                () = closed_by_peer(&stream) => return Ok(()),
                frames = self.outbox.take() => frames,
            };
            match frames {
                Some(frames) => stream.write_all(&frames).await?,
                None => return Ok(()),
            }
        }
    }
}

/// Reads what `from` says on a connection it dialled, until it ends.
pub async fn read_control(mut stream: TcpStream, from: NodeId, events: mpsc::Sender<ControlEvent>) {
    match relay_frames(&mut stream, from, &events).await {
        Ok(()) | Err(FrameError::Closed) => debug!(peer = %from, "the peer closed its control connection"),
        Err(FrameError::Io(error)) => info!(peer = %from, %error, "the peer's control connection broke"),
        Err(error) => warn!(peer = %from, %error, "the peer sent what is no message; connection closed"),
    }
    let _ = events.send(ControlEvent::Closed { from }).await;
}

async fn relay_frames(
    stream: &mut TcpStream,
    from: NodeId,
    events: &mpsc::Sender<ControlEvent>,
) -> Result<(), FrameError> {
    let mut deframer = hoplite_wire::Deframer::new();
    loop {
        while let Some(frame) = deframer.next_frame()? {
            let message = decode(&frame)?;
            if events.send(ControlEvent::Message { from, message }).await.is_err() {
                return Ok(());
            }
        }
        if stream.read_buf(deframer.buffer_mut()).await? == 0 {
            return Err(FrameError::Closed);
        }
    }
}

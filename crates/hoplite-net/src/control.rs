//! Control connections dialled here, one per peer there is something to say to.
//!
//! ```text
//! (nothing) ──send──▶ Open: wait out the back-off, dial, write ──broke, overflow──▶ Broken
//!                      ▲                                                             │
//!                      └───────────────────────send──────────────────────────────────┘
//! ```
//! A link that breaks loses what was queued; the owner hears of it and decides what to say again. One that
//! had been made is dialled again at once, with or without anything to say: so the owner learns whether the
//! process is gone.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hoplite_words::peer::{PeerMessage, PeerRefusal, Purpose, PEER_PROTOCOL_VERSION};
use hoplite_words::NodeId;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::dial::dial;
use crate::hello::LastWords;
use crate::outbox::{Outbox, OutboxFull};

/// Bytes that may wait for one peer: some hundred inline objects, or a whole directory's worth of
/// announcements after a change of members. A peer this far behind is given up and told anew.
pub const CONTROL_OUTBOX_BYTES_MAX: usize = 64 << 20;

/// Pause before dialling a peer again after the first failure; doubled with each further one. Short
/// enough that a crashed process is found to be gone within 50 ms, if it does not refuse us at once.
const BACKOFF_MIN: Duration = Duration::from_millis(2);

/// Longest pause: what a peer that comes back has to wait for us at most.
const BACKOFF_MAX: Duration = Duration::from_millis(640);

/// A link that was up this long was a good one: when it breaks, the peer is dialled again at once. Longer
/// than it takes to be turned away.
const LINK_SETTLED_AFTER: Duration = Duration::from_secs(1);

/// What happens on control connections.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all events are messages; boxing each costs more")]
pub enum ControlEvent {
    /// A frame from a connection that `from` dialled.
    Message { from: NodeId, connection: ConnectionId, message: PeerMessage },
    /// The connection that `from` dialled is over; pass it to [`crate::ControlReaders::on_closed`].
    Closed { from: NodeId, connection: ConnectionId },
    /// The link dialled here is gone; pass it to [`ControlLinks::on_broken`].
    LinkBroken(LinkEnd),
}

/// One control connection that a peer dialled; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionId(pub(crate) u64);

/// How a link came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkEnd {
    pub node: NodeId,
    /// There is proof that the process is no more: its host refuses connections to its address, or
    /// another incarnation answered there.
    pub gone: bool,
    generation: u64,
    /// How long it was up, if it was made and not turned away.
    up: Option<Duration>,
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
    Open(Arc<Outbox>, JoinHandle<()>),
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

    /// Takes note of a [`ControlEvent::LinkBroken`], and dials again if it had been made. False if the
    /// peer was forgotten meanwhile, so that nobody needs to know. Must be called inside a runtime.
    pub fn on_broken(&mut self, end: &LinkEnd) -> bool {
        let Some(link) = self.links.get_mut(&end.node) else { return false };
        if link.generation == end.generation {
            let settled = end.up.is_some_and(|up| up >= LINK_SETTLED_AFTER);
            link.failures = if settled { 0 } else { link.failures.saturating_add(1) };
            link.state = LinkState::Broken;
            if end.up.is_some() {
                self.outbox(end.node);
            }
        }
        true
    }

    /// Forgets a peer that is no member any more, and what waits for it.
    pub fn forget(&mut self, node: NodeId) {
        if let Some(Link { state: LinkState::Open(_, run), .. }) = self.links.remove(&node) {
            run.abort();
        }
    }

    /// The link to `node` works: its next failure is a first one. A message from it is taken as
    /// proof, since a one-way connection has none of its own.
    pub fn on_alive(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.failures = 0;
        }
    }

    /// Writes out all that waits, then closes every link. May take as long as the slowest peer: bound it.
    pub async fn finish(&mut self) {
        let mut ends = Vec::new();
        for (_, link) in self.links.drain() {
            if let LinkState::Open(outbox, run) = link.state {
                outbox.finish();
                ends.push(run);
            }
        }
        for end in ends {
            // A task that panicked has nothing more to write.
            let _ = end.await;
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
        if let LinkState::Open(outbox, _) = &link.state {
            return outbox.clone();
        }
        self.generations += 1;
        link.generation = self.generations;
        let outbox = Arc::new(Outbox::new(CONTROL_OUTBOX_BYTES_MAX));
        let run = LinkRun { me: self.me, to, generation: link.generation, outbox: outbox.clone() };
        let run = tokio::spawn(run.run(backoff(link.failures), self.events.clone()));
        link.state = LinkState::Open(outbox.clone(), run);
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

/// Why a link ended, other than by our own will.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("the peer closed it")]
    Closed,
    #[error("turned away: {:?} answers there{}", .0.node, other_version(.0.version))]
    Refused(PeerRefusal),
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
            // Whoever announces another address may just be reached through the one we dialled.
            LinkError::Refused(by) => by.node.addr == to.addr && by.node.incarnation != to.incarnation,
            LinkError::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
            LinkError::Closed => false,
        }
    }
}

impl LinkRun {
    async fn run(self, pause: Duration, events: mpsc::Sender<ControlEvent>) {
        let mut made = None;
        let outcome = tokio::select! {
            biased;
            () = self.outbox.closed() => Ok(()),
            outcome = self.carry(pause, &mut made) => outcome,
        };
        // Before the event, so that nothing more is queued for a link that is gone.
        self.outbox.close();
        match &outcome {
            Ok(()) => debug!(peer = %self.to, "control connection closed"),
            Err(error) => info!(peer = %self.to, %error, "control connection lost"),
        }
        let up = match &outcome {
            Err(LinkError::Refused(_)) => None,
            // The peer's kernel took the call, and then there was nobody to take the hello.
            Err(LinkError::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset && made.is_none() => {
                Some(Duration::ZERO)
            }
            _ => made.map(|made: Instant| made.elapsed()),
        };
        let gone = outcome.is_err_and(|error| error.proves_gone(self.to));
        let end = LinkEnd { node: self.to, gone, generation: self.generation, up };
        let _ = events.send(ControlEvent::LinkBroken(end)).await;
    }

    async fn carry(&self, pause: Duration, made: &mut Option<Instant>) -> Result<(), LinkError> {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let mut stream = dial(self.me, self.to, Purpose::Control).await?;
        debug!(peer = %self.to, "control connection made");
        *made = Some(Instant::now());
        let mut words = LastWords::default();
        let outcome = self.write_frames(&mut stream, &mut words).await;
        if outcome.is_err() {
            // It may have been said before a write of ours failed.
            let _ = words.hear(&stream);
        }
        match words.refusal() {
            Some(refusal) => Err(LinkError::Refused(refusal)),
            None => outcome,
        }
    }

    async fn write_frames(&self, stream: &mut TcpStream, words: &mut LastWords) -> Result<(), LinkError> {
        loop {
            let frames = tokio::select! {
                biased;
                ended = words.listen(stream) => {
                    return Err(ended.map_or_else(LinkError::Io, |()| LinkError::Closed));
                }
                frames = self.outbox.take() => frames,
            };
            match frames {
                Some(frames) => stream.write_all(&frames).await?,
                None => return Ok(()),
            }
        }
    }
}

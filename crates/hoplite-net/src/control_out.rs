//! Control connections dialled here, one for each peer that there are messages for.
//!
//! ```text
//!                      ┌────────────────────────send──────────────────────────┐
//!                      ▼                                                      │
//! (nothing) ──send──▶ Open: wait out the back-off, dial, write ──broke──▶ Broken
//!     ▲                │ ▲                                    overflow        ▲
//!     │      idle, one │ │ something waits                                    │
//!     │    of too many ▼ │                                                    │
//!     └─nothing waits── Closing: goodbye, until the peer has read all ──broke─┘
//! ```
//! - A link that breaks loses its queue. Its owner gets an event, and decides what to send again.
//! - A link that was up is redialled at once, even with nothing to send: so the owner learns whether the process is
//!   gone.
//! - A link that is closed because it is idle loses nothing, and causes no event. Messages queued meanwhile wait until
//!   the peer has closed it too, so that they do not overtake earlier ones.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::Duration;

use hoplite_types::client::Gauge;
use hoplite_types::peer::PeerMessage;
use hoplite_types::NodeId;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::warn;

use crate::idle_close::CONTROL_IDLE_MAX;
use crate::link::LinkRun;
use crate::meter::Meter;
use crate::outbox::{Outbox, OutboxFull};
use crate::shortage::Shortage;

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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ConnectionId(pub(crate) u64);

/// How a link came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkEnd {
    pub node: NodeId,
    /// There is proof that the process is no more: its host refuses connections to its address, or
    /// another incarnation answered there.
    pub gone: bool,
    pub(crate) generation: u64,
    /// How long it was up, if it was made and not turned away.
    pub(crate) up: Option<Duration>,
    /// It was closed because it was idle, and the peer has read all that was said on it.
    pub(crate) idle_closed: bool,
}

/// The peer does not take what is sent to it: its link was given up, like a broken one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overflow;

/// The links dialled here.
#[derive(Debug)]
pub struct ControlLinks {
    me: NodeId,
    events: mpsc::Sender<ControlEvent>,
    shortage: Arc<Shortage>,
    pub(crate) links: HashMap<NodeId, Link>,
    generations: u64,
    pub(crate) looked: Instant,
    /// Links that are idle, and those that were closed for that.
    pub(crate) idle: Arc<Meter>,
    /// Outboxes that were full.
    overflows: Arc<Meter>,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) generation: u64,
    failures: u32,
    /// When something was said last.
    pub(crate) used: Instant,
    pub(crate) state: LinkState,
}

#[derive(Debug)]
pub(crate) enum LinkState {
    Open(Arc<Outbox>, Run),
    /// Goodbye is said; the outbox is that of the next connection.
    Closing(Arc<Outbox>, Run),
    Broken,
}

#[derive(Debug)]
pub(crate) struct Run {
    task: JoinHandle<()>,
    pub(crate) closing: Arc<AtomicBool>,
}

impl ControlLinks {
    /// No links yet; what happens to them goes to `events`. Must be called inside a runtime.
    pub fn new(me: NodeId, events: mpsc::Sender<ControlEvent>) -> Self {
        ControlLinks {
            me,
            events,
            shortage: Arc::default(),
            links: HashMap::new(),
            generations: 0,
            looked: Instant::now(),
            idle: Meter::new("idle control connections", CONTROL_IDLE_MAX),
            overflows: Meter::new("bytes that wait for the slowest peer", CONTROL_OUTBOX_BYTES_MAX),
        }
    }

    /// With what the rest of the node knows of this host's means.
    pub fn sharing(self, shortage: Arc<Shortage>) -> Self {
        ControlLinks { shortage, ..self }
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
                    self.overflows.on_met();
                    outbox.close();
                    self.on_failure(to);
                    return Err(Overflow);
                }
                // Broken a moment ago, and the event is still on its way.
                Err(OutboxFull::Closed) => self.on_failure(to),
            }
        }
    }

    /// Takes note of a [`ControlEvent::LinkBroken`], and dials again if it had been made. False if nobody needs to
    /// know: the peer was forgotten meanwhile, or the link was closed in order. Must be called inside a runtime.
    pub fn on_broken(&mut self, end: &LinkEnd) -> bool {
        let Some(link) = self.links.get_mut(&end.node) else { return false };
        if end.idle_closed {
            self.on_idle_closed(end);
            return false;
        }
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
        if let Some(run) = self.links.remove(&node).and_then(Link::into_run) {
            run.task.abort();
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
        for (to, link) in std::mem::take(&mut self.links) {
            match link.state {
                LinkState::Open(outbox, run) => {
                    outbox.finish();
                    ends.push(run.task);
                }
                LinkState::Closing(outbox, run) => {
                    ends.push(run.task);
                    if !outbox.is_empty() {
                        // The peer may still read the connection that is being closed, and take this for its end:
                        // it is about to hear that this node leaves.
                        outbox.finish();
                        ends.push(self.run(to, 0, outbox).task);
                    }
                }
                LinkState::Broken => {}
            }
        }
        for end in ends {
            // A task that panicked has nothing more to write.
            let _ = end.await;
        }
    }

    pub fn gauges(&self) -> [Gauge; 3] {
        let waiting = self.links.values().filter_map(|link| match &link.state {
            LinkState::Open(outbox, _) | LinkState::Closing(outbox, _) => Some(outbox.bytes()),
            LinkState::Broken => None,
        });
        self.overflows.set(waiting.max().unwrap_or(0));
        let (limit, left) = (self.events.max_capacity(), self.events.capacity());
        let events = Meter::new("messages of peers that wait", limit);
        events.set(limit - left);
        [self.idle.gauge(), self.overflows.gauge(), events.gauge()]
    }

    fn on_failure(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.failures = link.failures.saturating_add(1);
            link.state = LinkState::Broken;
        }
    }

    fn outbox(&mut self, to: NodeId) -> Arc<Outbox> {
        let now = Instant::now();
        let fresh = Link { generation: 0, failures: 0, used: now, state: LinkState::Broken };
        let link = self.links.entry(to).or_insert(fresh);
        link.used = now;
        if let LinkState::Open(outbox, _) | LinkState::Closing(outbox, _) = &link.state {
            return outbox.clone();
        }
        let outbox = Arc::new(Outbox::new(CONTROL_OUTBOX_BYTES_MAX));
        self.open(to, outbox.clone());
        outbox
    }

    /// Dials a peer whose link is there and not open.
    pub(crate) fn open(&mut self, to: NodeId, outbox: Arc<Outbox>) {
        self.generations += 1;
        let failures = self.links.get(&to).map_or(0, |link| link.failures);
        let run = self.run(to, failures, outbox.clone());
        if let Some(link) = self.links.get_mut(&to) {
            link.generation = self.generations;
            link.state = LinkState::Open(outbox, run);
        }
    }

    fn run(&self, to: NodeId, failures: u32, outbox: Arc<Outbox>) -> Run {
        let closing = Arc::new(AtomicBool::new(false));
        let run = LinkRun {
            me: self.me,
            to,
            generation: self.generations,
            outbox,
            shortage: self.shortage.clone(),
            closing: closing.clone(),
        };
        Run { task: tokio::spawn(run.run(backoff(failures), self.events.clone())), closing }
    }
}

impl Link {
    fn into_run(self) -> Option<Run> {
        match self.state {
            LinkState::Open(_, run) | LinkState::Closing(_, run) => Some(run),
            LinkState::Broken => None,
        }
    }
}

fn backoff(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => BACKOFF_MIN.saturating_mul(1 << (n - 1).min(16)).min(BACKOFF_MAX),
    }
}

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
use hoplite_types::limits::DIAL_BACKOFF_MAX;
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

/// Limit on the bytes queued for one peer: some hundred inline objects, or a whole directory's announcements after a
/// change of members. A peer this far behind is given up, and resynced later.
pub const CONTROL_OUTBOX_BYTES_MAX: usize = 64 << 20;

/// Pause before a peer is dialled again after the first failure; doubled with each further one. It is so short that a
/// crashed process is detected within 50 ms, even if it does not refuse the connection at once.
const BACKOFF_MIN: Duration = Duration::from_millis(2);

/// A link that was up for this long counts as good: when it breaks, the peer is dialled again at once. Longer than a
/// refusal takes.
const LINK_SETTLED_AFTER: Duration = Duration::from_secs(1);

/// An event on a control connection.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all events are messages; boxing each costs more")]
pub enum ControlEvent {
    /// A frame from a connection that `from` dialled.
    Message { from: NodeId, connection: ConnectionId, message: PeerMessage },
    /// The connection that `from` dialled has ended; pass this to [`crate::ControlReaders::on_closed`].
    Closed { from: NodeId, connection: ConnectionId },
    /// The link dialled here has ended; pass this to [`ControlLinks::on_broken`].
    LinkBroken(LinkEnd),
}

/// One control connection that a peer dialled; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ConnectionId(pub(crate) u64);

/// How a link ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkEnd {
    pub node: NodeId,
    /// The process is proven to be gone: its host refuses connections to its address, or another incarnation answered
    /// there.
    pub gone: bool,
    pub(crate) generation: u64,
    /// How long it was up. `None` if it was never made, or was refused.
    pub(crate) up: Option<Duration>,
    /// It was closed because it was idle, and the peer has read all messages on it.
    pub(crate) idle_closed: bool,
}

/// The peer does not read its messages. Its link was given up, like a broken one.
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
    /// Idle links, and how many were closed for that.
    pub(crate) idle: Arc<Meter>,
    /// Outboxes that were full.
    overflows: Arc<Meter>,
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) generation: u64,
    failures: u32,
    /// The time of the last message.
    pub(crate) used: Instant,
    pub(crate) state: LinkState,
}

#[derive(Debug)]
pub(crate) enum LinkState {
    Open(Arc<Outbox>, Run),
    /// Goodbye is queued or sent; the outbox is that of the next connection.
    Closing(Arc<Outbox>, Run),
    Broken,
}

#[derive(Debug)]
pub(crate) struct Run {
    task: JoinHandle<()>,
    pub(crate) closing: Arc<AtomicBool>,
}

impl ControlLinks {
    /// Starts with no links. Their events go to `events`. Must be called inside a runtime.
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

    /// Uses the node's shared knowledge of shortages on this host.
    pub fn sharing(self, shortage: Arc<Shortage>) -> Self {
        ControlLinks { shortage, ..self }
    }

    /// Queues `message` for `to`, and dials it if necessary. Must be called inside a runtime.
    ///
    /// # Errors
    /// [`Overflow`] if more than [`CONTROL_OUTBOX_BYTES_MAX`] are queued. All of them are dropped.
    pub fn send(&mut self, to: NodeId, message: &PeerMessage) -> Result<(), Overflow> {
        // At most two rounds: a new outbox accepts the message.
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
                // The link broke a moment ago, and its event is still queued.
                Err(OutboxFull::Closed) => self.on_failure(to),
            }
        }
    }

    /// Records a [`ControlEvent::LinkBroken`], and dials again if the link had been up. Returns false if it can be
    /// ignored: the peer was forgotten meanwhile, or the link was closed for being idle. Must be called inside a
    /// runtime.
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

    /// Forgets a peer that is no member any more, and drops the messages queued for it.
    pub fn forget(&mut self, node: NodeId) {
        if let Some(run) = self.links.remove(&node).and_then(Link::into_run) {
            run.task.abort();
        }
    }

    /// The link to `node` works, so its next failure counts as the first. A message from `node` is taken as proof,
    /// since a one-way connection gives none.
    pub fn on_alive(&mut self, node: NodeId) {
        if let Some(link) = self.links.get_mut(&node) {
            link.failures = 0;
        }
    }

    /// Sends all queued messages, then closes every link. It may take as long as the slowest peer: use a time-out.
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
                        // The peer may still read the connection that is being closed, and take the new one for its
                        // end. That is harmless: it is about to learn that this node leaves.
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

    /// Dials a peer that has a link which is not open.
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
        n => BACKOFF_MIN.saturating_mul(1 << (n - 1).min(16)).min(DIAL_BACKOFF_MAX),
    }
}

//! Closes idle control connections.
//!
//! Goodbye is the last frame on a connection; the peer closes the connection after reading it. Until then nothing is
//! sent on a new connection, because it might overtake. Neither side treats this as a broken connection.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use hoplite_types::peer::PeerMessage;
use hoplite_types::NodeId;
use tokio::time::Instant;

use crate::control_out::{ControlLinks, Link, LinkEnd, LinkState, CONTROL_OUTBOX_BYTES_MAX};
use crate::outbox::Outbox;

/// Limit on the idle links that are kept: all links of a small cluster, where each also shows that its peer is alive.
/// In a large cluster most links would be used once in an hour, and cost a descriptor on either side.
pub const CONTROL_IDLE_MAX: usize = 64;

/// A link without messages for this long is idle. Dialling it again costs two round trips.
pub const CONTROL_IDLE_AFTER: Duration = Duration::from_secs(10);

/// Shortest time between two searches for idle links.
const CONTROL_IDLE_LOOK: Duration = Duration::from_secs(1);

/// How long a broken and unused link is remembered.
const BROKEN_KEPT_FOR: Duration = Duration::from_secs(60);

impl ControlLinks {
    /// Closes idle links beyond [`CONTROL_IDLE_MAX`]: those that have been idle for longest. Call it regularly; it
    /// does nothing if the last search was a short time ago. Must be called inside a runtime.
    pub fn close_idle(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) < CONTROL_IDLE_LOOK {
            return;
        }
        self.looked = now;
        // Otherwise links to nodes that are not members would stay for ever. A member is simply dialled anew.
        let is_over = |link: &Link| {
            matches!(link.state, LinkState::Broken) && now.duration_since(link.used) >= BROKEN_KEPT_FOR
        };
        self.links.retain(|_, link| !is_over(link));
        let idle = |link: &Link| link.is_idle(now);
        let mut idle: Vec<_> =
            self.links.iter().filter(|(_, link)| idle(link)).map(|(&node, link)| (link.used, node)).collect();
        idle.sort_unstable();
        let too_many = idle.len().saturating_sub(CONTROL_IDLE_MAX);
        self.idle.set(idle.len() - too_many);
        for &(_, node) in &idle[..too_many] {
            self.close(node);
        }
    }

    fn close(&mut self, node: NodeId) {
        let Some(link) = self.links.get_mut(&node) else { return };
        match std::mem::replace(&mut link.state, LinkState::Broken) {
            LinkState::Open(outbox, run) => {
                run.closing.store(true, Ordering::Release);
                // If the link is broken already, its event is queued.
                let _ = outbox.push(&PeerMessage::Goodbye);
                outbox.finish();
                self.idle.on_met();
                link.state = LinkState::Closing(Arc::new(Outbox::new(CONTROL_OUTBOX_BYTES_MAX)), run);
            }
            other => link.state = other,
        }
    }

    pub(crate) fn on_idle_closed(&mut self, end: &LinkEnd) {
        let Some(link) = self.links.get_mut(&end.node).filter(|link| link.generation == end.generation)
        else {
            return;
        };
        match std::mem::replace(&mut link.state, LinkState::Broken) {
            LinkState::Closing(outbox, _) if outbox.is_empty() => drop(self.links.remove(&end.node)),
            LinkState::Closing(outbox, _) => self.open(end.node, outbox),
            other => link.state = other,
        }
    }
}

impl Link {
    fn is_idle(&self, now: Instant) -> bool {
        let since = now.duration_since(self.used);
        let is_empty = matches!(&self.state, LinkState::Open(outbox, _) if outbox.is_empty());
        is_empty && since >= CONTROL_IDLE_AFTER
    }
}

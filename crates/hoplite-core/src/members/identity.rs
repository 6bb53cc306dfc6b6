//! A node's identity in gossip.

use std::net::SocketAddr;

use foca::Identity;
use hoplite_types::NodeId;
use serde::{Deserialize, Serialize};

/// A `NodeId` as gossip sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Gossiper {
    pub addr: SocketAddr,
    pub incarnation: u64,
    /// How often it was declared dead while it lived (paused, starved, cut off). Gossip never revokes a death, so the
    /// node comes back under a new identity; outside of gossip it is the same node.
    pub life: u32,
}

impl Gossiper {
    pub fn of(node: NodeId) -> Self {
        Gossiper { addr: node.addr, incarnation: node.incarnation, life: 0 }
    }

    /// Any node at this address.
    pub fn unknown(addr: SocketAddr) -> Self {
        Gossiper { addr, incarnation: 0, life: 0 }
    }

    pub fn node(self) -> NodeId {
        NodeId { addr: self.addr, incarnation: self.incarnation }
    }
}

impl Identity for Gossiper {
    type Addr = SocketAddr;

    fn renew(&self) -> Option<Self> {
        self.life.checked_add(1).map(|life| Gossiper { life, ..*self })
    }

    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        (self.incarnation, self.life) > (adversary.incarnation, adversary.life)
    }
}

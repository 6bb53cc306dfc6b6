//! The configuration of a core.

use std::net::SocketAddr;
use std::time::Duration;

use hoplite_types::{Connections, NodeId};

use crate::cost::Degree;

/// Settings of one node's core. Start from [`Config::new`].
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// Members to join through, tried until one answers; our own address among them is ignored.
    pub seeds: Vec<SocketAddr>,
    /// Size of the arena, bytes.
    pub store_bytes: u64,
    /// Seeds every random choice: same seed and inputs, same outputs.
    pub seed: u64,
    /// Time between two probes of a random member. Default 100 ms.
    pub probe_period: Duration,
    /// How long a member may leave a probe unanswered before others are asked to probe it. Default 50 ms.
    pub probe_timeout: Duration,
    /// How long a suspect has to show that it is alive. Default 450 ms.
    pub suspicion: Duration,
    /// How long an incoming stream may bring nothing before its sender is asked how much it has, and again
    /// before the sender is given up. Default 1 s. For the driver, which sees the bytes; see `ReceiveStalled`.
    pub stall_after: Duration,
    /// How many connections carry every transfer from here, instead of as many as proved to be faster (see
    /// `connections`). Default: none.
    pub connections: Option<Connections>,
    /// The tree of every reduction called here, instead of the cost model's choice, which may be stripes. For measuring
    /// how good the model's choices are. Default: none.
    pub reduce_degree: Option<Degree>,
    /// Allreduces from this size on, in bytes, are striped where their shape allows it. Default: those for
    /// which the cost model says that it pays (see `cost`).
    pub striped_bytes_min: Option<u64>,
}

impl Config {
    /// Defaults: no seeds, and the gossip times above.
    pub fn new(node: NodeId, store_bytes: u64, seed: u64) -> Self {
        Config {
            node,
            seeds: Vec::new(),
            store_bytes,
            seed,
            probe_period: Duration::from_millis(100),
            probe_timeout: Duration::from_millis(50),
            suspicion: Duration::from_millis(450),
            stall_after: Duration::from_secs(1),
            connections: None,
            reduce_degree: None,
            striped_bytes_min: None,
        }
    }
}

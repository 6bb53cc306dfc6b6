//! What may go wrong in a world besides bad luck with timing.

use std::fmt;

use hoplite_core::io::ClientId;

/// One fault, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A client process dies.
    KillClient(ClientId),
    /// The daemon of the node with this index dies, its clients with it.
    KillNode(usize),
    /// It starts again, as a new node at the same address.
    RestartNode(usize),
}

/// Which classes of faults a run may draw; all off by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultSwitches {
    pub kill_clients: bool,
    pub kill_nodes: bool,
    /// Killed nodes come back.
    pub restart_nodes: bool,
    pub lose_datagrams: bool,
}

impl FaultSwitches {
    /// Every class there is.
    pub fn all() -> Self {
        FaultSwitches { kill_clients: true, kill_nodes: true, restart_nodes: true, lose_datagrams: true }
    }

    pub fn any(&self) -> bool {
        *self != FaultSwitches::default()
    }
}

impl fmt::Display for FaultSwitches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = [
            (self.kill_clients, "dying clients"),
            (self.kill_nodes, "dying nodes"),
            (self.restart_nodes, "restarts"),
            (self.lose_datagrams, "lost datagrams"),
        ]
        .into_iter()
        .filter_map(|(on, name)| on.then_some(name))
        .collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

//! Epochs: they keep slots that a node has released from being started again.
//!
//! A node that believes a coordinator dead releases its slots. But the coordinator may live, and its old assignments
//! may still be under way, or be repeated. Accepting one would run the same attempt a second time, perhaps with
//! different bytes. So each node counts the deaths that it has noticed, as epochs. It refuses a coordinator's
//! assignments made before the epoch of that coordinator's last death. The refusal carries the epoch, and the
//! coordinator starts new attempts.

use std::collections::BTreeMap;

use hoplite_types::NodeId;

/// Limit of coordinators whose epoch is remembered. For the forgotten ones, the latest epoch of any of them is used;
/// then some slots are started anew without need.
const FENCED_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// The number of coordinators' deaths that we have noticed.
    current: u64,
    /// The epoch of the last death of each of them.
    fenced: BTreeMap<NodeId, u64>,
    /// The epoch used for all others.
    floor: u64,
}

impl Epochs {
    /// The epoch that assignments of this coordinator must know of.
    pub fn fence_of(&self, coordinator: NodeId) -> u64 {
        self.fenced.get(&coordinator).copied().unwrap_or(self.floor)
    }

    /// The coordinator is believed dead.
    pub fn on_down(&mut self, coordinator: NodeId) {
        self.current += 1;
        self.fenced.insert(coordinator, self.current);
        while self.fenced.len() > FENCED_MAX {
            let oldest = self.fenced.iter().min_by_key(|(_, &epoch)| epoch).map(|(&node, _)| node);
            let forgotten = oldest.and_then(|node| self.fenced.remove(&node));
            self.floor = self.floor.max(forgotten.unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> NodeId {
        NodeId { addr: ([127, 0, 0, 1], port).into(), incarnation: 1 }
    }

    #[test]
    fn assignments_from_before_a_death_are_refused_for_good() {
        let mut epochs = Epochs::default();
        assert_eq!(epochs.fence_of(node(1)), 0);
        epochs.on_down(node(1));
        epochs.on_down(node(2));
        assert_eq!((epochs.fence_of(node(1)), epochs.fence_of(node(2)), epochs.fence_of(node(3))), (1, 2, 0));
        (10..10 + FENCED_MAX as u16).for_each(|port| epochs.on_down(node(port)));
        assert_eq!((epochs.fence_of(node(1)), epochs.fence_of(node(3))), (2, 2), "rather too many");
    }
}

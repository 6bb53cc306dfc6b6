//! The epochs that nodes reported: assignments to a node must name the last one, or the node refuses them (see
//! `slots::epochs`).

use std::collections::BTreeMap;

use hoplite_types::NodeId;

#[derive(Debug, Default)]
pub(super) struct EpochsHeard(BTreeMap<NodeId, u64>);

impl EpochsHeard {
    /// The last epoch that a node reported.
    pub fn of(&self, node: NodeId) -> u64 {
        self.0.get(&node).copied().unwrap_or_default()
    }

    /// A node reports the epoch that our assignments must know of. Returns whether it is new.
    pub fn note(&mut self, node: NodeId, epoch: u64) -> bool {
        let known = self.0.entry(node).or_default();
        let is_news = epoch > *known;
        *known = epoch.max(*known);
        is_news
    }

    /// The node is gone. If it comes back, it reports its epoch again.
    pub fn forget(&mut self, node: NodeId) {
        self.0.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_heard_only_grows() {
        let node = NodeId { addr: ([127, 0, 0, 1], 1).into(), incarnation: 1 };
        let mut heard = EpochsHeard::default();
        assert!(heard.note(node, 3) && !heard.note(node, 2));
        assert_eq!(heard.of(node), 3);
    }
}

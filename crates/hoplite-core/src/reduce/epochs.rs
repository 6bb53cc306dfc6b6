//! Which slots a node still stands by.
//!
//! A node that takes a coordinator for dead lets go of its slots. The coordinator may live, and its old
//! assignments may still be on their way, or be repeated. To take one up again would run the same attempt a
//! second time, and its bytes need not be the same. So a node counts the deaths that it has taken note of, as
//! epochs; it refuses assignments of a coordinator that were made before the epoch of its last death; and the
//! coordinator, which hears of that epoch, makes new attempts.

use std::collections::BTreeMap;

use hoplite_types::NodeId;

/// Coordinators whose epoch is remembered. Of those forgotten it is taken for the last one of any of them: then
/// slots may be begun anew that need not be.
const FENCED_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// How many coordinators we took for dead.
    current: u64,
    /// For each of them, since when.
    fenced: BTreeMap<NodeId, u64>,
    /// At least so, for all others.
    floor: u64,
    /// As a coordinator: what others said of theirs.
    heard: BTreeMap<NodeId, u64>,
}

impl Epochs {
    /// The epoch that assignments of this coordinator must know of.
    pub fn fence_of(&self, coordinator: NodeId) -> u64 {
        self.fenced.get(&coordinator).copied().unwrap_or(self.floor)
    }

    /// The coordinator is taken for dead.
    pub fn on_down(&mut self, coordinator: NodeId) {
        self.heard.remove(&coordinator);
        self.current += 1;
        self.fenced.insert(coordinator, self.current);
        while self.fenced.len() > FENCED_MAX {
            let oldest = self.fenced.iter().min_by_key(|(_, &epoch)| epoch).map(|(&node, _)| node);
            let forgotten = oldest.and_then(|node| self.fenced.remove(&node));
            self.floor = self.floor.max(forgotten.unwrap_or_default());
        }
    }

    /// The last epoch that we heard of from a node.
    pub fn heard_from(&self, node: NodeId) -> u64 {
        self.heard.get(&node).copied().unwrap_or_default()
    }

    /// A node says which epoch our assignments must know of. Returns whether that is news.
    pub fn note_heard(&mut self, node: NodeId, epoch: u64) -> bool {
        let known = self.heard.entry(node).or_default();
        let is_news = epoch > *known;
        *known = epoch.max(*known);
        is_news
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

    #[test]
    fn what_was_heard_only_grows() {
        let mut epochs = Epochs::default();
        assert!(epochs.note_heard(node(1), 3) && !epochs.note_heard(node(1), 2));
        assert_eq!(epochs.heard_from(node(1)), 3);
    }
}

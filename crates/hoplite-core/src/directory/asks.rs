//! Receivers that wait for a sender of one object, in order of arrival, one ask for each node.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_types::{Edition, NodeId};

#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub node: NodeId,
    pub ask: u64,
    /// The edition of its partial copy.
    pub have: Option<Edition>,
    /// A sender that failed it, and the time until which that is avoided.
    pub distrust: Option<(NodeId, Duration)>,
}

#[derive(Debug, Default)]
pub(super) struct Asks {
    waiting: BTreeMap<u64, Ask>,
    of: BTreeMap<NodeId, u64>,
    arrived: u64,
}

impl Asks {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.of.contains_key(&node)
    }

    pub fn of(&self, node: NodeId) -> Option<&Ask> {
        self.of.get(&node).map(|number| &self.waiting[number])
    }

    /// The first ask after that number, with its own number; numbers start at 1.
    pub fn next_behind(&self, number: u64) -> Option<(u64, &Ask)> {
        self.waiting.range(number + 1..).next().map(|(&number, ask)| (number, ask))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Ask> {
        self.waiting.values()
    }

    /// Adds an ask, in place of an older one of the same node. Returns false if it repeats that one.
    pub fn add(&mut self, ask: Ask) -> bool {
        if let Some(known) = self.of.get(&ask.node).and_then(|number| self.waiting.get_mut(number)) {
            return std::mem::replace(known, ask.clone()).ask != ask.ask;
        }
        self.arrived += 1;
        self.of.insert(ask.node, self.arrived);
        self.waiting.insert(self.arrived, ask);
        true
    }

    pub fn remove(&mut self, node: NodeId) -> Option<Ask> {
        let number = self.of.remove(&node)?;
        self.waiting.remove(&number)
    }

    /// Forgets the partial copies of all asks, except those whose edition stands.
    pub fn forget_editions(&mut self, stands: impl Fn(Edition) -> bool) {
        for ask in self.waiting.values_mut() {
            ask.have = ask.have.filter(|&edition| stands(edition));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_keeps_its_place_when_it_is_repeated_or_replaced() {
        let node = |port| NodeId { addr: ([127, 0, 0, 1], port).into(), incarnation: 1 };
        let ask = |port, ask| Ask { node: node(port), ask, have: None, distrust: None };
        let mut asks = Asks::default();
        assert!(asks.add(ask(1, 5)) && asks.add(ask(2, 3)));
        assert!(!asks.add(ask(1, 5)));
        assert!(asks.add(ask(1, 8)));
        let (first, known) = asks.next_behind(0).unwrap();
        assert_eq!((known.node, known.ask), (node(1), 8));
        assert_eq!(asks.next_behind(first).unwrap().1.node, node(2));
        assert_eq!(asks.remove(node(1)).unwrap().ask, 8);
        assert_eq!(asks.next_behind(0).unwrap().1.node, node(2));
        asks.remove(node(2));
        assert!(asks.is_empty() && asks.remove(node(2)).is_none());
    }
}

//! The copies of one object, as their nodes reported them, and which senders are lent to which receivers.

use std::collections::BTreeSet;

use hoplite_types::peer::CopyReport;
use hoplite_types::{Claim, Edition, Header, NodeId, Stamp};

/// A copy on some node.
#[derive(Debug, Clone)]
pub(super) struct Held {
    /// The sequence number of the newest report.
    pub seq: u64,
    pub edition: Edition,
    pub complete: bool,
    pub pinned: bool,
    pub upstream: Option<NodeId>,
    pub leaving: bool,
    pub stamp: Option<Stamp>,
    pub claim: Option<Claim>,
    /// Only lent a sender so far: it has not reported its copy.
    pub presumed: bool,
    /// It asks again for an object that it was sent inline.
    pub doubted: bool,
    /// The ask that was answered with its sender; zero if none was.
    pub answered: u64,
    /// The receivers that it is lent to.
    pub lent: BTreeSet<NodeId>,
    /// How many have received the object from it, apart from those that receive it now.
    pub served: usize,
    /// Hops from a source when its sender was last known to change.
    pub depth: usize,
}

impl Held {
    pub fn reported(report: &CopyReport) -> Self {
        Held {
            seq: report.seq,
            edition: report.edition,
            complete: report.complete,
            pinned: report.pinned,
            upstream: report.upstream,
            leaving: report.leaving,
            stamp: report.stamp,
            claim: report.claim,
            presumed: false,
            doubted: false,
            answered: 0,
            lent: BTreeSet::new(),
            served: 0,
            depth: 0,
        }
    }

    pub fn report(&self, size: u64, header: Header) -> CopyReport {
        CopyReport {
            seq: self.seq,
            edition: self.edition,
            size,
            header,
            complete: self.complete,
            pinned: self.pinned,
            upstream: self.upstream,
            leaving: self.leaving,
            stamp: self.stamp,
            claim: self.claim,
        }
    }

    /// Whether it is complete, or can become so without any other copy.
    pub fn is_alive(&self) -> bool {
        self.complete || self.pinned || self.claim.is_some()
    }

    /// Whether it is partial, and gets the rest from another copy.
    pub fn receives(&self) -> bool {
        self.upstream.is_some() && !self.complete
    }

    /// Whether its own node may yet seal it, whatever happens to the claim.
    pub fn is_sealer(&self) -> bool {
        self.claim.is_some() && !self.complete
    }

    /// Whether it provides bytes, now or later, without an upstream.
    fn is_source(&self) -> bool {
        self.complete || self.pinned
    }
}

/// All copies of one object, in order of their nodes.
#[derive(Debug, Default)]
pub(super) struct Holders {
    table: Vec<(NodeId, Box<Held>)>,
    /// The copies that are lent to no receiver: how many they served, their distance from a source, their nodes.
    free: Vec<(usize, usize, NodeId)>,
    /// The sender that each receiver was lent.
    lenders: Vec<(NodeId, NodeId)>,
}

impl Holders {
    fn position(&self, node: NodeId) -> Result<usize, usize> {
        self.table.binary_search_by_key(&node, |&(holder, _)| holder)
    }

    pub fn get(&self, node: NodeId) -> Option<&Held> {
        self.position(node).ok().map(|at| &*self.table[at].1)
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.position(node).is_ok()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Held)> {
        self.table.iter().map(|(node, held)| (*node, &**held))
    }

    /// The copies that their own nodes have reported.
    pub fn reported(&self) -> impl Iterator<Item = (NodeId, &Held)> {
        self.iter().filter(|(_, held)| !held.presumed)
    }

    pub fn any_alive(&self) -> bool {
        self.iter().any(|(_, held)| held.is_alive())
    }

    pub fn insert(&mut self, node: NodeId, held: Held) {
        match self.position(node) {
            Ok(at) => {
                self.take_rank(node, at);
                *self.table[at].1 = held;
                self.give_rank(at);
            }
            Err(at) => {
                self.table.insert(at, (node, Box::new(held)));
                self.give_rank(at);
            }
        }
    }

    pub fn remove(&mut self, node: NodeId) -> Option<Held> {
        let at = self.position(node).ok()?;
        self.take_rank(node, at);
        let (_, held) = self.table.remove(at);
        Some(*held)
    }

    /// Changes a copy, if there is one.
    pub fn change<T>(&mut self, node: NodeId, change: impl FnOnce(&mut Held) -> T) -> Option<T> {
        let at = self.position(node).ok()?;
        self.take_rank(node, at);
        let result = change(&mut self.table[at].1);
        self.give_rank(at);
        Some(result)
    }

    fn give_rank(&mut self, at: usize) {
        let (node, held) = &self.table[at];
        let rank = (held.served, held.depth, *node);
        if held.lent.is_empty() {
            if let Err(at) = self.free.binary_search(&rank) {
                self.free.insert(at, rank);
            }
        }
    }

    fn take_rank(&mut self, node: NodeId, at: usize) {
        let held = &self.table[at].1;
        if let Ok(at) = self.free.binary_search(&(held.served, held.depth, node)) {
            self.free.remove(at);
        }
    }

    /// The copies that are lent to no receiver, the best first: those that served the fewest, then those near a source.
    pub fn free(&self) -> impl Iterator<Item = (NodeId, &Held)> {
        self.free.iter().filter_map(|&(_, _, node)| self.get(node).map(|held| (node, held)))
    }

    /// `sender` sends to `receiver` from now on.
    pub fn note_lent(&mut self, sender: NodeId, receiver: NodeId) {
        if self.change(sender, |held| held.lent.insert(receiver)).is_some() {
            if let Err(at) = self.lenders.binary_search(&(receiver, sender)) {
                self.lenders.insert(at, (receiver, sender));
            }
        }
        let depth = self.get(sender).map_or(0, |held| held.depth + 1);
        self.change(receiver, |held| held.depth = depth);
    }

    /// `receiver` no longer needs its sender.
    pub fn return_senders_of(&mut self, receiver: NodeId) {
        let first = self.lenders.partition_point(|&(of, _)| of < receiver);
        let end = self.lenders.partition_point(|&(of, _)| of <= receiver);
        for (_, sender) in self.lenders.drain(first..end).collect::<Vec<_>>() {
            self.change(sender, |held| held.lent.remove(&receiver));
        }
    }

    /// No node receives from `sender` any more, as far as it was lent.
    pub fn end_lending_of(&mut self, sender: NodeId) {
        if self.change(sender, |held| held.lent.clear()).is_some() {
            self.lenders.retain(|&(_, lender)| lender != sender);
        }
    }

    /// Whether the chain of senders leads from `node` to a source of the same edition without passing `asker`.
    /// Copies in `sound` are known to lead to a source. An asker without a copy cannot be in any chain.
    pub fn leads_to_source(&self, node: NodeId, asker: NodeId, sound: &BTreeSet<NodeId>) -> bool {
        let Some(edition) = self.get(node).map(|held| held.edition) else { return false };
        let may_be_in_the_way = self.contains(asker);
        let mut at = node;
        for _ in 0..=self.len() {
            let held = self.get(at).filter(|held| held.edition == edition);
            let Some(held) = held.filter(|_| at != asker) else { return false };
            if !may_be_in_the_way && sound.contains(&at) {
                return true;
            }
            match held.upstream {
                Some(upstream) if !held.complete => at = upstream,
                _ => return held.is_source(),
            }
        }
        false
    }

    /// Whether the chain that `node` receives from leads back to it.
    pub fn is_in_cycle(&self, node: NodeId) -> bool {
        let sender = |at: NodeId| self.get(at).filter(|held| !held.complete)?.upstream;
        let mut at = node;
        for _ in 0..self.len() {
            match sender(at) {
                Some(upstream) if upstream == node => return true,
                Some(upstream) => at = upstream,
                None => return false,
            }
        }
        false
    }

    /// Whether some node has this edition, or writes it.
    pub fn may_complete(&self, edition: Edition) -> bool {
        self.iter().any(|(_, held)| held.is_alive() && held.edition == edition)
    }

    /// The editions that are complete, or can still become so.
    pub fn alive_editions(&self) -> BTreeSet<Edition> {
        self.iter().filter(|(_, held)| held.is_alive()).map(|(_, held)| held.edition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> NodeId {
        NodeId { addr: ([127, 0, 0, 1], port).into(), incarnation: 1 }
    }

    fn held(complete: bool) -> Held {
        let report = CopyReport {
            seq: 1,
            edition: Edition { writing: 1, attempt: 0 },
            size: 1,
            header: Header::default(),
            complete,
            pinned: complete,
            upstream: None,
            leaving: false,
            stamp: None,
            claim: None,
        };
        Held::reported(&report)
    }

    #[test]
    fn who_is_lent_is_not_free_until_its_receiver_needs_it_no_more() {
        let mut holders = Holders::default();
        holders.insert(node(1), held(true));
        holders.insert(node(2), held(false));
        holders.note_lent(node(1), node(2));
        let free = |holders: &Holders| holders.free().map(|(node, _)| node.addr.port()).collect::<Vec<_>>();
        assert_eq!(free(&holders), [2]);
        assert_eq!(holders.get(node(2)).unwrap().depth, 1);
        holders.return_senders_of(node(2));
        holders.change(node(1), |held| held.served = 1);
        assert_eq!(free(&holders), [2, 1], "who served fewer comes first");
        holders.remove(node(2));
        assert_eq!(free(&holders), [1]);
    }

    #[test]
    fn chains_lead_to_a_source_or_nowhere() {
        let mut holders = Holders::default();
        holders.insert(node(1), held(true));
        for port in 2..=4 {
            let upstream = Some(node(port - 1));
            holders.insert(node(port), Held { upstream, ..held(false) });
        }
        let nobody = BTreeSet::new();
        assert!(holders.leads_to_source(node(4), node(9), &nobody));
        assert!(!holders.leads_to_source(node(4), node(2), &nobody), "the asker is on the way");
        holders.change(node(2), |held| held.upstream = Some(node(4)));
        assert!(!holders.leads_to_source(node(4), node(9), &nobody) && holders.is_in_cycle(node(3)));
        holders.remove(node(3));
        assert!(!holders.leads_to_source(node(4), node(9), &nobody) && !holders.is_in_cycle(node(4)));
    }
}

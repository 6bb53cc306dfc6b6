//! What is known of one object. Soft state: the truth is what nodes hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::peer::{CopyReport, DirectoryRequest, Verdict};
use hoplite_words::{Edition, NodeId};

/// A copy somewhere, and to whom it is lent as a sender.
#[derive(Debug)]
pub(super) struct Held {
    pub report: CopyReport,
    /// Only lent a sender so far: it has not reported itself.
    pub presumed: bool,
    pub lent: BTreeSet<NodeId>,
}

impl Held {
    /// It is complete, or on the way to be so without any other copy.
    fn is_alive(&self) -> bool {
        self.report.complete || (!self.presumed && self.report.upstream.is_none())
    }
}

/// A receiver waiting for a sender.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub node: NodeId,
    pub ask: u64,
    /// The edition it holds part of.
    pub have: Option<Edition>,
    /// A sender that failed it, and until when it is to be avoided.
    pub distrust: Option<(NodeId, Duration)>,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    copies: BTreeMap<NodeId, Held>,
    /// In order of arrival.
    pub asks: Vec<Ask>,
    pub subscribers: BTreeSet<NodeId>,
    /// A complete copy existed, and no abandoned put ended it.
    was_complete: bool,
    /// Deleted; nothing else is kept then.
    pub buried_until: Option<Duration>,
}

impl Entry {
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
            && self.asks.is_empty()
            && self.subscribers.is_empty()
            && self.buried_until.is_none()
    }

    pub fn size(&self) -> Option<u64> {
        self.copies.values().next().map(|held| held.report.size)
    }

    pub fn copies(&self) -> &BTreeMap<NodeId, Held> {
        &self.copies
    }

    pub fn copies_mut(&mut self) -> &mut BTreeMap<NodeId, Held> {
        &mut self.copies
    }

    /// Every copy, those included that are presumed from a lend.
    pub fn held(&self) -> impl Iterator<Item = (NodeId, &CopyReport)> {
        self.copies.iter().map(|(&node, held)| (node, &held.report))
    }

    /// The copies their own nodes have reported.
    pub fn reported(&self) -> impl Iterator<Item = (NodeId, &CopyReport)> {
        self.copies.iter().filter(|(_, held)| !held.presumed).map(|(&node, held)| (node, &held.report))
    }

    /// Whether this report can stand beside what is known.
    pub fn judge(&self, origin: NodeId, report: &CopyReport) -> Verdict {
        if self.buried_until.is_some() {
            return Verdict::Deleted;
        }
        // What is left of a writing that was given up stands in nobody's way.
        let stands = |held: &Held| held.is_alive() && held.report.size != report.size;
        let other = self.copies.iter().find(|(&node, held)| node != origin && stands(held));
        other.map_or(Verdict::Accepted, |(_, held)| Verdict::OtherSize(held.report.size))
    }

    /// Takes a report in; false if a newer one is known already.
    pub fn accept(&mut self, origin: NodeId, report: CopyReport) -> bool {
        if self.copies.get(&origin).is_some_and(|held| held.report.seq > report.seq) {
            return false;
        }
        self.was_complete |= report.complete;
        // Whom it receives from is in the report.
        self.return_senders_of(origin);
        let (upstream, complete) = (report.upstream, report.complete);
        let fresh = Held { report: report.clone(), presumed: false, lent: BTreeSet::new() };
        let held = self.copies.entry(origin).or_insert(fresh);
        if held.report.edition != report.edition {
            // Whoever was streaming the abandoned edition has to ask again anyway.
            held.lent.clear();
        }
        held.report = report;
        held.presumed = false;
        // After a change of owner, edges are learnt from the receivers' reports.
        if let Some(sender) = upstream.filter(|_| !complete) {
            if let Some(held) = self.copies.get_mut(&sender) {
                held.lent.insert(origin);
            }
        }
        true
    }

    /// Forgets the copy of `origin` unless a newer report or another edition is known; returns
    /// whether one went.
    pub fn withdraw(&mut self, origin: NodeId, seq: u64, edition: Edition) -> bool {
        let matches = |held: &Held| held.report.seq <= seq && held.report.edition == edition;
        if !self.copies.get(&origin).is_some_and(matches) {
            return false;
        }
        self.copies.remove(&origin);
        self.return_senders_of(origin);
        true
    }

    /// Takes out the receivers of editions that nobody can complete any more, and says who they are.
    pub fn take_orphans(&mut self) -> Vec<(NodeId, Edition)> {
        let is_source = |held: &Held| held.report.complete || held.report.pinned;
        let sources: BTreeSet<_> =
            self.copies.values().filter(|held| is_source(held)).map(|held| held.report.edition).collect();
        let orphaned = self.copies.iter().filter(|(_, held)| !sources.contains(&held.report.edition));
        let orphans: Vec<_> = orphaned.map(|(&node, held)| (node, held.report.edition)).collect();
        for (node, _) in &orphans {
            self.copies.remove(node);
            self.return_senders_of(*node);
        }
        orphans
    }

    /// Takes a dead node out of everything; returns whether it held a copy.
    pub fn forget(&mut self, node: NodeId) -> bool {
        self.asks.retain(|ask| ask.node != node);
        self.subscribers.remove(&node);
        self.return_senders_of(node);
        self.copies.remove(&node).is_some()
    }

    /// `receiver` needs its sender no more.
    pub fn return_senders_of(&mut self, receiver: NodeId) {
        for held in self.copies.values_mut() {
            held.lent.remove(&receiver);
        }
    }

    /// No complete copy is left, and nobody is writing the object anew.
    pub fn is_lost(&self) -> bool {
        self.was_complete && !self.copies.values().any(Held::is_alive)
    }

    /// One ask per node: a newer one replaces an older one.
    pub fn add_ask(&mut self, ask: Ask) {
        self.return_senders_of(ask.node);
        match self.asks.iter_mut().find(|waiting| waiting.node == ask.node) {
            Some(waiting) => *waiting = ask,
            None => self.asks.push(ask),
        }
    }

    /// Everyone who must hear of the object's end.
    pub fn everyone(&self) -> BTreeSet<NodeId> {
        let holders = self.copies.keys().copied();
        holders.chain(self.asks.iter().map(|ask| ask.node)).chain(self.subscribers.iter().copied()).collect()
    }

    /// The entry as the requests that would make it anew at another owner.
    pub fn into_requests(self, now: Duration, me: NodeId) -> Vec<(NodeId, DirectoryRequest)> {
        let mut requests = Vec::new();
        if let Some(until) = self.buried_until {
            let ttl_ms = until.saturating_sub(now).as_millis() as u64;
            requests.push((me, DirectoryRequest::Bury { ttl_ms }));
        }
        for (node, held) in self.copies.into_iter().filter(|(_, held)| !held.presumed) {
            let report = held.report;
            requests.push((node, DirectoryRequest::Announce { report, payload: None, wants_verdict: false }));
        }
        for subscriber in self.subscribers {
            requests.push((subscriber, DirectoryRequest::Subscribe));
        }
        for Ask { node, ask, have, distrust } in self.asks {
            let failed = distrust.map(|(sender, _)| sender);
            requests.push((node, DirectoryRequest::Ask { ask, have, failed }));
        }
        requests
    }
}

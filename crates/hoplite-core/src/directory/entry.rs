//! What is known of one object. Soft state: the truth is what nodes hold.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hoplite_words::peer::{CopyReport, DirectoryRequest, Verdict};
use hoplite_words::{Edition, NodeId};

/// Abandoned editions that are remembered: those that receivers may still speak of.
const ABANDONED_MAX: usize = 8;

/// A copy somewhere, and to whom it is lent as a sender.
#[derive(Debug)]
pub(super) struct Held {
    pub report: CopyReport,
    /// Only lent a sender so far: it has not reported itself.
    pub presumed: bool,
    /// The ask that was answered with its sender, zero if none was.
    pub answered: u64,
    pub lent: BTreeSet<NodeId>,
    /// How many have the object from it, those aside that receive it now.
    pub served: usize,
}

impl Held {
    /// It is complete, or on the way to be so without any other copy: what is written or reduced is pinned
    /// from the first byte.
    fn is_alive(&self) -> bool {
        self.report.complete || self.report.pinned
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
    /// And up to how many bytes they want the object itself.
    pub subscribers: BTreeMap<NodeId, Option<u64>>,
    /// A complete copy existed.
    was_complete: bool,
    /// The writing that is known to have been complete first.
    completed_by: Option<Edition>,
    /// Who would own the id without us, if told that the object existed.
    pub witness: Option<NodeId>,
    /// It is lost, and how long that is remembered.
    pub mourned_until: Option<Duration>,
    /// From when on what is known here is all there is, if the owner, or a member, is new and is heard
    /// little by little.
    pub trusted_from: Option<Duration>,
    /// It was made when the owner was new: others may have owned it before.
    inherited: bool,
    /// The last writings, or attempts, that were seen to end before they were complete.
    abandoned: VecDeque<Edition>,
    /// Deleted; nothing else is kept then, but who was told and has not said that it heard, and who waits
    /// until all have.
    pub buried_until: Option<Duration>,
    pub unheard: BTreeSet<NodeId>,
    /// Who would own the tombstone without us, and knows of it.
    pub heir: Option<NodeId>,
    pub deleters: Vec<(NodeId, u64)>,
}

impl Entry {
    pub fn new(trusted_from: Option<Duration>) -> Self {
        Entry { trusted_from, inherited: trusted_from.is_some(), ..Entry::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
            && self.asks.is_empty()
            && self.subscribers.is_empty()
            && self.buried_until.is_none()
            && self.mourned_until.is_none()
    }

    /// Nothing is known of it but that it is gone.
    pub fn is_memory(&self) -> bool {
        self.copies.is_empty() && self.asks.is_empty() && self.subscribers.is_empty()
    }

    /// Remembers that a complete copy existed, also when nothing else is known.
    pub fn mourn(&mut self, until: Duration) {
        self.was_complete = true;
        self.completed_by = None;
        self.mourned_until = Some(until);
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

    /// Everyone who holds, asks or watches.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let asking = self.asks.iter().map(|ask| ask.node);
        self.copies.keys().copied().chain(asking).chain(self.subscribers.keys().copied())
    }

    /// Whether the object is at `node`, or on the way there, or asked for.
    pub fn has_or_asks(&self, node: NodeId) -> bool {
        self.copies.contains_key(&node) || self.asks.iter().any(|ask| ask.node == node)
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
    pub fn accept(&mut self, origin: NodeId, mut report: CopyReport) -> bool {
        let known = self.copies.get(&origin);
        if known.is_some_and(|held| held.report.seq > report.seq) {
            return false;
        }
        if let Some(held) = known.filter(|held| held.report.edition == report.edition) {
            // Between two senders: the next one may have been lent while this was on its way.
            report.upstream =
                report.upstream.or(held.report.upstream.filter(|_| !report.complete && !report.pinned));
        }
        if report.complete {
            if !std::mem::replace(&mut self.was_complete, true) {
                self.completed_by = Some(report.edition);
            }
            self.mourned_until = None;
        }
        let sender = known.and_then(|held| held.report.upstream).filter(|_| report.complete);
        if let Some(held) = sender.and_then(|sender| self.copies.get_mut(&sender)) {
            held.served += 1;
        }
        // Whom it receives from is in the report.
        self.return_senders_of(origin);
        let (upstream, complete) = (report.upstream, report.complete);
        // Its receivers may have reported before it did.
        let behind = |held: &Held| {
            let receiver = &held.report;
            receiver.upstream == Some(origin) && !receiver.complete && receiver.edition == report.edition
        };
        let lent = self.copies.iter().filter(|(_, held)| behind(held)).map(|(&node, _)| node).collect();
        let fresh = Held { report: report.clone(), presumed: false, answered: 0, lent, served: 0 };
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
        self.remove(origin);
        self.return_senders_of(origin);
        true
    }

    /// The writer of `edition` gave it up. If it was only ever complete in its writer's word, it never was.
    pub fn take_back(&mut self, edition: Edition) {
        let claimed = self.completed_by == Some(edition);
        if claimed && !self.copies.values().any(|held| held.report.complete) {
            self.was_complete = false;
            self.completed_by = None;
        }
    }

    /// Whether a complete copy exists or existed, and nobody but `me` could tell a new owner of it.
    pub fn is_known_only_at(&self, me: NodeId) -> bool {
        let elsewhere = |(node, report): (NodeId, &CopyReport)| node != me && report.complete;
        self.buried_until.is_none() && self.was_complete && !self.reported().any(elsewhere)
    }

    /// Takes out a copy. What its writer or root had not completed, nobody has.
    fn remove(&mut self, node: NodeId) -> bool {
        let Some(held) = self.copies.remove(&node) else { return false };
        let edition = held.report.edition;
        if held.report.pinned && !held.report.complete && !self.abandoned.contains(&edition) {
            self.abandoned.push_back(edition);
            if self.abandoned.len() > ABANDONED_MAX {
                self.abandoned.pop_front();
            }
        }
        true
    }

    /// Takes out the receivers of editions that nobody can complete any more, and says who they are.
    pub fn take_orphans(&mut self) -> Vec<(NodeId, Edition)> {
        let sources: BTreeSet<_> =
            self.copies.values().filter(|held| held.is_alive()).map(|held| held.report.edition).collect();
        let orphaned = self.copies.iter().filter(|(_, held)| !sources.contains(&held.report.edition));
        let orphans: Vec<_> = orphaned.map(|(&node, held)| (node, held.report.edition)).collect();
        for (node, _) in &orphans {
            self.copies.remove(node);
            self.return_senders_of(*node);
        }
        for ask in &mut self.asks {
            ask.have = ask.have.filter(|edition| sources.contains(edition));
        }
        orphans
    }

    /// Takes a dead node out of everything; returns whether it held a copy.
    pub fn forget(&mut self, node: NodeId) -> bool {
        self.asks.retain(|ask| ask.node != node);
        self.subscribers.remove(&node);
        self.return_senders_of(node);
        self.remove(node)
    }

    /// `receiver` needs its sender no more.
    pub fn return_senders_of(&mut self, receiver: NodeId) {
        for held in self.copies.values_mut() {
            held.lent.remove(&receiver);
        }
    }

    /// No complete copy is left, and nobody is writing the object anew. A new owner takes part of it in the
    /// hands of an asker, whose sender is `dead`, for proof that there was one: it may have died with the
    /// owner before.
    pub fn is_lost(&self, dead: impl Fn(NodeId) -> bool) -> bool {
        let bereft = |ask: &Ask| {
            ask.have.is_some_and(|have| !self.abandoned.contains(&have))
                && ask.distrust.is_none_or(|(sender, _)| dead(sender))
        };
        let inherited = self.inherited && self.asks.iter().any(bereft);
        (self.was_complete || inherited) && !self.copies.values().any(Held::is_alive)
    }

    /// Whether a source of an edition that a receiver has part of may still be reported to an owner that is
    /// new. Not if another attempt of the same writing is known: it took the place of that one.
    pub fn may_hear_of(&self, have: Edition, now: Duration) -> bool {
        let superseded = self.copies.values().any(|held| {
            held.report.edition.writing == have.writing && held.report.edition.attempt > have.attempt
        });
        self.trusted_from.is_some_and(|from| from > now) && !superseded
    }

    /// Whether the chain that `node` receives from leads back to it.
    pub fn is_in_cycle(&self, node: NodeId) -> bool {
        let sender = |at: NodeId| {
            let report = &self.copies.get(&at)?.report;
            report.upstream.filter(|_| !report.complete)
        };
        let mut at = node;
        for _ in 0..self.copies.len() {
            match sender(at) {
                Some(upstream) if upstream == node => return true,
                Some(upstream) => at = upstream,
                None => return false,
            }
        }
        false
    }

    /// The sender that this ask was answered with, if it still is one: the answer may be lost, or a
    /// repetition of the question have crossed it.
    pub fn answered_with(&self, asker: NodeId, ask: u64) -> Option<NodeId> {
        let held = self.copies.get(&asker).filter(|held| held.answered == ask && !held.is_alive())?;
        let sender = held.report.upstream?;
        let edition = self.copies.get(&sender)?.report.edition;
        (edition == held.report.edition).then_some(sender)
    }

    /// One ask per node: a newer one replaces an older one. False if it is that one repeated.
    pub fn add_ask(&mut self, ask: Ask) -> bool {
        self.return_senders_of(ask.node);
        if let Some(held) = self.copies.get_mut(&ask.node).filter(|held| !held.is_alive()) {
            // It receives from nobody now.
            held.report.upstream = None;
            if held.presumed && ask.have != Some(held.report.edition) {
                self.copies.remove(&ask.node);
            }
        }
        match self.asks.iter_mut().find(|waiting| waiting.node == ask.node) {
            Some(waiting) => std::mem::replace(waiting, ask.clone()).ask != ask.ask,
            None => {
                self.asks.push(ask);
                true
            }
        }
    }

    /// Deleted until then, at least: of the rest nothing is kept. Returns everyone who must hear of it.
    pub fn bury(&mut self, until: Duration) -> BTreeSet<NodeId> {
        let Entry { copies, asks, subscribers, witness, buried_until, unheard, heir, deleters, .. } =
            std::mem::take(self);
        let askers = asks.into_iter().map(|ask| ask.node);
        let concerned = copies.into_keys().chain(askers).chain(subscribers.into_keys());
        let everyone: BTreeSet<_> = concerned.chain(witness).collect();
        self.buried_until = buried_until.max(Some(until));
        self.unheard = &unheard | &everyone;
        (self.heir, self.deleters) = (heir, deleters);
        everyone
    }

    /// The entry as the requests that would make it anew at another owner.
    pub fn into_requests(self, now: Duration, me: NodeId) -> Vec<(NodeId, DirectoryRequest)> {
        let mut requests = Vec::new();
        if let Some(until) = self.buried_until {
            let ttl_ms = until.saturating_sub(now).as_millis() as u64;
            requests.push((me, DirectoryRequest::Bury { ttl_ms }));
        }
        if let Some(until) = self.mourned_until {
            let ttl_ms = until.saturating_sub(now).as_millis() as u64;
            requests.push((me, DirectoryRequest::Mourn { ttl_ms }));
        }
        for (node, held) in self.copies.into_iter().filter(|(_, held)| !held.presumed) {
            let report = held.report;
            requests.push((node, DirectoryRequest::Announce { report, payload: None, wants_verdict: false }));
        }
        for (subscriber, bytes_max) in self.subscribers {
            requests.push((subscriber, DirectoryRequest::Subscribe { bytes_max }));
        }
        for Ask { node, ask, have, distrust } in self.asks {
            let failed = distrust.map(|(sender, _)| sender);
            requests.push((node, DirectoryRequest::Ask { ask, have, failed }));
        }
        requests
    }
}

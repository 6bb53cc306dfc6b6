//! An owner's knowledge of one object. This is soft state, rebuilt from the copies that nodes hold.
//!
//! ```text
//!            claim accepted               reported complete
//!    None ────────────────▶ Claimed ──────────────────────▶ Complete
//!     ▲                        │ given up                       │ the last copy is gone
//!     └────────────────────────┴────────────────────────────────┘ (then it is remembered as lost)
//! ```
//! A writer that comes while another claim stands is a contender, and waits until that claim is decided.

use std::collections::VecDeque;

use hoplite_types::peer::CopyReport;
use hoplite_types::{Claim, Edition, Header, NodeId, Stamp};

use super::asks::{Ask, Asks};
use super::holders::{Held, Holders};

/// Limit of abandoned editions that are remembered: those that receivers may still report.
const ABANDONED_MAX: usize = 8;

/// The state of the object's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Content {
    #[default]
    None,
    /// A writing under this claim.
    Claimed {
        claim: Claim,
        stamp: Stamp,
        /// The sequence number of its claimant's newest report.
        seq: u64,
        /// The claimant is gone or has released it; it stands as long as some node may yet seal.
        released: bool,
    },
    Complete {
        stamp: Stamp,
        /// So far only reported by the holder of this claim, which waits for the verdict and may withdraw it.
        by: Option<Claim>,
    },
}

impl Content {
    /// The node that has the right to write it, and has not released that.
    pub fn claimant(&self) -> Option<NodeId> {
        match self {
            Content::Claimed { claim, released: false, .. } => Some(claim.by),
            _ => None,
        }
    }
}

/// Properties that all copies of an object share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kind {
    pub size: u64,
    pub header: Header,
}

/// A writer that waits while another claim stands.
#[derive(Debug, Clone)]
pub(super) enum Contender {
    /// A copy that is being written, or a reduction's root; its node waits for the verdict.
    Copy { node: NodeId, report: Box<CopyReport> },
    /// A coordinator.
    Claim { seq: u64, claim: Claim },
}

impl Contender {
    pub fn node(&self) -> NodeId {
        match self {
            Contender::Copy { node, .. } => *node,
            Contender::Claim { claim, .. } => claim.by,
        }
    }

    pub fn claim(&self) -> Option<Claim> {
        match self {
            Contender::Copy { report, .. } => report.claim,
            Contender::Claim { claim, .. } => Some(*claim),
        }
    }

    /// Whether it speaks for its claim itself; a copy that is written for a coordinator does not.
    pub fn is_claimant(&self) -> bool {
        self.claim().is_some_and(|claim| claim.by == self.node())
    }
}

/// The node that was told to pin the object.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    pub node: Option<NodeId>,
    /// Nodes that had no space for it.
    pub refused: Vec<NodeId>,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    pub content: Content,
    pub kind: Option<Box<Kind>>,
    pub holders: Holders,
    pub asks: Asks,
    /// With the size up to which they want the object itself.
    pub subscribers: Vec<(NodeId, Option<u64>)>,
    pub contenders: Vec<Contender>,
    pub keeper: Option<Box<Keeper>>,
    /// Nodes or clients besides the writer have been given the bytes: the object stays even if the writer withdraws it.
    pub was_shown: bool,
    /// The backup owner was sent the object's id, because no other node could report it.
    pub backup_told: bool,
    /// The last writings, or attempts, that ended before they were complete.
    abandoned: VecDeque<Edition>,
}

impl Entry {
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
            && self.asks.is_empty()
            && self.subscribers.is_empty()
            && self.contenders.is_empty()
            && !matches!(self.content, Content::Claimed { .. })
    }

    /// Whether the node holds, asks, watches or contends.
    pub fn involves(&self, node: NodeId) -> bool {
        self.holders.contains(node)
            || self.asks.contains(node)
            || self.subscribers.iter().any(|&(subscriber, _)| subscriber == node)
            || self.contenders.iter().any(|contender| contender.node() == node)
            || self.claimant() == Some(node)
    }

    /// All nodes that it involves; some of them more than once.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        let holding = self.holders.iter().map(|(node, _)| node);
        let asking = self.asks.iter().map(|ask| ask.node);
        let watching = self.subscribers.iter().map(|&(node, _)| node);
        let contending = self.contenders.iter().map(Contender::node);
        holding.chain(asking).chain(watching).chain(contending).chain(self.claimant())
    }

    pub fn claimant(&self) -> Option<NodeId> {
        self.content.claimant()
    }

    pub fn size(&self) -> Option<u64> {
        self.kind.as_ref().map(|kind| kind.size)
    }

    pub fn stamp(&self) -> Option<Stamp> {
        match self.content {
            Content::None => None,
            Content::Claimed { stamp, .. } | Content::Complete { stamp, .. } => Some(stamp),
        }
    }

    /// The report of a holder, as its node would make it.
    pub fn report_of(&self, held: &Held) -> CopyReport {
        let kind = self.kind.as_deref();
        let header = kind.map(|kind| kind.header.clone()).unwrap_or_default();
        held.report(kind.map_or(0, |kind| kind.size), header)
    }

    /// Whether the object is at `node`, or on the way there, or asked for.
    pub fn has_or_asks(&self, node: NodeId) -> bool {
        self.holders.contains(node) || self.asks.contains(node)
    }

    /// Whether a complete copy exists somewhere, or may yet be made.
    pub fn is_alive(&self) -> bool {
        self.holders.any_alive() || matches!(self.content, Content::Claimed { .. })
    }

    /// Whether the writer, which still waits for the verdict, can undo the object by withdrawing it.
    pub fn may_be_taken_back(&self) -> bool {
        matches!(self.content, Content::Complete { by: Some(_), .. }) && !self.was_shown
    }

    /// Whether this node, and no other, has reported a pinned copy.
    pub fn is_pinned_only_at(&self, node: NodeId) -> bool {
        self.holders.reported().filter(|(_, held)| held.pinned).map(|(by, _)| by).eq([node])
    }

    /// Whether a complete copy exists, and no node but `me` could report it to a new owner.
    pub fn is_known_only_at(&self, me: NodeId) -> bool {
        let elsewhere = |(node, held): (NodeId, &Held)| node != me && held.complete;
        matches!(self.content, Content::Complete { .. }) && !self.holders.reported().any(elsewhere)
    }

    /// Applies a report of a copy that belongs to the object's content; false if a newer one is known.
    pub fn take_report(&mut self, origin: NodeId, mut report: CopyReport) -> bool {
        let known = self.holders.get(origin);
        if known.is_some_and(|held| held.seq > report.seq) {
            return false;
        }
        if let Some(held) = known.filter(|held| held.edition == report.edition) {
            // Between two senders: the next one may have been lent while this report was under way.
            let between = held.upstream.filter(|_| !report.complete && !report.pinned);
            report.upstream = report.upstream.or(between);
        }
        let served_by = known.and_then(|held| held.upstream).filter(|_| report.complete);
        if let Some(sender) = served_by {
            self.holders.change(sender, |held| held.served += 1);
        }
        // The report names the sender it receives from.
        self.holders.return_senders_of(origin);
        let upstream = report.upstream.filter(|_| !report.complete);
        match self.holders.get(origin).map(|held| held.edition) {
            Some(edition) => {
                if edition != report.edition {
                    // Nodes that were streaming the abandoned edition have to ask again anyway.
                    self.holders.end_lending_of(origin);
                }
                self.holders.change(origin, |held| {
                    let (answered, lent, served) =
                        (held.answered, std::mem::take(&mut held.lent), held.served);
                    *held = Held { answered, lent, served, ..Held::reported(&report) };
                });
            }
            None => self.insert_reported(origin, &report),
        }
        // After a change of owner, edges are learnt from the receivers' reports.
        if let Some(sender) = upstream {
            self.holders.note_lent(sender, origin);
        }
        self.kind = Some(Box::new(Kind { size: report.size, header: report.header }));
        true
    }

    fn insert_reported(&mut self, origin: NodeId, report: &CopyReport) {
        self.holders.insert(origin, Held::reported(report));
        // Its receivers may have reported before it did.
        let behind =
            |held: &Held| held.upstream == Some(origin) && !held.complete && held.edition == report.edition;
        let receivers: Vec<_> =
            self.holders.iter().filter(|(_, held)| behind(held)).map(|(node, _)| node).collect();
        receivers.into_iter().for_each(|receiver| self.holders.note_lent(origin, receiver));
    }

    /// Forgets the copy of `origin` unless a newer report or another edition is known.
    pub fn withdraw(&mut self, origin: NodeId, seq: u64, edition: Edition) -> Option<Held> {
        let matches = |held: &&Held| held.seq <= seq && held.edition == edition;
        self.holders.get(origin).filter(matches)?;
        self.remove_holder(origin)
    }

    /// Removes a copy. If it was the incomplete copy of a writer or root, its edition is abandoned.
    pub fn remove_holder(&mut self, node: NodeId) -> Option<Held> {
        let held = self.holders.remove(node)?;
        self.holders.return_senders_of(node);
        self.holders.end_lending_of(node);
        if held.pinned && !held.complete && !self.abandoned.contains(&held.edition) {
            self.abandoned.push_back(held.edition);
            if self.abandoned.len() > ABANDONED_MAX {
                self.abandoned.pop_front();
            }
        }
        if self.holders.is_empty() && matches!(self.content, Content::None) {
            self.kind = None;
        }
        Some(held)
    }

    /// Whether this edition is known to be abandoned. If not, a partial copy of it proves that the object was complete
    /// once.
    pub fn was_abandoned(&self, edition: Edition) -> bool {
        self.abandoned.contains(&edition)
    }

    /// Removes the receivers of editions that no node can complete any more, and returns them.
    pub fn take_orphans(&mut self) -> Vec<(NodeId, Edition)> {
        let alive = self.holders.alive_editions();
        let orphaned = self.holders.iter().filter(|(_, held)| !alive.contains(&held.edition));
        let orphans: Vec<_> = orphaned.map(|(node, held)| (node, held.edition)).collect();
        for &(node, _) in &orphans {
            self.remove_holder(node);
        }
        self.asks.forget_editions(|edition| alive.contains(&edition));
        orphans
    }

    /// The sender that this ask was answered with, if it still is one. The answer may have been lost, or a repetition
    /// of the ask may have crossed it.
    pub fn answered_with(&self, asker: NodeId, ask: u64) -> Option<NodeId> {
        let held = self.holders.get(asker).filter(|held| held.answered == ask && !held.is_alive())?;
        let sender = held.upstream?;
        (self.holders.get(sender)?.edition == held.edition).then_some(sender)
    }

    /// Adds an ask. Returns false if it waits already.
    pub fn add_ask(&mut self, ask: Ask) -> bool {
        self.holders.return_senders_of(ask.node);
        let idle = |held: &&Held| !held.is_alive();
        if let Some(held) = self.holders.get(ask.node).filter(idle) {
            if held.presumed && ask.have != Some(held.edition) {
                self.remove_holder(ask.node);
            } else {
                // It receives from no sender now.
                self.holders.change(ask.node, |held| held.upstream = None);
            }
        }
        self.asks.add(ask)
    }

    pub fn subscribe(&mut self, node: NodeId, bytes_max: Option<u64>) -> bool {
        match self.subscribers.iter_mut().find(|(subscriber, _)| *subscriber == node) {
            Some((_, known)) => {
                *known = bytes_max;
                false
            }
            None => {
                self.subscribers.push((node, bytes_max));
                true
            }
        }
    }

    pub fn unsubscribe(&mut self, node: NodeId) {
        self.subscribers.retain(|&(subscriber, _)| subscriber != node);
    }
}

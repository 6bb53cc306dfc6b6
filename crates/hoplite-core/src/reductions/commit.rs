//! The end of a reduction: the coordinator commits, then the root seals and confirms it.
//!
//! ```text
//!  root ── RootDone ──▶ coordinator: committed ── Commit ──▶ root seals ── Committed ──▶ the caller is answered
//! ```
//! After the commit the coordinator restarts nothing: the root, and the nodes that stream from it, may have sealed.
//! `Commit` is repeated until it is acknowledged. If the root dies before that, or has given the target up:
//!
//! - The target exists if a node that streamed from the root has sealed it.
//! - If its owner knows that it was deleted, or put by someone else, the owner is right.
//! - Otherwise the target is lost, and no other content may use its id.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use hoplite_types::peer::{DirectoryRequest, PeerMessage, SlotAssignment};
use hoplite_types::{Edition, ErrorKind, NodeId, ObjectId, ReductionId};

use super::reduction::{Reduction, Right, Stage};
use super::{fail, Lent, Reductions, SlotReport, Step, WAIT};
use crate::ctx::Ctx;
use crate::keys::Watcher;
use crate::timers::Timer;

/// How long to wait for other nodes' reports after a committed root has died, or reported that it has no target: some
/// round trips, and the last bytes on their way to those nodes.
const ROOT_LOST_FOR: Duration = Duration::from_secs(1);

/// The part of a reduction that can no longer change.
#[derive(Debug)]
pub(super) struct Commitment {
    pub root: NodeId,
    attempt: u32,
    edition: Edition,
    sources: Vec<ObjectId>,
    /// The other nodes that are to seal the target: all that assemble it from its parts.
    others: BTreeSet<NodeId>,
    /// The root lives, and has given the target up.
    refused: bool,
}

impl Commitment {
    pub fn is_for(&self, node: NodeId) -> bool {
        self.root == node || self.others.contains(&node)
    }
}

impl Reductions {
    /// Every byte of the root's current attempt is there: from here on it is final.
    pub fn on_root_done(&mut self, lent: &mut Lent<'_>, number: u64, report: SlotReport) {
        if !self.step(lent, number, |reduction, lent| reduction.on_root_done(lent, report)) {
            let id = ReductionId { coordinator: lent.ctx.me, number };
            lent.ctx.send(report.from, PeerMessage::ReleaseSlots { reduction: id }, None);
        }
    }

    /// The root's answer to the commit.
    pub fn on_committed(&mut self, lent: &mut Lent<'_>, from: NodeId, number: u64, sealed: bool) {
        self.step(lent, number, |reduction, lent| match &mut reduction.stage {
            Stage::Committed(commitment) if commitment.root == from => match sealed {
                true => ControlFlow::Break(Ok(std::mem::take(&mut commitment.sources))),
                false => {
                    // It gives no reason. The target's owner does, if it notified the root: its message may arrive here
                    // later.
                    commitment.refused = true;
                    reduction.look_for_target_elsewhere(lent)
                }
            },
            // The other nodes that seal the target confirm that as well.
            _ => WAIT,
        });
    }

    /// Whether some root has not yet answered its commit.
    pub fn has_commits(&self) -> bool {
        self.table.values().any(|reduction| reduction.commitment().is_some())
    }

    /// A member died; it may be the root of a committed reduction.
    pub(super) fn on_root_down(&mut self, lent: &mut Lent<'_>, node: NodeId) {
        let is_its =
            |reduction: &Reduction| reduction.commitment().is_some_and(|commitment| commitment.root == node);
        for number in self.numbers(is_its) {
            self.step(lent, number, |reduction, lent| reduction.look_for_target_elsewhere(lent));
        }
    }

    pub fn on_root_lost_timer(&mut self, lent: &mut Lent<'_>, number: u64) {
        self.step(lent, number, |reduction, lent| reduction.on_root_lost_timer(lent));
    }
}

impl Reduction {
    pub(super) fn on_root_done(&mut self, lent: &mut Lent<'_>, report: SlotReport) -> Step {
        if self.commitment().is_some() {
            self.repeat_commit(lent.ctx, report.from);
            return WAIT;
        }
        let root =
            self.assignment_of(report).filter(|assignment| assignment.root && !assignment.open).cloned();
        let Some(root) = root else {
            self.on_slot_held(lent.ctx, report);
            return WAIT;
        };
        if self.chosen_count() != self.k() {
            // A source is gone; the root is about to be assigned anew.
            return WAIT;
        }
        match &mut self.right {
            // We were believed dead, and ask for the right to the target once more.
            Right::Asked { done_root, .. } => *done_root = Some(report),
            Right::Given { .. } => self.commit(lent, report, root.edition),
        }
        WAIT
    }

    fn commit(&mut self, lent: &mut Lent<'_>, report: SlotReport, edition: Edition) {
        let root = report.from;
        let sources = self.sources_in();
        let sealing = |(_, assignment): &&(NodeId, SlotAssignment)| assignment.part_bytes.is_some();
        let others: BTreeSet<_> = self.assignments().filter(sealing).map(|&(node, _)| node).collect();
        let is_over = |node: &&NodeId| **node != root && !others.contains(node);
        for &node in self.participants.iter().filter(is_over) {
            lent.ctx.send(node, PeerMessage::ReleaseSlots { reduction: self.id }, None);
        }
        if !others.is_empty() {
            // With the commit they release everything else, and the target's parts once they have them.
            self.participants.clear();
        }
        for &source in &self.request.sources {
            lent.subscriptions.unwatch(lent.ctx, source, Watcher::Reduction(self.id.number));
        }
        let nodes = others.iter().copied().chain([root]).collect::<BTreeSet<_>>();
        let attempt = report.attempt;
        self.stage = Stage::Committed(Commitment { root, attempt, edition, sources, others, refused: false });
        nodes.into_iter().for_each(|node| self.repeat_commit(lent.ctx, node));
        lent.ctx.arm_refresh();
    }

    /// Sends the commit to `node`, if it is meant for that node.
    pub(super) fn repeat_commit(&self, ctx: &mut Ctx, node: NodeId) {
        let Some(commitment) = self.commitment().filter(|known| known.is_for(node)) else { return };
        let commit = PeerMessage::Commit {
            reduction: self.id,
            attempt: commitment.attempt,
            id: self.target(),
            edition: commitment.edition,
            sources: commitment.sources.clone(),
        };
        ctx.send(node, commit, None);
    }

    /// The root has no target, or is dead: a node that streamed from it may have sealed the target.
    fn look_for_target_elsewhere(&mut self, lent: &mut Lent<'_>) -> Step {
        let timer = Timer::RootLost(self.id.number);
        if !lent.ctx.timers.is_set(timer) {
            lent.ctx.timers.set(lent.ctx.now + ROOT_LOST_FOR, timer);
        }
        lent.subscriptions.watch(lent.ctx, self.target(), Watcher::Reduction(self.id.number));
        self.look_for_committed_target(lent)
    }

    /// A copy of the target changed after the commit: a node that sealed it got the seal from the root.
    pub(super) fn look_for_committed_target(&self, lent: &Lent<'_>) -> Step {
        let commitment = self.commitment().expect("the caller's");
        let mut copies = lent.subscriptions.copies(self.target());
        match copies.any(|(_, report)| report.complete && report.edition == commitment.edition) {
            true => ControlFlow::Break(Ok(commitment.sources.clone())),
            false => WAIT,
        }
    }

    fn on_root_lost_timer(&mut self, lent: &mut Lent<'_>) -> Step {
        let commitment = self.commitment().expect("only then its timer is set");
        if !commitment.refused && lent.ctx.shards.contains(commitment.root) {
            // The root has come back: the commit is sent to it again.
            return WAIT;
        }
        let is_one = |node: NodeId| commitment.others.contains(&node) && lent.ctx.shards.contains(node);
        let mut copies = lent.subscriptions.copies(self.target());
        if copies.any(|(node, report)| is_one(node) && report.edition == commitment.edition) {
            // That member still gathers the target, and reports if it cannot.
            lent.ctx.timers.set(lent.ctx.now + ROOT_LOST_FOR, Timer::RootLost(self.id.number));
            return WAIT;
        }
        self.mark_target_lost(lent.ctx, commitment.root)
    }

    /// The committed target is gone, and no node has reported that it sealed it.
    fn mark_target_lost(&self, ctx: &mut Ctx, root: NodeId) -> Step {
        let target = self.target();
        ctx.ask_owner(target, DirectoryRequest::MarkLost { claim: self.id.claim() }, None);
        let message = format!(
            "{}: {target} was reduced, but its node {root} died or gave it up before anyone else had it; reduce again under another id",
            self.id.coordinator
        );
        fail(ErrorKind::Lost, &message)
    }
}

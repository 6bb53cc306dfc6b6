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
use std::time::Duration;

use hoplite_types::peer::{DirectoryRequest, PeerMessage, SlotAssignment};
use hoplite_types::{Edition, ErrorKind, NodeId, ObjectId, ReductionId};

use super::coordinator::Reduction;
use crate::keys::Watcher;
use crate::timers::Timer;
use crate::Core;

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

impl Core {
    /// Every byte of the root's current attempt is there: from here on it is final.
    pub(crate) fn on_root_done(&mut self, from: NodeId, number: u64, slot: u32, attempt: u32) {
        let id = ReductionId { coordinator: self.ctx.me, number };
        let Some(reduction) = self.reductions.get_mut(&number) else {
            return self.ctx.send(from, PeerMessage::ReleaseSlots { reduction: id }, None);
        };
        if reduction.commitment.is_some() {
            return self.repeat_commit(number, from);
        }
        let root = reduction
            .assignment_of(from, slot, attempt)
            .filter(|assignment| assignment.root && !assignment.open);
        let Some(edition) = root.map(|assignment| assignment.edition) else {
            return self.on_slot_held(from, id, slot, attempt);
        };
        if reduction.chosen_count() != reduction.k() {
            return;
        }
        if reduction.right.stamp.is_none() {
            // We were believed dead, and ask for the right to the target once more.
            reduction.done_before_verdict = Some((from, slot, attempt));
            return;
        }
        let sources = reduction.sources_in();
        let sealing = |(_, assignment): &&(NodeId, SlotAssignment)| assignment.part_bytes.is_some();
        let others: BTreeSet<_> = reduction.assignments().filter(sealing).map(|&(node, _)| node).collect();
        let over: Vec<_> = reduction
            .participants
            .iter()
            .filter(|node| **node != from && !others.contains(node))
            .copied()
            .collect();
        if !others.is_empty() {
            // With the commit they release everything else, and the target's parts once they have them.
            reduction.participants.clear();
        }
        let assigned = others.iter().copied().chain([from]).collect::<BTreeSet<_>>();
        reduction.commitment =
            Some(Commitment { root: from, attempt, edition, sources, others, refused: false });
        let all = reduction.request.sources.clone();
        for node in over {
            self.ctx.send(node, PeerMessage::ReleaseSlots { reduction: id }, None);
        }
        for source in all {
            self.subscriptions.unwatch(&mut self.ctx, source, Watcher::Reduction(number));
        }
        for node in assigned {
            self.repeat_commit(number, node);
        }
        self.ctx.arm_refresh();
    }

    /// Sends the commit to `node`, if it is meant for that node.
    pub(super) fn repeat_commit(&mut self, number: u64, node: NodeId) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        let Some(commitment) = reduction.commitment.as_ref().filter(|known| known.is_for(node)) else {
            return;
        };
        let commit = PeerMessage::Commit {
            reduction: ReductionId { coordinator: self.ctx.me, number },
            attempt: commitment.attempt,
            id: reduction.request.target,
            edition: commitment.edition,
            sources: commitment.sources.clone(),
        };
        self.ctx.send(node, commit, None);
    }

    /// The root's answer to the commit.
    pub(crate) fn on_committed(&mut self, from: NodeId, number: u64, sealed: bool) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let Some(commitment) = reduction.commitment.as_mut().filter(|known| known.root == from) else {
            return;
        };
        if sealed {
            return self.finish_committed(number);
        }
        // It gives no reason. The target's owner does, if it notified the root: its message may arrive here later.
        commitment.refused = true;
        self.look_for_target_elsewhere(number);
    }

    /// The root has no target, or is dead: a node that streamed from it may have sealed the target.
    fn look_for_target_elsewhere(&mut self, number: u64) {
        if !self.ctx.timers.is_set(Timer::RootLost(number)) {
            self.ctx.timers.set(self.ctx.now + ROOT_LOST_FOR, Timer::RootLost(number));
        }
        let target = self.reductions[&number].request.target;
        self.subscriptions.watch(&mut self.ctx, target, Watcher::Reduction(number));
        self.look_for_committed_target(number);
    }

    fn finish_committed(&mut self, number: u64) {
        let Some(commitment) = self.reductions.get_mut(&number).and_then(|r| r.commitment.take()) else {
            return;
        };
        self.finish_reduction(number, Ok(commitment.sources));
    }

    /// A copy of the target changed after the commit: a node that sealed it got the seal from the root.
    pub(super) fn look_for_committed_target(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        let Some(Commitment { edition, .. }) = reduction.commitment else { return };
        let mut copies = self.subscriptions.copies(reduction.request.target);
        if copies.any(|(_, report)| report.complete && report.edition == edition) {
            drop(copies);
            self.finish_committed(number);
        }
    }

    /// Whether some root has not yet answered its commit.
    pub(crate) fn has_commits(&self) -> bool {
        self.reductions.values().any(|reduction| reduction.commitment.is_some())
    }

    /// A member died; it may be the root of a committed reduction.
    pub(crate) fn commits_member_down(&mut self, node: NodeId) {
        let is_its = |reduction: &Reduction| {
            reduction.commitment.as_ref().is_some_and(|commitment| commitment.root == node)
        };
        let rootless = self.reductions.iter().filter(|(_, reduction)| is_its(reduction));
        for number in rootless.map(|(&number, _)| number).collect::<Vec<_>>() {
            self.look_for_target_elsewhere(number);
        }
    }

    pub(crate) fn on_root_lost_timer(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        let Some(commitment) = &reduction.commitment else { return };
        // If the root has come back meanwhile, the commit is sent to it again.
        if commitment.refused || !self.ctx.shards.contains(commitment.root) {
            let is_one = |node: NodeId| commitment.others.contains(&node) && self.ctx.shards.contains(node);
            let edition = commitment.edition;
            let mut copies = self.subscriptions.copies(reduction.request.target);
            let is_coming = copies.any(|(node, report)| is_one(node) && report.edition == edition);
            drop(copies);
            match is_coming {
                // That member still gathers the target, and reports if it cannot.
                true => self.ctx.timers.set(self.ctx.now + ROOT_LOST_FOR, Timer::RootLost(number)),
                false => self.mark_target_lost(number),
            }
        }
    }

    /// The committed target is gone, and no node has reported that it sealed it.
    fn mark_target_lost(&mut self, number: u64) {
        let reduction = &self.reductions[&number];
        let (target, root) =
            (reduction.request.target, reduction.commitment.as_ref().expect("the caller's").root);
        let claim = self.claim_of(number);
        self.ctx.ask_owner(target, DirectoryRequest::MarkLost { claim }, None);
        let message = format!(
            "{}: {target} was reduced, but its node {root} died or gave it up before anyone else had it; reduce again under another id",
            self.ctx.me
        );
        self.fail_reduction(number, ErrorKind::Lost, &message);
    }
}

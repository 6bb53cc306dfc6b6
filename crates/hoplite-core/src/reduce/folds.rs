//! Folds: their inputs, the streams that feed them, and how their end affects the slot.

use std::collections::BTreeMap;

use hoplite_types::peer::{Child, PeerMessage, Seal, SlotAssignment, SlotFailure};
use hoplite_types::{CopyId, Edition, NodeId, ObjectId, TransferId};

use super::slot_table::{Running, SlotKey, State};
use crate::copies::Phase;
use crate::fetch::{Feeds, Transfer};
use crate::io::{Broken, FoldId, FoldInputs, FoldRule, Output};
use crate::Core;

/// The purpose of a fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FoldFor {
    Slot(SlotKey),
    Small(u64),
    /// A part of a target, from this node's own partial sum.
    Part,
}

#[derive(Debug)]
pub(super) struct Fold {
    purpose: FoldFor,
    out: CopyId,
    pub(super) sources: Vec<CopyId>,
    /// The child slot behind each stream.
    pub(super) streams: BTreeMap<TransferId, u32>,
}

impl Core {
    /// Starts a fold whose sources are already counted as used.
    pub(super) fn start_fold(
        &mut self,
        purpose: FoldFor,
        out: CopyId,
        rule: FoldRule,
        sources: Vec<CopyId>,
        children: &[Child],
    ) -> FoldId {
        let fold = FoldId(self.ctx.next_number());
        self.copies.with(out, |copy| {
            copy.phase = Phase::Folded(Some(fold));
            copy.users += 1;
        });
        let attempt = match purpose {
            FoldFor::Slot(key) => {
                self.slots.running.get(&key).map_or(0, |running| running.assignment.attempt)
            }
            FoldFor::Small(_) | FoldFor::Part => 0,
        };
        let streams = self.pull_children(fold, attempt, children);
        let inputs = FoldInputs {
            sources: sources.clone(),
            streams: streams.iter().map(|&(t, n, _)| (t, n)).collect(),
        };
        let by_transfer = streams.iter().map(|&(transfer, _, child)| (transfer, child)).collect();
        self.slots.folds.insert(fold, Fold { purpose, out, sources, streams: by_transfer });
        // The fold must expect its streams before any node is asked to send them.
        self.ctx.out.push_back(Output::Fold { fold, out, rule, inputs });
        self.send_pulls(&streams, children);
        fold
    }

    pub(super) fn pull_children(
        &mut self,
        fold: FoldId,
        attempt: u32,
        children: &[Child],
    ) -> Vec<(TransferId, NodeId, u32)> {
        let mut streams = Vec::new();
        let me = self.ctx.me;
        for child in children.iter().filter(|child| child.node != me) {
            let transfer = TransferId(self.ctx.next_number());
            self.fetches.begin_transfer(transfer, Transfer::to_fold(child.node, fold, attempt));
            streams.push((transfer, child.node, child.slot));
        }
        streams
    }

    pub(super) fn send_pulls(&mut self, streams: &[(TransferId, NodeId, u32)], children: &[Child]) {
        // In the same order; children here have no streams.
        let mut children = children.iter();
        for &(transfer, node, slot) in streams {
            let child = children.find(|child| child.slot == slot).expect("made from the children");
            let (id, edition) = (child.id, child.edition);
            self.ctx.send(node, PeerMessage::Pull { transfer, id, edition, offset: 0, patient: true }, None);
        }
    }

    pub(crate) fn on_fold_stream_broken(&mut self, fold: FoldId, transfer: TransferId) {
        let Some(running) = self.slots.folds.get(&fold) else { return };
        if let (FoldFor::Slot(key), Some(&child)) = (running.purpose, running.streams.get(&transfer)) {
            let current = self.slots.running.get(&key).map(|running| running.state);
            if matches!(current, Some(State::Folding { fold: now, .. }) if now == fold) {
                self.fail_slot(key, SlotFailure::Child(child));
            }
        }
    }

    pub(crate) fn on_fold_ended(&mut self, id: FoldId, outcome: Result<(), Broken>) {
        let Some(fold) = self.slots.folds.remove(&id) else { return };
        for transfer in fold.streams.keys() {
            if let Some(Transfer { from, .. }) = self.fetches.end_transfer(*transfer) {
                if outcome.is_err() {
                    // The pull may still be parked there, waiting for a copy that opens late.
                    self.ctx.send(from, PeerMessage::CancelPull { transfer: *transfer }, None);
                }
            }
        }
        let doomed = self.copies[fold.out].doomed;
        if !doomed {
            self.copies.with(fold.out, |out| out.phase = Phase::Folded(None));
        }
        match fold.purpose {
            FoldFor::Slot(_) | FoldFor::Part if doomed => {}
            FoldFor::Slot(key) => self.on_slot_folded(key, &fold, outcome),
            // Its caller must be notified.
            FoldFor::Small(number) => self.on_small_folded(number, fold.out, outcome),
            FoldFor::Part => self.on_part_folded(fold.out, outcome),
        }
        fold.sources.iter().for_each(|&source| self.copies.remove_user(&mut self.ctx, source));
        self.copies.remove_user(&mut self.ctx, fold.out);
    }

    fn on_slot_folded(&mut self, key: SlotKey, fold: &Fold, outcome: Result<(), Broken>) {
        let Some(running) = self.slots.running.get(&key) else { return };
        let root = running.assignment.root;
        match outcome {
            Ok(()) => {
                self.slots.set_state(key, State::Folded { copy: fold.out });
                if root {
                    self.say_root_done(key);
                } else {
                    self.copies.seal(&mut self.ctx, fold.out, Seal::default());
                }
            }
            Err(Broken) => {
                // An input was abandoned during the fold: a put was aborted, or another attempt was started.
                let assignment = &running.assignment;
                let gone = |id: ObjectId, edition: Edition| {
                    self.copies.live_copy(id).map(|copy| copy.edition) != Some(edition)
                };
                let source = assignment.sources.iter().find(|source| gone(source.id, source.edition));
                let mut children = assignment.children.iter().filter(|child| child.node == self.ctx.me);
                let child = children.find(|child| gone(child.id, child.edition));
                let failure = match (source, child) {
                    (Some(source), _) => SlotFailure::Source(source.id),
                    (None, Some(child)) => SlotFailure::Child(child.slot),
                    (None, None) => SlotFailure::LetGo(self.slots.fence_of(key.0.coordinator)),
                };
                self.fail_slot(key, failure);
                self.copies.withdraw(&mut self.ctx, fold.out);
                self.copies.doom(&mut self.ctx, fold.out);
            }
        }
    }

    pub(super) fn say_root_done(&mut self, key: SlotKey) {
        let (reduction, slot) = key;
        let running = self.slots.running.get(&key).filter(|running| running.is_done_root());
        let Some(Running { assignment, .. }) = running else { return };
        let done = PeerMessage::RootDone { reduction, slot, attempt: assignment.attempt };
        self.ctx.send(reduction.coordinator, done, None);
    }

    /// The slot cannot continue by itself.
    pub(super) fn fail_slot(&mut self, key: SlotKey, failure: SlotFailure) {
        let Some(running) = self.slots.running.get_mut(&key) else { return };
        running.failure = Some(failure);
        if running.state == State::Waiting {
            self.slots.set_state(key, State::Failed);
        }
        self.report_failure(key);
    }

    pub(super) fn report_failure(&mut self, key: SlotKey) {
        let (reduction, slot) = key;
        let Some(Running { assignment, failure: Some(failure), .. }) = self.slots.running.get(&key) else {
            return;
        };
        let failed =
            PeerMessage::SlotFailed { reduction, slot, attempt: assignment.attempt, failure: *failure };
        self.ctx.send(reduction.coordinator, failed, None);
    }

    /// The control connection to `node` broke. A pull may have been lost, so streams from that node are suspect.
    pub(crate) fn slots_peer_broken(&mut self, node: NodeId) {
        let fold = |(id, feeds)| match feeds {
            Feeds::Fold(fold) => Some((fold, id)),
            Feeds::Copy(_) => None,
        };
        let suspect: Vec<_> = self.fetches.streams_from(node).filter_map(fold).collect();
        for (fold, transfer) in suspect {
            self.on_fold_stream_broken(fold, transfer);
        }
    }
}

pub(super) fn rule(assignment: &SlotAssignment) -> FoldRule {
    let SlotAssignment { op, dtype, offset, divide_by, open, .. } = *assignment;
    FoldRule { op, dtype, offset, divide_by, open }
}

//! Folds: their inputs, the streams that feed them, and how their end affects the slot.

use std::collections::BTreeMap;

use hoplite_types::peer::{Child, PeerMessage, Seal, SlotAssignment, SlotFailure};
use hoplite_types::{CopyId, NodeId, TransferId};

use super::assign::here;
use super::table::{SlotKey, State};
use super::Slots;
use crate::copies::Phase;
use crate::ctx::Ctx;
use crate::fetch::{Feeds, Fetches, Transfer};
use crate::io::{Broken, FoldId, FoldInputs, FoldRule, Output};
use crate::lent::Lent;

/// The purpose of a fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FoldFor {
    Slot(SlotKey),
    /// A part of a target, from this node's own partial sum.
    Part,
}

#[derive(Debug)]
struct Fold {
    purpose: FoldFor,
    out: CopyId,
    /// How often the slot that is folded was started over.
    attempt: u32,
    sources: Vec<CopyId>,
    /// The child slot behind each stream.
    streams: BTreeMap<TransferId, u32>,
}

/// The inputs of a fold: copies here, which are counted as used already, and children on other nodes.
pub(super) struct Inputs<'a> {
    /// How often the slot that is folded was started over.
    pub attempt: u32,
    pub sources: Vec<CopyId>,
    pub children: &'a [Child],
}

/// The stream from a child on another node.
pub(super) struct Stream {
    transfer: TransferId,
    node: NodeId,
    slot: u32,
}

/// All folds here.
#[derive(Debug, Default)]
pub(super) struct Folds {
    running: BTreeMap<FoldId, Fold>,
}

impl Folds {
    /// Starts a fold whose sources are already counted as used.
    pub fn start(
        &mut self,
        lent: &mut Lent<'_>,
        purpose: FoldFor,
        out: CopyId,
        rule: FoldRule,
        Inputs { attempt, sources, children }: Inputs<'_>,
    ) -> FoldId {
        let fold = FoldId(lent.ctx.next_number());
        lent.copies.with(out, |copy| {
            copy.phase = Phase::Folded(Some(fold));
            copy.users += 1;
        });
        let begun = Fold { purpose, out, attempt, sources: Vec::new(), streams: BTreeMap::new() };
        self.running.insert(fold, begun);
        let (inputs, streams) = self.add_inputs(lent, fold, sources, children);
        // The fold must expect its streams before any node is asked to send them.
        lent.ctx.out.push_back(Output::Fold { fold, out, rule, inputs });
        send_pulls(lent.ctx, &streams, children);
        fold
    }

    /// Notes further inputs of a fold. The children on other nodes are not asked for their streams yet.
    pub fn add_inputs(
        &mut self,
        lent: &mut Lent<'_>,
        fold: FoldId,
        added: Vec<CopyId>,
        children: &[Child],
    ) -> (FoldInputs, Vec<Stream>) {
        let running = self.running.get_mut(&fold).expect("it runs until its end is reported");
        let streams = expect_streams(lent.ctx, lent.fetches, (fold, running.attempt), children);
        running.sources.extend(&added);
        running.streams.extend(streams.iter().map(|stream| (stream.transfer, stream.slot)));
        let from = streams.iter().map(|stream| (stream.transfer, stream.node)).collect();
        (FoldInputs { sources: added, streams: from }, streams)
    }

    pub fn say_amended(&self, ctx: &mut Ctx, fold: FoldId, rule: FoldRule, added: FoldInputs) {
        ctx.out.push_back(Output::AmendFold { fold, rule, added });
    }

    pub fn leftovers(&self) -> Option<String> {
        (!self.running.is_empty()).then(|| format!("folds: {:?}", self.running))
    }
}

/// Begins the transfers from the children on other nodes.
fn expect_streams(
    ctx: &mut Ctx,
    fetches: &mut Fetches,
    (fold, attempt): (FoldId, u32),
    children: &[Child],
) -> Vec<Stream> {
    let me = ctx.me;
    let others = children.iter().filter(|child| child.node != me);
    let streams = others.map(|child| {
        let transfer = TransferId(ctx.next_number());
        fetches.begin_transfer(transfer, Transfer::to_fold(child.node, fold, attempt));
        Stream { transfer, node: child.node, slot: child.slot }
    });
    streams.collect()
}

pub(super) fn send_pulls(ctx: &mut Ctx, streams: &[Stream], children: &[Child]) {
    // In the same order; children here have no streams.
    let mut children = children.iter();
    for &Stream { transfer, node, slot } in streams {
        let child = children.find(|child| child.slot == slot).expect("made from the children");
        let (id, edition) = (child.id, child.edition);
        ctx.send(node, PeerMessage::Pull { transfer, id, edition, offset: 0, patient: true }, None);
    }
}

impl Slots {
    pub fn on_stream_broken(&mut self, ctx: &mut Ctx, fold: FoldId, transfer: TransferId) {
        // It has ended meanwhile.
        let Some(running) = self.folds.running.get(&fold) else { return };
        if let (FoldFor::Slot(key), Some(&child)) = (running.purpose, running.streams.get(&transfer)) {
            let current = self.table.get(key).map(|running| running.state);
            if matches!(current, Some(State::Folding { fold: now, .. }) if now == fold) {
                self.fail(ctx, key, SlotFailure::Child(child));
            }
        }
    }

    /// The control connection to `node` broke. A pull may have been lost, so streams from that node are suspect.
    pub fn on_peer_broken(&mut self, lent: &mut Lent<'_>, node: NodeId) {
        let fold = |(id, feeds)| match feeds {
            Feeds::Fold(fold) => Some((fold, id)),
            Feeds::Copy(_) => None,
        };
        let suspect: Vec<_> = lent.fetches.streams_from(node).filter_map(fold).collect();
        for (fold, transfer) in suspect {
            self.on_stream_broken(lent.ctx, fold, transfer);
        }
    }

    /// A fold is over. Returns false if it is none of ours.
    pub fn on_fold_ended(&mut self, lent: &mut Lent<'_>, id: FoldId, outcome: Result<(), Broken>) -> bool {
        let Some(fold) = self.folds.running.remove(&id) else { return false };
        for &transfer in fold.streams.keys() {
            let Some(Transfer { from, .. }) = lent.fetches.end_transfer(transfer) else { continue };
            if outcome.is_err() {
                // The pull may still be parked there, waiting for a copy that opens late.
                lent.ctx.send(from, PeerMessage::CancelPull { transfer }, None);
            }
        }
        let doomed = lent.copies[fold.out].doomed;
        if !doomed {
            lent.copies.with(fold.out, |out| out.phase = Phase::Folded(None));
        }
        match fold.purpose {
            _ if doomed => {}
            FoldFor::Slot(key) => self.on_slot_folded(lent, key, fold.out, outcome),
            FoldFor::Part => self.on_part_folded(lent, fold.out, outcome),
        }
        fold.sources.iter().for_each(|&source| lent.copies.remove_user(lent.ctx, source));
        lent.copies.remove_user(lent.ctx, fold.out);
        true
    }

    fn on_slot_folded(
        &mut self,
        lent: &mut Lent<'_>,
        key: SlotKey,
        out: CopyId,
        outcome: Result<(), Broken>,
    ) {
        let running = self.table.get(key).expect("the copy of a slot that is over is doomed");
        match outcome {
            Ok(()) => {
                let root = running.assignment.root;
                self.table.set_state(key, State::Folded { copy: out });
                if root {
                    self.say_root_done(lent.ctx, key);
                } else {
                    lent.copies.seal(lent.ctx, out, Seal::default());
                }
            }
            Err(Broken) => {
                let abandoned = abandoned_input(lent, &running.assignment);
                let failure =
                    abandoned.unwrap_or_else(|| SlotFailure::LetGo(self.epochs.fence_of(key.0.coordinator)));
                self.fail(lent.ctx, key, failure);
                lent.copies.withdraw(lent.ctx, out);
                lent.copies.doom(lent.ctx, out);
            }
        }
    }

    pub(super) fn say_root_done(&self, ctx: &mut Ctx, key: SlotKey) {
        let (reduction, slot) = key;
        let running = self.table.get(key).expect("the caller's");
        if running.is_done_root() {
            let attempt = running.assignment.attempt;
            ctx.send(reduction.coordinator, PeerMessage::RootDone { reduction, slot, attempt }, None);
        }
    }

    /// The slot cannot continue by itself.
    pub(super) fn fail(&mut self, ctx: &mut Ctx, key: SlotKey, failure: SlotFailure) {
        self.table.set_failure(key, failure);
        if self.table.waiting(key).is_some() {
            self.table.set_state(key, State::Failed);
        }
        self.report_failure(ctx, key);
    }

    /// Reports the slot's failure, if it has failed.
    pub(super) fn report_failure(&self, ctx: &mut Ctx, key: SlotKey) {
        let (reduction, slot) = key;
        let running = self.table.get(key).expect("the caller's");
        if let Some(failure) = running.failure {
            let attempt = running.assignment.attempt;
            let failed = PeerMessage::SlotFailed { reduction, slot, attempt, failure };
            ctx.send(reduction.coordinator, failed, None);
        }
    }
}

/// The input here that was abandoned during the fold: a put was aborted, or another attempt was started.
fn abandoned_input(lent: &Lent<'_>, assignment: &SlotAssignment) -> Option<SlotFailure> {
    let mut sources = assignment.sources.iter();
    let source = sources.find(|source| here(lent.copies, source.id, source.edition).is_none());
    let mut children = assignment.children.iter().filter(|child| child.node == lent.ctx.me);
    let child = children.find(|child| here(lent.copies, child.id, child.edition).is_none());
    source
        .map(|source| SlotFailure::Source(source.id))
        .or_else(|| child.map(|child| SlotFailure::Child(child.slot)))
}

pub(super) fn rule(assignment: &SlotAssignment) -> FoldRule {
    let SlotAssignment { op, dtype, offset, divide_by, open, .. } = *assignment;
    FoldRule { op, dtype, offset, divide_by, open }
}

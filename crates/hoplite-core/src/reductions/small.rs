//! Sources that fit into a message, and are not too many for one link, need no tree: the coordinator folds them
//! itself [design §6].
//!
//! They travel with the notification that they exist, and are kept under ids of their own until the reduction ends.
//! Copies under the sources' ids would have to be reported to the directory and withdrawn again. A source that did not
//! travel so (there was no space, or its owner is new) is fetched like any object.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use hoplite_types::peer::{CopyReport, DirectoryRequest, Seal};
use hoplite_types::{Blob, CopyId, Edition, ErrorKind, FoldOrder, ObjectId, Op};

use super::plan::PAUSE;
use super::reduction::{Reduction, Stage};
use super::{fail, Lent, Next, Reductions, Step, WAIT};
use crate::copies::{NewCopy, Phase, SpaceWaiter};
use crate::io::{Broken, FoldId, FoldInputs, FoldRule, Output};
use crate::keys::Want;
use crate::timers::Timer;

/// Limit of sources that are fetched in one turn: some milliseconds' work.
const SOURCES_PER_TURN: usize = 512;

/// The sum of small sources.
#[derive(Debug, Default)]
enum Sum {
    /// Sources are missing, or space for the sum.
    #[default]
    Awaited,
    Folding(CopyId),
    /// It is made, and waits for the right to be the target.
    Folded(CopyId),
}

/// The sources that are here, by index, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Small {
    here: Vec<(usize, CopyId)>,
    /// The same sources, by index only.
    taken: BTreeSet<usize>,
    sum: Sum,
    /// The place in the list from which on sources are still to be fetched.
    next: usize,
}

impl Small {
    pub fn count(&self) -> usize {
        self.here.len()
    }
}

/// A fold of small sources that runs. Its output and its sources are in use until it ends.
#[derive(Debug)]
pub(super) struct SmallFold {
    number: u64,
    out: CopyId,
    sources: Vec<CopyId>,
}

impl Reductions {
    /// A small source came with its notification.
    pub fn on_source_came(
        &mut self,
        lent: &mut Lent<'_>,
        number: u64,
        (source, report): (ObjectId, &CopyReport),
        payload: Blob,
    ) {
        self.step(lent, number, |reduction, lent| {
            reduction.bring_source(lent, source, report, payload);
            // The change of the source's copies is notified in a moment.
            WAIT
        });
    }

    /// A source that the reduction wants is here.
    pub fn on_object_here(&mut self, lent: &mut Lent<'_>, number: u64, object: ObjectId) {
        self.step(lent, number, |reduction, lent| {
            let copy = lent.copies.sealed(object).expect("told because it is sealed");
            let index = reduction.index_of(object).expect("it wants only its sources");
            reduction.take_and_fold(lent, index, copy)
        });
    }

    /// A source cannot be fetched.
    pub fn on_object_failed(
        &mut self,
        lent: &mut Lent<'_>,
        number: u64,
        object: ObjectId,
        (kind, message): (ErrorKind, &str),
    ) {
        self.step(lent, number, |reduction, _| match kind {
            ErrorKind::Deleted => reduction.on_source_deleted(object),
            _ => fail(kind, message),
        });
    }

    /// There may be space for the sum.
    pub fn on_space(&mut self, lent: &mut Lent<'_>, number: u64) {
        self.step(lent, number, |reduction, lent| reduction.fold_small(lent));
    }

    /// A fold of small sources is over. Its reduction may be over already.
    pub fn on_fold_ended(&mut self, lent: &mut Lent<'_>, id: FoldId, outcome: Result<(), Broken>) {
        let SmallFold { number, out, sources } = self.folds.remove(&id).expect("a fold ends once");
        if !lent.copies[out].doomed {
            lent.copies.with(out, |out| out.phase = Phase::Folded(None));
        }
        // Even if the target was deleted: the caller must be notified.
        self.step(lent, number, |reduction, lent| reduction.on_small_folded(lent, out, outcome));
        sources.into_iter().for_each(|source| lent.copies.remove_user(lent.ctx, source));
        lent.copies.remove_user(lent.ctx, out);
    }
}

impl Reduction {
    fn bring_source(&mut self, lent: &mut Lent<'_>, source: ObjectId, report: &CopyReport, payload: Blob) {
        let Some(index) = self.index_of(source) else {
            // The target, which a committed reduction watches.
            return;
        };
        let fits = report.size <= self.small_bytes_max && payload.0.len() as u64 == report.size;
        if self.brought.contains_key(&index) || !fits {
            return;
        }
        let new = NewCopy {
            object: ObjectId::brought_source(self.id, index),
            edition: report.edition,
            size: report.size,
            header: report.header.clone(),
            phase: Phase::Received(None),
            pinned: false,
            public: false,
            stamp: None,
            claim: None,
        };
        // Without space for it here, it is fetched when it is needed.
        if let Some(copy) = lent.copies.open(lent.ctx, new) {
            lent.ctx.out.push_back(Output::Write { copy, bytes: payload.0 });
            lent.copies.seal(lent.ctx, copy, Seal::default());
            self.brought.insert(index, copy);
        }
    }

    /// The sources turned out to be small: fetches them all; the first k are folded.
    pub(super) fn start_small(&mut self, lent: &mut Lent<'_>) -> Step {
        self.stage = Stage::Small(Small::default());
        self.get_small_sources(lent)
    }

    /// Fetches the next of many of them.
    pub(super) fn get_small_sources(&mut self, lent: &mut Lent<'_>) -> Step {
        let Stage::Small(small) = &mut self.stage else { unreachable!("the caller's") };
        let (all, first) = (self.request.sources.len(), small.next);
        small.next = all.min(first + SOURCES_PER_TURN);
        let next = small.next;
        if next < all {
            lent.ctx.timers.set(lent.ctx.now + PAUSE, Timer::AdvanceReduction(self.id.number));
        }
        let mut is_complete = false;
        for index in first..next {
            is_complete |= self.get_source(lent, index)?;
        }
        match is_complete {
            true => self.fold_small(lent),
            false => WAIT,
        }
    }

    /// A small source changed.
    pub(super) fn get_small_source(&mut self, lent: &mut Lent<'_>, source: ObjectId) -> Step {
        let index = self.index_of(source).expect("it watches only its sources, and its target");
        match self.get_source(lent, index)? {
            true => self.fold_small(lent),
            false => WAIT,
        }
    }

    /// Takes a source that came with its notification; fetches one that did not. Returns whether that was the last that
    /// was missing.
    fn get_source(&mut self, lent: &mut Lent<'_>, index: usize) -> Step<bool> {
        let source = self.request.sources[index];
        // A source that was brought may have been evicted since.
        if let Some(copy) = self.brought.get(&index).copied().filter(|&copy| lent.copies.stands(copy)) {
            return self.take_small_source(lent, index, copy);
        }
        if !lent.subscriptions.is_complete(source) {
            return ControlFlow::Continue(false);
        }
        match lent.copies.sealed(source) {
            Some(copy) => self.take_small_source(lent, index, copy),
            None => {
                lent.fetcher().want(source, Want::Reduction(self.id.number), None);
                ControlFlow::Continue(false)
            }
        }
    }

    fn take_and_fold(&mut self, lent: &mut Lent<'_>, index: usize, copy: CopyId) -> Step {
        match self.take_small_source(lent, index, copy)? {
            true => self.fold_small(lent),
            false => WAIT,
        }
    }

    /// Takes a source that is here. Returns whether that was the last that was missing.
    fn take_small_source(&mut self, lent: &mut Lent<'_>, index: usize, copy: CopyId) -> Step<bool> {
        let (source, known) = (self.request.sources[index], &lent.copies[copy]);
        self.facts().check_fits(source, (&known.header, known.extent.size), self.id.coordinator)?;
        let k = self.k();
        let small = self.small_mut().expect("only small sources are taken");
        if small.here.len() == k || !small.taken.insert(index) {
            return ControlFlow::Continue(false);
        }
        small.here.push((index, copy));
        let is_complete = small.here.len() == k;
        // Not to be evicted before it is folded.
        lent.copies.add_user(lent.ctx, copy);
        ControlFlow::Continue(is_complete)
    }

    /// All sources are here: folds them, once there is space for the sum.
    fn fold_small(&mut self, lent: &mut Lent<'_>) -> Step {
        let (fixed, stamp) = (self.request.order == FoldOrder::Fixed, self.right.stamp());
        let (number, target, me) = (self.id.number, self.target(), self.id.coordinator);
        let small = self.small_mut().expect("all sources are here");
        if fixed {
            small.here.sort_unstable();
        }
        let sources: Vec<_> = small.here.iter().map(|&(_, copy)| copy).collect();
        if !lent.make_way(target, stamp) {
            let message = format!("{me}: the target {target} exists already");
            return fail(ErrorKind::AlreadyExists, &message);
        }
        if let Some(stale) = lent.copies.live(target) {
            lent.copies.doom(lent.ctx, stale);
        }
        let (new, size) = (self.new_target(lent), self.facts().size);
        let Some(out) = lent.copies.open(lent.ctx, new) else {
            lent.copies.wait_for_space(lent.ctx, SpaceWaiter::SmallTarget { number }, size);
            return WAIT;
        };
        self.small_mut().expect("seen above").sum = Sum::Folding(out);
        sources.iter().for_each(|&source| lent.copies.add_user(lent.ctx, source));
        let fold = FoldId(lent.ctx.next_number());
        lent.copies.with(out, |copy| {
            copy.phase = Phase::Folded(Some(fold));
            copy.users += 1;
        });
        let inputs = FoldInputs { sources: sources.clone(), streams: Vec::new() };
        lent.ctx.out.push_back(Output::Fold { fold, out, rule: self.small_rule(), inputs });
        // A sender lent for a fetch of the target must not replace the copy that is folded here.
        lent.fetcher().drop_fetch(target);
        ControlFlow::Continue(Next::Fold(fold, SmallFold { number, out, sources }))
    }

    fn small_rule(&self) -> FoldRule {
        let Reduction { request, .. } = self;
        let divide_by = (request.op == Op::Mean).then_some(request.k);
        FoldRule { op: request.op, dtype: self.facts().dtype, offset: 0, divide_by, open: false }
    }

    fn new_target(&self, lent: &mut Lent<'_>) -> NewCopy {
        let writing = lent.ctx.unique();
        NewCopy {
            object: self.target(),
            edition: Edition { writing, attempt: 0 },
            size: self.facts().size,
            header: self.facts().header.clone(),
            phase: Phase::Folded(None),
            pinned: true,
            public: true,
            stamp: self.right.stamp(),
            claim: Some(self.id.claim()),
        }
    }

    fn on_small_folded(&mut self, lent: &mut Lent<'_>, out: CopyId, outcome: Result<(), Broken>) -> Step {
        if outcome.is_err() && lent.copies.stands(out) {
            return fail(ErrorKind::Internal, "a fold of local objects broke off");
        }
        self.small_mut().expect("it is folded").sum = Sum::Folded(out);
        self.seal_small(lent)?;
        WAIT
    }

    /// Seals the sum, if it is made, once we have the right to the target. We may have been believed dead during the
    /// fold: then the right is asked for once more.
    pub(super) fn seal_small(&mut self, lent: &mut Lent<'_>) -> Step<()> {
        let (Some(stamp), Stage::Small(small)) = (self.right.stamp(), &mut self.stage) else {
            return ControlFlow::Continue(());
        };
        let Sum::Folded(copy) = small.sum else { return ControlFlow::Continue(()) };
        let sources: Vec<_> = small.here.iter().map(|&(index, _)| self.request.sources[index]).collect();
        let target = self.request.target;
        if !lent.copies.stands(copy) {
            let message = format!("{}: the target {target} exists already", self.id.coordinator);
            return fail(ErrorKind::AlreadyExists, &message);
        }
        // It is not given up with the other copies.
        small.sum = Sum::Awaited;
        lent.copies.with(copy, |copy| copy.stamp = Some(stamp));
        let nodes: BTreeSet<_> = sources
            .iter()
            .filter(|_| self.request.to_sources)
            .flat_map(|&source| lent.subscriptions.copies(source).filter(|(_, report)| report.pinned))
            .map(|(node, _)| node)
            .collect();
        lent.copies.seal(lent.ctx, copy, Seal { sources: sources.clone() });
        if !nodes.is_empty() {
            // After the announcement: to ask the owner takes one message, and most nodes have asked already.
            let nodes = nodes.into_iter().collect();
            lent.ctx.ask_owner(target, DirectoryRequest::Bring { nodes }, None);
        }
        ControlFlow::Break(Ok(sources))
    }

    /// Releases the copies that a reduction held to fold them here.
    pub(super) fn drop_small(&mut self, lent: &mut Lent<'_>) {
        let number = self.id.number;
        if let Some(Small { here, sum, .. }) = self.small_mut().map(std::mem::take) {
            lent.copies.end_wait_for_space(SpaceWaiter::SmallTarget { number });
            for &source in &self.request.sources {
                lent.fetcher().unwant(source, Want::Reduction(number));
            }
            for (_, copy) in here {
                lent.copies.remove_user(lent.ctx, copy);
            }
            match sum {
                Sum::Awaited => {}
                Sum::Folding(target) | Sum::Folded(target) => lent.copies.doom(lent.ctx, target),
            }
        }
        for copy in std::mem::take(&mut self.brought).into_values() {
            if lent.copies.stands(copy) {
                lent.copies.retire(lent.ctx, copy);
            }
        }
    }
}

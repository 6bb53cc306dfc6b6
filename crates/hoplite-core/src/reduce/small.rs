//! Sources that fit into a message, and are not too many for one link, need no tree: the coordinator folds them
//! itself [design §6].
//!
//! They travel with the notification that they exist, and are kept under ids of their own until the reduction ends.
//! Copies under the sources' ids would have to be reported to the directory and withdrawn again. A source that did not
//! travel so (there was no space, or its owner is new) is fetched like any object.

use std::collections::BTreeSet;

use hoplite_types::peer::{CopyReport, DirectoryRequest, Seal};
use hoplite_types::{Blob, CopyId, Edition, ErrorKind, FoldOrder, ObjectId, Op, ReductionId};

use super::choose::check_fits;
use super::coordinator::Reduction;
use super::plan::PAUSE;
use crate::copies::SpaceWaiter;
use crate::copies::{NewCopy, Phase};
use crate::io::{Broken, FoldId, FoldInputs, FoldRule, Output};
use crate::keys::Want;
use crate::timers::Timer;
use crate::Core;

/// The sources that are here, by index, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Small {
    here: Vec<(usize, CopyId)>,
    /// The same sources, by index only.
    taken: BTreeSet<usize>,
    target: Option<CopyId>,
    /// The place in the list from which on sources are still to be fetched.
    next: usize,
    /// The sum is made, and waits for the right to be the target.
    is_folded: bool,
}

/// A fold of small sources that runs. Its output and its sources are in use until it ends.
#[derive(Debug)]
pub(crate) struct SmallFold {
    number: u64,
    out: CopyId,
    sources: Vec<CopyId>,
}

/// Limit of sources that are fetched in one turn: some milliseconds' work.
const SOURCES_PER_TURN: usize = 512;

impl Small {
    pub fn count(&self) -> usize {
        self.here.len()
    }
}

impl Core {
    /// A small source came with its notification.
    pub(crate) fn bring_source(&mut self, number: u64, source: ObjectId, report: &CopyReport, payload: Blob) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        let Some(index) = reduction.index_of(source) else { return };
        let fits = report.size <= reduction.small_bytes_max && payload.0.len() as u64 == report.size;
        if reduction.brought.contains_key(&index) || !fits {
            return;
        }
        let object = ObjectId::brought_source(ReductionId { coordinator: self.ctx.me, number }, index);
        let (edition, size, header) = (report.edition, report.size, report.header.clone());
        let phase = Phase::Received(None);
        let (pinned, public, stamp, claim) = (false, false, None, None);
        let new = NewCopy { object, edition, size, header, phase, pinned, public, stamp, claim };
        let Some(copy) = self.copies.open(&mut self.ctx, new) else { return };
        self.ctx.out.push_back(Output::Write { copy, bytes: payload.0 });
        self.copies.seal(&mut self.ctx, copy, Seal::default());
        self.reductions.get_mut(&number).expect("seen above").brought.insert(index, copy);
    }

    /// The sources turned out to be small: fetches them all; the first k are folded.
    pub(super) fn start_small(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        reduction.small = Some(Small::default());
        self.get_small_sources(number);
    }

    /// Fetches the next of many of them.
    pub(super) fn get_small_sources(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let Some(small) = &mut reduction.small else { return };
        let left = &reduction.request.sources[small.next..];
        let some = left[..left.len().min(SOURCES_PER_TURN)].to_vec();
        small.next += some.len();
        if some.len() < left.len() {
            self.ctx.timers.set(self.ctx.now + PAUSE, Timer::AdvanceReduction(number));
        }
        for source in some {
            self.get_small_source(number, source);
        }
    }

    /// Takes a source that came with its notification; fetches one that did not.
    pub(super) fn get_small_source(&mut self, number: u64, source: ObjectId) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        let Some(index) = reduction.index_of(source) else { return };
        let complete = self.subscriptions.copies(source).any(|(_, report)| report.complete);
        match reduction.brought.get(&index).copied().filter(|&copy| self.stands(copy)) {
            Some(copy) => self.take_small_source(number, index, copy),
            None if complete => match self.copies.sealed(source) {
                Some(copy) => self.take_small_source(number, index, copy),
                None => self.fetcher().want(source, Want::Reduction(number), None),
            },
            None => {}
        }
    }

    /// Whether a source that was brought is still here; it may have been evicted since.
    fn stands(&self, copy: CopyId) -> bool {
        self.copies.stands(copy)
    }

    pub(crate) fn on_reduction_object_here(&mut self, number: u64, object: ObjectId) {
        let copy = self.copies.sealed(object).expect("told because it is sealed");
        let index = self.reductions.get(&number).and_then(|reduction| reduction.index_of(object));
        if let Some(index) = index {
            self.take_small_source(number, index, copy);
        }
    }

    fn take_small_source(&mut self, number: u64, index: usize, copy: CopyId) {
        let me = self.ctx.me;
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let object = reduction.request.sources[index];
        let (k, facts) = (reduction.k(), reduction.facts.as_ref().expect("known before small"));
        let known = &self.copies[copy];
        let report = CopyReport {
            seq: 0,
            edition: known.edition,
            size: known.extent.size,
            header: known.header.clone(),
            complete: true,
            pinned: known.pinned,
            upstream: None,
            leaving: false,
            stamp: known.stamp,
            claim: None,
        };
        if let Err(error) = check_fits(object, &report, facts, me) {
            return self.fail_reduction(number, error.kind, &error.message);
        }
        let Some(small) = &mut reduction.small else { return };
        if small.here.len() == k || !small.taken.insert(index) {
            return;
        }
        small.here.push((index, copy));
        let complete = small.here.len() == k;
        // Not to be evicted before it is folded.
        self.copies.add_user(&mut self.ctx, copy);
        if complete {
            self.fold_small(number);
        }
    }

    pub(crate) fn fold_small(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let (request, facts) = (&reduction.request, reduction.facts.as_ref().expect("known before small"));
        let Some(small) = &mut reduction.small else { return };
        if request.order == FoldOrder::Fixed {
            small.here.sort_unstable();
        }
        let rule = FoldRule {
            op: request.op,
            dtype: facts.dtype,
            offset: 0,
            divide_by: (request.op == Op::Mean).then_some(request.k),
            open: false,
        };
        let (target, size, header) = (request.target, facts.size, facts.header.clone());
        let sources: Vec<_> = small.here.iter().map(|&(_, copy)| copy).collect();
        let stamp = self.reductions.get(&number).and_then(Reduction::stamp);
        if !self.with_slots(|_, lent| lent.make_way(target, stamp)) {
            let message = format!("{}: the target {target} exists already", self.ctx.me);
            return self.fail_reduction(number, ErrorKind::AlreadyExists, &message);
        }
        if let Some(stale) = self.copies.live(target) {
            self.copies.doom(&mut self.ctx, stale);
        }
        let edition = Edition { writing: self.ctx.unique(), attempt: 0 };
        let phase = Phase::Folded(None);
        let (pinned, public) = (true, true);
        let claim = Some(self.claim_of(number));
        let new = NewCopy { object: target, edition, size, header, phase, pinned, public, stamp, claim };
        let Some(copy) = self.copies.open(&mut self.ctx, new) else {
            return self.copies.wait_for_space(&mut self.ctx, SpaceWaiter::SmallTarget { number }, size);
        };
        if let Some(small) = self.reductions.get_mut(&number).and_then(|reduction| reduction.small.as_mut()) {
            small.target = Some(copy);
        }
        sources.iter().for_each(|&source| self.copies.add_user(&mut self.ctx, source));
        let fold = FoldId(self.ctx.next_number());
        self.copies.with(copy, |copy| {
            copy.phase = Phase::Folded(Some(fold));
            copy.users += 1;
        });
        self.small_folds.insert(fold, SmallFold { number, out: copy, sources: sources.clone() });
        let inputs = FoldInputs { sources, streams: Vec::new() };
        self.ctx.out.push_back(Output::Fold { fold, out: copy, rule, inputs });
        // A sender lent for a fetch of the target must not replace the copy that is folded here.
        self.fetcher().drop_fetch(target);
    }

    /// A fold of small sources is over. Its reduction may be over already.
    pub(crate) fn on_small_fold_ended(&mut self, id: FoldId, outcome: Result<(), Broken>) {
        let SmallFold { number, out, sources } = self.small_folds.remove(&id).expect("a fold ends once");
        if !self.copies[out].doomed {
            self.copies.with(out, |out| out.phase = Phase::Folded(None));
        }
        // Even if the target was deleted: the caller must be notified.
        self.on_small_folded(number, out, outcome);
        sources.into_iter().for_each(|source| self.copies.remove_user(&mut self.ctx, source));
        self.copies.remove_user(&mut self.ctx, out);
    }

    fn on_small_folded(&mut self, number: u64, copy: CopyId, outcome: Result<(), Broken>) {
        let broke_off = outcome.is_err() && self.stands(copy);
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let Some(small) = &mut reduction.small else { return };
        small.is_folded = true;
        if broke_off {
            small.target = None;
            self.copies.doom(&mut self.ctx, copy);
            return self.fail_reduction(number, ErrorKind::Internal, "a fold of local objects broke off");
        }
        self.seal_small(number);
    }

    /// Seals the sum, once we have the right to the target. We may have been believed dead during the fold: then the
    /// right is asked for once more.
    pub(super) fn seal_small(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let Some(stamp) = reduction.stamp() else { return };
        let Some(small) = reduction.small.as_mut().filter(|small| small.is_folded) else { return };
        let Some(copy) = small.target.take() else { return };
        let sources: Vec<_> = small.here.iter().map(|&(index, _)| reduction.request.sources[index]).collect();
        let (id, to_sources) = (reduction.request.target, reduction.request.to_sources);
        if !self.stands(copy) {
            let message = format!("{}: the target {id} exists already", self.ctx.me);
            return self.fail_reduction(number, ErrorKind::AlreadyExists, &message);
        }
        self.copies.with(copy, |copy| copy.stamp = Some(stamp));
        let nodes: BTreeSet<_> = sources
            .iter()
            .filter(|_| to_sources)
            .flat_map(|&source| self.subscriptions.copies(source).filter(|(_, report)| report.pinned))
            .map(|(node, _)| node)
            .collect();
        self.copies.seal(&mut self.ctx, copy, Seal { sources: sources.clone() });
        if !nodes.is_empty() {
            // After the announcement: to ask the owner takes one message, and most nodes have asked already.
            let nodes = nodes.into_iter().collect();
            self.ctx.ask_owner(id, DirectoryRequest::Bring { nodes }, None);
        }
        self.finish_reduction(number, Ok(sources));
    }

    /// A source cannot be fetched.
    pub(crate) fn on_reduction_object_failed(
        &mut self,
        number: u64,
        object: ObjectId,
        kind: ErrorKind,
        message: &str,
    ) {
        if kind == ErrorKind::Deleted {
            return self.on_reduction_deleted(number, object);
        }
        self.fail_reduction(number, kind, message);
    }

    /// Releases the copies that a reduction held to fold them here.
    pub(super) fn drop_small(&mut self, number: u64, reduction: &mut Reduction) {
        if let Some(small) = reduction.small.take() {
            self.copies.end_wait_for_space(SpaceWaiter::SmallTarget { number });
            for &source in &reduction.request.sources {
                self.fetcher().unwant(source, Want::Reduction(number));
            }
            for (_, copy) in small.here {
                self.copies.remove_user(&mut self.ctx, copy);
            }
            if let Some(target) = small.target {
                self.copies.doom(&mut self.ctx, target);
            }
        }
        for copy in std::mem::take(&mut reduction.brought).into_values() {
            if self.stands(copy) {
                self.copies.retire(&mut self.ctx, copy);
            }
        }
    }
}

//! Each step that advances a reduction.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::peer::PeerMessage;
use hoplite_types::{ErrorKind, FoldOrder, Header, ObjectId, Op};

use super::epochs::EpochsHeard;
use super::reduction::{Barrier, Facts, Reduction, Stage};
use super::{fail, Lent, Reductions, Step, ADVANCE, WAIT};
use crate::cost::{best_degree, Degree};
use crate::timers::Timer;

/// From so many slots on, arrivals are collected until the next look at the slots.
const SLOTS_MANY: usize = 256;

/// The time between two looks at the slots, for each slot: some times what a look takes.
const LOOK_TIME: Duration = Duration::from_micros(4);

impl Reductions {
    /// The copies of a source, or of the target, changed.
    pub fn on_change(&mut self, lent: &mut Lent<'_>, number: u64, object: ObjectId) {
        self.step(lent, number, |reduction, lent| match &reduction.stage {
            Stage::Committed(_) => reduction.look_for_committed_target(lent),
            _ if object == reduction.target() => WAIT,
            Stage::Small(_) => reduction.get_small_source(lent, object),
            Stage::Tree | Stage::Stripes(_) => reduction.advance_in_time(lent),
        });
    }

    /// Copies of some of its sources went with their nodes.
    pub fn on_sources_gone(&mut self, lent: &mut Lent<'_>, number: u64) {
        self.step(lent, number, |reduction, lent| match &reduction.stage {
            Stage::Tree | Stage::Stripes(_) => reduction.advance_in_time(lent),
            // A committed reduction waits for its target, and small sources are here or wanted.
            Stage::Small(_) | Stage::Committed(_) => WAIT,
        });
    }

    pub fn on_source_deleted(&mut self, lent: &mut Lent<'_>, number: u64, object: ObjectId) {
        self.step(lent, number, |reduction, _| reduction.on_source_deleted(object));
    }

    pub fn on_advance_timer(&mut self, lent: &mut Lent<'_>, number: u64) {
        self.step(lent, number, |_, _| ADVANCE);
    }
}

impl Reduction {
    /// With many slots, arrivals are looked at together: to look at all slots for each arrival would take longer than
    /// the time between arrivals.
    fn advance_in_time(&mut self, lent: &mut Lent<'_>) -> Step {
        let timer = Timer::AdvanceReduction(self.id.number);
        if self.slots.len() < SLOTS_MANY || lent.ctx.now >= self.next_look {
            return ADVANCE;
        }
        if !lent.ctx.timers.is_set(timer) {
            lent.ctx.timers.set(self.next_look, timer);
        }
        WAIT
    }

    pub(super) fn on_source_deleted(&mut self, object: ObjectId) -> Step {
        let Some(index) = self.index_of(object) else {
            // The target: its reductions fail when its owner reports that it is deleted.
            return WAIT;
        };
        self.deleted.insert(index);
        let (left, k) = (self.request.sources.len() - self.deleted.len(), self.k());
        if left >= k {
            return ADVANCE;
        }
        let message = format!(
            "{}: source {object} of {} was deleted; {left} of the {k} needed are left",
            self.id.coordinator,
            self.target()
        );
        fail(ErrorKind::Deleted, &message)
    }

    /// Chooses sources as they become available and brings the tree up to date.
    pub(super) fn advance(&mut self, lent: &mut Lent<'_>, heard: &EpochsHeard) -> Step {
        match self.stage {
            Stage::Small(_) => return self.get_small_sources(lent),
            Stage::Committed(_) => return WAIT,
            Stage::Tree | Stage::Stripes(_) => {}
        }
        // No sum is made that may turn out not to be wanted.
        if !matches!(self.barrier, Barrier::Passed) || self.right.stamp().is_none() {
            return WAIT;
        }
        if self.facts.is_none() {
            self.learn_facts(lent)?;
        }
        match &self.facts {
            // No source exists yet.
            None => return WAIT,
            Some(facts) if facts.size <= self.small_bytes_max => return self.start_small(lent),
            Some(_) => {}
        }
        self.drop_vanished_sources(lent);
        self.give_up_broken_stripes(lent);
        let ready = self.ready_sources(lent)?;
        let missing = self.k() - self.chosen_count();
        let fixed_subset = self.request.order == FoldOrder::Fixed && self.k() < self.request.sources.len();
        // In fixed order the places depend on the whole set: it must be known first.
        let ready: Vec<_> = match fixed_subset && ready.len() < missing {
            true => Vec::new(),
            false => ready.into_iter().take(missing).collect(),
        };
        self.assign_sources(ready);
        self.next_look = lent.ctx.now + LOOK_TIME * self.slots.len() as u32;
        if !self.stripe(lent, heard) {
            self.update_plan(lent, heard);
        }
        self.prefetch_to_sources(lent);
        WAIT
    }

    /// Size and type, from the first source in the list that exists. None are learnt if no source exists.
    fn learn_facts(&mut self, lent: &Lent<'_>) -> Step<()> {
        let sources = self.request.sources.iter().enumerate();
        let found =
            sources.filter_map(|(index, &source)| Some((source, self.kind_of_source(lent, index)?))).next();
        let Some((source, (size, header))) = found else { return Step::Continue(()) };
        let me = self.id.coordinator;
        let Some(dtype) = header.dtype else {
            let message = format!("{me}: source {source} is not an array of a reducible dtype");
            return fail(ErrorKind::Mismatch, &message);
        };
        if self.request.op == Op::Mean && !dtype.is_float() {
            let message = format!("{me}: a mean needs floats; source {source} is {dtype}");
            return fail(ErrorKind::Mismatch, &message);
        }
        self.degree = self.choose_degree(lent, size);
        self.facts = Some(Facts { size, header, dtype });
        Step::Continue(())
    }

    fn choose_degree(&self, lent: &Lent<'_>, size: u64) -> Degree {
        let holder = |&source: &ObjectId| lent.subscriptions.copies(source).next().map(|(node, _)| node);
        let holders: Option<BTreeSet<_>> = self.request.sources.iter().map(holder).collect();
        let slots = holders.map_or(self.k(), |nodes| nodes.len());
        let (latency_s, bytes_per_s) = lent.ctx.links.typical();
        match self.request.order {
            FoldOrder::Fixed => Degree::Chain,
            FoldOrder::Arrival => {
                self.policy.degree.unwrap_or_else(|| best_degree(slots, size, latency_s, bytes_per_s))
            }
        }
    }

    /// Size and header of a source that exists, or came here with its notification.
    fn kind_of_source(&self, lent: &Lent<'_>, index: usize) -> Option<(u64, Header)> {
        if let Some((_, report)) = lent.subscriptions.copies(self.request.sources[index]).next() {
            return Some((report.size, report.header.clone()));
        }
        let brought = lent.copies.get(*self.brought.get(&index)?)?;
        Some((brought.extent.size, brought.header.clone()))
    }

    /// Allreduce: every node that gives a source will want the target. It is asked to prefetch now, so that it streams
    /// behind the root. So is a node that replaces a dead one.
    fn prefetch_to_sources(&mut self, lent: &mut Lent<'_>) {
        if !self.request.to_sources || self.chosen_count() < self.k() {
            return;
        }
        let id = self.target();
        let nodes: BTreeSet<_> = self.slots.iter().filter_map(|(_, slot)| slot.node).collect();
        let fresh: Vec<_> = nodes.difference(&self.prefetched).copied().collect();
        self.prefetched.extend(&fresh);
        for node in fresh {
            lent.ctx.send(node, PeerMessage::Prefetch { id }, None);
        }
    }
}

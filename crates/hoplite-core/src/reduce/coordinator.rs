//! One call of reduce, on the node where it was called: what is known of it, and each step that brings it on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::peer::{CopyReport, PeerMessage, Seat};
use hoplite_words::{CopyId, Dtype, Edition, ErrorKind, FoldOrder, Header, NodeId, ObjectId, Op};

use super::commit::Commitment;
use super::request::Request;
use super::small::Small;
use super::stripes::Stripes;
use crate::cost::{best_degree, Degree};
use crate::io::ClientId;
use crate::Core;

/// What all sources have in common; known from the first one.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub size: u64,
    pub header: Header,
    pub dtype: Dtype,
}

/// A source that takes part, by its index in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chosen {
    pub index: usize,
    pub edition: Edition,
}

/// A place in the tree, and what was last said to whom about it.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// `None`: vacant, its node died.
    pub node: Option<NodeId>,
    pub sources: Vec<Chosen>,
    pub attempt: u32,
    /// Of the last seat that was told.
    pub version: u32,
    pub told: Option<(NodeId, Seat)>,
    /// It was seated under `attempt` before; a new seating needs a new one.
    pub used: bool,
    /// Start over although nothing about it changed: one of its inputs broke off.
    pub restart: bool,
}

#[derive(Debug)]
pub(crate) struct Reduction {
    pub(super) client: ClientId,
    /// The call to answer; `None` if nobody waits for the reply.
    pub(super) call: Option<u64>,
    pub(super) request: Request,
    /// Directory questions whose answers mark the end of what is known of the sources at the start.
    pub(super) barrier: BTreeSet<u64>,
    pub(super) facts: Option<Facts>,
    pub(super) degree: Degree,
    /// Slots in order of position.
    pub(super) slots: Vec<(u32, Slot)>,
    pub(super) next_slot: u32,
    /// Every node that was ever told of a seat.
    pub(super) seated: BTreeSet<NodeId>,
    /// Reports that proved wrong: do not choose them again.
    pub(super) bad: BTreeSet<(usize, NodeId, Edition)>,
    pub(super) deleted: BTreeSet<usize>,
    /// Up to how many bytes sources are folded here, without a tree.
    pub(crate) small_bytes_max: u64,
    /// Small sources that came with the news of them, by index.
    pub(super) brought: BTreeMap<usize, CopyId>,
    pub(super) small: Option<Small>,
    /// Allreduce: nodes that were told to fetch the target.
    pub(super) prefetched: BTreeSet<NodeId>,
    /// Copies of the target that were told of here before, and that its owner knew no more at the start.
    pub(super) bygone: BTreeSet<(NodeId, Edition)>,
    /// When the first seat was told, of those that stand.
    pub(super) began: Option<Duration>,
    /// Set while it is done in stripes: then the slots say who takes part, and are told nothing.
    pub(super) stripes: Option<Stripes>,
    /// How often it may be striped (again).
    pub(super) stripings_left: u32,
    /// Final; only the root's answer is missing.
    pub(super) commitment: Option<Commitment>,
}

impl Reduction {
    pub(super) fn k(&self) -> usize {
        self.request.k as usize
    }

    /// Where the object stands in the list of sources.
    pub(super) fn index_of(&self, object: ObjectId) -> Option<usize> {
        self.request.sources.iter().position(|&source| source == object)
    }

    pub(super) fn chosen_count(&self) -> usize {
        self.slots.iter().map(|(_, slot)| slot.sources.len()).sum()
    }

    pub(super) fn is_chosen(&self, index: usize) -> bool {
        self.slots.iter().any(|(_, slot)| slot.sources.iter().any(|chosen| chosen.index == index))
    }

    /// Every seat that stands, and who was told.
    pub(super) fn told(&self) -> impl Iterator<Item = &(NodeId, Seat)> {
        let slots = self.slots.iter().filter_map(|(_, slot)| slot.told.as_ref());
        slots.chain(self.stripes.iter().flat_map(|stripes| &stripes.seats))
    }

    /// What `node` was told of this attempt of the slot, if that stands.
    pub(super) fn told_to(&self, node: NodeId, slot: u32, attempt: u32) -> Option<&Seat> {
        let seats = self.told().filter(|(at, seat)| *at == node && seat.slot == slot);
        seats.map(|(_, seat)| seat).find(|seat| seat.attempt == attempt)
    }

    /// The sources that went in, in fold order of the slots.
    pub(super) fn sources_in(&self) -> Vec<ObjectId> {
        let chosen = self.slots.iter().flat_map(|(_, slot)| slot.sources.iter());
        chosen.map(|chosen| self.request.sources[chosen.index]).collect()
    }
}

impl Core {
    /// Something about a source's copies, or the target's, changed.
    pub(crate) fn on_reduction_change(&mut self, number: u64, object: ObjectId) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        if reduction.commitment.is_some() {
            return self.look_for_committed_target(number);
        }
        if object == reduction.request.target {
            self.fail_if_target_exists(number);
            return;
        }
        if reduction.small.is_some() {
            return self.get_small_source(number, object);
        }
        self.advance_reduction(number);
    }

    /// Someone else has put the target: nothing that is reduced may go by its id. Returns whether
    /// that is so.
    pub(super) fn fail_if_target_exists(&mut self, number: u64) -> bool {
        let Some(reduction) = self.reductions.get(&number) else { return false };
        let (target, small) = (reduction.request.target, reduction.small.is_some());
        let ours = |edition: Edition| self.is_slot_writing(number, edition);
        // Part of it may be left of one that is lost; if it is not, its source is reported as well.
        let whole = |report: &CopyReport| report.complete || report.pinned;
        let foreign = |(node, report): (NodeId, &CopyReport)| {
            let bygone = reduction.bygone.contains(&(node, report.edition));
            !small && whole(report) && !ours(report.edition) && !bygone
        };
        let exists = self.subscriptions.copies(target).any(foreign);
        if exists {
            let message = format!("{}: the target {target} exists already", self.me);
            self.fail_reduction(number, ErrorKind::AlreadyExists, &message);
        }
        exists
    }

    pub(crate) fn on_reduction_deleted(&mut self, number: u64, object: ObjectId) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let Request { target, sources, .. } = &reduction.request;
        let index = sources.iter().position(|&source| source == object);
        let message = match index {
            None => format!("{}: the target {target} was deleted", self.me),
            Some(index) => {
                reduction.deleted.insert(index);
                let (left, k) = (sources.len() - reduction.deleted.len(), reduction.k());
                if left >= k {
                    return self.advance_reduction(number);
                }
                format!(
                    "{}: source {object} of {target} was deleted; {left} of the {k} needed are left",
                    self.me
                )
            }
        };
        self.fail_reduction(number, ErrorKind::Deleted, &message);
    }

    /// Chooses sources as they become available and brings the tree up to date.
    pub(crate) fn advance_reduction(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        if !reduction.barrier.is_empty() || reduction.small.is_some() || reduction.commitment.is_some() {
            return;
        }
        // If it was watched here before, its copies are no news and were not told again.
        if reduction.facts.is_none() && (self.fail_if_target_exists(number) || !self.learn_facts(number)) {
            return;
        }
        let reduction = &self.reductions[&number];
        if reduction.facts.as_ref().expect("learnt").size <= reduction.small_bytes_max {
            return self.start_small(number);
        }
        self.drop_vanished_sources(number);
        self.give_up_broken_stripes(number);
        let ready = match self.ready_sources(number) {
            Ok(ready) => ready,
            Err(error) => return self.fail_reduction(number, error.kind, &error.message),
        };
        let reduction = self.reductions.get_mut(&number).expect("seen above");
        let missing = reduction.k() - reduction.chosen_count();
        let fixed_subset =
            reduction.request.order == FoldOrder::Fixed && reduction.k() < reduction.request.sources.len();
        // In fixed order the places depend on the whole set: it must be known first.
        let ready: Vec<_> = match fixed_subset && ready.len() < missing {
            true => Vec::new(),
            false => ready.into_iter().take(missing).collect(),
        };
        self.seat_sources(number, ready);
        if !self.stripe(number) {
            self.update_plan(number);
        }
        self.prefetch_to_sources(number);
    }

    /// Size and type, from the first source in the list that exists.
    fn learn_facts(&mut self, number: u64) -> bool {
        let reduction = &self.reductions[&number];
        let found = reduction.request.sources.iter().find_map(|&source| {
            let (_, report) = self.subscriptions.copies(source).next()?;
            Some((source, report.clone()))
        });
        let Some((source, report)) = found else { return false };
        let op = reduction.request.op;
        let Some(dtype) = report.header.dtype else {
            let message = format!("{}: source {source} is not an array of a reducible dtype", self.me);
            self.fail_reduction(number, ErrorKind::Mismatch, &message);
            return false;
        };
        if op == Op::Mean && !dtype.is_float() {
            let message = format!("{}: a mean needs floats; source {source} is {dtype}", self.me);
            self.fail_reduction(number, ErrorKind::Mismatch, &message);
            return false;
        }
        let nodes: BTreeSet<_> = reduction
            .request
            .sources
            .iter()
            .filter_map(|&source| self.subscriptions.copies(source).next().map(|(node, _)| node))
            .collect();
        let known = reduction.request.sources.iter().all(|&s| self.subscriptions.copies(s).next().is_some());
        let slots = if known { nodes.len() } else { reduction.k() };
        let (latency_s, bytes_per_s) = self.links.typical();
        let degree = match reduction.request.order {
            FoldOrder::Fixed => Degree::Chain,
            FoldOrder::Arrival => {
                self.reduce_degree.unwrap_or_else(|| best_degree(slots, report.size, latency_s, bytes_per_s))
            }
        };
        let reduction = self.reductions.get_mut(&number).expect("seen above");
        reduction.degree = degree;
        reduction.facts = Some(Facts { size: report.size, header: report.header, dtype });
        true
    }

    /// Allreduce: every node that gives a source will want the target; let it ask now, so that it
    /// streams behind the root. So does one that takes a dead one's place.
    fn prefetch_to_sources(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        if !reduction.request.to_sources || reduction.chosen_count() < reduction.k() {
            return;
        }
        let id = reduction.request.target;
        let nodes: BTreeSet<_> = reduction.slots.iter().filter_map(|(_, slot)| slot.node).collect();
        let fresh: Vec<_> = nodes.difference(&reduction.prefetched).copied().collect();
        reduction.prefetched.extend(&fresh);
        for node in fresh {
            self.send(node, PeerMessage::Prefetch { id }, None);
        }
    }
}

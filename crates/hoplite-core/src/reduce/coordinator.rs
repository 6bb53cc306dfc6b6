//! One call of reduce, on the node where it was called.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::client::Reply;
use hoplite_words::peer::{CopyReport, DirectoryRequest, PeerMessage, Seat, SeatTrouble};
use hoplite_words::{
    limits, Dtype, Edition, Error, ErrorKind, FoldOrder, Header, NodeId, ObjectId, Op, ReductionId,
};

use super::commit::Commitment;
use super::small::Small;
use crate::calls::Pending;
use crate::cost::{best_degree, Degree};
use crate::io::ClientId;
use crate::subscriptions::Watcher;
use crate::timers::Timer;
use crate::Core;

/// How long a slot rests that has failed before: a dead child is refused at once, many thousand times
/// a second, until the members agree that it is dead.
const RESEAT_AFTER: Duration = Duration::from_millis(20);

/// What the caller asked for.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub target: ObjectId,
    pub sources: Vec<ObjectId>,
    pub k: u32,
    pub op: Op,
    pub order: FoldOrder,
    pub to_sources: bool,
}

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
    barrier: BTreeSet<u64>,
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
    pub(super) small: Option<Small>,
    prefetched: bool,
    /// Final; only the root's answer is missing.
    pub(super) commitment: Option<Commitment>,
}

/// How long the start of a reduction waits to hear what exists already, if an owner does not answer.
const BARRIER_TIME: Duration = Duration::from_millis(50);

impl Reduction {
    pub(super) fn k(&self) -> usize {
        self.request.k as usize
    }

    pub(super) fn chosen_count(&self) -> usize {
        self.slots.iter().map(|(_, slot)| slot.sources.len()).sum()
    }

    pub(super) fn is_chosen(&self, index: usize) -> bool {
        self.slots.iter().any(|(_, slot)| slot.sources.iter().any(|chosen| chosen.index == index))
    }

    /// The sources that went in, in fold order of the slots.
    pub(super) fn sources_in(&self) -> Vec<ObjectId> {
        let chosen = self.slots.iter().flat_map(|(_, slot)| slot.sources.iter());
        chosen.map(|chosen| self.request.sources[chosen.index]).collect()
    }
}

impl Core {
    pub(crate) fn on_reduce(
        &mut self,
        client: ClientId,
        call: u64,
        request: Request,
        timeout_ms: Option<u64>,
    ) {
        if let Err(message) = validate(&request) {
            return self.reply_error(client, call, ErrorKind::BadArgument, message);
        }
        let number = self.next_number();
        self.open_call(client, call, timeout_ms, Pending::Reduce { number });
        let watched: Vec<_> = request.sources.iter().copied().chain([request.target]).collect();
        let reduction = Reduction {
            client,
            call: Some(call),
            request,
            barrier: BTreeSet::new(),
            facts: None,
            degree: Degree::Chain,
            slots: Vec::new(),
            next_slot: 0,
            seated: BTreeSet::new(),
            bad: BTreeSet::new(),
            deleted: BTreeSet::new(),
            small: None,
            prefetched: false,
            commitment: None,
        };
        self.reductions.insert(number, reduction);
        // Connections keep order: behind the last subscription with each owner, a question whose
        // answer says that everything known was told.
        let mut last: BTreeMap<NodeId, ObjectId> = BTreeMap::new();
        for &object in &watched {
            self.watch(object, Watcher::Reduction(number));
            last.insert(self.shards.owner(object), object);
        }
        for object in last.into_values() {
            let token = self.next_number();
            self.barriers.insert(token, number);
            self.reductions.get_mut(&number).expect("just made").barrier.insert(token);
            self.ask_owner(object, DirectoryRequest::Locate { token }, None);
        }
        self.timers.set(self.now + BARRIER_TIME, Timer::Barrier(number));
    }

    pub(crate) fn on_barrier_reached(&mut self, token: u64) -> bool {
        let Some(number) = self.barriers.remove(&token) else { return false };
        if let Some(reduction) = self.reductions.get_mut(&number) {
            reduction.barrier.remove(&token);
            if reduction.barrier.is_empty() {
                self.timers.clear(Timer::Barrier(number));
                self.advance_reduction(number);
            }
        }
        true
    }

    pub(crate) fn on_barrier_timer(&mut self, number: u64) {
        if let Some(reduction) = self.reductions.get_mut(&number) {
            for token in std::mem::take(&mut reduction.barrier) {
                self.barriers.remove(&token);
            }
            self.advance_reduction(number);
        }
    }

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
        self.advance_reduction(number);
    }

    /// Someone else has put the target: nothing that is reduced may go by its id. Returns whether
    /// that is so.
    fn fail_if_target_exists(&mut self, number: u64) -> bool {
        let Some(reduction) = self.reductions.get(&number) else { return false };
        let (target, small) = (reduction.request.target, reduction.small.is_some());
        let ours = |edition: Edition| self.is_slot_writing(number, edition);
        // Part of it may be left of one that is lost; if it is not, its source is reported as well.
        let whole = |report: &CopyReport| report.complete || report.upstream.is_none();
        let foreign = |(_, report): (NodeId, &CopyReport)| !small && whole(report) && !ours(report.edition);
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
        if self.reductions[&number].facts.as_ref().expect("learnt").size <= limits::INLINE_BYTES_MAX {
            return self.start_small(number);
        }
        self.drop_vanished_sources(number);
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
        self.update_plan(number);
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
            FoldOrder::Arrival => best_degree(slots, report.size, latency_s, bytes_per_s),
        };
        let reduction = self.reductions.get_mut(&number).expect("seen above");
        reduction.degree = degree;
        reduction.facts = Some(Facts { size: report.size, header: report.header, dtype });
        true
    }

    /// Allreduce: every node that gives a source will want the target; let it ask now, so that it
    /// streams behind the root.
    fn prefetch_to_sources(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        if !reduction.request.to_sources || reduction.prefetched || reduction.chosen_count() < reduction.k() {
            return;
        }
        reduction.prefetched = true;
        let id = reduction.request.target;
        let nodes: BTreeSet<_> = reduction.slots.iter().filter_map(|(_, slot)| slot.node).collect();
        for node in nodes {
            self.send(node, PeerMessage::Prefetch { id }, None);
        }
    }

    pub(crate) fn on_seat_failed(
        &mut self,
        from: NodeId,
        number: u64,
        slot: u32,
        attempt: u32,
        trouble: SeatTrouble,
    ) {
        let id = ReductionId { coordinator: self.me, number };
        match self.reductions.get(&number).map(|reduction| reduction.commitment.is_some()) {
            None => return self.send(from, PeerMessage::Disband { reduction: id }, None),
            Some(true) => return self.repeat_commit(number, from),
            Some(false) => {}
        }
        let Some(seated) = self.current_slot(number, slot, attempt).filter(|slot| slot.node == Some(from))
        else {
            return;
        };
        seated.restart = true;
        let again = seated.attempt > 0;
        match trouble {
            SeatTrouble::NoRoom | SeatTrouble::Taken => return self.fail_for_seat(number, from, trouble),
            SeatTrouble::Source(source) => {
                self.avoid_source(number, slot, source);
                return self.advance_reduction(number);
            }
            // It may not know of its slot (any more).
            SeatTrouble::Child(child) => self.repeat_seat(number, child),
            SeatTrouble::LetGo => {}
        }
        if again {
            self.timers.set(self.now + RESEAT_AFTER, Timer::Reseat(number));
        } else {
            self.advance_reduction(number);
        }
    }

    fn fail_for_seat(&mut self, number: u64, node: NodeId, trouble: SeatTrouble) {
        let reduction = &self.reductions[&number];
        let target = reduction.request.target;
        let size = reduction.facts.as_ref().map_or(0, |facts| facts.size);
        let (kind, message) = match trouble {
            SeatTrouble::Taken => {
                let message = format!("{}: the target {target} exists already on {node}", self.me);
                (ErrorKind::AlreadyExists, message)
            }
            _ => {
                let message =
                    format!("{}: {node} has no room for a partial sum of {target} ({size} bytes)", self.me);
                (ErrorKind::StoreFull, message)
            }
        };
        self.fail_reduction(number, kind, &message);
    }

    /// The slot's node does not have this source after all: not to be taken from there again.
    fn avoid_source(&mut self, number: u64, slot: u32, source: ObjectId) {
        let reduction = self.reductions.get_mut(&number).expect("it has a slot");
        let index = reduction.request.sources.iter().position(|&listed| listed == source);
        let Some((_, slot)) = reduction.slots.iter().find(|(id, _)| *id == slot) else { return };
        let chosen = slot.sources.iter().find(|chosen| Some(chosen.index) == index);
        if let (Some(&Chosen { index, edition }), Some(node)) = (chosen, slot.node) {
            reduction.bad.insert((index, node, edition));
        }
    }

    fn repeat_seat(&mut self, number: u64, slot: u32) {
        let slots = &self.reductions[&number].slots;
        let told = slots.iter().find(|(id, _)| *id == slot).and_then(|(_, slot)| slot.told.clone());
        if let Some((node, seat)) = told {
            let reduction = ReductionId { coordinator: self.me, number };
            self.send(node, PeerMessage::Seat { reduction, seat }, None);
        }
    }

    fn current_slot(&mut self, number: u64, slot: u32, attempt: u32) -> Option<&mut Slot> {
        let slots = &mut self.reductions.get_mut(&number)?.slots;
        let (_, slot) = slots.iter_mut().find(|(id, _)| *id == slot)?;
        (slot.attempt == attempt && slot.told.is_some()).then_some(slot)
    }

    pub(crate) fn on_reduction_timed_out(&mut self, number: u64, waited: &str) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        if let (Some(commitment), Some(call)) = (&reduction.commitment, reduction.call) {
            let (client, target) = (reduction.client, reduction.request.target);
            let message = format!(
                "{}: reduce to {target} timed out after {waited}: it is done, but {} has not said that it is sealed",
                self.me, commitment.root
            );
            // The target is kept: the commit cannot be taken back.
            self.detach_reduction(number);
            return self.fail_call(client, call, ErrorKind::TimedOut, &message);
        }
        let have = match &reduction.small {
            Some(small) => small.count(),
            None => reduction.chosen_count(),
        };
        let missing = (0..reduction.request.sources.len()).find(|&index| !reduction.is_chosen(index));
        let missing = match missing.filter(|_| have < reduction.k() && reduction.small.is_none()) {
            Some(index) => format!("; the first one missing is {}", reduction.request.sources[index]),
            None => String::new(),
        };
        let message = format!(
            "{}: reduce to {} timed out after {waited}: {have} of the {} sources needed had come{missing}",
            self.me,
            reduction.request.target,
            reduction.k()
        );
        self.fail_reduction(number, ErrorKind::TimedOut, &message);
    }

    pub(crate) fn fail_reduction(&mut self, number: u64, kind: ErrorKind, message: &str) {
        self.finish_reduction(number, Err(Error::new(kind, message)));
    }

    /// Over, one way or the other: everyone seated (but a committed root) lets go.
    pub(super) fn finish_reduction(&mut self, number: u64, outcome: Result<Vec<ObjectId>, Error>) {
        let Some(mut reduction) = self.reductions.remove(&number) else { return };
        for timer in [Timer::Barrier(number), Timer::Reseat(number), Timer::Bereaved(number)] {
            self.timers.clear(timer);
        }
        for token in &reduction.barrier {
            self.barriers.remove(token);
        }
        for object in reduction.request.sources.iter().copied().chain([reduction.request.target]) {
            self.unwatch(object, Watcher::Reduction(number));
        }
        if let Some(small) = reduction.small.take() {
            self.drop_small(number, small, &reduction.request.sources);
        }
        let id = ReductionId { coordinator: self.me, number };
        for node in reduction.seated {
            self.send(node, PeerMessage::Disband { reduction: id }, None);
        }
        if let Some(call) = reduction.call {
            let reply = match outcome {
                Ok(sources) => Reply::Reduced { sources },
                Err(error) => Reply::Failed(error),
            };
            self.finish_call(reduction.client, call, reply);
        }
    }

    pub(crate) fn detach_reduction(&mut self, number: u64) {
        if let Some(reduction) = self.reductions.get_mut(&number) {
            reduction.call = None;
        }
    }

    pub(crate) fn abandon_reductions_of(&mut self, client: ClientId) {
        let numbers: Vec<_> = self
            .reductions
            .iter()
            .filter(|(_, reduction)| reduction.client == client)
            .map(|(&number, _)| number)
            .collect();
        for number in numbers {
            self.detach_reduction(number);
            if self.reductions[&number].commitment.is_none() {
                self.fail_reduction(number, ErrorKind::Aborted, "the caller is gone");
            }
        }
    }
}

fn validate(request: &Request) -> Result<(), String> {
    let Request { target, sources, k, .. } = request;
    let n = sources.len();
    if n > limits::SOURCES_MAX {
        return Err(format!("{n} sources, at most {}", limits::SOURCES_MAX));
    }
    if *k == 0 || *k as usize > n {
        return Err(format!("cannot reduce the first {k} of {n} sources"));
    }
    let distinct: BTreeSet<_> = sources.iter().collect();
    if distinct.len() < n {
        return Err(format!("a source is listed more than once ({} distinct of {n})", distinct.len()));
    }
    if distinct.contains(target) {
        return Err(format!("the target {target} is one of the sources"));
    }
    Ok(())
}

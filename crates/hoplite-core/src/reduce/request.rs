//! The start of a reduction: validates the call, and learns which of its objects exist already.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use hoplite_types::peer::DirectoryRequest;
use hoplite_types::{FoldOrder, NodeId, ObjectId, Op};

use super::coordinator::{Reduction, TargetRight};
use super::reduce_scatter::STRIPINGS_MAX;
use crate::calls::Pending;
use crate::cost::{small_sum_bytes_max, Degree};
use crate::io::ClientId;
use crate::keys::Watcher;
use crate::subscriptions::SourcesWatch;
use crate::timers::Timer;
use crate::Core;

/// The caller's request.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub target: ObjectId,
    pub sources: Vec<ObjectId>,
    pub k: u32,
    pub op: Op,
    pub order: FoldOrder,
    pub to_sources: bool,
}

/// How long the start of a reduction waits for an owner that does not answer which sources exist.
const BARRIER_TIME: Duration = Duration::from_millis(50);

impl Core {
    pub(crate) fn on_reduce(
        &mut self,
        client: ClientId,
        call: u64,
        request: Request,
        timeout_ms: Option<u64>,
    ) {
        if !self.desk().may_watch(client, call, request.sources.len()) {
            return;
        }
        let number = self.ctx.next_number();
        self.desk().open_call(client, call, timeout_ms, Pending::Reduce { number });
        let (_, bytes_per_s) = self.ctx.links.typical();
        let small_bytes_max = small_sum_bytes_max(request.sources.len(), bytes_per_s);
        let count = request.sources.len();
        let places = request.sources.iter().enumerate().map(|(place, &source)| (source, place)).collect();
        let reduction = Reduction {
            client,
            call: Some(call),
            request,
            barrier: None,
            facts: None,
            degree: Degree::Chain,
            slots: Vec::new(),
            next_slot: 0,
            participants: BTreeSet::new(),
            bad: BTreeSet::new(),
            deleted: BTreeSet::new(),
            small_bytes_max,
            brought: BTreeMap::new(),
            small: None,
            prefetched: BTreeSet::new(),
            right: TargetRight::default(),
            next_look: Duration::ZERO,
            began: None,
            places,
            stripes: None,
            stripings_left: STRIPINGS_MAX,
            done_before_verdict: None,
            commitment: None,
        };
        let target = reduction.target();
        self.subscriptions.begin_reduction(number, SourcesWatch { small_bytes_max, count });
        self.targets.insert((target.shard(), target, number));
        self.reductions.insert(number, reduction);
        self.claim_target(number);
        let places = self.subscriptions.begin_watching(&mut self.ctx, Watcher::Reduction(number), count);
        self.watch_sources(number, places);
    }

    /// Watches the sources at these places in the list.
    pub(crate) fn watch_sources(&mut self, number: u64, places: Range<usize>) {
        for place in places.clone() {
            let Some(reduction) = self.reductions.get(&number) else { return };
            self.subscriptions.watch(
                &mut self.ctx,
                reduction.request.sources[place],
                Watcher::Reduction(number),
            );
        }
        if self.reductions.get(&number).is_some_and(|reduction| reduction.sources_count() == places.end) {
            self.ask_what_exists(number);
        }
    }

    /// Asks each owner a question after the last subscription with it. Connections keep order, so its answer marks that
    /// the owner has reported all that it knew.
    fn ask_what_exists(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get(&number) else { return };
        let sources = reduction.request.sources.iter();
        let last: BTreeMap<NodeId, ObjectId> =
            sources.map(|&object| (self.ctx.shards.owner(object), object)).collect();
        let questions: Vec<_> = last.into_values().map(|object| (self.ctx.next_number(), object)).collect();
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        reduction.barrier = Some(questions.iter().map(|&(token, _)| token).collect());
        for (token, object) in questions {
            self.barriers.insert(token, number);
            self.ctx.ask_owner(object, DirectoryRequest::Locate { token }, None);
        }
        self.ctx.timers.set(self.ctx.now + BARRIER_TIME, Timer::Barrier(number));
    }

    pub(crate) fn on_barrier_reached(&mut self, token: u64) -> bool {
        let Some(number) = self.barriers.remove(&token) else { return false };
        if let Some(reduction) = self.reductions.get_mut(&number) {
            if reduction.note_answer(token) {
                self.ctx.timers.clear(Timer::Barrier(number));
                self.advance_reduction(number);
            }
        }
        true
    }

    pub(crate) fn on_barrier_timer(&mut self, number: u64) {
        if let Some(reduction) = self.reductions.get_mut(&number) {
            for token in reduction.barrier.iter_mut().flat_map(std::mem::take) {
                self.barriers.remove(&token);
            }
            self.advance_reduction(number);
        }
    }
}

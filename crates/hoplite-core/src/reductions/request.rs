//! The start of a reduction: it claims its target, watches its sources, and learns which of them exist already.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use hoplite_types::peer::DirectoryRequest;
use hoplite_types::{FoldOrder, NodeId, ObjectId, Op, ReductionId};

use super::reduction::{Barrier, Reduction};
use super::{Lent, Reductions, ADVANCE, WAIT};
use crate::cost::small_sum_bytes_max;
use crate::ctx::Ctx;
use crate::io::ClientId;
use crate::keys::Watcher;
use crate::subscriptions::SourcesWatch;
use crate::timers::Timer;

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

impl Reductions {
    /// Begins a reduction for this call, and returns its number. Its sources are to be watched.
    pub fn begin(&mut self, lent: &mut Lent<'_>, caller: (ClientId, u64), request: Request) -> u64 {
        let number = lent.ctx.next_number();
        let (_, bytes_per_s) = lent.ctx.links.typical();
        let (target, count) = (request.target, request.sources.len());
        let small_bytes_max = small_sum_bytes_max(count, bytes_per_s);
        let id = ReductionId { coordinator: lent.ctx.me, number };
        let mut reduction = Reduction::new(id, caller, request, lent.ctx.shards.owner(target));
        (reduction.small_bytes_max, reduction.policy) = (small_bytes_max, self.policy);
        lent.subscriptions.begin_reduction(number, SourcesWatch { small_bytes_max, count });
        self.targets.insert((target.shard(), target, number));
        reduction.claim_target(lent.ctx);
        self.table.insert(number, reduction);
        number
    }

    /// Watches the sources at these places in the list.
    pub fn watch_sources(&mut self, lent: &mut Lent<'_>, number: u64, places: Range<usize>) {
        // Otherwise it has ended before all were watched.
        let Some(reduction) = self.table.get_mut(&number) else { return };
        for &source in &reduction.request.sources[places.clone()] {
            lent.subscriptions.watch(lent.ctx, source, Watcher::Reduction(number));
        }
        if places.end == reduction.request.sources.len() {
            let tokens = reduction.ask_what_exists(lent.ctx);
            self.barriers.extend(tokens.into_iter().map(|token| (token, number)));
        }
    }

    /// An owner has reported all sources that it knew at the start. Returns false if no reduction asked for that.
    pub fn on_barrier_reached(&mut self, lent: &mut Lent<'_>, token: u64) -> bool {
        let Some(number) = self.barriers.remove(&token) else { return false };
        self.step(lent, number, |reduction, lent| match reduction.note_answer(token) {
            true => {
                lent.ctx.timers.clear(Timer::Barrier(number));
                ADVANCE
            }
            false => WAIT,
        });
        true
    }

    /// Some owners have not answered in time: the reduction begins without them.
    pub fn on_barrier_timer(&mut self, lent: &mut Lent<'_>, number: u64) {
        let reduction = self.table.get_mut(&number).expect("the timer ends with the reduction");
        if let Barrier::Asked(open) = std::mem::replace(&mut reduction.barrier, Barrier::Passed) {
            for token in open {
                self.barriers.remove(&token);
            }
        }
        self.step(lent, number, |_, _| ADVANCE);
    }
}

impl Reduction {
    /// Asks each owner a question after the last subscription with it. Connections keep order, so its answer marks that
    /// the owner has reported all that it knew. Returns the questions' tokens.
    fn ask_what_exists(&mut self, ctx: &mut Ctx) -> Vec<u64> {
        let sources = self.request.sources.iter();
        let last: BTreeMap<NodeId, ObjectId> =
            sources.map(|&object| (ctx.shards.owner(object), object)).collect();
        let questions: Vec<_> = last.into_values().map(|object| (ctx.next_number(), object)).collect();
        for &(token, object) in &questions {
            ctx.ask_owner(object, DirectoryRequest::Locate { token }, None);
        }
        let tokens: Vec<_> = questions.into_iter().map(|(token, _)| token).collect();
        self.barrier = Barrier::Asked(tokens.iter().copied().collect());
        ctx.timers.set(ctx.now + BARRIER_TIME, Timer::Barrier(self.id.number));
        tokens
    }

    /// An owner has answered. Returns whether all owners have.
    fn note_answer(&mut self, token: u64) -> bool {
        let Barrier::Asked(open) = &mut self.barrier else { unreachable!("{token} was open") };
        open.remove(&token);
        let passed = open.is_empty();
        if passed {
            self.barrier = Barrier::Passed;
        }
        passed
    }
}

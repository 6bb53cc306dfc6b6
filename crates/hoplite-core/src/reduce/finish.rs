//! The end of a call of reduce: an outcome, a time-out, or a caller that is gone.

use hoplite_types::client::Reply;
use hoplite_types::peer::{DirectoryRequest, PeerMessage};
use hoplite_types::{Error, ErrorKind, ObjectId, ReductionId};

use super::coordinator::Reduction;
use crate::io::ClientId;
use crate::keys::Watcher;
use crate::notices::Notice;
use crate::timers::Timer;
use crate::Core;

impl Core {
    pub(crate) fn on_reduction_timed_out(&mut self, number: u64, waited: &str) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        if let (Some(commitment), Some(call)) = (&reduction.commitment, reduction.call) {
            let (client, target) = (reduction.client, reduction.request.target);
            let message = format!(
                "{}: reduce to {target} timed out after {waited}: it is done, but {} has not said that it is sealed",
                self.ctx.me, commitment.root
            );
            // The target is kept: the commit cannot be undone.
            self.detach_reduction(number);
            return self.desk().fail_call(client, call, ErrorKind::TimedOut, &message);
        }
        let have = match &reduction.small {
            Some(small) => small.count(),
            None => reduction.chosen_count(),
        };
        let chosen = reduction.chosen();
        let missing = (0..reduction.request.sources.len()).find(|index| !chosen.contains(index));
        let missing = match missing.filter(|_| have < reduction.k() && reduction.small.is_none()) {
            Some(index) => format!("; the first one missing is {}", reduction.request.sources[index]),
            None => String::new(),
        };
        let message = format!(
            "{}: reduce to {} timed out after {waited}: {have} of the {} sources needed had come{missing}",
            self.ctx.me,
            reduction.request.target,
            reduction.k()
        );
        self.fail_reduction(number, ErrorKind::TimedOut, &message);
    }

    pub(crate) fn fail_reduction(&mut self, number: u64, kind: ErrorKind, message: &str) {
        self.finish_reduction(number, Err(Error::new(kind, message)));
    }

    /// The reduction is over, with success or failure: every node with a slot (except a committed root) releases it.
    pub(super) fn finish_reduction(&mut self, number: u64, outcome: Result<Vec<ObjectId>, Error>) {
        let Some(mut reduction) = self.reductions.remove(&number) else { return };
        for timer in [Timer::Barrier(number), Timer::AdvanceReduction(number), Timer::RootLost(number)] {
            self.ctx.timers.clear(timer);
        }
        for token in reduction.barrier.iter().flatten() {
            self.barriers.remove(token);
        }
        let target = reduction.request.target;
        self.targets.remove(&(target.shard(), target, number));
        self.subscriptions.end_reduction(number);
        self.subscriptions.unwatch(&mut self.ctx, target, Watcher::Reduction(number));
        self.subscriptions.end_watching(
            &mut self.ctx,
            Watcher::Reduction(number),
            reduction.request.sources.clone(),
        );
        let claim = ReductionId { coordinator: self.ctx.me, number }.claim();
        // The root's own message may be lost with it.
        self.ctx.ask_owner(target, DirectoryRequest::ReleaseClaim { claim, made: outcome.is_ok() }, None);
        self.drop_small(number, &mut reduction);
        let id = ReductionId { coordinator: self.ctx.me, number };
        for node in reduction.participants {
            self.ctx.send(node, PeerMessage::ReleaseSlots { reduction: id }, None);
        }
        if let Some(call) = reduction.call {
            let reply = match outcome {
                Ok(sources) => Reply::Reduced { sources },
                Err(error) => Reply::Failed(error),
            };
            self.desk().finish_call(reduction.client, call, reply);
        }
        self.ctx.notices.push_back(Notice::WorkEnded);
    }

    pub(crate) fn detach_reduction(&mut self, number: u64) {
        if let Some(reduction) = self.reductions.get_mut(&number) {
            reduction.call = None;
        }
    }

    /// Ends the first few uncommitted reductions of a client that is gone. Each source is a step: takes about `most`
    /// steps, and returns how many it took.
    pub(crate) fn abandon_reductions_of(&mut self, client: ClientId, most: usize) -> usize {
        let is_its = |reduction: &Reduction| reduction.client == client && reduction.commitment.is_none();
        let (mut steps, mut numbers) = (0, Vec::new());
        for (&number, reduction) in self.reductions.iter().filter(|(_, reduction)| is_its(reduction)) {
            if steps >= most {
                break;
            }
            steps += 1 + reduction.request.sources.len();
            numbers.push(number);
        }
        for number in numbers {
            self.detach_reduction(number);
            self.fail_reduction(number, ErrorKind::Aborted, "the caller is gone");
        }
        steps
    }
}

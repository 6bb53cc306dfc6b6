//! The end of a call of reduce: an outcome, a time-out, or a caller that is gone.

use hoplite_types::client::Reply;
use hoplite_types::peer::{DirectoryRequest, PeerMessage};
use hoplite_types::{Error, ErrorKind};

use super::reduction::{Barrier, Reduction, Stage};
use super::{fail, Lent, Outcome, Reductions, Step, WAIT};
use crate::io::ClientId;
use crate::keys::Watcher;
use crate::notices::Notice;
use crate::timers::Timer;

impl Reductions {
    pub fn on_timed_out(&mut self, lent: &mut Lent<'_>, number: u64, waited: &str) {
        self.step(lent, number, |reduction, lent| reduction.on_timed_out(lent, waited));
    }

    /// The reduction is over, with success or failure: every node with a slot (except a committed root) releases it.
    pub(super) fn finish(&mut self, lent: &mut Lent<'_>, number: u64, outcome: Outcome) {
        let mut reduction = self.table.remove(&number).expect("it has just ended");
        let target = reduction.target();
        for timer in [Timer::Barrier(number), Timer::AdvanceReduction(number), Timer::RootLost(number)] {
            lent.ctx.timers.clear(timer);
        }
        if let Barrier::Asked(open) = &reduction.barrier {
            for token in open {
                self.barriers.remove(token);
            }
        }
        self.targets.remove(&(target.shard(), target, number));
        let watcher = Watcher::Reduction(number);
        lent.subscriptions.end_reduction(number);
        lent.subscriptions.unwatch(lent.ctx, target, watcher);
        lent.subscriptions.end_watching(lent.ctx, watcher, reduction.request.sources.clone());
        let (claim, made) = (reduction.id.claim(), outcome.is_ok());
        // The root's own message may be lost with it.
        lent.ctx.ask_owner(target, DirectoryRequest::ReleaseClaim { claim, made }, None);
        reduction.drop_small(lent);
        for &node in &reduction.participants {
            lent.ctx.send(node, PeerMessage::ReleaseSlots { reduction: reduction.id }, None);
        }
        if let Some(call) = reduction.call {
            let reply = match outcome {
                Ok(sources) => Reply::Reduced { sources },
                Err(error) => Reply::Failed(error),
            };
            lent.ctx.notices.push_back(Notice::Answer { client: reduction.client, call, reply });
        }
        lent.ctx.work_ended = true;
    }

    /// Nobody waits for the reply any more.
    pub fn detach(&mut self, number: u64) {
        // Its reply may be under way.
        if let Some(reduction) = self.table.get_mut(&number) {
            reduction.call = None;
        }
    }

    /// Ends the first few uncommitted reductions of a client that is gone. Each source is a step: takes about `most`
    /// steps, and returns how many it took.
    pub fn abandon(&mut self, lent: &mut Lent<'_>, client: ClientId, most: usize) -> usize {
        let is_its = |reduction: &Reduction| reduction.client == client && reduction.commitment().is_none();
        let (mut steps, mut numbers) = (0, Vec::new());
        for (&number, reduction) in self.table.iter().filter(|(_, reduction)| is_its(reduction)) {
            if steps >= most {
                break;
            }
            steps += 1 + reduction.request.sources.len();
            numbers.push(number);
        }
        for number in numbers {
            self.detach(number);
            self.step(lent, number, |_, _| fail(ErrorKind::Aborted, "the caller is gone"));
        }
        steps
    }
}

impl Reduction {
    fn on_timed_out(&mut self, lent: &mut Lent<'_>, waited: &str) -> Step {
        let (me, target) = (self.id.coordinator, self.target());
        let have = match &self.stage {
            Stage::Committed(commitment) => {
                let message = format!(
                    "{me}: reduce to {target} timed out after {waited}: it is done, but {} has not said that it is sealed",
                    commitment.root
                );
                let reply = Reply::Failed(Error::new(ErrorKind::TimedOut, message));
                // The target is kept: the commit cannot be undone.
                let call = self.call.take().expect("it has timed out");
                lent.ctx.notices.push_back(Notice::Answer { client: self.client, call, reply });
                return WAIT;
            }
            Stage::Small(small) => small.count(),
            Stage::Tree | Stage::Stripes(_) => self.chosen_count(),
        };
        let chosen = self.chosen();
        let missing = (0..self.request.sources.len()).find(|index| !chosen.contains(index));
        let names_missing = have < self.k() && !matches!(self.stage, Stage::Small(_));
        let missing = match missing.filter(|_| names_missing) {
            Some(index) => format!("; the first one missing is {}", self.request.sources[index]),
            None => String::new(),
        };
        let message = format!(
            "{me}: reduce to {target} timed out after {waited}: {have} of the {} sources needed had come{missing}",
            self.k()
        );
        fail(ErrorKind::TimedOut, &message)
    }
}

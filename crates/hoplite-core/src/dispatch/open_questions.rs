//! Repeats open questions and reports of all components, when their answers may have been lost (see `resync`).

use hoplite_types::peer::PeerMessage;
use hoplite_types::{NodeId, ObjectId};

use crate::shards::ShardSet;
use crate::timers::Timer;
use crate::Core;

impl Core {
    /// Repeats all unanswered questions about the objects in these shards; owners recognise repetitions.
    pub(crate) fn repeat_questions(&mut self, shards: &ShardSet) {
        let of = |id: ObjectId| shards.contains(id.shard());
        self.fetches.repeat_asks(shards);
        self.subscriptions.repeat(&mut self.ctx, shards);
        self.calls.repeat_questions(of);
        self.call_handler().ask_due_questions();
        self.repeat_verdict_requests(of);
    }

    pub(crate) fn on_refresh(&mut self) {
        self.ctx.rearm_refresh();
        self.repeat_questions(&ShardSet::all());
        self.reductions.repeat_commits(&mut self.ctx);
        self.slots.repeat_reports(&mut self.ctx, None);
        self.forget_old_claims();
        if !self.has_open_questions() {
            self.ctx.timers.clear(Timer::Refresh);
        }
    }

    fn has_open_questions(&self) -> bool {
        self.fetches.has_open_asks()
            || self.subscriptions.has_open()
            || self.calls.has_questions()
            || self.awaits_verdict()
            || self.reductions.has_commits()
            || self.slots.has_reports()
            || self.ctx.shards.has_claimed()
    }

    pub(crate) fn on_resync(&mut self, node: NodeId) {
        if self.resync.take_request(node) {
            let epoch = self.slots.fence_of(node);
            self.ctx.send(node, PeerMessage::ResyncRequest { epoch }, None);
        }
        if self.resync.take_pull(node) {
            self.directory.repeat_pull(&mut self.ctx, node);
            self.directory.pull_again(&mut self.ctx, node);
        }
        let theirs = self.ctx.shards.owned_by(node);
        self.repeat_questions(&theirs);
        self.reductions.repeat_accepted_claims(&mut self.ctx, |id| theirs.contains(id.shard()));
        self.directory.repeat_answers(&mut self.ctx, node);
        self.reductions.repeat_assignments(&mut self.ctx, node);
        self.slots.repeat_reports(&mut self.ctx, Some(node));
    }
}

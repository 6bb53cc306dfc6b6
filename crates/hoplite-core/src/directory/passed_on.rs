//! Requests that came here and went on to whom we took for their owner. Who sent them may know before us
//! that this owner is dead: then they are for whoever owns the id now, and are handled again.

use std::collections::VecDeque;
use std::time::Duration;

use hoplite_words::peer::DirectoryRequest;
use hoplite_words::{NodeId, ObjectId};

use crate::Core;

/// How long they are remembered: news of a death reaches everyone sooner, but for a node that did not run.
const REMEMBERED_FOR: Duration = Duration::from_secs(3);

/// And how many: the rest is said again by whoever misses an answer.
const REMEMBERED_MAX: usize = 4096;

#[derive(Debug)]
struct One {
    until: Duration,
    owner: NodeId,
    origin: NodeId,
    hops: u8,
    id: ObjectId,
    request: DirectoryRequest,
}

/// Oldest first.
#[derive(Debug, Default)]
pub(crate) struct PassedOn(VecDeque<One>);

impl Core {
    pub(super) fn remember_passed_on(
        &mut self,
        owner: NodeId,
        origin: NodeId,
        hops: u8,
        id: ObjectId,
        request: &DirectoryRequest,
    ) {
        let now = self.now;
        let all = &mut self.passed_on.0;
        while all.front().is_some_and(|one| one.until <= now) || all.len() >= REMEMBERED_MAX {
            all.pop_front();
        }
        let request = match request {
            // Not the bytes: who wants them is sent to their holder.
            DirectoryRequest::Announce { report, wants_verdict, .. } => DirectoryRequest::Announce {
                report: report.clone(),
                payload: None,
                wants_verdict: *wants_verdict,
            },
            other => other.clone(),
        };
        all.push_back(One { until: now + REMEMBERED_FOR, owner, origin, hops, id, request });
    }

    /// What was passed on to `node` lately died with it.
    pub(crate) fn handle_passed_on(&mut self, node: NodeId) {
        let now = self.now;
        let all = std::mem::take(&mut self.passed_on.0).into_iter().filter(|one| one.until > now);
        let (lost, kept): (VecDeque<_>, VecDeque<_>) = all.partition(|one| one.owner == node);
        self.passed_on.0 = kept;
        for One { origin, hops, id, request, .. } in lost {
            self.on_directory(origin, hops, id, request);
        }
    }
}

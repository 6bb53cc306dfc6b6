//! Requests about shards that are recovering wait here until all is known that decides them.

use hoplite_words::peer::{CopyReport, DirectoryRequest};
use hoplite_words::{NodeId, ObjectId};

use super::shard::{OwnedShard, HELD_MAX};
use super::Directory;
use crate::ctx::Ctx;

impl Directory {
    /// Keeps a request until its shard is active, or gives it back if it need not wait.
    pub(super) fn hold(
        &mut self,
        ctx: &mut Ctx,
        origin: NodeId,
        id: ObjectId,
        request: DirectoryRequest,
    ) -> Option<DirectoryRequest> {
        let waits = match &request {
            // A copy whose content was accepted is a fact, whoever else has still to be heard.
            DirectoryRequest::Announce { report: CopyReport { stamp: Some(_), .. }, .. } => false,
            DirectoryRequest::Withdraw { .. }
            | DirectoryRequest::Unask { .. }
            | DirectoryRequest::Unsubscribe
            | DirectoryRequest::ReleaseClaim { .. } => false,
            _ => true,
        };
        let recovering = self.owned.get_mut(id.shard()).and_then(OwnedShard::recovery_mut)?;
        let of_id = recovering.held.entry(id).or_default();
        if of_id.iter().any(|(by, known)| *by == origin && is_outdated_by(&request, known)) {
            // It came by way of others.
            return None;
        }
        let before = of_id.len();
        // The newest word of a node on one matter takes the place of the one before.
        of_id.retain(|(by, known)| *by != origin || !is_superseded_by(known, &request));
        self.pulls.held -= before - of_id.len();
        let full = self.pulls.held >= HELD_MAX;
        if waits && !full {
            of_id.push((origin, Self::without_payload(request)));
            self.pulls.held += 1;
            self.pulls.demanded.insert(id.shard());
            self.pull_more(ctx);
            return None;
        }
        if of_id.is_empty() {
            recovering.held.remove(&id);
        }
        self.pulls.held_dropped += u64::from(waits);
        (!waits).then_some(request)
    }

    /// It is dead: what it wanted nobody decides any longer. If it lives, it says so again.
    pub(super) fn release_of(&mut self, node: NodeId) {
        if self.pulls.held == 0 {
            return;
        }
        let recovering = self.owned.values_mut().filter_map(OwnedShard::recovery_mut);
        self.pulls.held -= recovering.map(|recovering| recovering.release_of(node)).sum::<usize>();
    }

    /// So many requests wait no longer.
    pub(super) fn note_released(&mut self, count: usize) {
        self.pulls.held -= count;
    }
}

/// Whether the later request of the same node makes the earlier one needless.
fn is_superseded_by(earlier: &DirectoryRequest, later: &DirectoryRequest) -> bool {
    use DirectoryRequest::{Announce, Ask, Claim, ReleaseClaim, Subscribe, Unask, Unsubscribe, Withdraw};
    match (earlier, later) {
        (Announce { report, .. }, Announce { report: newer, .. }) => report.edition == newer.edition,
        (Announce { report, .. }, Withdraw { edition, .. }) => report.edition == *edition,
        (Ask { .. }, Ask { .. }) => true,
        (Ask { ask, .. }, Unask { ask: taken_back }) => ask == taken_back,
        (Subscribe { .. }, Subscribe { .. } | Unsubscribe) => true,
        (Claim { claim, .. }, Claim { claim: other, .. } | ReleaseClaim { claim: other, .. }) => {
            claim == other
        }
        (earlier, later) => earlier == later,
    }
}

/// Whether the node has said the later one after the other, about the same copy or claim.
fn is_outdated_by(request: &DirectoryRequest, later: &DirectoryRequest) -> bool {
    use DirectoryRequest::{Announce, Claim};
    match (request, later) {
        (Announce { report, .. }, Announce { report: newer, .. }) => {
            report.edition == newer.edition && report.seq < newer.seq
        }
        (Claim { claim, seq }, Claim { claim: other, seq: newer }) => claim == other && seq < newer,
        _ => false,
    }
}

//! Requests about shards in recovery. They wait here until the recovery is complete.

use std::collections::{BTreeMap, VecDeque};

use hoplite_types::peer::{CopyReport, DirectoryRequest};
use hoplite_types::{Claim, Edition, NodeId, ObjectId, Shard};

use super::shard::{OwnedShard, HELD_MAX};
use super::Directory;
use crate::copies::Copies;
use crate::ctx::Ctx;

/// A request, its object, and the node that made it.
pub(super) type Held = (ObjectId, NodeId, DirectoryRequest);

/// Limit of held requests of a shard that one turn serves: a millisecond's work or two.
const RELEASED_PER_TURN: usize = 1024;

/// Requests of active shards for which more waited than can be served at once. Later requests queue behind them.
#[derive(Debug, Default)]
pub(super) struct Released(BTreeMap<Shard, VecDeque<Held>>);

impl Released {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn next(&self) -> Option<Shard> {
        self.0.first_key_value().map(|(&shard, _)| shard)
    }
}

impl Directory {
    /// Serves the requests held for a shard that is active now, the first of many at once. Returns their number.
    pub(super) fn release(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        shard: Shard,
        mut held: VecDeque<Held>,
    ) -> usize {
        let some: Vec<_> = held.drain(..held.len().min(RELEASED_PER_TURN)).collect();
        let count = some.len();
        self.note_released(count);
        let mut some = some.into_iter().peekable();
        while let Some((id, origin, request)) = some.next() {
            if !is_ask(&request) || !self.is_active(shard) {
                self.on_request(ctx, local, origin, id, request);
                continue;
            }
            let mut asks = vec![(origin, request)];
            while let Some((_, origin, request)) = some.next_if(|(of, _, next)| *of == id && is_ask(next)) {
                asks.push((origin, request));
            }
            self.on_held_asks(ctx, local, id, asks);
        }
        if !held.is_empty() {
            self.released.0.insert(shard, held);
        }
        count
    }

    /// Serves the next of them.
    pub(super) fn release_more(&mut self, ctx: &mut Ctx, local: &Copies, shard: Shard) -> usize {
        let held = self.released.0.remove(&shard).unwrap_or_default();
        self.release(ctx, local, shard, held)
    }

    /// Queues a request behind those of its shard that still wait, to keep the order. Returns it if none wait.
    pub(super) fn queue_behind_released(
        &mut self,
        origin: NodeId,
        id: ObjectId,
        request: DirectoryRequest,
    ) -> Option<DirectoryRequest> {
        let Some(queue) = self.released.0.get_mut(&id.shard()) else { return Some(request) };
        if waits(&request) && self.pulls.held >= HELD_MAX {
            self.pulls.held_dropped += 1;
        } else {
            queue.push_back((id, origin, Self::without_payload(request)));
            self.pulls.held += 1;
        }
        None
    }

    /// Another node owns the shard.
    pub(super) fn forget_released(&mut self, shard: Shard) {
        let held = self.released.0.remove(&shard).unwrap_or_default();
        self.note_released(held.len());
    }

    /// Holds a request until its shard is active. Returns it if it need not wait.
    pub(super) fn hold(
        &mut self,
        ctx: &mut Ctx,
        origin: NodeId,
        id: ObjectId,
        request: DirectoryRequest,
    ) -> Option<DirectoryRequest> {
        let waits = waits(&request);
        let held = &mut self.owned.get_mut(id.shard()).and_then(OwnedShard::recovery_mut)?.held;
        if held.outdates(origin, id, &request) {
            // The request was forwarded, and a newer one was faster.
            return None;
        }
        self.pulls.held -= usize::from(held.supersede(origin, id, &request));
        let full = self.pulls.held >= HELD_MAX;
        if waits && !full {
            held.push(origin, id, Self::without_payload(request));
            self.pulls.held += 1;
            self.pulls.demanded.insert(id.shard());
            self.pull_more(ctx);
            return None;
        }
        self.pulls.held_dropped += u64::from(waits);
        (!waits).then_some(request)
    }

    /// The node is dead: its requests need no decision. If it lives, it repeats them.
    pub(super) fn release_of(&mut self, node: NodeId) {
        if self.pulls.held == 0 {
            return;
        }
        let recovering = self.owned.values_mut().filter_map(OwnedShard::recovery_mut);
        self.pulls.held -= recovering.map(|recovering| recovering.held.release_of(node)).sum::<usize>();
        for queue in self.released.0.values_mut() {
            let before = queue.len();
            queue.retain(|(_, origin, _)| *origin != node);
            self.pulls.held -= before - queue.len();
        }
    }

    /// So many requests wait no longer.
    pub(super) fn note_released(&mut self, count: usize) {
        self.pulls.held -= count;
    }
}

fn is_ask(request: &DirectoryRequest) -> bool {
    matches!(request, DirectoryRequest::Ask { .. })
}

/// Whether it has to wait until its shard is active.
fn waits(request: &DirectoryRequest) -> bool {
    match request {
        // A copy whose content was accepted is a fact, whichever inventories are still to come.
        DirectoryRequest::Announce { report: CopyReport { stamp: Some(_), .. }, .. } => false,
        DirectoryRequest::Withdraw { .. }
        | DirectoryRequest::CancelAsk { .. }
        | DirectoryRequest::Unsubscribe
        | DirectoryRequest::ReleaseClaim { .. } => false,
        _ => true,
    }
}

/// The subject of a node's request about an object. Of its requests on one subject the newest counts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Matter {
    Copy(Edition),
    Ask,
    Subscription,
    Claim(Claim),
    Delete(u64),
    Locate(u64),
    Loss(Claim),
    Bring(Vec<NodeId>),
    Pin,
}

impl Matter {
    fn of(request: &DirectoryRequest) -> Self {
        match request {
            DirectoryRequest::Announce { report, .. } => Matter::Copy(report.edition),
            DirectoryRequest::Withdraw { edition, .. } => Matter::Copy(*edition),
            DirectoryRequest::Ask { .. } | DirectoryRequest::CancelAsk { .. } => Matter::Ask,
            DirectoryRequest::Subscribe { .. } | DirectoryRequest::Unsubscribe => Matter::Subscription,
            DirectoryRequest::Claim { claim, .. } | DirectoryRequest::ReleaseClaim { claim, .. } => {
                Matter::Claim(*claim)
            }
            DirectoryRequest::Delete { token } => Matter::Delete(*token),
            DirectoryRequest::Locate { token } => Matter::Locate(*token),
            DirectoryRequest::MarkLost { claim } => Matter::Loss(*claim),
            DirectoryRequest::Bring { nodes } => Matter::Bring(nodes.clone()),
            DirectoryRequest::PinRefused => Matter::Pin,
        }
    }
}

/// The requests held for one shard.
#[derive(Debug, Default)]
pub(super) struct HeldRequests {
    /// Each with its number in order of arrival.
    table: BTreeMap<(ObjectId, NodeId, Matter), (u64, DirectoryRequest)>,
    /// The number of requests so far.
    came: u64,
}

impl HeldRequests {
    pub fn len(&self) -> usize {
        self.table.len()
    }

    fn push(&mut self, origin: NodeId, id: ObjectId, request: DirectoryRequest) {
        self.came += 1;
        self.table.insert((id, origin, Matter::of(&request)), (self.came, request));
    }

    /// Whether a later request of the node on the same subject is held.
    fn outdates(&self, origin: NodeId, id: ObjectId, request: &DirectoryRequest) -> bool {
        use DirectoryRequest::{Announce, Claim};
        let known = self.table.get(&(id, origin, Matter::of(request))).map(|(_, known)| known);
        match (request, known) {
            (Announce { report, .. }, Some(Announce { report: newer, .. })) => report.seq < newer.seq,
            (Claim { seq, .. }, Some(Claim { seq: newer, .. })) => seq < newer,
            _ => false,
        }
    }

    /// Drops requests that this later one of the same node makes unnecessary; returns whether there were any.
    fn supersede(&mut self, origin: NodeId, id: ObjectId, later: &DirectoryRequest) -> bool {
        let key = (id, origin, Matter::of(later));
        let is_another = |(_, known): &(u64, DirectoryRequest)| match (known, later) {
            (DirectoryRequest::Ask { ask, .. }, DirectoryRequest::CancelAsk { ask: taken_back }) => {
                ask != taken_back
            }
            _ => false,
        };
        !self.table.get(&key).is_some_and(is_another) && self.table.remove(&key).is_some()
    }

    /// Drops a node's requests, and returns their number.
    fn release_of(&mut self, node: NodeId) -> usize {
        let before = self.len();
        self.table.retain(|(_, by, _), _| *by != node);
        before - self.len()
    }

    /// All requests, object by object, in order of arrival.
    pub fn into_requests(self) -> Vec<(ObjectId, NodeId, DirectoryRequest)> {
        let mut held: Vec<_> = self.table.into_iter().collect();
        held.sort_by_key(|((id, ..), (number, _))| (*id, *number));
        held.into_iter().map(|((id, origin, _), (_, request))| (id, origin, request)).collect()
    }
}

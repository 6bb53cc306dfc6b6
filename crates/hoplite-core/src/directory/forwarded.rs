//! Requests that were forwarded to another owner. If that owner turns out to be dead, they are handled again, for the
//! owner of that moment: their sender may have learned of the death earlier.

use std::collections::VecDeque;
use std::time::Duration;

use hoplite_types::client::Gauge;
use hoplite_types::peer::{DirectoryRequest, PeerMessage};
use hoplite_types::{limits, NodeId, ObjectId};

use super::Directory;
use crate::ctx::Ctx;

/// How long they are remembered. A death is known everywhere sooner, except at a node that did not run.
const REMEMBERED_FOR: Duration = Duration::from_secs(3);

/// Limit of how many are remembered. Others are repeated by their senders, which miss an answer.
const REMEMBERED_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct Request {
    until: Duration,
    owner: NodeId,
    pub origin: NodeId,
    pub hops: u8,
    pub id: ObjectId,
    pub request: DirectoryRequest,
}

/// The requests, oldest first.
#[derive(Debug, Default)]
pub(super) struct Forwarded {
    requests: VecDeque<Request>,
    dropped: u64,
}

impl Forwarded {
    pub fn gauge(&self, gauges: &mut Vec<Gauge>) {
        gauges.push(Gauge {
            name: "forwarded requests".to_owned(),
            value: self.requests.len() as u64,
            limit: REMEMBERED_MAX as u64,
            met: self.dropped,
        });
    }

    fn forget_old(&mut self, now: Duration) {
        while self.requests.front().is_some_and(|request| request.until <= now) {
            self.requests.pop_front();
        }
    }
}

impl Directory {
    /// Another node owns the id: forwards the request to it.
    pub fn forward(
        &mut self,
        ctx: &mut Ctx,
        owner: NodeId,
        origin: NodeId,
        hops: u8,
        id: ObjectId,
        request: DirectoryRequest,
    ) {
        if hops >= limits::FORWARD_HOPS_MAX {
            // Nodes do not agree on the owner. Once they do, the request is repeated.
            self.undeliverable += 1;
            return;
        }
        self.forwarded.forget_old(ctx.now);
        if self.forwarded.requests.len() >= REMEMBERED_MAX {
            self.forwarded.requests.pop_front();
            self.forwarded.dropped += 1;
        }
        self.forwarded.requests.push_back(Request {
            until: ctx.now + REMEMBERED_FOR,
            owner,
            origin,
            hops,
            id,
            // Without the bytes: receivers are lent their holder.
            request: Self::without_payload(request.clone()),
        });
        ctx.send(owner, PeerMessage::Directory { origin, hops: hops + 1, id, request }, None);
    }

    /// The requests that were forwarded to `node` recently: they died with it.
    pub fn take_forwarded_to(&mut self, ctx: &Ctx, node: NodeId) -> Vec<Request> {
        self.forwarded.forget_old(ctx.now);
        let all = std::mem::take(&mut self.forwarded.requests);
        let (lost, kept): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|request| request.owner == node);
        self.forwarded.requests = kept;
        lost.into()
    }
}

//! State that every part of the core shares: this node's identity, the time, timers, the owners of shards, and the
//! output queue.

use std::collections::VecDeque;
use std::time::Duration;

use hoplite_types::peer::{DirectoryRequest, PeerMessage};
use hoplite_types::{CopyId, NodeId, ObjectId};

use crate::clock::Clock;
use crate::cost::Links;
use crate::io::Output;
use crate::shards::Shards;
use crate::timers::Timers;

pub(crate) struct Ctx {
    pub me: NodeId,
    pub now: Duration,
    pub clock: Clock,
    pub timers: Timers,
    pub shards: Shards,
    /// We know all members, and they know us. Until then no question is sent to another owner.
    pub has_joined: bool,
    pub links: Links,
    pub out: VecDeque<Output>,
    /// Messages to ourselves: handled before `handle` returns.
    pub loopback: VecDeque<PeerMessage>,
    /// One counter numbers everything: copies, transfers, reports, questions.
    pub last_number: u64,
}

impl Ctx {
    /// The state of a node that knows no other. Its incarnation is the time of its start.
    pub fn new(me: NodeId) -> Self {
        Ctx {
            me,
            now: Duration::ZERO,
            clock: Clock::new(me.incarnation),
            timers: Timers::default(),
            shards: Shards::new(me),
            has_joined: true,
            links: Links::default(),
            out: VecDeque::new(),
            loopback: VecDeque::new(),
            last_number: 0,
        }
    }

    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Sends a message. A message to ourselves is handled before `handle` returns.
    pub fn send(&mut self, to: NodeId, message: PeerMessage, attach: Option<CopyId>) {
        if to == self.me {
            self.loopback.push_back(message);
        } else {
            self.out.push_back(Output::Peer { to, message, attach });
        }
    }

    /// Whether questions may be sent to this owner yet.
    pub fn may_ask(&self, owner: NodeId) -> bool {
        self.has_joined || owner == self.me
    }

    /// Sends a request to the owner of `id` as we see it, and returns that owner. Before we have joined, questions to
    /// others are not sent: they stay open, and are asked after we have joined.
    pub fn ask_owner(&mut self, id: ObjectId, request: DirectoryRequest, attach: Option<CopyId>) -> NodeId {
        let owner = self.shards.owner(id);
        if self.may_ask(owner) || !is_question(&request) {
            let message = PeerMessage::Directory { origin: self.me, hops: 0, id, request };
            self.send(owner, message, attach);
        }
        owner
    }
}

/// Whether it waits for a decision of the owner, as opposed to a report or notification.
fn is_question(request: &DirectoryRequest) -> bool {
    match request {
        DirectoryRequest::Announce { report, .. } => report.stamp.is_none(),
        DirectoryRequest::Ask { .. }
        | DirectoryRequest::Subscribe { .. }
        | DirectoryRequest::Delete { .. }
        | DirectoryRequest::Locate { .. }
        | DirectoryRequest::Claim { .. }
        | DirectoryRequest::Bring { .. } => true,
        DirectoryRequest::Withdraw { .. }
        | DirectoryRequest::CancelAsk { .. }
        | DirectoryRequest::Unsubscribe
        | DirectoryRequest::ReleaseClaim { .. }
        | DirectoryRequest::MarkLost { .. }
        | DirectoryRequest::PinRefused => false,
    }
}

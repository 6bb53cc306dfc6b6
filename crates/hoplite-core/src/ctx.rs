//! State that is lent to every part of the core: this node's identity, the time, timers, the owners of shards, and the
//! queues of outputs, of messages to ourselves, and of notices to other parts.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use hoplite_types::peer::{DirectoryRequest, PeerMessage};
use hoplite_types::{mix64, CopyId, NodeId, ObjectId};

use crate::clock::Clock;
use crate::cost::Links;
use crate::io::Output;
use crate::notices::Notice;
use crate::shards::Shards;
use crate::timers::{Timer, Timers};

/// The first interval after which open questions are repeated; it doubles up to the longest. Answers normally come in
/// a round trip: repeating only repairs losses that no node noticed.
const REFRESH_MIN: Duration = Duration::from_secs(1);
const REFRESH_MAX: Duration = Duration::from_secs(8);

/// Steps of one turn of long work for clients: a millisecond's work or two.
pub(crate) const STEPS_PER_TURN: usize = 1024;

/// Pause between two turns of it.
const LONG_WORK_PAUSE: Duration = Duration::from_micros(100);

/// Limit of departed members that are remembered. Forgetting one costs at worst some useless attempts to reach it.
const DEPARTED_MAX: usize = 1024;

/// Members that went down; messages from them that still arrive are out of date.
#[derive(Debug, Default)]
pub(crate) struct Departed(BTreeSet<NodeId>);

impl Departed {
    pub fn has(&self, node: NodeId) -> bool {
        self.0.contains(&node)
    }

    pub fn note(&mut self, node: NodeId) {
        self.0.insert(node);
        if self.0.len() > DEPARTED_MAX {
            self.0.pop_first();
        }
    }

    /// The node is back. Returns whether it was believed to be gone.
    pub fn take(&mut self, node: NodeId) -> bool {
        self.0.remove(&node)
    }
}

pub(crate) struct Ctx {
    pub me: NodeId,
    pub now: Duration,
    pub clock: Clock,
    pub timers: Timers,
    pub shards: Shards,
    /// We know all members, and they know us. Until then no question is sent to another owner.
    pub has_joined: bool,
    pub departed: Departed,
    /// This node has just started, and had no objects before, nor claims to some.
    pub is_fresh: bool,
    /// The daemon is about to end: copies that only this node holds are handed over.
    pub is_leaving: bool,
    /// Time after which open questions are asked again.
    refresh_period: Duration,
    pub links: Links,
    pub out: VecDeque<Output>,
    /// Messages to ourselves: handled before `handle` returns.
    pub loopback: VecDeque<PeerMessage>,
    /// Handed on before the next of those messages.
    pub notices: VecDeque<Notice>,
    /// Work is over that this node had to do before it leaves.
    pub work_ended: bool,
    /// One counter numbers everything: copies, transfers, reports, questions.
    pub last_number: u64,
    /// The number of the last inventory of our copies that was sent to another node.
    pub last_inventory: u64,
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
            departed: Departed::default(),
            is_fresh: false,
            is_leaving: false,
            refresh_period: REFRESH_MIN,
            links: Links::default(),
            out: VecDeque::new(),
            loopback: VecDeque::new(),
            notices: VecDeque::new(),
            work_ended: false,
            last_number: 0,
            last_inventory: 0,
        }
    }

    /// The state of a node that is about to join others.
    pub fn joining(me: NodeId) -> Self {
        Ctx { has_joined: false, is_fresh: true, ..Ctx::new(me) }
    }

    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// 64 bits that no other writing anywhere uses.
    pub fn unique(&mut self) -> u64 {
        let number = self.next_number();
        mix64(self.me.hash64() ^ mix64(number))
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

    /// Sends a request to the owner of `id` as we see it. Before we have joined, questions to others are not sent: they
    /// stay open, and are asked after we have joined.
    pub fn ask_owner(&mut self, id: ObjectId, request: DirectoryRequest, attach: Option<CopyId>) {
        let owner = self.shards.owner(id);
        if self.may_ask(owner) || !is_question(&request) {
            let message = PeerMessage::Directory { origin: self.me, hops: 0, id, request };
            self.send(owner, message, attach);
        }
    }

    /// Makes sure that open questions are repeated until they are answered.
    pub fn arm_refresh(&mut self) {
        if !self.timers.is_set(Timer::Refresh) {
            self.refresh_period = REFRESH_MIN;
            self.timers.set(self.now + REFRESH_MIN, Timer::Refresh);
        }
    }

    /// Open questions are repeated now: sets the time of the next repetition.
    pub fn rearm_refresh(&mut self) {
        self.refresh_period = (self.refresh_period * 2).min(REFRESH_MAX);
        self.timers.set(self.now + self.refresh_period, Timer::Refresh);
    }

    /// A message was lost, or may have been: the next repetition of open questions comes early. It is never put off
    /// by this, because losses may happen again and again.
    pub fn hasten_refresh(&mut self) {
        if let Some(due) = self.timers.due(Timer::Refresh) {
            self.refresh_period = REFRESH_MIN;
            self.timers.set(due.min(self.now + REFRESH_MIN), Timer::Refresh);
        }
    }

    /// Long work for clients goes on in a moment.
    pub fn work_on_calls_soon(&mut self) {
        if !self.timers.is_set(Timer::LongWork) {
            self.timers.set(self.now + LONG_WORK_PAUSE, Timer::LongWork);
        }
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

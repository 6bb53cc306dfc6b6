//! A node that starts beside others sends no request to an owner before it knows all members, and their knowledge of
//! the shards that it now owns.
//!
//! ```text
//!  seeds ──first member──▶ MembersRequest ──Members──▶ shards recovered ──▶ joined: open questions are asked
//!    └── nobody for START_ALONE ──────────────────────────────────────────────▲
//! ```
//! So its decisions as an owner contradict nobody, and all members know a node that writes something.
//!
//! Two nodes that join at the same time may meet each other first. A node that does not know all members says so, and
//! the other asks another member. Both ask every member for its inventory. So one of the two learns of the other before
//! it owns anything, and asks it as well.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use hoplite_types::peer::PeerMessage;
use hoplite_types::{limits, NodeId};

use crate::shards::ShardSet;
use crate::timers::Timer;
use crate::Core;

/// How long a node that reaches none of its seeds waits until it starts alone. It joins members that it finds later
/// like those on the other side of a partition.
const START_ALONE: Duration = Duration::from_secs(2);

/// How long a member may take to answer with all members; then another one is asked.
const MEMBERS_TIMEOUT: Duration = Duration::from_millis(500);

/// Limit of members that are asked; after that the known members count as all.
const TRIES_MAX: u32 = 8;

/// How long members count as newcomers, and the limit on how many are kept. By then gossip has told all others of them.
const NEWCOMERS_FOR: Duration = Duration::from_secs(10);
const NEWCOMERS_MAX: usize = 64;

/// Members that came up recently.
#[derive(Debug, Default)]
pub(crate) struct Newcomers(VecDeque<(NodeId, Duration)>);

impl Newcomers {
    pub fn note(&mut self, now: Duration, node: NodeId) {
        self.0.retain(|&(known, until)| known != node && until > now);
        self.0.push_back((node, now + NEWCOMERS_FOR));
        if self.0.len() > NEWCOMERS_MAX {
            self.0.pop_front();
        }
    }

    /// If `node` is one of them: the others.
    fn beside(&self, now: Duration, node: NodeId) -> Vec<(NodeId, u32)> {
        let recent = || self.0.iter().filter(|(_, until)| *until > now).map(|&(known, _)| known);
        let others = recent().filter(|&known| known != node && recent().any(|newcomer| newcomer == node));
        others.map(|node| (node, 0)).collect()
    }
}

/// Limit of members that are added in one turn, and the pause before the next turn.
const TAKEN_IN_PER_TURN: usize = 64;
const TAKEN_IN_PAUSE: Duration = Duration::from_micros(100);

/// Members that other members reported, and that are not added yet: at most as many as there may be members.
#[derive(Debug, Default)]
pub(crate) struct MembersHeard(VecDeque<(NodeId, u32)>);

#[derive(Debug, Default)]
pub(crate) struct Joining {
    /// The first timer has been set.
    has_begun: bool,
    /// A member was asked for all members, and has not answered.
    is_asking: bool,
    /// A member that knows them all has answered.
    is_answered: bool,
    tries: u32,
    /// When it starts alone, if no known member knows more than it.
    alone_at: Duration,
    /// Members that are joining, too, and know no more than we do.
    partial: BTreeSet<NodeId>,
    knows_members: bool,
}

impl Core {
    /// A member came up; it may be the first that we know.
    pub(crate) fn ask_for_members(&mut self, node: NodeId) {
        let Some(joining) = &mut self.joining else { return };
        if !joining.knows_members && !joining.is_asking {
            joining.is_asking = true;
            joining.tries += 1;
            self.ctx.timers.set(self.ctx.now + MEMBERS_TIMEOUT, Timer::Join);
            self.ctx.send(node, PeerMessage::MembersRequest, None);
        }
    }

    /// A newcomer asks for all members; it is a member from now on.
    pub(crate) fn on_members_request(&mut self, from: NodeId) {
        self.note_member(from);
        let mut members = self.members.with_lives();
        members.truncate(limits::MEMBERS_MAX);
        let partial = self.joining.as_ref().is_some_and(|joining| !joining.knows_members);
        self.ctx.send(from, PeerMessage::Members { members, partial }, None);
    }

    pub(crate) fn on_members(&mut self, from: NodeId, members: Vec<(NodeId, u32)>, partial: bool) {
        if let Some(joining) = &mut self.joining {
            match partial {
                true => drop(joining.partial.insert(from)),
                false => drop(joining.partial.remove(&from)),
            }
            joining.is_answered |= !partial;
        }
        // Members that are left out here are learnt through gossip.
        let left = limits::MEMBERS_MAX - self.members_heard.0.len();
        self.members_heard.0.extend(members.into_iter().take(left));
        self.take_in_members();
    }

    /// Adds the next few members; when there are no more, all members are known.
    pub(crate) fn take_in_members(&mut self) {
        let some = self.members_heard.0.len().min(TAKEN_IN_PER_TURN);
        let members = self.members_heard.0.drain(..some).collect();
        let changes = self.members.on_heard(self.ctx.now, members);
        self.on_member_changes(changes);
        match self.members_heard.0.is_empty() {
            true => self.go_on_joining(),
            false => self.ctx.timers.set(self.ctx.now + TAKEN_IN_PAUSE, Timer::TakeIn),
        }
    }

    /// A node that joins at the same time knows no more than we do; another member may. If all members are joining, and
    /// all seeds are among them, then no member knows more.
    fn go_on_joining(&mut self) {
        let Some(joining) = self.joining.as_mut().filter(|joining| !joining.knows_members) else { return };
        if joining.is_answered {
            return self.know_members();
        }
        joining.is_asking = false;
        let partial = &joining.partial;
        let me = self.ctx.me;
        let next = self.ctx.shards.iter().find(|node| *node != me && !partial.contains(node));
        let heard = |seed: SocketAddr| partial.iter().any(|node| node.addr == seed);
        match next {
            Some(node) => self.ask_for_members(node),
            None if self.members.seeds().all(heard) => self.know_members(),
            None => {}
        }
    }

    /// The node sent us a request, so it is alive and a member.
    pub(crate) fn note_member(&mut self, node: NodeId) {
        if !self.ctx.shards.contains(node) && !self.ctx.departed.has(node) {
            let changes = self.members.on_heard(self.ctx.now, vec![(node, 0)]);
            self.on_member_changes(changes);
        }
    }

    /// A newcomer asks for our inventory: it may not know of others that join at the same time.
    pub(crate) fn tell_of_newcomers(&mut self, to: NodeId) {
        let members = self.newcomers.beside(self.ctx.now, to);
        if !members.is_empty() {
            self.ctx.send(to, PeerMessage::Members { members, partial: true }, None);
        }
    }

    pub(crate) fn on_join_timer(&mut self) {
        let Some(joining) = self.joining.as_mut().filter(|joining| !joining.knows_members) else { return };
        joining.is_asking = false;
        let tries = joining.tries as usize;
        let count = self.ctx.shards.len() - 1;
        let next = self.ctx.shards.neighbours(count).nth(tries % count.max(1));
        let joins = |node: NodeId| joining.partial.contains(&node);
        let all_join = count > 0 && self.ctx.shards.iter().all(|node| node == self.ctx.me || joins(node));
        let (now, alone_at) = (self.ctx.now, joining.alone_at);
        match next {
            // A seed may still answer.
            Some(_) if all_join && now < alone_at => self.ctx.timers.set(alone_at, Timer::Join),
            Some(node) if !all_join && tries < TRIES_MAX as usize => self.ask_for_members(node),
            _ => self.know_members(),
        }
    }

    fn know_members(&mut self) {
        let Some(joining) = self.joining.as_mut().filter(|joining| !joining.knows_members) else { return };
        joining.knows_members = true;
        self.ctx.timers.clear(Timer::Join);
        self.directory.start(&mut self.ctx);
    }

    /// Starts to serve, once all inventories of our shards have arrived.
    pub(crate) fn take_part_when_joined(&mut self) {
        let Some(joining) = &mut self.joining else { return };
        if !std::mem::replace(&mut joining.has_begun, true) {
            joining.alone_at = self.ctx.now + START_ALONE;
            self.ctx.timers.set(joining.alone_at, Timer::Join);
        }
        if !joining.knows_members || self.directory.is_recovering() {
            return;
        }
        self.joining = None;
        self.ctx.has_joined = true;
        self.ctx.is_fresh = false;
        self.repeat_questions(&ShardSet::all());
        self.settle();
    }
}

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

use crate::ctx::Ctx;
use crate::members::{Change, Members};
use crate::notices::Notice;
use crate::timers::Timer;

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
struct Newcomers(VecDeque<(NodeId, Duration)>);

impl Newcomers {
    fn note(&mut self, now: Duration, node: NodeId) {
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

/// How far this node has joined the others.
#[derive(Debug, Default)]
struct Progress {
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

/// A node that joins, and what it tells others that do.
#[derive(Debug)]
pub(crate) struct Joining {
    /// Set until we know the other members and their inventories of our shards.
    progress: Option<Progress>,
    newcomers: Newcomers,
    /// Members that other members reported, and that are not added yet: at most as many as there may be members.
    heard: VecDeque<(NodeId, u32)>,
}

impl Joining {
    /// A node that expects no others has nobody to join.
    pub fn new(is_alone: bool) -> Self {
        let progress = (!is_alone).then(Progress::default);
        Joining { progress, newcomers: Newcomers::default(), heard: VecDeque::new() }
    }

    pub fn is_over(&self) -> bool {
        self.progress.is_none()
    }

    /// Set until all members are known.
    fn looking(&mut self) -> Option<&mut Progress> {
        self.progress.as_mut().filter(|progress| !progress.knows_members)
    }

    /// A member came up; it may be the first that we know.
    pub fn on_member_up(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.newcomers.note(ctx.now, node);
        self.ask_for_members(ctx, node);
    }

    fn ask_for_members(&mut self, ctx: &mut Ctx, node: NodeId) {
        if let Some(progress) = self.looking().filter(|progress| !progress.is_asking) {
            progress.is_asking = true;
            progress.tries += 1;
            ctx.timers.set(ctx.now + MEMBERS_TIMEOUT, Timer::Join);
            ctx.send(node, PeerMessage::MembersRequest, None);
        }
    }

    /// A newcomer, which is a member by now, asks for all members.
    pub fn on_members_request(&mut self, ctx: &mut Ctx, members: &Members, from: NodeId) {
        let mut members = members.with_lives();
        members.truncate(limits::MEMBERS_MAX);
        let partial = self.looking().is_some();
        ctx.send(from, PeerMessage::Members { members, partial }, None);
    }

    /// A member sent all members that it knows: they are to be added (`take_in`).
    pub fn on_members(&mut self, from: NodeId, members: Vec<(NodeId, u32)>, partial: bool) {
        if let Some(progress) = &mut self.progress {
            match partial {
                true => drop(progress.partial.insert(from)),
                false => drop(progress.partial.remove(&from)),
            }
            progress.is_answered |= !partial;
        }
        // Members that are left out here are learnt through gossip.
        let left = limits::MEMBERS_MAX - self.heard.len();
        self.heard.extend(members.into_iter().take(left));
    }

    /// Adds the next few members. Once the changes are carried out, `go_on` follows.
    pub fn take_in(&mut self, ctx: &Ctx, members: &mut Members) -> Vec<Change> {
        let some = self.heard.len().min(TAKEN_IN_PER_TURN);
        members.on_heard(ctx.now, self.heard.drain(..some).collect())
    }

    /// Some members were added. When there are no more, all members are known: a node that joins at the same time knows
    /// no more than we do, but another member may. If all members are joining, and all seeds are among them, then no
    /// member knows more.
    pub fn go_on(&mut self, ctx: &mut Ctx, members: &Members) {
        if !self.heard.is_empty() {
            return ctx.timers.set(ctx.now + TAKEN_IN_PAUSE, Timer::TakeIn);
        }
        let Some(progress) = self.looking() else {
            // All were known before.
            return;
        };
        if progress.is_answered {
            return self.know_members(ctx);
        }
        progress.is_asking = false;
        let partial = &progress.partial;
        let me = ctx.me;
        let next = ctx.shards.iter().find(|node| *node != me && !partial.contains(node));
        let heard = |seed: SocketAddr| partial.iter().any(|node| node.addr == seed);
        match next {
            Some(node) => self.ask_for_members(ctx, node),
            None if members.seeds().all(heard) => self.know_members(ctx),
            // A seed that joins, too, may answer yet.
            None => {}
        }
    }

    /// A newcomer asks for our inventory: it may not know of others that join at the same time.
    pub fn tell_of_newcomers(&self, ctx: &mut Ctx, to: NodeId) {
        let members = self.newcomers.beside(ctx.now, to);
        if !members.is_empty() {
            ctx.send(to, PeerMessage::Members { members, partial: true }, None);
        }
    }

    pub fn on_timer(&mut self, ctx: &mut Ctx) {
        let Some(progress) = self.looking() else {
            // All members are known by now.
            return;
        };
        progress.is_asking = false;
        let tries = progress.tries as usize;
        let count = ctx.shards.len() - 1;
        let next = ctx.shards.neighbours(count).nth(tries % count.max(1));
        let joins = |node: NodeId| progress.partial.contains(&node);
        let all_join = count > 0 && ctx.shards.iter().all(|node| node == ctx.me || joins(node));
        let alone_at = progress.alone_at;
        match next {
            // A seed may still answer.
            Some(_) if all_join && ctx.now < alone_at => ctx.timers.set(alone_at, Timer::Join),
            Some(node) if !all_join && tries < TRIES_MAX as usize => self.ask_for_members(ctx, node),
            _ => self.know_members(ctx),
        }
    }

    fn know_members(&mut self, ctx: &mut Ctx) {
        if let Some(progress) = self.looking() {
            progress.knows_members = true;
            ctx.timers.clear(Timer::Join);
            ctx.notices.push_back(Notice::MembersKnown);
        }
    }

    /// The node has started: members may take so long to answer before it starts alone.
    pub fn begin(&mut self, ctx: &mut Ctx) {
        if let Some(progress) = self.progress.as_mut().filter(|progress| !progress.has_begun) {
            progress.has_begun = true;
            progress.alone_at = ctx.now + START_ALONE;
            ctx.timers.set(progress.alone_at, Timer::Join);
        }
    }

    /// Whether the node may serve, once the inventories of its shards have arrived.
    pub fn knows_members(&self) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.knows_members)
    }

    /// The node serves from now on.
    pub fn end(&mut self) {
        self.progress = None;
    }
}

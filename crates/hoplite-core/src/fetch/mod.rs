//! Brings an object here: one receiver's side of a broadcast [design §5].
//!
//! ```text
//!   want ──▶ Asking ──Lend──▶ Receiving ──trailer──▶ sealed
//!              ▲  │ ▲             │
//!              │  │ └── broken ───┘   (asks again, keeps what it has)
//!              │  └─ no space ▶ NoSpace ─ space ─┐
//!              └─────────────────────────────────┘
//! ```
//!
//! - here: the calls and slots that want an object, and how long a fetch lives
//! - `ask`: asks for a sender; `receive`: the answer, the bytes, the end of the stream
//! - `stalls`: streams that stall
//! - `prefetch`: limits how many prefetches run at once
//! - `outcome`: answers those who want the object, or fails them (lost, deleted); pins it
//! - `diagnostics`: the state of a fetch, for error messages

mod ask;
mod diagnostics;
mod outcome;
mod prefetch;
mod receive;
mod stalls;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hoplite_types::client::{Gauge, Location};
use hoplite_types::peer::DirectoryRequest;
use hoplite_types::{NodeId, ObjectId, TransferId};

use crate::copies::{Copies, Phase, SpaceWaiter};
use crate::ctx::Ctx;
use crate::io::ClientId;
use crate::keys::{Want, Watcher};
use crate::notices::Notice;
use crate::repeats::Repeats;
use crate::subscriptions::Subscriptions;
use crate::timers::Timer;
use outcome::Failing;
pub(crate) use outcome::WANTS_PER_TURN;
use prefetch::PrefetchLimiter;
pub(crate) use receive::{Content, Feeds, Transfer};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Asking,
    NoSpace,
    /// Several senders in a row brought nothing: it asks again after a pause.
    Resting,
    Receiving(TransferId),
}

/// A running fetch of one object.
#[derive(Debug)]
pub(crate) struct Fetch {
    ask: u64,
    state: State,
    /// The number of our last report that we do not have the object.
    withdrew: u64,
    /// The sender that broke off last.
    failed: Option<NodeId>,
    /// Senders tried so far, and the last of those that broke off, each with the number of bytes that were here then.
    /// For the message of a time-out.
    tried: u32,
    broken: VecDeque<(NodeId, u64)>,
    /// When the owner was first asked since the last sender, and the copies that it named.
    asked: Duration,
    known: Option<Vec<Location>>,
    /// The owner reported the object lost, and has lent no sender since.
    lost: bool,
    /// How often in a row a stalled sender was given up, and at which byte.
    given_up: (u32, u64),
    /// How often in a row a sender broke off without having brought any byte.
    in_vain: u32,
}

/// Limit on objects wanted here, beyond which prefetches are dropped: they are hints.
const PREFETCH_WANTS_MAX: usize = 1 << 17;

/// Why a call that waits for an object may continue before the object is sealed here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Early {
    /// A put of it continues when no copy here is in its way any more.
    Put,
    /// A get that accepts a partial copy.
    Get,
    /// A put of an object that was put before continues when the first content is lost.
    DuplicatePut,
}

/// All fetches, and the calls that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    running: BTreeMap<ObjectId, Fetch>,
    wants: BTreeMap<ObjectId, BTreeSet<Want>>,
    /// The waiting calls that may continue earlier.
    early: BTreeSet<(ObjectId, Early, ClientId, u64)>,
    /// Waiting calls that have failed, but are not answered yet.
    failing: BTreeMap<ObjectId, Failing>,
    /// The open asks that are to be repeated.
    repeats: Repeats,
    prefetch_limiter: PrefetchLimiter,
    pub transfers: BTreeMap<TransferId, Transfer>,
    /// The transfers that come from each node.
    streams_from: BTreeMap<NodeId, BTreeSet<TransferId>>,
    /// Nodes that sent us several streams at a time, until the last of these is over: the rate of each says little of
    /// the link.
    sharing: BTreeSet<NodeId>,
    prefetches_left_out: u64,
    /// Objects that are or were here, and for which more calls wait than could be answered at once.
    giving: BTreeSet<ObjectId>,
    /// Lost objects, each with the last of its waiting calls that was notified, of more than could be at once.
    telling_lost: BTreeMap<ObjectId, Want>,
}

/// All fetches, with what is lent to them.
pub(crate) struct Fetcher<'a> {
    pub fetches: &'a mut Fetches,
    pub ctx: &'a mut Ctx,
    pub copies: &'a mut Copies,
    pub subscriptions: &'a mut Subscriptions,
}

impl Fetches {
    /// Whether too many objects are wanted to prefetch more.
    fn are_many(&self) -> bool {
        self.wants.len() >= PREFETCH_WANTS_MAX
    }

    pub fn gauge(&self) -> Gauge {
        let (name, value) = ("objects wanted".to_owned(), self.wants.len() as u64);
        Gauge { name, value, limit: PREFETCH_WANTS_MAX as u64, met: self.prefetches_left_out }
    }

    pub fn is_lost(&self, object: ObjectId) -> bool {
        self.running.get(&object).is_some_and(|fetch| fetch.lost)
    }

    pub fn is_wanted(&self, object: ObjectId) -> bool {
        self.wants.contains_key(&object)
    }

    /// Whether a copy of `object` is about to be opened here.
    pub fn is_expected(&self, object: ObjectId) -> bool {
        self.running.contains_key(&object)
    }

    /// We report that we do not have `object`.
    pub fn note_withdrawn(&mut self, object: ObjectId, seq: u64) {
        if let Some(fetch) = self.running.get_mut(&object) {
            fetch.withdrew = seq;
        }
    }

    pub fn begin_transfer(&mut self, id: TransferId, transfer: Transfer) {
        let streams = self.streams_from.entry(transfer.from).or_default();
        streams.insert(id);
        if streams.len() > 1 {
            self.sharing.insert(transfer.from);
        }
        self.transfers.insert(id, transfer);
    }

    pub fn end_transfer(&mut self, id: TransferId) -> Option<Transfer> {
        let ended = self.transfers.remove(&id)?;
        let streams = self.streams_from.get_mut(&ended.from).expect("it has begun");
        streams.remove(&id);
        if streams.is_empty() {
            self.streams_from.remove(&ended.from);
            self.sharing.remove(&ended.from);
        }
        Some(ended)
    }

    /// Whether a stream from `node` has the link to itself.
    pub fn has_link_to_itself(&self, node: NodeId) -> bool {
        !self.sharing.contains(&node)
    }

    /// The streams that come from `node`, and the target of each.
    pub fn streams_from(&self, node: NodeId) -> impl Iterator<Item = (TransferId, Feeds)> + '_ {
        let streams = self.streams_from.get(&node).into_iter().flatten();
        streams.map(|&id| (id, self.transfers[&id].feeds))
    }

    /// The transfers from `node` into copies here.
    pub fn transfers_from(&self, node: NodeId) -> Vec<TransferId> {
        let copies = self.streams_from(node).filter(|(_, feeds)| matches!(feeds, Feeds::Copy(_)));
        copies.map(|(id, _)| id).collect()
    }

    /// Removes and returns the first that waits for `object`.
    pub fn next_want(&mut self, object: ObjectId) -> Option<Want> {
        let want = *self.wants.get(&object)?.first()?;
        self.take_want(object, want).then_some(want)
    }

    /// Returns whether it waited.
    pub fn take_want(&mut self, object: ObjectId, want: Want) -> bool {
        let Some(wants) = self.wants.get_mut(&object) else { return false };
        let waited = wants.remove(&want);
        if wants.is_empty() {
            self.wants.remove(&object);
        }
        self.forget_early(object, want);
        waited
    }

    fn forget_early(&mut self, object: ObjectId, want: Want) {
        if let Want::Call(client, call) = want {
            for early in [Early::Put, Early::Get, Early::DuplicatePut] {
                self.early.remove(&(object, early, client, call));
            }
        }
    }

    /// The first few calls that may go on before `object` is sealed here, for this reason.
    pub fn early(&self, object: ObjectId, why: Early, most: usize) -> Vec<(ClientId, u64)> {
        let (first, last) = (ClientId(0), ClientId(u64::MAX));
        let calls = self.early.range((object, why, first, 0)..=(object, why, last, u64::MAX));
        calls.map(|&(.., client, call)| (client, call)).take(most).collect()
    }
}

impl Fetcher<'_> {
    /// Registers a want of `object`, and why it may continue earlier. It is answered once the object is here, or will
    /// not come.
    pub fn want(&mut self, object: ObjectId, want: Want, early: Option<Early>) {
        // An object to be pinned is fetched all the same.
        if want == Want::Prefetch && self.fetches.are_many() && !self.copies.has_pin(object) {
            self.fetches.prefetches_left_out += 1;
            return;
        }
        let is_new = self.fetches.wants.entry(object).or_default().insert(want);
        if let (Want::Call(client, call), Some(early)) = (want, early) {
            self.fetches.early.insert((object, early, client, call));
        }
        if self.copies.sealed(object).is_some() {
            return self.ctx.notices.push_back(Notice::Wanted { object, want });
        }
        if want == Want::Prefetch {
            return self.prefetch(object, is_new);
        }
        self.ensure_fetch(object);
        if self.fetches.running.get(&object).is_some_and(|fetch| fetch.lost) {
            self.ctx.notices.push_back(Notice::LostTo { object, want });
        }
    }

    /// Removes a want. A running transfer continues: others may stream behind it.
    pub fn unwant(&mut self, object: ObjectId, want: Want) {
        self.fetches.forget_early(object, want);
        if let Some(wants) = self.fetches.wants.get_mut(&object) {
            wants.remove(&want);
            if wants.is_empty() {
                self.fetches.wants.remove(&object);
                self.refuse_pin(object);
                self.drop_unwanted_fetch(object);
            }
        }
        self.fetches.take_failing(object, want);
    }

    /// Gives up a fetch that waits for a sender, unless the object is wanted, or its partial copy is viewed or streamed
    /// from.
    pub fn drop_unwanted_fetch(&mut self, object: ObjectId) {
        let Some(fetch) = self.fetches.running.get(&object) else {
            // There is none.
            return;
        };
        let receiving = matches!(fetch.state, State::Receiving(_));
        if receiving || self.fetches.wants.contains_key(&object) {
            return;
        }
        let Some(copy) = self.copies.live(object) else { return self.drop_fetch(object) };
        let partial = &self.copies[copy];
        match partial.phase {
            Phase::Received(None) if partial.views == 0 && partial.users == 0 => {
                // Half a copy that nobody wants only takes space.
                self.drop_fetch(object);
                self.copies.withdraw(self.ctx, copy);
                self.copies.doom(self.ctx, copy);
            }
            Phase::Received(_) => {}
            // The object arrived without this fetch.
            _ => self.drop_fetch(object),
        }
    }

    /// Starts a fetch if the object is wanted, and no copy of it is here or arriving.
    pub fn ensure_fetch(&mut self, object: ObjectId) {
        let wanted = self.fetches.wants.contains_key(&object);
        if !wanted || self.copies.live(object).is_some() || self.fetches.running.contains_key(&object) {
            return;
        }
        let fetch = Fetch {
            ask: 0,
            withdrew: 0,
            state: State::Asking,
            failed: None,
            tried: 0,
            broken: VecDeque::new(),
            asked: self.ctx.now,
            known: None,
            lost: false,
            given_up: (0, 0),
            in_vain: 0,
        };
        self.fetches.running.insert(object, fetch);
        self.ask_for_sender(object);
    }

    /// Forgets the fetch, and cancels an open ask at the owner.
    pub fn drop_fetch(&mut self, object: ObjectId) {
        self.release_prefetch(object);
        if let Some(fetch) = self.fetches.running.remove(&object) {
            match fetch.state {
                State::Asking => {
                    self.ctx.ask_owner(object, DirectoryRequest::CancelAsk { ask: fetch.ask }, None);
                }
                State::NoSpace => {
                    self.copies.end_wait_for_space(SpaceWaiter::Fetch { object });
                    self.subscriptions.unwatch(self.ctx, object, Watcher::Fetch);
                }
                State::Resting => self.ctx.timers.clear(Timer::AskAgain(object)),
                State::Receiving(_) => {}
            }
            self.ctx.notices.push_back(Notice::NotComing(object));
        }
    }
}

//! This node's copies: space for them, their life from open to close, and eviction when space is short.
//!
//! ```text
//!            open                    seal
//!   (space) ──────▶ Written ┐      ┌──────▶ Sealed ── doom (deleted, evicted) ──┐
//!                   Received ├──────┤                                            ├─▶ free, once
//!                   Folded   ┘      └─────▶ doom (aborted, superseded) ──────────┘   unused
//! ```
//! A doomed copy serves no new reader. Its space is freed when the last view, send, fold, receive or writing client has
//! released it.
//!
//! Copies know nothing of those who use them: what others have to do about a copy is pushed as a [`Notice`].
//!
//! - here: the table of copies, and how it is searched
//! - `life`: a copy opens, is sealed, doomed, freed; `windows`: parts of a copy that arrive apart
//! - `arena`: where each copy lies; `space`: eviction; `space_waiters`: those who wait for space
//! - `spares`: bytes of puts that may be needed again; `views`: what clients hold
//! - `reports`: what the owners are told of the copies here
//!
//! [`Notice`]: crate::notices::Notice

mod arena;
mod life;
mod reports;
mod space;
mod space_waiters;
mod spares;
mod views;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Index};

use hoplite_types::client::Gauge;
use hoplite_types::peer::Seal;
use hoplite_types::{
    limits, Claim, CopyId, Edition, Header, NodeId, ObjectId, ReductionId, Shard, Stamp, TransferId,
};

use crate::io::{ClientId, Extent, FoldId};
use crate::shard_table::ShardCounts;
use arena::{footprint, Arena};
use space_waiters::SpaceWaiters;
pub(crate) use space_waiters::{Retry, SpaceWaiter};
use spares::Spares;
use views::Views;

/// The stream that a copy is received from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Incoming {
    pub transfer: TransferId,
    pub from: NodeId,
}

/// How the bytes of a copy arrive, or that it is sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// By a local client.
    Written(ClientId),
    /// From another node; `None` between two senders.
    Received(Option<Incoming>),
    /// By a fold; `None` once it has ended and waits for the commit, or was stopped.
    Folded(Option<FoldId>),
    /// Through windows (see `windows`).
    Gathered,
    Sealed,
}

#[derive(Debug)]
pub(crate) struct Copy {
    pub object: ObjectId,
    pub edition: Edition,
    pub extent: Extent,
    pub header: Header,
    pub phase: Phase,
    /// Not evictable, because it was put or reduced here: it stays until it is deleted.
    pub pinned: bool,
    /// Known to the directory; partial sums are not.
    pub public: bool,
    pub doomed: bool,
    /// Views that clients hold. The writer of a copy may hold one from the start.
    pub views: u32,
    /// Sends, folds, receives and writing clients that use the bytes.
    pub users: u32,
    pub seal: Seal,
    /// Number of bytes known to be present: exact when nobody is writing.
    pub watermark: u64,
    last_used: u64,
    /// The shard owner that it was last reported to.
    pub told: Option<NodeId>,
    /// That owner knows that it is complete.
    told_complete: bool,
    pub upstream: Option<NodeId>,
    /// The time at which an owner accepted its content.
    pub stamp: Option<Stamp>,
    /// The claim under which it may be sealed. Only for a copy that is written or reduced here and not sealed yet.
    pub claim: Option<Claim>,
    /// It is a part of this striped allreduce: all streams of its parts to a node go by the same connections.
    pub group: Option<ReductionId>,
    /// Its windows, in order.
    pub windows: Vec<CopyId>,
    pub within: Option<CopyId>,
}

impl Copy {
    pub fn is_sealed(&self) -> bool {
        self.phase == Phase::Sealed
    }

    pub fn is_evictable(&self) -> bool {
        self.is_sealed() && !self.pinned && !self.doomed && self.views == 0 && self.users == 0
    }

    /// Whether its space is about to be free, or can be evicted.
    fn is_loose(&self) -> bool {
        let is_going = self.doomed && self.views == 0;
        (is_going || self.is_evictable()) && self.within.is_none()
    }
}

/// All copies here, and the arena that they lie in.
#[derive(Debug)]
pub(crate) struct Copies {
    arena: Arena,
    table: BTreeMap<CopyId, Copy>,
    /// The one live (not doomed) copy of an object.
    by_object: BTreeMap<(Shard, ObjectId), CopyId>,
    counts: ShardCounts,
    /// Evictable copies by last use.
    lru: BTreeSet<(u64, CopyId)>,
    evictable_bytes: u64,
    /// Count of copies evicted so far.
    evicted: u64,
    /// How many more copies may be evicted in this turn.
    evictions_left: usize,
    /// Objects to be pinned here once they have arrived. Each of them is wanted, if only for that.
    pins: BTreeSet<ObjectId>,
    views: Views,
    spares: Spares,
    /// Calls, fetches and slots that wait for space in the store.
    waiters: SpaceWaiters,
    /// There may be more space than at the last look at the waiters.
    space_changed: bool,
    /// Objects whose copy here was doomed: waiting puts and fetches of them are to be retried.
    vacated: BTreeSet<ObjectId>,
}

/// The properties of a new copy.
pub(crate) struct NewCopy {
    pub object: ObjectId,
    pub edition: Edition,
    pub size: u64,
    pub header: Header,
    pub phase: Phase,
    pub pinned: bool,
    pub public: bool,
    pub stamp: Option<Stamp>,
    pub claim: Option<Claim>,
}

impl Copies {
    pub fn new(bytes: u64) -> Self {
        Copies {
            arena: Arena::new(bytes),
            table: BTreeMap::new(),
            by_object: BTreeMap::new(),
            counts: ShardCounts::default(),
            lru: BTreeSet::new(),
            evictable_bytes: 0,
            evicted: 0,
            evictions_left: space::EVICTIONS_PER_TURN,
            pins: BTreeSet::new(),
            views: Views::default(),
            spares: Spares::default(),
            waiters: SpaceWaiters::default(),
            space_changed: false,
            vacated: BTreeSet::new(),
        }
    }

    pub fn get(&self, id: CopyId) -> Option<&Copy> {
        self.table.get(&id)
    }

    /// Whether the copy is still here, and serves readers.
    pub fn stands(&self, id: CopyId) -> bool {
        self.get(id).is_some_and(|copy| !copy.doomed)
    }

    /// The number of copies, live or doomed.
    pub fn count(&self) -> usize {
        self.table.len()
    }

    /// The next few copies after `id`, in the order in which they were opened.
    pub fn behind(&self, id: CopyId) -> impl Iterator<Item = (CopyId, &Copy)> {
        self.table.range((Bound::Excluded(id), Bound::Unbounded)).map(|(&id, copy)| (id, copy))
    }

    /// The live copy of `object`, sealed or not.
    pub fn live(&self, object: ObjectId) -> Option<CopyId> {
        self.by_object.get(&(object.shard(), object)).copied()
    }

    pub fn live_copy(&self, object: ObjectId) -> Option<&Copy> {
        self.live(object).map(|copy| &self.table[&copy])
    }

    pub fn sealed(&self, object: ObjectId) -> Option<CopyId> {
        self.live(object).filter(|copy| self.table[copy].is_sealed())
    }

    /// A sealed copy of an object that is small enough for an answer.
    pub fn small_sealed(&self, object: ObjectId) -> Option<CopyId> {
        self.sealed(object).filter(|copy| self.table[copy].extent.size <= limits::INLINE_BYTES_MAX)
    }

    /// The public live copies of a shard's objects after `after`, in order.
    pub fn public_in(&self, shard: Shard, after: Option<ObjectId>) -> impl Iterator<Item = (CopyId, &Copy)> {
        let first = after.unwrap_or(ObjectId([0; ObjectId::LEN]));
        let end = (shard, ObjectId([u8::MAX; ObjectId::LEN]));
        let live = self.by_object.range((shard, first)..=end).map(|(_, &id)| (id, &self.table[&id]));
        live.filter(move |(_, copy)| copy.public && Some(copy.object) != after)
    }

    /// Changes a copy, and updates the eviction order and the count of evictable bytes.
    pub fn with<T>(&mut self, id: CopyId, change: impl FnOnce(&mut Copy) -> T) -> T {
        let copy = self.table.get_mut(&id).expect("a live copy id");
        let (before, was_loose) = (copy.is_evictable(), copy.is_loose());
        let key = (copy.last_used, id);
        let result = change(copy);
        let after = copy.is_evictable();
        let bytes = footprint(copy.extent.size);
        match (was_loose, copy.is_loose()) {
            (false, true) => self.arena.loosen(copy.extent),
            (true, false) => self.arena.tighten(copy.extent),
            _ => {}
        }
        if before {
            self.lru.remove(&key);
            self.evictable_bytes -= bytes;
        }
        if after {
            self.lru.insert((copy.last_used, id));
            self.evictable_bytes += bytes;
        }
        result
    }

    fn name(&mut self, object: ObjectId, id: CopyId) {
        if self.by_object.insert((object.shard(), object), id).is_none() {
            self.counts.add(object.shard());
        }
    }

    fn unname(&mut self, object: ObjectId) {
        if self.by_object.remove(&(object.shard(), object)).is_some() {
            self.counts.remove(object.shard());
        }
    }

    /// How many objects of a shard have a live copy here.
    pub fn count_in(&self, shard: Shard) -> usize {
        self.counts.of(shard)
    }

    /// The copy is a part of this striped allreduce.
    pub fn set_group(&mut self, id: CopyId, group: ReductionId) {
        self.table.get_mut(&id).expect("a live copy id").group = Some(group);
    }

    /// Marks it as just used: it moves to the end of the eviction order.
    pub fn touch(&mut self, id: CopyId, number: u64) {
        let copy = self.table.get_mut(&id).expect("a live copy id");
        if self.lru.remove(&(copy.last_used, id)) {
            self.lru.insert((number, id));
        }
        copy.last_used = number;
    }

    /// Describes the state that is left, in words.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        if !self.table.is_empty() {
            left.push(format!("copies: {:?}", self.table));
        }
        if !self.waiters.is_empty() || self.waiters.has_more() {
            left.push(format!("space waiters: {:?}", self.waiters));
        }
        if !self.vacated.is_empty() {
            left.push(format!("vacated: {:?}", self.vacated));
        }
        if !self.pins.is_empty() {
            left.push(format!("pins: {:?}", self.pins));
        }
        if self.used_bytes() > 0 {
            left.push(format!("{} bytes of the arena", self.used_bytes()));
        }
        if self.views.count() > 0 {
            left.push(format!("{} views", self.views.count()));
        }
        left
    }

    pub fn gauge(&self) -> Gauge {
        self.spares.gauge()
    }
}

impl Index<CopyId> for Copies {
    type Output = Copy;

    /// A copy that is surely here: it is used, or was just looked up.
    fn index(&self, id: CopyId) -> &Copy {
        &self.table[&id]
    }
}

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

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::client::Reply;
use hoplite_types::peer::{CopyReport, DirectoryRequest, PeerMessage, Seal};
use hoplite_types::{limits, Claim, CopyId, Edition, Header, NodeId, ObjectId, Shard, Stamp};

use crate::arena::{footprint, Arena};
use crate::io::{ClientId, Event, Extent, FoldId, Output};
use crate::shard_table::ShardCounts;
use crate::Core;
use hoplite_types::TransferId;

/// How the bytes of a copy arrive, or that it is sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// By a local client.
    Written(ClientId),
    /// From another node; `None` between two senders.
    Received(Option<TransferId>),
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
    pub arena: Arena,
    pub table: BTreeMap<CopyId, Copy>,
    /// The one live (not doomed) copy of an object.
    by_object: BTreeMap<(Shard, ObjectId), CopyId>,
    counts: ShardCounts,
    /// Evictable copies by last use.
    lru: BTreeSet<(u64, CopyId)>,
    evictable_bytes: u64,
    pub evicted: u64,
    /// How many more copies may be evicted in this turn.
    evictions_left: usize,
}

/// Limit of evictions in one turn: some milliseconds' work.
const EVICTIONS_PER_TURN: usize = 512;

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
            evictions_left: EVICTIONS_PER_TURN,
        }
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

    /// Takes the copy's object id away from it.
    pub fn forget_object_of(&mut self, id: CopyId) {
        self.unname(self.table[&id].object);
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

    /// Gives the copy another object id.
    pub fn rename(&mut self, id: CopyId, object: ObjectId) {
        let copy = self.table.get_mut(&id).expect("a live copy id");
        debug_assert!(!copy.is_sealed(), "clients may keep what is sealed, by its id");
        let before = std::mem::replace(&mut copy.object, object);
        self.unname(before);
        self.name(object, id);
    }

    /// The owner counts the copy as complete without a report.
    pub fn note_told(&mut self, id: CopyId, owner: NodeId) {
        let copy = self.table.get_mut(&id).expect("a live copy id");
        (copy.told, copy.told_complete) = (Some(owner), true);
    }

    /// The owner may not count the copy as complete: its seal will be reported.
    pub fn not_told_complete(&mut self, id: CopyId) {
        self.table.get_mut(&id).expect("a live copy id").told_complete = false;
    }

    /// Marks it as just used: it moves to the end of the eviction order.
    pub fn touch(&mut self, id: CopyId, number: u64) {
        let copy = self.table.get_mut(&id).expect("a live copy id");
        if self.lru.remove(&(copy.last_used, id)) {
            self.lru.insert((number, id));
        }
        copy.last_used = number;
    }

    /// Begins a turn, in which copies may or may not be evicted.
    pub fn begin_turn(&mut self, may_evict: bool) {
        self.evictions_left = if may_evict { EVICTIONS_PER_TURN } else { 0 };
    }

    /// Whether no more copies may be evicted in this turn.
    pub fn has_evicted_enough(&self) -> bool {
        self.evictions_left == 0
    }

    /// Whether space for `size` bytes could be made by evicting (fragmentation aside).
    pub fn could_make_space(&self, size: u64) -> bool {
        let free = self.arena.bytes() - self.arena.used() + self.evictable_bytes;
        self.arena.could_hold(size) && free >= footprint(size)
    }
}

impl Core {
    /// Finds space (evicting if necessary) and opens a copy there. `None` if there is no space now.
    pub(crate) fn open_copy(&mut self, new: NewCopy) -> Option<CopyId> {
        debug_assert!(self.copies.live(new.object).is_none(), "one live copy per object");
        let extent = self.make_space(new.size)?;
        Some(self.open_at(extent, new))
    }

    pub(crate) fn open_at(&mut self, extent: Extent, new: NewCopy) -> CopyId {
        let id = CopyId(self.next_number());
        self.add_copy(id, extent, new);
        self.ctx.out.push_back(Output::Open { copy: id, extent });
        id
    }

    /// Reuses a doomed copy that has all its bytes as another writing. Only the call that wrote it may use it, and only
    /// its writer may view it. It keeps its number, by which the writer releases its view.
    pub(crate) fn reopen(&mut self, id: CopyId, new: NewCopy) {
        self.copies.with(id, |copy| copy.doomed = false);
        let Copy { extent, views, .. } = self.copies.table.remove(&id).expect("it is doomed, not closed");
        self.add_copy(id, extent, new);
        self.copies.with(id, |copy| (copy.views, copy.watermark) = (views, extent.size));
        self.ctx.out.push_back(Output::Reopen { copy: id, extent });
    }

    fn add_copy(&mut self, id: CopyId, extent: Extent, new: NewCopy) {
        self.directory.no_longer_fresh();
        let copy = Copy {
            object: new.object,
            edition: new.edition,
            extent,
            header: new.header,
            phase: new.phase,
            pinned: new.pinned,
            public: new.public,
            doomed: false,
            views: 0,
            users: 0,
            seal: Seal::default(),
            watermark: 0,
            last_used: id.0,
            told: None,
            told_complete: false,
            upstream: None,
            stamp: new.stamp,
            claim: new.claim,
            windows: Vec::new(),
            within: None,
        };
        self.copies.name(new.object, id);
        self.copies.table.insert(id, copy);
    }

    pub(crate) fn make_space(&mut self, size: u64) -> Option<Extent> {
        if !self.clear_space(size) {
            return None;
        }
        self.copies.arena.allocate(size)
    }

    /// Makes space for `size` bytes, if it can. If many copies must be evicted for that, some go now, and the waiters
    /// for space are retried in the next turn.
    pub(crate) fn clear_space(&mut self, size: u64) -> bool {
        while !self.copies.arena.has_space(size) {
            let victim = self.copies.lru.first().filter(|_| self.copies.could_make_space(size));
            let victim = victim.map(|&(_, victim)| victim);
            if victim.is_none() && self.droppable_spare().is_none() {
                return false;
            }
            if self.copies.has_evicted_enough() {
                self.continue_space_waiters_soon();
                return false;
            }
            self.copies.evictions_left -= 1;
            match victim {
                Some(victim) => self.evict(victim),
                None => self.drop_a_spare(),
            }
        }
        true
    }

    fn evict(&mut self, victim: CopyId) {
        self.copies.evicted += 1;
        let bytes = self.copies.table[&victim].extent.size;
        self.ctx.out.push_back(Output::Event(Event::Evicted { copy: victim, bytes }));
        self.withdraw(victim);
        self.doom(victim);
    }

    /// All bytes are there and final.
    pub(crate) fn seal_copy(&mut self, id: CopyId, seal: Seal) {
        let number = self.next_number();
        let stays = self.take_pin(self.copies.table[&id].object);
        let (object, public) = self.copies.with(id, |copy| {
            copy.pinned |= stays;
            copy.phase = Phase::Sealed;
            copy.seal = seal.clone();
            copy.watermark = copy.extent.size;
            copy.last_used = number;
            copy.upstream = None;
            copy.claim = None;
            (copy.object, copy.public)
        });
        self.ctx.out.push_back(Output::Seal { copy: id, seal });
        if public {
            if !self.copies.table[&id].told_complete {
                self.announce(id, true, false);
            }
            if self.copies.table[&id].pinned {
                self.hand_over(id, object);
            }
            // Answered first, while the copy is surely here: a slot that starts now may evict it again.
            self.satisfy_wants(object);
            self.on_opened(object);
            self.drop_fetch(object);
        }
    }

    /// Closes the copy to new readers; its space is freed once it is unused.
    /// Does not notify the directory (see `withdraw`).
    pub(crate) fn doom(&mut self, id: CopyId) {
        let Some(copy) = self.copies.table.get(&id).filter(|copy| !copy.doomed) else { return };
        if let Some(whole) = copy.within.filter(|whole| self.copies.table[whole].windows.contains(&id)) {
            // A whole copy that lacks a part will never be complete.
            return self.doom(whole);
        }
        let (object, phase, public) = (copy.object, copy.phase, copy.public);
        self.copies.unname(object);
        self.copies.with(id, |copy| copy.doomed = true);
        self.ctx.out.push_back(match phase {
            Phase::Sealed => Output::Removed { object },
            _ => Output::Abort { copy: id },
        });
        match phase {
            Phase::Received(Some(transfer)) => {
                self.ctx.out.push_back(Output::StopReceive { transfer });
                if let Some(from) = self.fetches.transfers.get(&transfer).map(|transfer| transfer.from) {
                    self.send(from, PeerMessage::CancelPull { transfer }, None);
                }
            }
            Phase::Folded(Some(fold)) => self.ctx.out.push_back(Output::StopFold { fold }),
            _ => {}
        }
        if matches!(phase, Phase::Folded(_) | Phase::Gathered) || !public {
            self.slot_copy_gone(id);
        }
        self.stop_sends(id);
        self.doom_windows(id);
        if public {
            // Deferred: the caller may be about to open the next copy itself.
            self.vacated.insert(object);
            self.on_handed_over(object);
        }
    }

    /// Reports to the directory that the copy is gone from here.
    pub(crate) fn withdraw(&mut self, id: CopyId) {
        let copy = &self.copies.table[&id];
        if copy.public && copy.told.is_some() {
            let (object, edition) = (copy.object, copy.edition);
            self.withdraw_edition(object, edition);
        }
    }

    pub(crate) fn withdraw_edition(&mut self, object: ObjectId, edition: Edition) {
        let seq = self.next_number();
        self.fetches.note_withdrawn(object, seq);
        self.ask_owner(object, DirectoryRequest::Withdraw { seq, edition }, None);
    }

    pub(crate) fn add_user(&mut self, id: CopyId) {
        self.note_shown(id);
        self.copies.with(id, |copy| copy.users += 1);
    }

    pub(crate) fn remove_user(&mut self, id: CopyId) {
        self.copies.with(id, |copy| copy.users -= 1);
        self.try_free(id);
    }

    /// Frees a doomed copy that is unused. The space of evictable copies may also help the waiters for space.
    pub(crate) fn try_free(&mut self, id: CopyId) {
        let copy = &self.copies.table[&id];
        if copy.doomed && copy.views == 0 && copy.users == 0 {
            let copy = self.copies.table.remove(&id).expect("just seen");
            self.ctx.out.push_back(Output::Close { copy: id });
            self.space_changed = true;
            match copy.within {
                None => self.copies.arena.free(copy.extent),
                Some(whole) => self.free_window(copy.extent, whole),
            }
        } else if copy.is_evictable() || copy.views == 0 && self.spares.has(id) {
            self.space_changed = true;
        }
    }

    /// Reports a public copy to the shard owner of its object.
    pub(crate) fn announce(&mut self, id: CopyId, complete: bool, wants_verdict: bool) {
        let copy = &self.copies.table[&id];
        let owner = self.ctx.shards.owner(copy.object);
        if copy.stamp.is_none() && !self.ctx.may_ask(owner) {
            // It is not sent yet, so it must not count as reported.
            return;
        }
        let knows = owner == self.ctx.me || (copy.told == Some(owner) && copy.told_complete);
        let (object, report) = self.report(id, owner, complete);
        // Not bytes that came from the directory, since each of many receivers would send them back; nor bytes that the
        // owner has had.
        let inline = !knows && complete && report.pinned && report.size <= limits::INLINE_BYTES_MAX;
        let attach = inline.then_some(id);
        let request = DirectoryRequest::Announce { report, payload: None, wants_verdict };
        self.ask_owner(object, request, attach);
    }

    /// Builds the report of a copy to `owner`, with a new number, and notes it as reported.
    pub(crate) fn report(&mut self, id: CopyId, owner: NodeId, complete: bool) -> (ObjectId, CopyReport) {
        let (seq, leaving) = (self.next_number(), self.leaving.is_some());
        self.copies.with(id, |copy| {
            copy.told = Some(owner);
            copy.told_complete = complete;
            let report = CopyReport {
                seq,
                edition: copy.edition,
                size: copy.extent.size,
                header: copy.header.clone(),
                complete,
                pinned: copy.pinned,
                upstream: copy.upstream,
                leaving,
                stamp: copy.stamp,
                claim: copy.claim,
            };
            (copy.object, report)
        })
    }

    /// Reports a copy again, because the owner seems to have a different view of it.
    pub(crate) fn announce_again(&mut self, id: CopyId) {
        match self.copies.table[&id].stamp {
            Some(_) => self.announce(id, self.is_whole(id), false),
            None => self.ask_for_verdict(id),
        }
    }

    /// Gives a client a view of a copy.
    pub(crate) fn view(&mut self, client: ClientId, id: CopyId) -> Reply {
        self.add_view(client, id);
        let copy = &self.copies.table[&id];
        Reply::View {
            copy: id,
            offset: copy.extent.offset,
            size: copy.extent.size,
            header: copy.header.clone(),
            sealed: copy.is_sealed(),
        }
    }

    pub(crate) fn add_view(&mut self, client: ClientId, id: CopyId) {
        let number = self.next_number();
        self.note_shown(id);
        *self.clients.entry(client).or_default().views.entry(id).or_default() += 1;
        self.copies.with(id, |copy| {
            copy.views += 1;
            copy.last_used = number;
        });
    }

    /// Notifies the directory that a client was given bytes of a copy that came from elsewhere.
    fn note_shown(&mut self, id: CopyId) {
        let copy = &self.copies.table[&id];
        if copy.is_sealed() && !copy.pinned && !copy.doomed {
            self.directory.note_shown(copy.object, copy.edition);
        }
    }

    /// Releases a client's view. A release of a view that it does not hold is ignored.
    pub(crate) fn release_view(&mut self, client: ClientId, id: CopyId) {
        let Some(views) = self.clients.get_mut(&client).map(|client| &mut client.views) else { return };
        let Some(count) = views.get_mut(&id) else { return };
        *count -= 1;
        if *count == 0 {
            views.remove(&id);
        }
        let object = self.copies.with(id, |copy| {
            copy.views -= 1;
            copy.object
        });
        self.try_free(id);
        self.drop_unwanted_fetch(object);
    }

    /// A public copy of `object` was opened: early pulls, partial gets, other puts and slots may go on.
    pub(crate) fn on_opened(&mut self, object: ObjectId) {
        self.serve_parked(object);
        self.serve_partial_gets(object);
        self.end_puts_wait_for_space(object);
        self.retry_slots(object);
    }
}

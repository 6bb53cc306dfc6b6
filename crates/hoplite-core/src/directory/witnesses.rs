//! Objects that only their owner could tell of: should it die, nobody left would know that they existed, and
//! who asks later would wait in vain. So the owner tells a witness – who would own the id without it – the ids of
//! such objects, and nothing else. When the owner is dead, the witness takes them for lost unless somebody has a copy.
//!
//! ```text
//!  complete here, and nowhere else ──▶ unsaid ──── PAUSE ────▶ Remember {ids} ──▶ witness: remembered
//!  (or lost already)                     ▲                                           │ the owner dies
//!                                        └── RENEWED_AFTER, other members, a broken  ▼ asked for it: mourned
//!                                            connection
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::peer::{DirectoryRequest, PeerMessage};
use hoplite_words::{limits, NodeId, ObjectId};

use super::fading::Fading;
use crate::timers::Timer;
use crate::Core;

/// After ids were said, the owner gathers for this long before it says the next: with many small puts, one message
/// for hundreds. Short beside the time in which a death is noticed.
const PAUSE: Duration = Duration::from_millis(5);

/// How often they are said again, so that a witness may forget those of which it hears no more.
const RENEWED_AFTER: Duration = Duration::from_secs(limits::TOMBSTONE_TTL.as_secs() / 2);

/// Ids remembered for all owners together (about 100 bytes each): of those forgotten, a later asker is not told.
const REMEMBERED_MAX: usize = 65_536;

/// An owner's side: ids whose witnesses are still to be told.
#[derive(Debug, Default)]
pub(crate) struct Unsaid(BTreeSet<ObjectId>);

/// A witness's side: with the owner that told of it.
pub(crate) type Remembered = Fading<REMEMBERED_MAX>;

impl Core {
    /// Sees to it that a witness knows of the object, if nobody else could tell of it.
    pub(super) fn tell_witness(&mut self, id: ObjectId) {
        let (me, witness) = (self.me, self.next_in_line(id));
        let Some(entry) = self.directory.entries.get_mut(&id) else { return };
        let witness = witness.filter(|_| entry.is_known_only_at(me));
        if entry.witness == witness {
            return;
        }
        entry.witness = witness;
        if witness.is_some() {
            self.say_to_witness(id);
        }
    }

    fn say_to_witness(&mut self, id: ObjectId) {
        self.unsaid.0.insert(id);
        if !self.timers.is_set(Timer::Unsaid) {
            self.say_unsaid();
        }
        if !self.timers.is_set(Timer::Renewal) {
            self.timers.set(self.now + RENEWED_AFTER, Timer::Renewal);
        }
    }

    /// Says what has gathered; the rest after a pause.
    pub(crate) fn say_unsaid(&mut self) {
        if self.unsaid.0.is_empty() {
            return;
        }
        self.timers.set(self.now + PAUSE, Timer::Unsaid);
        let mut said: BTreeMap<NodeId, Vec<ObjectId>> = BTreeMap::new();
        for id in std::mem::take(&mut self.unsaid.0) {
            if let Some(witness) = self.directory.entries.get(&id).and_then(|entry| entry.witness) {
                said.entry(witness).or_default().push(id);
            }
        }
        for (witness, ids) in said {
            for ids in ids.chunks(limits::IDS_MAX) {
                self.send(witness, PeerMessage::Remember { ids: ids.to_vec() }, None);
            }
        }
    }

    pub(crate) fn on_renewal_timer(&mut self) {
        self.repeat_to_witnesses(|_| true);
    }

    /// What was said to these witnesses may be lost, or is about to be forgotten.
    pub(crate) fn repeat_to_witnesses(&mut self, whom: impl Fn(NodeId) -> bool) {
        let entries = self.directory.entries.iter();
        let told = entries.filter(|(_, entry)| entry.witness.is_some_and(&whom)).map(|(&id, _)| id);
        told.collect::<Vec<_>>().into_iter().for_each(|id| self.say_to_witness(id));
    }

    /// Other members, other witnesses: ours are told, and what dead owners told us goes to whom it belongs to now.
    pub(crate) fn move_memories(&mut self) {
        let ids: Vec<_> = self.directory.entries.keys().copied().collect();
        ids.into_iter().for_each(|id| self.tell_witness(id));
        let orphaned = self
            .remembered
            .iter()
            .filter(|&(id, memory)| !self.shards.contains(memory.node) && self.shards.owner(id) != self.me);
        for (id, until) in orphaned.map(|(id, memory)| (id, memory.until)).collect::<Vec<_>>() {
            self.remembered.remove(id);
            let ttl_ms = until.saturating_sub(self.now).as_millis() as u64;
            self.ask_owner(id, DirectoryRequest::Mourn { ttl_ms }, None);
        }
    }

    /// An owner says of which objects nobody else could tell us.
    pub(crate) fn on_remember(&mut self, from: NodeId, ids: Vec<ObjectId>) {
        let until = self.now + limits::TOMBSTONE_TTL;
        for id in ids {
            self.remembered.insert(id, from, until);
        }
        self.forget_memories();
    }

    pub(crate) fn forget_memories(&mut self) {
        if let Some(next) = self.remembered.expire(self.now) {
            self.timers.set(next, Timer::Remembered);
        }
    }

    /// An owner is dead. What it told us of is remembered from now on as long as any loss is.
    pub(crate) fn remember_for(&mut self, owner: NodeId) {
        let until = self.now + limits::TOMBSTONE_TTL;
        let told = self.remembered.iter().filter(|(_, memory)| memory.node == owner);
        for id in told.map(|(id, _)| id).collect::<Vec<_>>() {
            self.remembered.insert(id, owner, until);
        }
    }

    /// Until when a new entry of ours is to be mourned, because the owner before us told of the object.
    pub(super) fn inherited_grief(&self, id: ObjectId) -> Option<Duration> {
        let memory = self.remembered.get(id)?;
        let inherited = memory.until > self.now && !self.shards.contains(memory.node);
        inherited.then_some(memory.until)
    }
}

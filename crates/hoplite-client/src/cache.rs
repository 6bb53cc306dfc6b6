//! Cache of small objects that this client has got before, in private memory. A hit needs no request to the node; it
//! is valid as long as no copy of the object has gone from the node.
//!
//! Calling order: [`Client::look_up`] first. After a miss, send the request to the node *then*, and pass the answer
//! with the [`Miss`] to [`crate::View::adopt`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hoplite_types::limits::{ALIGNMENT, INLINE_BYTES_MAX};
use hoplite_types::{Header, ObjectId, Result};

use crate::{Client, View};

/// Limit on the memory of one client's cache: thousands of small objects, and little beside a process that computes.
const CACHE_BYTES_MAX: usize = 4 << 20;

/// Approximate memory of an entry besides its bytes; objects may be empty.
const ENTRY_BYTES: usize = 256;

/// The result of a look-up.
#[derive(Debug)]
pub enum Lookup {
    /// The object that the node would return.
    Hit(View),
    Miss(Miss),
}

/// The state before the node was asked for the object.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    pub(crate) id: ObjectId,
    removals: u64,
}

/// One object's bytes and header.
pub(crate) struct Small {
    pub(crate) header: Header,
    memory: Vec<u8>,
    start: usize,
}

impl Small {
    pub(crate) fn copy(bytes: &[u8], header: Header) -> Small {
        let mut memory: Vec<u8> = Vec::with_capacity(bytes.len() + ALIGNMENT as usize);
        let start = memory.as_ptr().align_offset(ALIGNMENT as usize);
        memory.resize(start, 0);
        memory.extend_from_slice(bytes);
        Small { header, memory, start }
    }

    /// As in the arena, their address is a multiple of `ALIGNMENT`.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    fn footprint(&self) -> usize {
        ENTRY_BYTES + self.memory.len()
    }
}

/// A cache with two generations. Used objects move to the young one. When that takes half of the memory, it becomes
/// the old generation. The previous old one, unused for as long, is dropped.
#[derive(Default)]
struct Generations {
    young: HashMap<ObjectId, Entry>,
    old: HashMap<ObjectId, Entry>,
    young_bytes: usize,
}

struct Entry {
    removals: u64,
    small: Arc<Small>,
}

impl Generations {
    /// The object, if its removal counter has not changed since it was cached.
    fn find(&mut self, id: ObjectId, removals: u64) -> Option<Arc<Small>> {
        let holds = |entry: &Entry| (entry.removals == removals).then(|| entry.small.clone());
        if let Some(entry) = self.young.get(&id) {
            return holds(entry);
        }
        let small = holds(&self.old.remove(&id)?)?;
        self.keep(id, removals, small.clone());
        Some(small)
    }

    fn keep(&mut self, id: ObjectId, removals: u64, small: Arc<Small>) {
        let bytes = small.footprint();
        if self.young_bytes + bytes > CACHE_BYTES_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        if let Some(before) = self.young.insert(id, Entry { removals, small }) {
            self.young_bytes -= before.small.footprint();
        }
    }
}

#[derive(Default)]
pub(crate) struct Cache(Mutex<Generations>);

impl Cache {
    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn keep(&self, miss: Miss, small: Arc<Small>) {
        self.lock().keep(miss.id, miss.removals, small);
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generations = self.lock();
        write!(f, "Cache of {} and {} objects", generations.young.len(), generations.old.len())
    }
}

impl Client {
    /// Checks whether a get of `id` needs a request to the node. It does not if the object was got before, is no
    /// larger than `INLINE_BYTES_MAX`, and is still complete on the node.
    ///
    /// # Errors
    /// `BadArgument` in a forked child.
    pub fn look_up(&self, id: ObjectId) -> Result<Lookup> {
        self.check_process()?;
        // Read before the request: a removal while the answer is under way then shows at the next look-up.
        let removals = self.mapping().removals(id);
        let found = self.cache().lock().find(id, removals);
        Ok(match found {
            // A dead node counts no removals any more. A request to it shows that it is gone.
            Some(small) if self.is_connected() => Lookup::Hit(View::of(small)),
            _ => Lookup::Miss(Miss { id, removals }),
        })
    }
}

/// Whether an object of this size is cached for the next get.
pub(crate) fn is_small(size: u64) -> bool {
    size <= INLINE_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: usize) -> ObjectId {
        ObjectId::from_name(&number.to_string())
    }

    fn keep(generations: &mut Generations, number: usize, size: usize) {
        generations.keep(id(number), 0, Arc::new(Small::copy(&vec![1; size], Header::default())));
    }

    #[test]
    fn bytes_are_aligned_and_whole() {
        for size in [0, 1, 63, 64, 1000] {
            let bytes: Vec<u8> = (0..size).map(|i| i as u8).collect();
            let small = Small::copy(&bytes, Header::default());
            assert_eq!(small.bytes(), bytes);
            assert_eq!(small.bytes().as_ptr() as u64 % ALIGNMENT, 0);
        }
    }

    #[test]
    fn the_least_recently_used_object_is_dropped() {
        let mut generations = Generations::default();
        for number in 0..10_000 {
            keep(&mut generations, number, 1000);
            assert!(generations.find(id(0), 0).is_some(), "used all the time, gone after {number}");
            let all = generations.young.values().chain(generations.old.values());
            assert!(all.map(|entry| entry.small.footprint()).sum::<usize>() <= CACHE_BYTES_MAX);
        }
        assert!(generations.find(id(1), 0).is_none());
        assert!(generations.find(id(9_999), 0).is_some());
    }

    #[test]
    fn empty_objects_take_room_too() {
        let mut generations = Generations::default();
        (0..100_000).for_each(|number| keep(&mut generations, number, 0));
        assert!(generations.young.len() + generations.old.len() <= CACHE_BYTES_MAX / ENTRY_BYTES);
    }

    #[test]
    fn an_object_cached_twice_counts_once() {
        let mut generations = Generations::default();
        (0..100).for_each(|_| keep(&mut generations, 0, 60_000));
        keep(&mut generations, 1, 1000);
        assert_eq!(generations.young.len(), 2);
    }
}

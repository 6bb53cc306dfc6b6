//! Where in the arena each copy lies: offsets only, never a byte of memory.
//!
//! Best fit with coalescing. Small blocks are cut from the top end of the hole they land in, large
//! ones from the bottom, so that the last big hole is not peppered from both sides and memory that
//! was touched once is used again.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_words::limits::{ALIGNMENT, INLINE_BYTES_MAX, PROGRESS_BLOCK_BYTES};

use crate::io::Extent;

/// The allocator of one arena.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    bytes: u64,
    used: u64,
    /// Hole start -> length.
    holes: BTreeMap<u64, u64>,
    /// The same holes by (length, start): the best fit is the first that is long enough.
    by_length: BTreeSet<(u64, u64)>,
}

/// Room an object of `size` bytes takes: its progress block, its data, and padding.
pub(crate) fn footprint(size: u64) -> u64 {
    PROGRESS_BLOCK_BYTES + size.next_multiple_of(ALIGNMENT)
}

impl Arena {
    pub fn new(bytes: u64) -> Self {
        let bytes = bytes - bytes % ALIGNMENT;
        let mut arena = Arena { bytes, used: 0, holes: BTreeMap::new(), by_length: BTreeSet::new() };
        arena.insert_hole(0, bytes);
        arena
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    /// Whether an object of `size` bytes fits into the empty arena.
    pub fn could_hold(&self, size: u64) -> bool {
        size <= self.bytes && footprint(size) <= self.bytes
    }

    /// The best hole for an object of `size` bytes.
    fn hole_for(&self, size: u64) -> Option<(u64, u64)> {
        // What it would take may be more than a number can say.
        let need = self.could_hold(size).then(|| footprint(size))?;
        self.by_length.range((need, 0)..).next().copied()
    }

    pub fn has_room(&self, size: u64) -> bool {
        self.hole_for(size).is_some()
    }

    pub fn allocate(&mut self, size: u64) -> Option<Extent> {
        let (length, start) = self.hole_for(size)?;
        let need = footprint(size);
        self.remove_hole(start, length);
        let block = if size <= INLINE_BYTES_MAX {
            self.insert_hole(start, length - need);
            start + length - need
        } else {
            self.insert_hole(start + need, length - need);
            start
        };
        self.used += need;
        Some(Extent::behind_block(block, size))
    }

    /// Gives back what `allocate` returned.
    pub fn free(&mut self, extent: Extent) {
        let mut start = extent.block;
        let mut length = footprint(extent.size);
        self.used -= length;
        if let Some((&before, &before_length)) = self.holes.range(..start).next_back() {
            assert!(before + before_length <= start, "freed twice: {extent:?}");
            if before + before_length == start {
                self.remove_hole(before, before_length);
                (start, length) = (before, before_length + length);
            }
        }
        if let Some((&after, &after_length)) = self.holes.range(start..).next() {
            assert!(after >= start + length, "freed twice: {extent:?}");
            if after == start + length {
                self.remove_hole(after, after_length);
                length += after_length;
            }
        }
        self.insert_hole(start, length);
    }

    fn insert_hole(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.holes.insert(start, length);
            self.by_length.insert((length, start));
        }
    }

    fn remove_hole(&mut self, start: u64, length: u64) {
        self.holes.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn takes_all_and_gives_all_back() {
        let mut arena = Arena::new(1 << 20);
        assert!(arena.could_hold((1 << 20) - 64) && !arena.could_hold((1 << 20) - 63));
        for absurd in [u64::MAX, u64::MAX - 63, u64::MAX - 127, 1 << 63] {
            assert!(!arena.could_hold(absurd) && arena.allocate(absurd).is_none());
        }
        let extent = arena.allocate((1 << 20) - 64).unwrap();
        assert_eq!(extent.offset, 64);
        assert_eq!(arena.allocate(0), None);
        arena.free(extent);
        assert_eq!((arena.used(), arena.holes.len()), (0, 1));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn double_free_is_a_bug() {
        let mut arena = Arena::new(1 << 20);
        let extent = arena.allocate(100).unwrap();
        let _other = arena.allocate(100).unwrap();
        arena.free(extent);
        arena.used += footprint(100);
        arena.free(extent);
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_room_comes_back(
            steps in proptest::collection::vec((0u64..200_000, any::<bool>(), any::<usize>()), 1..200),
        ) {
            let mut arena = Arena::new(2 << 20);
            let mut live: Vec<Extent> = Vec::new();
            for (size, give_back, which) in steps {
                if give_back && !live.is_empty() {
                    arena.free(live.swap_remove(which % live.len()));
                } else if let Some(extent) = arena.allocate(size) {
                    let (start, end) = (extent.offset - 64, extent.offset + size);
                    prop_assert!(end <= arena.bytes());
                    for other in &live {
                        prop_assert!(end <= other.offset - 64 || other.offset + other.size <= start);
                    }
                    live.push(extent);
                }
                prop_assert_eq!(arena.used(), live.iter().map(|e| footprint(e.size)).sum::<u64>());
            }
            for extent in live {
                arena.free(extent);
            }
            prop_assert_eq!(arena.used(), 0);
            prop_assert_eq!(arena.holes.len(), 1);
        }
    }
}

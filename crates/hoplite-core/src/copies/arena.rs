//! Places copies in the arena: it knows offsets only, and touches no byte of memory.
//!
//! Best fit with coalescing. Small blocks are cut from the top end of the hole that they land in, large ones from the
//! bottom. So small blocks do not fragment the last big hole from both sides, and memory that was touched once is used
//! again.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::limits::{ALIGNMENT, INLINE_BYTES_MAX, PROGRESS_BLOCK_BYTES};

use crate::io::Extent;

/// The allocator of one arena.
#[derive(Debug)]
pub(crate) struct Arena {
    bytes: u64,
    used: u64,
    free: Holes,
    /// The holes that there would be if all loose parts were free.
    within_reach: Holes,
}

/// Parts of an arena; no two of them adjoin.
#[derive(Default, Debug)]
struct Holes {
    /// Start -> length.
    by_start: BTreeMap<u64, u64>,
    /// The same by (length, start): the best fit is the first that is long enough.
    by_length: BTreeSet<(u64, u64)>,
}

impl Holes {
    fn best(&self, length: u64) -> Option<(u64, u64)> {
        self.by_length.range((length, 0)..).next().copied()
    }

    /// The hole around this part.
    fn around(&self, start: u64, length: u64) -> Option<(u64, u64)> {
        let (&hole, &hole_length) = self.by_start.range(..=start).next_back()?;
        (start + length <= hole + hole_length).then_some((hole, hole_length))
    }

    /// Makes a hole of this part.
    fn add(&mut self, mut start: u64, mut length: u64) {
        if let Some((&before, &before_length)) = self.by_start.range(..start).next_back() {
            assert!(before + before_length <= start, "freed twice: {length} bytes at {start}");
            if before + before_length == start {
                self.remove(before, before_length);
                (start, length) = (before, before_length + length);
            }
        }
        if let Some((&after, &after_length)) = self.by_start.range(start..).next() {
            assert!(after >= start + length, "freed twice: {length} bytes at {start}");
            if after == start + length {
                self.remove(after, after_length);
                length += after_length;
            }
        }
        self.insert(start, length);
    }

    /// Takes this part out of the hole around it.
    fn cut(&mut self, start: u64, length: u64) {
        let (hole, hole_length) = self.around(start, length).expect("there is a hole around it");
        self.remove(hole, hole_length);
        self.insert(hole, start - hole);
        self.insert(start + length, hole + hole_length - start - length);
    }

    fn insert(&mut self, start: u64, length: u64) {
        if length > 0 {
            self.by_start.insert(start, length);
            self.by_length.insert((length, start));
        }
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

/// Space an object of `size` bytes takes: its progress block, its data, and padding.
pub(crate) fn footprint(size: u64) -> u64 {
    PROGRESS_BLOCK_BYTES + size.next_multiple_of(ALIGNMENT)
}

impl Arena {
    pub fn new(bytes: u64) -> Self {
        let bytes = bytes - bytes % ALIGNMENT;
        let mut arena = Arena { bytes, used: 0, free: Holes::default(), within_reach: Holes::default() };
        arena.free.insert(0, bytes);
        arena.within_reach.insert(0, bytes);
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

    /// The space that an object of `size` bytes takes. `None` if it exceeds the whole arena, or the range of numbers.
    fn need(&self, size: u64) -> Option<u64> {
        self.could_hold(size).then(|| footprint(size))
    }

    pub fn has_space(&self, size: u64) -> bool {
        self.need(size).is_some_and(|need| self.free.best(need).is_some())
    }

    pub fn allocate(&mut self, size: u64) -> Option<Extent> {
        let need = self.need(size)?;
        let (length, start) = self.free.best(need)?;
        let block = if size <= INLINE_BYTES_MAX { start + length - need } else { start };
        self.free.cut(block, need);
        self.within_reach.cut(block, need);
        self.used += need;
        Some(Extent::behind_block(block, size))
    }

    /// Gives back what `allocate` returned, loose or not.
    pub fn free(&mut self, extent: Extent) {
        let length = footprint(extent.size);
        self.used -= length;
        self.free.add(extent.block, length);
        if self.within_reach.around(extent.block, length).is_none() {
            self.within_reach.add(extent.block, length);
        }
    }

    /// Marks a part as loose: it can be freed at any time.
    pub fn loosen(&mut self, extent: Extent) {
        self.within_reach.add(extent.block, footprint(extent.size));
    }

    /// Marks a part as no longer loose.
    pub fn tighten(&mut self, extent: Extent) {
        self.within_reach.cut(extent.block, footprint(extent.size));
    }

    /// Whether there would be space if all loose parts were free.
    pub fn has_space_within_reach(&self, size: u64) -> bool {
        self.need(size).is_some_and(|need| self.within_reach.best(need).is_some())
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
        assert_eq!((arena.used(), arena.free.by_start.len()), (0, 1));
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
            steps in proptest::collection::vec((0u64..200_000, 0..4, any::<usize>()), 1..200),
        ) {
            let mut arena = Arena::new(2 << 20);
            let mut live: Vec<Extent> = Vec::new();
            let mut loose: BTreeSet<Extent> = BTreeSet::new();
            for (size, step, which) in steps {
                if step == 0 && !live.is_empty() {
                    let extent = live.swap_remove(which % live.len());
                    loose.remove(&extent);
                    arena.free(extent);
                } else if step == 1 && !live.is_empty() {
                    let extent = live[which % live.len()];
                    match loose.remove(&extent) {
                        true => arena.tighten(extent),
                        false => {
                            loose.insert(extent);
                            arena.loosen(extent);
                        }
                    }
                } else if let Some(extent) = arena.allocate(size) {
                    let (start, end) = (extent.offset - 64, extent.offset + size);
                    prop_assert!(end <= arena.bytes());
                    for other in &live {
                        prop_assert!(end <= other.offset - 64 || other.offset + other.size <= start);
                    }
                    live.push(extent);
                }
                prop_assert_eq!(arena.used(), live.iter().map(|e| footprint(e.size)).sum::<u64>());
                let reach: u64 = arena.within_reach.by_start.values().sum();
                let loose: u64 = loose.iter().map(|e| footprint(e.size)).sum();
                prop_assert_eq!(reach, arena.bytes() - arena.used() + loose);
            }
            for extent in live {
                arena.free(extent);
            }
            prop_assert_eq!(arena.used(), 0);
            prop_assert_eq!(arena.free.by_start.len(), 1);
            prop_assert_eq!(arena.within_reach.by_start, arena.free.by_start);
        }
    }
}

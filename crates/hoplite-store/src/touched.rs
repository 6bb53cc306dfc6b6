//! Tracks which huge pages of its mapping this process has already faulted in.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::region::{HugePages, Region, FAULT_PIECE_BYTES, HUGE_PAGE_BYTES};

/// One flag per 2 MiB of the arena.
#[derive(Debug)]
pub(crate) struct Touched {
    flags: Box<[AtomicBool]>,
    pages: HugePages,
}

impl Touched {
    pub(crate) fn none(bytes: usize, pages: HugePages) -> Touched {
        let flags = (0..bytes / HUGE_PAGE_BYTES).map(|_| AtomicBool::new(false)).collect();
        Touched { flags, pages }
    }

    pub(crate) fn pages(&self) -> HugePages {
        self.pages
    }

    /// Faults in what `from..to` will touch for the first time, as far as it is huge pages that lie
    /// whole in `start..end`, the extent of the copy about to be written. Left to themselves, first
    /// writes take a fault per 4 KiB and keep the arena in small pages for everyone after them.
    pub(crate) fn prepare(&self, region: &Region, (start, end): (usize, usize), from: usize, to: usize) {
        let whole_end = end / HUGE_PAGE_BYTES;
        let wanted_end = to.div_ceil(HUGE_PAGE_BYTES).min(whole_end);
        let mut next = (from / HUGE_PAGE_BYTES).max(start.div_ceil(HUGE_PAGE_BYTES));
        while next < wanted_end {
            let limit = whole_end.min(next + FAULT_PIECE_BYTES / HUGE_PAGE_BYTES);
            let run = (next..limit).take_while(|&page| self.claim(page)).count();
            if run > 0 {
                // Refused (no memory, an old kernel): the writes will fault for themselves.
                let _ = region.fault_in(next * HUGE_PAGE_BYTES, (next + run) * HUGE_PAGE_BYTES, self.pages);
            }
            next += run.max(1);
        }
    }

    /// What the warming thread has faulted in nobody needs to.
    pub(crate) fn mark(&self, from: usize, to: usize) {
        for page in from.div_ceil(HUGE_PAGE_BYTES)..to / HUGE_PAGE_BYTES {
            self.claim(page);
        }
    }

    /// Whether the page was untouched; it is not any more. Two threads may write side by side.
    fn claim(&self, page: usize) -> bool {
        !self.flags[page].load(Ordering::Relaxed) && !self.flags[page].swap(true, Ordering::Relaxed)
    }
}

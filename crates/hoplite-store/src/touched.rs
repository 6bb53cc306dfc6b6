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

    /// Faults in the huge pages that `from..to` touches for the first time, if they lie wholly inside `start..end`,
    /// the extent of the copy to be written. Otherwise the first writes take a fault per 4 KiB, and the arena stays
    /// in small pages for all later users.
    pub(crate) fn prepare(&self, region: &Region, (start, end): (usize, usize), from: usize, to: usize) {
        let whole_end = end / HUGE_PAGE_BYTES;
        let wanted_end = to.div_ceil(HUGE_PAGE_BYTES).min(whole_end);
        let mut next = (from / HUGE_PAGE_BYTES).max(start.div_ceil(HUGE_PAGE_BYTES));
        while next < wanted_end {
            let limit = whole_end.min(next + FAULT_PIECE_BYTES / HUGE_PAGE_BYTES);
            let run = (next..limit).take_while(|&page| self.claim(page)).count();
            if run > 0 {
                // If it is refused (no memory, an old kernel), the writes fault the pages in.
                let _ = region.fault_in(next * HUGE_PAGE_BYTES, (next + run) * HUGE_PAGE_BYTES, self.pages);
            }
            next += run.max(1);
        }
    }

    /// Marks pages that the warming thread has faulted in: writers need not fault them in.
    pub(crate) fn mark(&self, from: usize, to: usize) {
        for page in from.div_ceil(HUGE_PAGE_BYTES)..to / HUGE_PAGE_BYTES {
            self.claim(page);
        }
    }

    /// Marks the page as touched. Returns whether it was untouched. Two threads may write at the same time.
    fn claim(&self, page: usize) -> bool {
        !self.flags[page].load(Ordering::Relaxed) && !self.flags[page].swap(true, Ordering::Relaxed)
    }
}

//! Faulting pages in before anyone needs them.
//!
//! A page fault per 4 KiB makes a first write several times slower than memory. One thread per
//! arena, at the lowest priority, keeps a stretch ahead of the highest address in use present, and
//! has it backed by 2 MiB pages where the kernel lets it: each process that maps the arena later
//! then takes one fault per 2 MiB.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::mm::Advice;

use crate::mapping::Mapping;
use crate::region::{Region, HUGE_PAGE_BYTES};

/// How far ahead of the high-water mark pages are present: a good second of a 1 Gbit/s link or of
/// the slowest faulting measured, and little against any host that runs this.
pub const PREFAULT_AHEAD: u64 = 256 << 20;

/// Faulted at once, some huge pages: the kernel holds the process's memory map for about a
/// millisecond, and whoever must change it (a growing heap) waits that long. One huge page at a time
/// costs a drain of every processor's page lists each.
const PIECE_BYTES: u64 = 4 * HUGE_PAGE_BYTES as u64;

/// Gives way to everything that carries bytes; the lowest priority (19) would let a busy machine
/// suspend the thread for long while it holds the memory map.
const NICE: i32 = 10;

/// Whether the arena asks for 2 MiB pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    Never,
    /// Advised before faulting, and collapsed (`MADV_COLLAPSE`) where that brought none.
    #[default]
    WhereAllowed,
}

#[derive(Debug, Default)]
struct Plan {
    target: u64,
    done: u64,
    /// The kernel refused (old, or no memory): writers will fault for themselves.
    refused: bool,
    stop: bool,
}

#[derive(Debug)]
struct Shared {
    plan: Mutex<Plan>,
    changed: Condvar,
    /// Copy of `plan.target`, so that the common call takes no lock.
    target: AtomicU64,
    bytes: u64,
}

/// The background thread; idle unless there is something to do.
#[derive(Debug)]
pub(crate) struct Warmer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Warmer {
    pub(crate) fn start(mapping: Arc<Mapping>, pages: HugePages) -> io::Result<Warmer> {
        let shared = Arc::new(Shared {
            plan: Mutex::default(),
            changed: Condvar::new(),
            target: AtomicU64::new(0),
            bytes: mapping.bytes(),
        });
        let thread = std::thread::Builder::new().name("hoplite-warm".into()).spawn({
            let shared = shared.clone();
            move || run(&shared, mapping.writable(), pages)
        })?;
        Ok(Warmer { shared, thread: Some(thread) })
    }

    pub(crate) fn warm_to(&self, high_water: u64) {
        let target = match high_water.saturating_add(PREFAULT_AHEAD) {
            ahead if ahead >= self.shared.bytes => self.shared.bytes,
            // Whole pieces, so that a mark creeping up does not wake the thread at every step.
            ahead => ahead - ahead % PIECE_BYTES,
        };
        if target <= self.shared.target.load(Ordering::Relaxed) {
            return;
        }
        let mut plan = self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.target = plan.target.max(target);
        self.shared.target.store(plan.target, Ordering::Relaxed);
        self.shared.changed.notify_all();
    }

    pub(crate) fn wait(&self) -> u64 {
        let plan = self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared
            .changed
            .wait_while(plan, |plan| plan.done < plan.target && !plan.refused)
            .unwrap_or_else(PoisonError::into_inner)
            .done
    }
}

impl Drop for Warmer {
    fn drop(&mut self) {
        self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, region: &Region, pages: HugePages) {
    // Where the kernel forbids it the thread is merely less polite.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    if pages == HugePages::WhereAllowed {
        // With `shmem_enabled=advise` faults then bring huge pages at once; refusing is harmless.
        let _ = region.advise(0, shared.bytes as usize, Advice::LinuxHugepage);
    }
    let mut done = 0;
    while let Some(target) = next_target(shared, done) {
        let end = target.min(done + PIECE_BYTES);
        let faulted = fault_in(region, done as usize, end as usize, pages);
        let mut plan = shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
        match faulted {
            Ok(()) => plan.done = end,
            Err(_) => plan.refused = true,
        }
        shared.changed.notify_all();
        if plan.refused {
            return;
        }
        done = end;
    }
}

/// Sleeps until there is something to fault in; `None` when it is time to stop.
fn next_target(shared: &Shared, done: u64) -> Option<u64> {
    let plan = shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
    let plan = shared
        .changed
        .wait_while(plan, |plan| !plan.stop && plan.target <= done)
        .unwrap_or_else(PoisonError::into_inner);
    (!plan.stop).then_some(plan.target)
}

fn fault_in(region: &Region, from: usize, to: usize, pages: HugePages) -> io::Result<()> {
    let whole = to - to % HUGE_PAGE_BYTES;
    if pages == HugePages::WhereAllowed && from < whole {
        // One page of each, not all: the kernel refuses to collapse a hole, and clearing the rest
        // of a huge page is 3 times faster than making 511 small ones and 5 times faster than
        // making and then copying them.
        for huge in (from..whole).step_by(HUGE_PAGE_BYTES) {
            region.advise(huge, huge + rustix::param::page_size(), Advice::LinuxPopulateWrite)?;
        }
        // Failure (no free huge page, an old kernel) only means small pages.
        let _ = region.collapse(from, whole);
    }
    region.advise(from, to, Advice::LinuxPopulateWrite)
}

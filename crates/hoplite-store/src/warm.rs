//! Faults pages in before they are needed.
//!
//! A page fault per 4 KiB makes a first write several times slower than memory. One thread per arena, at the lowest
//! priority, keeps a stretch beyond the highest address in use present. Where the kernel allows, it has 2 MiB pages
//! back that stretch: each process that maps the arena later then takes one fault per 2 MiB.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::mm::Advice;

use crate::mapping::Mapping;
use crate::region::{HugePages, FAULT_PIECE_BYTES};

const PIECE_BYTES: u64 = FAULT_PIECE_BYTES as u64;

/// How far ahead of the high-water mark pages are present: a good second of a 1 Gbit/s link or of the slowest
/// faulting measured, and little for any host that runs this.
pub const PREFAULT_AHEAD: u64 = 256 << 20;

/// Gives way to all threads that carry bytes. With the lowest priority (19), a busy machine would suspend the thread
/// for long while it holds the memory map.
const NICE: i32 = 10;

/// The first one behind standard input, output and error.
const FIRST_DESCRIPTOR: libc::c_uint = 3;

#[derive(Debug, Default)]
struct Plan {
    /// The address that writers have reached.
    high_water: u64,
    /// The address that this thread is to reach, and the one it has reached.
    target: u64,
    done: u64,
    /// The kernel refused (it is old, or has no memory): writers will fault pages in themselves.
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

/// The background thread. It sleeps unless there is work.
#[derive(Debug)]
pub(crate) struct Warmer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Warmer {
    pub(crate) fn start(mapping: Arc<Mapping>) -> io::Result<Warmer> {
        let shared = Arc::new(Shared {
            plan: Mutex::default(),
            changed: Condvar::new(),
            target: AtomicU64::new(0),
            bytes: mapping.bytes(),
        });
        let thread = std::thread::Builder::new().name("hoplite-warm".into()).spawn({
            let shared = shared.clone();
            move || run(&shared, &mapping)
        })?;
        Ok(Warmer { shared, thread: Some(thread) })
    }

    pub(crate) fn warm_to(&self, high_water: u64) {
        let target = match high_water.saturating_add(PREFAULT_AHEAD) {
            ahead if ahead >= self.shared.bytes => self.shared.bytes,
            // Whole pieces, so that a slowly rising mark does not wake the thread at every step.
            ahead => ahead - ahead % PIECE_BYTES,
        };
        if target <= self.shared.target.load(Ordering::Relaxed) {
            return;
        }
        let mut plan = self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.high_water = plan.high_water.max(high_water);
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

/// Leaves signals and descriptors to the process's other threads. Sockets of a killed process are closed only when
/// the last thread that shares them has died, and on a busy machine this thread dies late. The node's peers would
/// wait for it before they learn of the crash. Signals come first: their handlers write to descriptors.
fn keep_out_of_the_way() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set that it is given. The mask concerns this thread only, and so does the
    // table of descriptors: with CLOSE_RANGE_UNSHARE it becomes the thread's own before any descriptor in it is
    // closed. The thread uses none after this. Kernels without the call leave everything as it was.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
        libc::syscall(libc::SYS_close_range, FIRST_DESCRIPTOR, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
    }
}

fn run(shared: &Shared, mapping: &Mapping) {
    keep_out_of_the_way();
    // If the kernel forbids it, the thread just keeps its priority.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    let (region, touched) = (mapping.writable(), mapping.touched());
    if touched.pages() == HugePages::WhereAllowed {
        // With `shmem_enabled=advise`, faults then bring huge pages at once. A refusal is harmless.
        let _ = region.advise(0, shared.bytes as usize, Advice::LinuxHugepage);
    }
    while let Some((from, to)) = next_piece(shared) {
        let faulted = region.fault_in(from as usize, to as usize, touched.pages());
        let mut plan = shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
        match faulted {
            Ok(()) => {
                touched.mark(from as usize, to as usize);
                plan.done = to;
            }
            Err(_) => plan.refused = true,
        }
        shared.changed.notify_all();
        if plan.refused {
            return;
        }
    }
}

/// Sleeps until there is something to fault in. `None` when it is time to stop.
fn next_piece(shared: &Shared) -> Option<(u64, u64)> {
    let plan = shared.plan.lock().unwrap_or_else(PoisonError::into_inner);
    let mut plan = shared
        .changed
        .wait_while(plan, |plan| !plan.stop && plan.target <= plan.done)
        .unwrap_or_else(PoisonError::into_inner);
    // Not behind the mark: a writer is there already, faults in the pages that it needs (`touched`), and would only
    // wait for this thread's page locks.
    plan.done = plan.done.max(plan.high_water / PIECE_BYTES * PIECE_BYTES);
    (!plan.stop).then_some((plan.done, plan.target.min(plan.done + PIECE_BYTES)))
}

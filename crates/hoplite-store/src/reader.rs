//! Reading a copy behind its watermark.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::block::{ProgressBlock, State};
use crate::mapping::{Extent, Mapping};

/// The reason why [`Reader::follow`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Followed {
    /// There are more bytes: this many are present now.
    Advanced(u64),
    /// No more bytes, and the copy is final.
    Sealed,
    /// The copy will never be finished; the bytes read from it are void.
    Aborted,
    TimedOut,
    /// A signal arrived: handle it and follow again.
    Interrupted,
}

/// Reads one copy. Cheap to clone. It keeps the mapping, not the copy: the daemon may reuse the bytes after a
/// `Release`.
#[derive(Clone, Debug)]
pub struct Reader {
    mapping: Arc<Mapping>,
    extent: Extent,
}

impl Reader {
    pub(crate) fn new(mapping: Arc<Mapping>, extent: Extent) -> Self {
        Reader { mapping, extent }
    }

    fn block(&self) -> &ProgressBlock {
        self.mapping.read_only_block(self.extent)
    }

    /// Bytes of the whole object.
    pub fn size(&self) -> u64 {
        self.extent.size as u64
    }

    /// Contiguous bytes present.
    pub fn watermark(&self) -> u64 {
        self.block().watermark().min(self.size())
    }

    pub fn state(&self) -> State {
        self.block().state()
    }

    /// The bytes `from..to`, which the caller has seen to be published. The block is not checked again, since the
    /// writing client may have changed it meanwhile.
    ///
    /// # Panics
    /// Unless `from <= to <= size`.
    pub fn bytes(&self, from: u64, to: u64) -> &[u8] {
        assert!(from <= to && to <= self.size(), "{from}..{to} of {} bytes", self.size());
        let start = self.mapping.readable().at(self.extent.offset + from as usize);
        // SAFETY: in the mapping (`extent` was checked, `to <= size`), which `self` keeps. Published
        // bytes are not written again while the copy lives (the watermark was loaded with acquire).
        unsafe { std::slice::from_raw_parts(start.as_ptr(), (to - from) as usize) }
    }

    /// Asks the writing client to report its next advance to the daemon. Then look at the watermark once more, since
    /// it may have moved before the client could see this request. For the daemon.
    pub fn want(&self) {
        self.mapping.block(self.extent).want();
    }

    /// Sleeps until more than `above` bytes are present, the copy is sealed or aborted, `timeout` is over, or a
    /// signal arrives. An abort has precedence over everything; bytes have precedence over a seal, so that following
    /// with `above == size` waits for the seal.
    pub fn follow(&self, above: u64, timeout: Duration) -> Followed {
        let started = Instant::now();
        loop {
            // The tick is read first: a change after it makes the sleep below return at once.
            let tick = self.block().tick();
            let state = self.state();
            let watermark = self.watermark();
            match state {
                State::Aborted => return Followed::Aborted,
                _ if watermark > above => return Followed::Advanced(watermark),
                State::Sealed => return Followed::Sealed,
                State::Writing => {}
            }
            let Some(left) = timeout.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) else {
                return Followed::TimedOut;
            };
            match self.block().sleep(tick, left) {
                Err(rustix::io::Errno::INTR) => return Followed::Interrupted,
                // Woken, or the tick had moved (AGAIN), or the time is up: the next round shows which.
                Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::TIMEDOUT) => {}
                Err(error) => unreachable!("a futex wait on our own mapping failed: {error}"),
            }
        }
    }
}

//! Writing a copy: fill, publish, seal.

use std::sync::Arc;

use crate::block::{ProgressBlock, State};
use crate::mapping::{Extent, Mapping};
use crate::reader::Reader;

/// The right to write one copy. Dropping it changes nothing in the copy: the daemon decides whether an unfinished
/// copy is aborted.
#[derive(Debug)]
pub struct Writer {
    mapping: Arc<Mapping>,
    extent: Extent,
    /// A follower may be asleep until there are more bytes.
    seen: bool,
}

impl Writer {
    pub(crate) fn new(mapping: Arc<Mapping>, extent: Extent) -> Self {
        Writer { mapping, extent, seen: true }
    }

    /// For a copy that no other process knows of yet: no follower is woken until [`Writer::show`], since each wake-up
    /// is a system call.
    pub fn unseen(self) -> Self {
        Writer { seen: false, ..self }
    }

    /// From now on there may be readers.
    pub fn show(&mut self) {
        self.seen = true;
    }

    pub(crate) fn block(&self) -> &ProgressBlock {
        self.mapping.block(self.extent)
    }

    /// Bytes of the whole object.
    pub fn size(&self) -> u64 {
        self.extent.size as u64
    }

    /// Contiguous bytes published so far, by any process.
    pub fn watermark(&self) -> u64 {
        self.block().watermark().min(self.size())
    }

    pub fn state(&self) -> State {
        self.block().state()
    }

    /// The unpublished bytes `from..to`, to be filled. At this process's first access, their pages are faulted in
    /// (about 0.15 ms per MiB), as huge ones if possible.
    ///
    /// # Panics
    /// Unless `watermark <= from <= to <= size`: readers use the bytes below the watermark.
    pub fn unpublished(&mut self, from: u64, to: u64) -> &mut [u8] {
        let watermark = self.watermark();
        assert!(
            watermark <= from && from <= to && to <= self.size(),
            "{from}..{to} is not unpublished: {watermark} of {} bytes are",
            self.size()
        );
        self.mapping.prepare(self.extent, from as usize, to as usize);
        let start = self.mapping.writable().at(self.extent.offset + from as usize);
        // SAFETY: in the mapping (`extent` was checked, `to <= size`), which `self` keeps. No other code uses these
        // bytes: readers stay below the watermark, there is one writer, and the slice borrows it mutably.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), (to - from) as usize) }
    }

    /// Makes everything below `watermark` visible to readers, and wakes followers.
    ///
    /// # Panics
    /// If the watermark would decrease or exceed the size.
    pub fn publish(&mut self, watermark: u64) {
        let old = self.watermark();
        assert!(
            old <= watermark && watermark <= self.size(),
            "cannot publish {watermark} after {old} of {} bytes",
            self.size()
        );
        self.block().publish(watermark);
        self.wake();
    }

    /// Whether the daemon has asked for a report of the watermark since the last call. Check it after each `publish`.
    pub fn take_wanted(&self) -> bool {
        self.block().take_wanted()
    }

    /// The copy becomes final. The caller must know that every byte is published: a client may have changed the
    /// block's watermark.
    pub fn seal(&mut self) {
        self.block().finish(State::Sealed);
        self.wake();
    }

    /// The copy will never be finished; followers stop.
    pub fn abort(&mut self) {
        self.block().finish(State::Aborted);
        self.wake();
    }

    fn wake(&self) {
        if self.seen {
            self.block().wake();
        }
    }

    /// A reader of the same copy.
    pub fn reader(&self) -> Reader {
        Reader::new(self.mapping.clone(), self.extent)
    }
}

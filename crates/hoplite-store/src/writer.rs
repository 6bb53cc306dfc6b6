//! Writing a copy: fill, publish, seal.

use std::sync::Arc;

use crate::block::{ProgressBlock, State};
use crate::mapping::{Extent, Mapping};
use crate::reader::Reader;

/// The right to write one copy. Dropping it changes nothing in the copy: whether an unfinished one
/// is aborted is the daemon's decision.
#[derive(Debug)]
pub struct Writer {
    mapping: Arc<Mapping>,
    extent: Extent,
    /// Somebody may sleep until there is more.
    seen: bool,
}

impl Writer {
    pub(crate) fn new(mapping: Arc<Mapping>, extent: Extent) -> Self {
        Writer { mapping, extent, seen: true }
    }

    /// Of a copy that nobody knows of yet: nobody is woken, which would be a system call each time, until
    /// [`Writer::show`].
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

    /// Contiguous bytes published so far, by whichever process writes.
    pub fn watermark(&self) -> u64 {
        self.block().watermark().min(self.size())
    }

    pub fn state(&self) -> State {
        self.block().state()
    }

    /// The bytes `from..to`, none of which is published, to be filled. The first time this process
    /// comes by, their pages are faulted in (about 0.15 ms per MiB), as huge ones if possible.
    ///
    /// # Panics
    /// Unless `watermark <= from <= to <= size`: readers hold what lies below the watermark.
    pub fn unpublished(&mut self, from: u64, to: u64) -> &mut [u8] {
        let watermark = self.watermark();
        assert!(
            watermark <= from && from <= to && to <= self.size(),
            "{from}..{to} is not unpublished: {watermark} of {} bytes are",
            self.size()
        );
        self.mapping.prepare(self.extent, from as usize, to as usize);
        let start = self.mapping.writable().at(self.extent.offset + from as usize);
        // SAFETY: in the mapping (`extent` was checked, `to <= size`), which `self` keeps. Nobody
        // else holds these bytes: readers stay below the watermark, there is one writer, and the
        // slice borrows it mutably.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), (to - from) as usize) }
    }

    /// Makes everything below `watermark` visible to readers and wakes those who follow.
    ///
    /// # Panics
    /// If it would go back or past the size.
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

    /// Whether the daemon asked, since the last call, to be told of the watermark. To be looked at
    /// after each `publish`.
    pub fn take_wanted(&self) -> bool {
        self.block().take_wanted()
    }

    /// The copy is final. Whoever seals it knows that every byte is published: what the block says a client may have
    /// written there.
    pub fn seal(&mut self) {
        self.block().finish(State::Sealed);
        self.wake();
    }

    /// The copy will never be finished; followers break off.
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

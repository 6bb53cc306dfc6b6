//! One process's mapping of the arena.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hoplite_types::limits::{ALIGNMENT, PROGRESS_BLOCK_BYTES};
use hoplite_types::ObjectId;

use crate::block::ProgressBlock;
use crate::reader::Reader;
use crate::region::{Access, HugePages, Region};
use crate::removals::Removals;
use crate::touched::Touched;
use crate::writer::Writer;

/// The position of a copy's block and bytes. Only `Mapping::extent` makes one, and checks it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    block: usize,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// A process's mapping of the arena. It is unmapped when the last `Writer` and `Reader` are gone, too.
///
/// A client maps the arena twice: writable for the objects that it creates, and read-only for its views. The daemon
/// maps it once.
#[derive(Debug)]
pub struct Mapping {
    writable: Region,
    /// `None`: this process reads through the writable mapping.
    read_only: Option<Region>,
    touched: Touched,
    bytes: u64,
}

impl Mapping {
    /// Maps the arena behind `fd` into a client. `bytes` is the size that the daemon announced.
    ///
    /// # Errors
    /// `InvalidInput` if the file is shorter than `bytes` and the counters behind them (touching the rest would be
    /// fatal), and the errors of `mmap`.
    pub fn attach(fd: OwnedFd, bytes: u64) -> io::Result<Arc<Mapping>> {
        Self::attach_with_pages(fd, bytes, HugePages::default())
    }

    /// As `attach`, with a choice of page sizes (for measuring it).
    pub fn attach_with_pages(fd: OwnedFd, bytes: u64, pages: HugePages) -> io::Result<Arc<Mapping>> {
        let file = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        let len = mappable(bytes)?;
        let whole = len + Removals::bytes();
        if file < whole as u64 {
            return Err(invalid(format!("the arena's file has {file} bytes, {whole} belong to {bytes}")));
        }
        let writable = Region::map(fd.as_fd(), whole, Access::ReadWrite)?;
        let read_only = Some(Region::map(fd.as_fd(), whole, Access::ReadOnly)?);
        let touched = Touched::none(len, pages);
        Ok(Arc::new(Mapping { writable, read_only, touched, bytes }))
    }

    pub(crate) fn of_owner(fd: &OwnedFd, bytes: u64, pages: HugePages) -> io::Result<Arc<Mapping>> {
        let len = mappable(bytes)?;
        let writable = Region::map(fd.as_fd(), len + Removals::bytes(), Access::ReadWrite)?;
        let touched = Touched::none(len, pages);
        Ok(Arc::new(Mapping { writable, read_only: None, touched, bytes }))
    }

    /// Bytes of the arena.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many complete copies of `id`, and of the objects that share its counter, have gone from the node.
    pub fn removals(&self, id: ObjectId) -> u64 {
        self.removals_in(self.readable()).count(id)
    }

    /// A complete copy of `id` has gone. Must be called before that is reported to any process. For the daemon.
    pub fn count_removal(&self, id: ObjectId) {
        self.removals_in(&self.writable).add(id);
    }

    fn removals_in<'a>(&self, region: &'a Region) -> &'a Removals {
        // SAFETY: every region was mapped with that many bytes behind the arena's, which are whole pages, and its
        // reference keeps it; only `count_removal`, through the writable one, counts.
        unsafe { Removals::from_ptr(region.at(self.bytes as usize)) }
    }

    /// Begins a copy: its progress block then shows an empty copy. Only for the process that decides on the arena's
    /// layout (the daemon), when no other code uses these bytes.
    ///
    /// # Errors
    /// `InvalidInput` if block or data would lie outside the arena, or are not aligned to 64.
    pub fn create(self: &Arc<Self>, offset: u64, size: u64) -> io::Result<Writer> {
        self.create_window(offset.wrapping_sub(PROGRESS_BLOCK_BYTES), offset, size)
    }

    /// As `create`, for a copy whose progress block, at `block`, need not lie directly before its bytes. They may be
    /// part of another copy, whose bytes this process writes in no other way.
    ///
    /// # Errors
    /// As `create`.
    pub fn create_window(self: &Arc<Self>, block: u64, offset: u64, size: u64) -> io::Result<Writer> {
        let writer = Writer::new(self.clone(), self.extent(block, offset, size)?);
        writer.block().reset();
        Ok(writer)
    }

    /// Continues a copy that exists: a client writes the copy that the daemon created for it. One process writes a
    /// copy, through one `Writer`; another may seal or abort it.
    ///
    /// # Errors
    /// As `create`.
    pub fn writer(self: &Arc<Self>, offset: u64, size: u64) -> io::Result<Writer> {
        Ok(Writer::new(self.clone(), self.behind_block(offset, size)?))
    }

    /// Reads a copy that exists.
    ///
    /// # Errors
    /// As `create`.
    pub fn reader(self: &Arc<Self>, offset: u64, size: u64) -> io::Result<Reader> {
        Ok(Reader::new(self.clone(), self.behind_block(offset, size)?))
    }

    fn behind_block(&self, offset: u64, size: u64) -> io::Result<Extent> {
        self.extent(offset.wrapping_sub(PROGRESS_BLOCK_BYTES), offset, size)
    }

    fn extent(&self, block: u64, offset: u64, size: u64) -> io::Result<Extent> {
        let lies = |at: u64, bytes: u64| {
            at.is_multiple_of(ALIGNMENT) && at.checked_add(bytes).is_some_and(|end| end <= self.bytes)
        };
        if !lies(offset, size) || !lies(block, PROGRESS_BLOCK_BYTES) {
            return Err(invalid(format!(
                "{size} bytes at {offset} with a progress block at {block} do not lie (aligned to {ALIGNMENT}) \
                 in an arena of {} bytes",
                self.bytes
            )));
        }
        // All are at most `bytes`, which fits `usize`, since that many were mapped.
        Ok(Extent { block: block as usize, offset: offset as usize, size: size as usize })
    }

    pub(crate) fn writable(&self) -> &Region {
        &self.writable
    }

    pub(crate) fn touched(&self) -> &Touched {
        &self.touched
    }

    /// Has the pages that a copy's `from..to` touches for the first time faulted in cheaply.
    pub(crate) fn prepare(&self, extent: Extent, from: usize, to: usize) {
        let Extent { offset, size, .. } = extent;
        self.touched.prepare(&self.writable, (offset, offset + size), offset + from, offset + to);
    }

    pub(crate) fn readable(&self) -> &Region {
        self.read_only.as_ref().unwrap_or(&self.writable)
    }

    /// The block, through the writable mapping.
    pub(crate) fn block(&self, extent: Extent) -> &ProgressBlock {
        let at = self.writable.at(extent.block);
        // SAFETY: `extent` was checked: the 64 aligned bytes lie in the mapping, which `self` keeps.
        unsafe { ProgressBlock::from_ptr(at) }
    }

    /// The block, through the mapping that readers use: only to be loaded from.
    pub(crate) fn read_only_block(&self, extent: Extent) -> &ProgressBlock {
        let at = self.readable().at(extent.block);
        // SAFETY: as in `block`; the callers only load and sleep.
        unsafe { ProgressBlock::from_ptr(at) }
    }
}

fn mappable(bytes: u64) -> io::Result<usize> {
    match usize::try_from(bytes) {
        Ok(len) if len > 0 && len % rustix::param::page_size() == 0 => Ok(len),
        _ => Err(invalid(format!("an arena of {bytes} bytes is not a whole number of pages"))),
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

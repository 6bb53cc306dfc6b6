//! The partial sum in `out`, and how far each part of it has been folded.
//!
//! ```text
//! 0 ──────── published ──────── frontier ────────── landed ──────── size
//!  every input in │ some inputs in  │ the stream's bytes │ nothing written yet
//! ```

use std::io;
use std::sync::Arc;

use hoplite_core::io::{Broken, FoldRule};
use hoplite_fold::{divide, fold, fold_into};
use hoplite_types::limits::GRAIN_BYTES_MAX;

use crate::copies::Copy;

/// Sources are folded in tiles of this size. So a tile of `out` is still in the L1 or L2 cache when the next source
/// is folded into it.
const TILE_BYTES: u64 = 64 << 10;

/// The result so far.
#[derive(Debug)]
pub(super) struct Sum {
    out: Arc<Copy>,
    rule: FoldRule,
    /// Folded in wherever the frontier moves.
    sources: Vec<Arc<Copy>>,
    /// Sources that were added after the frontier had moved, and must catch up.
    late: Vec<Late>,
    frontier: u64,
    published: u64,
    landing: Landing,
    folded_bytes: usize,
}

/// Whether a stream's bytes are put into `out` before they are folded ("land" there).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Landing {
    /// Not allowed: other streams may write to `out` first.
    Excluded,
    Possible,
    /// This many bytes have landed.
    At(u64),
    /// The fold is over.
    Over,
}

#[derive(Debug)]
struct Late {
    sources: Vec<Arc<Copy>>,
    done: u64,
    end: u64,
}

impl Sum {
    /// Lets one stream land in `out` (see `shared`), if `is_only_stream`: no other stream will be added.
    pub(super) fn new(out: Arc<Copy>, rule: FoldRule, is_only_stream: bool) -> Self {
        let landing = if is_only_stream { Landing::Possible } else { Landing::Excluded };
        let (sources, late, frontier, published, folded_bytes) = Default::default();
        Sum { out, rule, sources, late, frontier, published, landing, folded_bytes }
    }

    pub(super) fn size(&self) -> u64 {
        self.out.size()
    }

    pub(super) fn published(&self) -> u64 {
        self.published
    }

    /// Every input is folded in, as far as this sum knows its inputs.
    pub(super) fn is_complete(&self) -> bool {
        !self.rule.open && self.published == self.size()
    }

    pub(super) fn set_rule(&mut self, rule: FoldRule) {
        self.rule = rule;
    }

    pub(super) fn add_sources(&mut self, sources: Vec<Arc<Copy>>) {
        if self.frontier > 0 && !sources.is_empty() {
            self.late.push(Late { sources: sources.clone(), done: 0, end: self.frontier });
        }
        self.sources.extend(sources);
    }

    /// The number of input bytes folded since the last call.
    pub(super) fn take_folded_bytes(&mut self) -> usize {
        std::mem::take(&mut self.folded_bytes)
    }

    /// Returns false if the stream cannot land: see [`Sum::new`].
    pub(super) fn begin_landing(&mut self) -> bool {
        match self.landing {
            Landing::Possible if self.frontier == 0 => self.landing = Landing::At(0),
            // The bytes are discarded.
            Landing::Over => {}
            _ => return false,
        }
        true
    }

    pub(super) fn landed(&self) -> u64 {
        match self.landing {
            Landing::At(landed) => landed,
            Landing::Excluded | Landing::Possible | Landing::Over => 0,
        }
    }

    /// Nothing is written any more.
    pub(super) fn close(&mut self) {
        self.landing = Landing::Over;
    }

    /// Lets `read` fill the stream's next bytes, `bytes_max` at most.
    pub(super) fn land(
        &mut self,
        bytes_max: u64,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<io::Result<usize>, Broken> {
        let Landing::At(from) = self.landing else { return Err(Broken) };
        let to = self.size().min(from + bytes_max.min(GRAIN_BYTES_MAX as u64));
        let read = self.out.write(|out| read(out.unpublished(from, to)))?;
        if let Ok(read) = read {
            self.landing = Landing::At(from + read as u64);
        }
        Ok(read)
    }

    /// Folds the sources into the landed bytes, as far as the sources are present.
    pub(super) fn fold_landed(&mut self) -> Result<bool, Broken> {
        let end = self.whole(self.landed()).min(self.present(&self.sources));
        let moved = end > self.frontier;
        let sources = std::mem::take(&mut self.sources);
        while self.frontier < end {
            let to = end.min(self.frontier + TILE_BYTES);
            self.fold_sources(&sources, self.frontier, to)?;
            self.frontier = to;
        }
        self.sources = sources;
        Ok(moved)
    }

    /// Folds `bytes`, the next bytes of a stream from `at` on, as far as possible. Returns how many were folded.
    pub(super) fn fold_stream(&mut self, at: u64, bytes: &[u8]) -> Result<usize, Broken> {
        let mut done = 0;
        while done < bytes.len() {
            let from = at + done as u64;
            let limit = if from < self.frontier { self.frontier } else { self.present(&self.sources) };
            let to = self.whole(limit.min(at + bytes.len() as u64)).min(from + TILE_BYTES);
            if to <= from {
                break;
            }
            let piece = &bytes[done..done + (to - from) as usize];
            if from < self.frontier {
                let FoldRule { op, dtype, .. } = self.rule;
                self.out.write(|out| fold(op, dtype, out.unpublished(from, to), piece))?;
            } else {
                self.lead(from, to, Some(piece))?;
            }
            self.folded_bytes += piece.len();
            done += piece.len();
        }
        Ok(done)
    }

    /// Without streams the sources themselves move the frontier. But not while inputs are missing, since a stream
    /// that is added later comes first in the fold order.
    pub(super) fn fold_sources_alone(&mut self) -> Result<bool, Broken> {
        if self.rule.open || self.sources.is_empty() {
            return Ok(false);
        }
        let end = self.present(&self.sources).min(self.frontier + GRAIN_BYTES_MAX as u64);
        let moved = end > self.frontier;
        while self.frontier < end {
            self.lead(self.frontier, end.min(self.frontier + TILE_BYTES), None)?;
        }
        Ok(moved)
    }

    /// Lets late sources catch up with the frontier at their addition, by one grain.
    pub(super) fn fold_late_sources(&mut self) -> Result<bool, Broken> {
        let mut moved = false;
        let mut late = std::mem::take(&mut self.late);
        for late in &mut late {
            let end = late.end.min(late.done + GRAIN_BYTES_MAX as u64).min(self.present(&late.sources));
            while late.done < end {
                let to = end.min(late.done + TILE_BYTES);
                self.fold_sources(&late.sources, late.done, to)?;
                late.done = to;
                moved = true;
            }
        }
        late.retain(|late| late.done < late.end);
        self.late = late;
        Ok(moved)
    }

    /// Publishes the bytes into which every input is folded. `streams` is the mark of the slowest stream.
    pub(super) fn publish(&mut self, streams: Option<u64>) -> Result<(), Broken> {
        let late = self.late.iter().map(|late| late.done).min();
        let to = [streams, late].into_iter().flatten().fold(self.frontier, u64::min);
        if self.rule.open || to <= self.published {
            return Ok(());
        }
        let (from, FoldRule { dtype, divide_by, .. }) = (self.published, self.rule);
        self.out.write(|out| {
            if let Some(by) = divide_by {
                divide(dtype, out.unpublished(from, to), by);
            }
            out.publish(to);
        })?;
        self.published = to;
        Ok(())
    }

    /// Writes the new region `frontier..to`: `stream ∘ sources`, or the sources alone.
    fn lead(&mut self, from: u64, to: u64, stream: Option<&[u8]>) -> Result<(), Broken> {
        let FoldRule { op, dtype, offset, .. } = self.rule;
        let bytes = |index: usize| part(&self.sources[index], offset, from, to);
        let (first, second, folded) = match (stream, self.sources.len()) {
            (Some(stream), 0) => (stream, None, 0),
            (Some(stream), _) => (stream, Some(bytes(0)), 1),
            (None, 1) => (bytes(0), None, 1),
            (None, _) => (bytes(0), Some(bytes(1)), 2),
        };
        self.out.write(|out| {
            let out = out.unpublished(from, to);
            match second {
                Some(second) => fold_into(op, dtype, out, first, second),
                None => out.copy_from_slice(first),
            }
            for source in &self.sources[folded..] {
                fold(op, dtype, out, part(source, offset, from, to));
            }
        })?;
        self.folded_bytes += self.sources.len() * (to - from) as usize;
        self.frontier = to;
        Ok(())
    }

    /// Folds `sources` into a region that is written already: `out ∘ sources`.
    fn fold_sources(&mut self, sources: &[Arc<Copy>], from: u64, to: u64) -> Result<(), Broken> {
        let FoldRule { op, dtype, offset, .. } = self.rule;
        self.out.write(|out| {
            for source in sources {
                fold(op, dtype, out.unpublished(from, to), part(source, offset, from, to));
            }
        })?;
        self.folded_bytes += sources.len() * (to - from) as usize;
        Ok(())
    }

    /// How many bytes of the folded part are present in all `sources`, in whole elements.
    fn present(&self, sources: &[Arc<Copy>]) -> u64 {
        let present = sources.iter().map(|source| source.watermark().saturating_sub(self.rule.offset));
        self.whole(present.min().unwrap_or(self.size()).min(self.size()))
    }

    fn whole(&self, bytes: u64) -> u64 {
        bytes - bytes % self.rule.dtype.size() as u64
    }
}

/// The bytes `from..to` of the part of a source that begins at `offset`.
fn part(source: &Copy, offset: u64, from: u64, to: u64) -> &[u8] {
    source.reader().bytes(offset + from, offset + to)
}

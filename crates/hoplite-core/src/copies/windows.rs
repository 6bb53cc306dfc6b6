//! Windows: parts of a copy that arrive separately. Each has its own watermark, so that it can be passed on while it
//! arrives, without a second buffer.
//!
//! A window is a copy of its own object. Its data is a range of another copy's, and its progress block is separate. The
//! whole copy is complete once every window is sealed. Until then it is not read under its own name, and its space is
//! kept as long as any window is in use.

use hoplite_types::peer::Seal;
use hoplite_types::{CopyId, Edition, Header, ObjectId};

use super::{Copies, NewCopy, Phase};
use crate::ctx::Ctx;
use crate::io::{Extent, Output};

impl Copies {
    /// Opens windows side by side over all of `whole`, each but the last of `part_bytes`. Returns whether
    /// there was space for their progress blocks; if not, some may be missing.
    pub fn open_windows(
        &mut self,
        ctx: &mut Ctx,
        whole: CopyId,
        part_bytes: u64,
        parts: Vec<(ObjectId, Edition)>,
    ) -> bool {
        let Extent { offset, size, .. } = self.table[&whole].extent;
        for (at, (object, edition)) in (0..size).step_by(part_bytes as usize).zip(parts) {
            let Some(Extent { block, .. }) = self.make_space(ctx, 0) else { return false };
            let part_size = part_bytes.min(size - at);
            if let Some(stale) = self.live(object) {
                self.doom(ctx, stale);
            }
            let window = self.open_at(
                ctx,
                Extent { block, offset: offset + at, size: part_size },
                NewCopy {
                    object,
                    edition,
                    size: part_size,
                    header: Header::default(),
                    phase: Phase::Received(None),
                    // It is freed only together with the whole copy.
                    pinned: true,
                    public: false,
                    stamp: None,
                    claim: None,
                },
            );
            self.with(window, |window| window.within = Some(whole));
            self.with(whole, |whole| whole.windows.push(window));
            self.add_user(ctx, whole);
        }
        true
    }

    /// Every window is sealed, and now so is the whole copy; readers of a window may finish.
    pub fn seal_whole(&mut self, ctx: &mut Ctx, whole: CopyId, pinned: bool, seal: Seal) {
        ctx.out.push_back(Output::Filled { copy: whole });
        let windows = self.with(whole, |whole| {
            whole.pinned = pinned;
            std::mem::take(&mut whole.windows)
        });
        windows.into_iter().for_each(|window| self.retire(ctx, window));
        self.seal(ctx, whole, seal);
    }

    /// Closes a sealed copy that the directory does not know to new readers.
    pub fn retire(&mut self, ctx: &mut Ctx, id: CopyId) {
        debug_assert!(!self.table[&id].public);
        self.unname(self.table[&id].object);
        self.with(id, |copy| copy.doomed = true);
        self.try_free(ctx, id);
    }

    /// Dooms the windows of a copy together with it.
    pub(super) fn doom_windows(&mut self, ctx: &mut Ctx, whole: CopyId) {
        if self.table[&whole].windows.is_empty() {
            return self.try_free(ctx, whole);
        }
        // Otherwise it would be freed with its last window, before this is done with it.
        self.add_user(ctx, whole);
        let windows = self.with(whole, |whole| std::mem::take(&mut whole.windows));
        windows.into_iter().for_each(|window| self.doom(ctx, window));
        self.remove_user(ctx, whole);
    }

    pub(super) fn free_window(&mut self, ctx: &mut Ctx, extent: Extent, whole: CopyId) {
        self.arena.free(Extent::behind_block(extent.block, 0));
        self.remove_user(ctx, whole);
    }
}

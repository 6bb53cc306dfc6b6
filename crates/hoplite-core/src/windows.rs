//! Windows: parts of a copy that arrive separately. Each has its own watermark, so that it can be passed on while it
//! arrives, without a second buffer.
//!
//! A window is a copy of its own object. Its data is a range of another copy's, and its progress block is separate. The
//! whole copy is complete once every window is sealed. Until then it is not read under its own name, and its space is
//! kept as long as any window is in use.

use hoplite_types::peer::Seal;
use hoplite_types::{CopyId, Edition, Header, ObjectId};

use crate::copies::{NewCopy, Phase};
use crate::io::{Extent, Output};
use crate::Core;

impl Core {
    /// Opens windows side by side over all of `whole`, each but the last of `part_bytes`. Returns whether
    /// there was space for their progress blocks; if not, some may be missing.
    pub(crate) fn open_windows(
        &mut self,
        whole: CopyId,
        part_bytes: u64,
        parts: Vec<(ObjectId, Edition)>,
    ) -> bool {
        let Extent { offset, size, .. } = self.copies.table[&whole].extent;
        for (at, (object, edition)) in (0..size).step_by(part_bytes as usize).zip(parts) {
            let Some(Extent { block, .. }) = self.make_space(0) else { return false };
            let part_size = part_bytes.min(size - at);
            if let Some(stale) = self.copies.live(object) {
                self.doom(stale);
            }
            let window = self.open_at(
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
            self.copies.with(window, |window| window.within = Some(whole));
            self.copies.with(whole, |whole| whole.windows.push(window));
            self.add_user(whole);
        }
        true
    }

    /// Every window is sealed, and now so is the whole copy; readers of a window may finish.
    pub(crate) fn seal_whole(&mut self, whole: CopyId, pinned: bool, seal: Seal) {
        self.ctx.out.push_back(Output::Filled { copy: whole });
        let windows = self.copies.with(whole, |whole| {
            whole.pinned = pinned;
            std::mem::take(&mut whole.windows)
        });
        windows.into_iter().for_each(|window| self.retire(window));
        self.seal_copy(whole, seal);
    }

    /// Closes a sealed copy that the directory does not know to new readers.
    pub(crate) fn retire(&mut self, id: CopyId) {
        debug_assert!(!self.copies.table[&id].public);
        self.copies.forget_object_of(id);
        self.copies.with(id, |copy| copy.doomed = true);
        self.try_free(id);
    }

    /// Dooms the windows of a copy together with it.
    pub(crate) fn doom_windows(&mut self, whole: CopyId) {
        if self.copies.table[&whole].windows.is_empty() {
            return self.try_free(whole);
        }
        // Otherwise it would be freed with its last window, before this is done with it.
        self.add_user(whole);
        let windows = self.copies.with(whole, |whole| std::mem::take(&mut whole.windows));
        windows.into_iter().for_each(|window| self.doom(window));
        self.remove_user(whole);
    }

    pub(crate) fn free_window(&mut self, extent: Extent, whole: CopyId) {
        self.copies.arena.free(Extent::behind_block(extent.block, 0));
        self.remove_user(whole);
    }
}

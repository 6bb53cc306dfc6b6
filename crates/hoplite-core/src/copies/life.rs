//! The life of a copy: it is opened, sealed, doomed, and freed once it is unused.

use hoplite_types::peer::{PeerMessage, Seal};
use hoplite_types::{CopyId, ObjectId};

use super::{Copies, Copy, Incoming, NewCopy, Phase};
use crate::ctx::Ctx;
use crate::io::{Extent, Output};
use crate::notices::Notice;

impl Copies {
    /// Finds space (evicting if necessary) and opens a copy there. `None` if there is no space now.
    pub fn open(&mut self, ctx: &mut Ctx, new: NewCopy) -> Option<CopyId> {
        debug_assert!(self.live(new.object).is_none(), "one live copy per object");
        let extent = self.make_space(ctx, new.size)?;
        Some(self.open_at(ctx, extent, new))
    }

    pub(super) fn open_at(&mut self, ctx: &mut Ctx, extent: Extent, new: NewCopy) -> CopyId {
        let id = CopyId(ctx.next_number());
        self.add(ctx, id, extent, new);
        ctx.out.push_back(Output::Open { copy: id, extent });
        id
    }

    /// Reuses a doomed copy that has all its bytes as another writing. Only the call that wrote it may use it, and only
    /// its writer may view it. It keeps its number, by which the writer releases its view.
    pub fn reopen(&mut self, ctx: &mut Ctx, id: CopyId, new: NewCopy) {
        self.with(id, |copy| copy.doomed = false);
        let Copy { extent, views, .. } = self.table.remove(&id).expect("it is doomed, not closed");
        self.add(ctx, id, extent, new);
        self.with(id, |copy| (copy.views, copy.watermark) = (views, extent.size));
        ctx.out.push_back(Output::Reopen { copy: id, extent });
    }

    fn add(&mut self, ctx: &mut Ctx, id: CopyId, extent: Extent, new: NewCopy) {
        ctx.is_fresh = false;
        ctx.notices.push_back(Notice::Opened(new.object));
        let copy = Copy {
            object: new.object,
            edition: new.edition,
            extent,
            header: new.header,
            phase: new.phase,
            pinned: new.pinned,
            public: new.public,
            doomed: false,
            views: 0,
            users: 0,
            seal: Seal::default(),
            watermark: 0,
            last_used: id.0,
            told: None,
            told_complete: false,
            upstream: None,
            stamp: new.stamp,
            claim: new.claim,
            group: None,
            windows: Vec::new(),
            within: None,
        };
        self.name(new.object, id);
        self.table.insert(id, copy);
    }

    /// Gives the copy another object id.
    pub fn rename(&mut self, ctx: &mut Ctx, id: CopyId, object: ObjectId) {
        let copy = self.table.get_mut(&id).expect("a live copy id");
        debug_assert!(!copy.is_sealed(), "clients may keep what is sealed, by its id");
        let before = std::mem::replace(&mut copy.object, object);
        self.unname(before);
        self.name(object, id);
        ctx.notices.push_back(Notice::Opened(object));
    }

    /// All bytes are there and final.
    pub fn seal(&mut self, ctx: &mut Ctx, id: CopyId, seal: Seal) {
        let number = ctx.next_number();
        let stays = self.take_pin(self.table[&id].object);
        let (object, public) = self.with(id, |copy| {
            copy.pinned |= stays;
            copy.phase = Phase::Sealed;
            copy.seal = seal.clone();
            copy.watermark = copy.extent.size;
            copy.last_used = number;
            copy.upstream = None;
            copy.claim = None;
            (copy.object, copy.public)
        });
        ctx.out.push_back(Output::Seal { copy: id, seal });
        if public {
            if !self.table[&id].told_complete {
                self.announce(ctx, id, true, false);
            }
            ctx.notices.push_back(Notice::Sealed { copy: id, object });
        }
    }

    /// Closes the copy to new readers; its space is freed once it is unused. Does nothing if it is doomed already.
    /// Does not notify the directory (see `withdraw`).
    pub fn doom(&mut self, ctx: &mut Ctx, id: CopyId) {
        let Some(copy) = self.table.get(&id).filter(|copy| !copy.doomed) else { return };
        if let Some(whole) = copy.within.filter(|whole| self.table[whole].windows.contains(&id)) {
            // A whole copy that lacks a part will never be complete.
            return self.doom(ctx, whole);
        }
        let (object, phase, public) = (copy.object, copy.phase, copy.public);
        self.unname(object);
        self.with(id, |copy| copy.doomed = true);
        ctx.out.push_back(match phase {
            Phase::Sealed => Output::Removed { object },
            _ => Output::Abort { copy: id },
        });
        match phase {
            Phase::Received(Some(Incoming { transfer, from })) => {
                ctx.out.push_back(Output::StopReceive { transfer });
                ctx.send(from, PeerMessage::CancelPull { transfer }, None);
            }
            Phase::Folded(Some(fold)) => ctx.out.push_back(Output::StopFold { fold }),
            _ => {}
        }
        ctx.notices.push_back(Notice::Doomed { copy: id, object, public });
        self.doom_windows(ctx, id);
        if public {
            // Deferred: the caller may be about to open the next copy itself.
            self.vacate(object);
        }
    }

    /// Puts and fetches of the object are retried in a moment, because no copy here is in their way any more.
    pub fn vacate(&mut self, object: ObjectId) {
        self.vacated.insert(object);
    }

    /// Takes the next object whose puts and fetches are to be retried.
    pub fn pop_vacated(&mut self) -> Option<ObjectId> {
        self.vacated.pop_first()
    }

    /// Keeps the bytes of a copy until `remove_user`.
    pub fn add_user(&mut self, ctx: &mut Ctx, id: CopyId) {
        self.note_shown(ctx, id);
        self.with(id, |copy| copy.users += 1);
    }

    pub fn remove_user(&mut self, ctx: &mut Ctx, id: CopyId) {
        self.with(id, |copy| copy.users -= 1);
        self.try_free(ctx, id);
    }

    /// Frees a doomed copy that is unused. The space of evictable copies may also help the waiters for space.
    pub(super) fn try_free(&mut self, ctx: &mut Ctx, id: CopyId) {
        let copy = &self.table[&id];
        if copy.doomed && copy.views == 0 && copy.users == 0 {
            let copy = self.table.remove(&id).expect("just seen");
            ctx.out.push_back(Output::Close { copy: id });
            self.space_changed = true;
            match copy.within {
                None => self.arena.free(copy.extent),
                Some(whole) => self.free_window(ctx, copy.extent, whole),
            }
        } else if copy.is_evictable() || copy.views == 0 && self.spares.has(id) {
            self.space_changed = true;
        }
    }

    /// A client or node is about to be given bytes of the copy. The directory must know if they came from elsewhere.
    pub(super) fn note_shown(&self, ctx: &mut Ctx, id: CopyId) {
        let copy = &self.table[&id];
        if copy.is_sealed() && !copy.pinned && !copy.doomed {
            ctx.notices.push_back(Notice::Shown { object: copy.object, edition: copy.edition });
        }
    }

    /// The object is to be pinned here once it has arrived.
    pub fn add_pin(&mut self, object: ObjectId) {
        self.pins.insert(object);
    }

    pub fn has_pin(&self, object: ObjectId) -> bool {
        self.pins.contains(&object)
    }

    /// The object is here, or will not come. Returns whether it was to be pinned.
    pub fn take_pin(&mut self, object: ObjectId) -> bool {
        self.pins.remove(&object)
    }
}

//! The coordinator commits: the root seals the target and confirms that, and so does every node that puts it together.

use hoplite_types::peer::{PeerMessage, Seal};
use hoplite_types::{Edition, ObjectId, ReductionId};

use super::Slots;
use crate::lent::Lent;

impl Slots {
    /// The coordinator reports that this edition of the target is final, over these sources.
    pub fn on_commit(
        &mut self,
        lent: &mut Lent<'_>,
        reduction: ReductionId,
        (id, edition): (ObjectId, Edition),
        sources: Vec<ObjectId>,
    ) {
        if let Some(key) = self.allgather_of(reduction, edition) {
            self.commit_allgather(lent, key, sources);
        } else if let Some(copy) = self.table.take_finished_root(reduction, edition) {
            // The target may have been deleted while the commit was on its way.
            if lent.copies.stands(copy) {
                lent.copies.seal(lent.ctx, copy, Seal { sources });
            }
        }
        let sealed = lent.copies.sealed(id).is_some_and(|copy| lent.copies[copy].edition == edition);
        lent.ctx.send(reduction.coordinator, PeerMessage::Committed { reduction, sealed }, None);
    }
}

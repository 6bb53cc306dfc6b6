//! Inspection of a core by tests and the simulation. A driver needs none of it.

use std::fmt::Debug;

use hoplite_types::{CopyId, Edition, ObjectId, Stamp};

use crate::Core;

impl Core {
    /// The object and the writing that a copy is of, until it is closed.
    pub fn identity_of(&self, copy: CopyId) -> Option<(ObjectId, Edition)> {
        self.copies.get(copy).map(|copy| (copy.object, copy.edition))
    }

    /// The time at which the content of a copy was accepted, as far as this node knows.
    pub fn accepted_at(&self, copy: CopyId) -> Option<Stamp> {
        self.copies.get(copy).and_then(|copy| copy.stamp)
    }

    /// Whether a copy stays until its object is deleted.
    pub fn is_pinned(&self, copy: CopyId) -> bool {
        self.copies.get(copy).is_some_and(|copy| copy.pinned)
    }

    /// Whether this node knows that `id` is deleted.
    pub fn remembers_deletion(&self, id: ObjectId) -> bool {
        self.directory.is_deleted(id)
    }

    /// Describes contradictions in the state, in words. For builds with assertions: it checks everything.
    #[cfg(debug_assertions)]
    pub fn contradictions(&self) -> Option<String> {
        let shard = self.directory.wrong_index()?;
        Some(format!("the index of {shard:?} does not say what its entries do"))
    }

    /// Describes the state that is left besides members and links, in words. None is left at a core at rest, once its
    /// objects are deleted and its tombstones have expired.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        left.extend(self.copies.leftovers());
        look(&mut left, "writes", &self.writes);
        left.extend(self.calls.leftovers());
        look(&mut left, "fetches", &self.fetches);
        left.extend(self.sends.leftovers());
        left.extend(self.subscriptions.leftovers());
        left.extend(self.slots.leftovers());
        left.extend(self.reductions.leftovers());
        left.extend(self.directory.leftovers());
        left
    }
}

/// Reports a table of this kind unless it equals its default, whichever fields it has.
fn look<T: Default + Debug>(left: &mut Vec<String>, what: &str, table: &T) {
    let (now, never_used) = (format!("{table:?}"), format!("{:?}", T::default()));
    if now != never_used {
        left.push(format!("{what}: {now}"));
    }
}

//! Repeats open questions to owners, a few objects at a time, in the order of their ids.

use std::collections::BTreeMap;
use std::ops::Bound;

use hoplite_types::ObjectId;

use crate::shards::ShardSet;

/// Limit of objects that one turn looks at to find the next few.
pub(crate) const LOOKED_AT_MAX: usize = 4096;

/// Shards whose objects are to be repeated: in the current pass over all objects, and in the next.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    now: ShardSet,
    behind: Option<ObjectId>,
    then: ShardSet,
}

impl Repeats {
    pub fn begin(&mut self, shards: &ShardSet) {
        match self.are_under_way() {
            true => self.then.insert_all(shards),
            false => self.now.insert_all(shards),
        }
    }

    pub fn are_under_way(&self) -> bool {
        !self.now.is_empty()
    }

    /// The next few open objects of `table`.
    pub fn next<T>(
        &mut self,
        table: &BTreeMap<ObjectId, T>,
        most: usize,
        is_open: impl Fn(&T) -> bool,
    ) -> Vec<ObjectId> {
        let mut due = Vec::new();
        if !self.are_under_way() {
            return due;
        }
        let from = self.behind.map_or(Bound::Unbounded, Bound::Excluded);
        for (looked_at, (&object, known)) in table.range((from, Bound::Unbounded)).enumerate() {
            if looked_at == LOOKED_AT_MAX || due.len() == most {
                return due;
            }
            self.behind = Some(object);
            if is_open(known) && self.now.contains(object.shard()) {
                due.push(object);
            }
        }
        (self.now, self.behind) = (std::mem::take(&mut self.then), None);
        due
    }
}

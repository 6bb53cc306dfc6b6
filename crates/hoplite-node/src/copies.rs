//! The copies on this node, as the code that moves bytes sees them: access to the bytes, and wake-ups when more arrive.
//!
//! The core decides where copies lie, who writes them and when they go. A copy's watermark is in its progress block in
//! the arena, where clients read it (and set it, for copies that they write). Whether the copy was sealed or aborted is
//! kept here, not read from the block, which a client could overwrite.

use std::collections::HashMap;
use std::sync::Arc;

use hoplite_core::io::Extent;
use hoplite_store::Mapping;
use hoplite_types::{CopyId, ObjectId};

pub use crate::copy::{Copy, Following};

/// The control thread's table of copies.
#[derive(Debug)]
pub struct Copies {
    mapping: Arc<Mapping>,
    open: HashMap<CopyId, Arc<Copy>>,
}

impl Copies {
    pub fn new(mapping: Arc<Mapping>) -> Self {
        Copies { mapping, open: HashMap::new() }
    }

    /// # Panics
    /// If the core names an extent outside the arena. That is a bug after which no byte is safe.
    pub fn open(&mut self, id: CopyId, extent: Extent) {
        let copy = Copy::open(&self.mapping, id, extent)
            .unwrap_or_else(|error| panic!("the core placed {id:?} at {extent:?}: {error}"));
        let before = self.open.insert(id, Arc::new(copy));
        assert!(before.is_none(), "{id:?} was opened twice");
    }

    pub fn close(&mut self, id: CopyId) {
        self.open.remove(&id);
    }

    /// Clients see the new count at once; outputs that report the removal come later.
    pub fn count_removal(&self, object: ObjectId) {
        self.mapping.count_removal(object);
    }

    pub fn find(&self, id: CopyId) -> Option<&Arc<Copy>> {
        self.open.get(&id)
    }

    /// # Panics
    /// If the core names a copy that is not open, which is a bug.
    pub fn at(&self, id: CopyId) -> &Arc<Copy> {
        self.open.get(&id).unwrap_or_else(|| panic!("the core names {id:?}, which is not open"))
    }
}

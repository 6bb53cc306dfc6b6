//! The data plane of one node: its copies, and the jobs that move their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::io::{ClientId, Extent, FoldId, FoldRule, SendId};
use hoplite_types::limits::{ALIGNMENT, PROGRESS_BLOCK_BYTES};
use hoplite_types::peer::Seal;
use hoplite_types::{CopyId, Edition, NodeId, ObjectId, TransferId};

use crate::task::TaskId;

/// One stream between two nodes. Numbers are unique in the whole world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FlowId(pub u64);

#[derive(Clone, PartialEq, Debug)]
pub enum Stage {
    Writing,
    Sealed(Seal),
    Aborted,
}

/// A copy between `Open` and `Close`.
#[derive(Debug)]
pub struct Copy {
    /// The object and its edition, as far as the core has told.
    pub identity: Option<(ObjectId, Edition)>,
    pub extent: Extent,
    pub watermark: u64,
    pub stage: Stage,
    /// Whether its bytes come from another node.
    pub received: bool,
    /// The client that may still write into it.
    pub writer: Option<ClientId>,
    /// Whether a reader waits for the writing client to report.
    pub wanted: bool,
    /// Views that clients hold or are about to receive.
    pub views: u32,
    /// Whether a get was answered with all of its bytes. Clients may then keep them and answer gets with them.
    pub kept: bool,
    /// Tasks that read behind the watermark.
    pub followers: BTreeSet<TaskId>,
    /// Jobs that use it and whose end the core has not been told yet.
    pub jobs: u32,
}

#[derive(Debug)]
pub struct Receive {
    pub from: NodeId,
    pub copy: CopyId,
    pub at: u64,
    pub flow: Option<FlowId>,
    /// When it last received bytes, or the core was last told of its silence.
    pub last_byte: Duration,
}

#[derive(Debug)]
pub struct Send {
    pub flow: FlowId,
    pub copy: CopyId,
    pub at: u64,
    /// Whether a step is already scheduled.
    pub stepping: bool,
}

#[derive(Debug)]
pub struct FoldSource {
    pub copy: CopyId,
    pub at: u64,
}

#[derive(Debug)]
pub struct FoldStream {
    pub transfer: TransferId,
    pub from: NodeId,
    pub flow: Option<FlowId>,
    /// Bytes folded.
    pub at: u64,
    /// Bytes received and not folded yet.
    pub pending: Vec<u8>,
    pub sealed: bool,
    /// When it last received bytes, or the core was last told of its silence.
    pub last_byte: Duration,
}

#[derive(Debug)]
pub struct Fold {
    pub out: CopyId,
    pub rule: FoldRule,
    pub sources: Vec<FoldSource>,
    pub streams: Vec<FoldStream>,
    /// Bytes of `out` that at least one input has reached.
    pub begun: u64,
    pub published: u64,
    pub broken: bool,
}

impl Fold {
    /// A fold without inputs.
    pub fn new(out: CopyId, rule: FoldRule) -> Self {
        let (sources, streams) = (Vec::new(), Vec::new());
        Fold { out, rule, sources, streams, begun: 0, published: 0, broken: false }
    }
}

#[derive(Default, Debug)]
pub struct DataPlane {
    pub copies: BTreeMap<CopyId, Copy>,
    pub receives: BTreeMap<TransferId, Receive>,
    pub sends: BTreeMap<SendId, Send>,
    pub folds: BTreeMap<FoldId, Fold>,
    /// Folds that ended because one of their sources was abandoned.
    pub broken_folds: BTreeSet<FoldId>,
    /// Number of complete copies of each object that have gone from here. Each makes the bytes invalid that clients
    /// keep.
    pub removals: BTreeMap<ObjectId, u64>,
    /// The copies of each object. The next fields are the copies that are windows of others, and the places in the
    /// arena of all other copies.
    of_object: BTreeMap<ObjectId, BTreeSet<CopyId>>,
    windows: BTreeSet<CopyId>,
    taken: BTreeMap<u64, (u64, CopyId)>,
}

impl DataPlane {
    /// Opens a copy. An error if its place is invalid or taken.
    pub fn open(
        &mut self,
        copy: CopyId,
        identity: Option<(ObjectId, Edition)>,
        extent: Extent,
        arena_bytes: u64,
    ) -> Result<(), String> {
        for (start, end) in places(extent) {
            if end > arena_bytes || !start.is_multiple_of(ALIGNMENT) {
                return Err(format!(
                    "{copy:?} opened at {extent:?}, not an aligned place in {arena_bytes} B"
                ));
            }
        }
        let met: Vec<_> = self.near(extent).collect();
        let fits = |held: &Copy| match (extent.is_window(), held.extent.is_window()) {
            (true, false) => lies_in(extent, held.extent) || !overlaps(extent, held.extent),
            _ => !overlaps(extent, held.extent),
        };
        if let Some(other) = met.iter().find(|other| !fits(&self.copies[other])) {
            let held = self.copies[other].extent;
            return Err(format!("{copy:?} at {extent:?} overlaps {other:?} at {held:?}"));
        }
        let whole = |held: &Copy| held.stage == Stage::Writing && lies_in(extent, held.extent);
        if extent.is_window() && !met.iter().any(|other| whole(&self.copies[other])) {
            return Err(format!("{copy:?} at {extent:?} is a window of no copy in the making"));
        }
        let fresh = Copy {
            identity,
            extent,
            watermark: 0,
            stage: Stage::Writing,
            received: false,
            writer: None,
            wanted: false,
            views: 0,
            kept: false,
            followers: BTreeSet::new(),
            jobs: 0,
        };
        if self.copies.insert(copy, fresh).is_some() {
            return Err(format!("{copy:?} opened twice"));
        }
        if let Some((object, _)) = identity {
            self.of_object.entry(object).or_default().insert(copy);
        }
        if extent.is_window() {
            self.windows.insert(copy);
        } else {
            let places = places(extent).into_iter().filter(|(start, end)| start < end);
            self.taken.extend(places.map(|(start, end)| (start, (end, copy))));
        }
        Ok(())
    }

    /// All copies that may overlap this extent or contain it, and all windows.
    fn near(&self, extent: Extent) -> impl Iterator<Item = CopyId> + '_ {
        let whole = places(extent).into_iter().flat_map(move |(start, end)| {
            // Taken places do not overlap, so their ends are in the same order as their starts.
            let before = self.taken.range(..end.max(start + 1)).rev();
            before.take_while(move |(_, (taken_end, _))| *taken_end > start).map(|(_, (_, copy))| *copy)
        });
        whole.chain(self.windows.iter().copied())
    }

    /// Makes a copy one of another object.
    pub fn identify(&mut self, copy: CopyId, identity: (ObjectId, Edition)) {
        let Some(held) = self.copies.get_mut(&copy) else { return };
        if let Some((before, _)) = held.identity.replace(identity) {
            self.forget_identity(copy, before);
        }
        self.of_object.entry(identity.0).or_default().insert(copy);
    }

    fn forget_identity(&mut self, copy: CopyId, object: ObjectId) {
        let Some(copies) = self.of_object.get_mut(&object) else { return };
        copies.remove(&copy);
        if copies.is_empty() {
            self.of_object.remove(&object);
        }
    }

    /// Makes a written and aborted copy a new writing. Only its writer may have a view of it.
    pub fn reopen(&mut self, copy: CopyId, extent: Extent) -> Result<(), String> {
        let held = self.copies.get_mut(&copy).ok_or("it is not open")?;
        let is_whole = held.extent == extent && held.watermark == extent.size;
        if held.stage != Stage::Aborted || !is_whole || held.jobs > 0 || held.writer.is_some() {
            return Err(format!("{held:?}"));
        }
        if held.views > 1 {
            return Err(format!("{} views of it", held.views));
        }
        held.stage = Stage::Writing;
        Ok(())
    }

    /// Makes a copy complete. An error unless sealed windows cover it.
    pub fn fill(&mut self, copy: CopyId) -> Result<(), String> {
        let whole = self.copies.get_mut(&copy).ok_or("it is not open")?;
        let extent = whole.extent;
        if whole.stage != Stage::Writing || whole.watermark != 0 {
            return Err(format!("{whole:?}"));
        }
        let is_sealed_window =
            |held: &&Copy| matches!(held.stage, Stage::Sealed(_)) && lies_in(held.extent, extent);
        let windows = self.windows.iter().map(|window| &self.copies[window]).filter(is_sealed_window);
        let mut windows: Vec<_> = windows.map(|window| window.extent).collect();
        windows.sort_by_key(|window| window.offset);
        let mut filled = extent.offset;
        for window in windows {
            if window.offset == filled {
                filled += window.size;
            }
        }
        if filled != extent.offset + extent.size {
            return Err(format!("sealed windows cover {} of {} B", filled - extent.offset, extent.size));
        }
        self.copies.get_mut(&copy).expect("just seen").watermark = extent.size;
        Ok(())
    }

    /// Records that a complete copy of `object` has gone, so clients may keep its bytes no longer.
    pub fn remove(&mut self, object: ObjectId) {
        *self.removals.entry(object).or_default() += 1;
        for copy in self.of_object.get(&object).into_iter().flatten() {
            self.copies.get_mut(copy).expect("it is open").kept = false;
        }
    }

    pub fn copies_of(&self, object: ObjectId) -> impl Iterator<Item = &Copy> {
        self.ids_of(object).map(|copy| &self.copies[&copy])
    }

    pub fn ids_of(&self, object: ObjectId) -> impl Iterator<Item = CopyId> + '_ {
        self.of_object.get(&object).into_iter().flatten().copied()
    }

    /// Forgets a copy. An error if it is still in use.
    pub fn close(&mut self, copy: CopyId) -> Result<(), String> {
        let Some(held) = self.copies.remove(&copy) else {
            return Err(format!("{copy:?} closed, but it is not open"));
        };
        if let Some((object, _)) = held.identity {
            self.forget_identity(copy, object);
        }
        self.windows.remove(&copy);
        for (start, _) in places(held.extent) {
            if self.taken.get(&start).is_some_and(|(_, of)| *of == copy) {
                self.taken.remove(&start);
            }
        }
        if held.kept {
            return Err(format!("{copy:?} closed, but clients may keep it"));
        }
        match (held.jobs, held.views, held.writer) {
            (0, 0, None) => Ok(()),
            (jobs, views, writer) => {
                Err(format!("{copy:?} closed under {jobs} jobs, {views} views, writer {writer:?}"))
            }
        }
    }

    /// The jobs that read `copy`.
    pub fn readers(&self, copy: CopyId) -> (Vec<SendId>, Vec<FoldId>) {
        let sends = self.sends.iter().filter(|(_, send)| send.copy == copy).map(|(id, _)| *id).collect();
        let reads = |fold: &Fold| fold.sources.iter().any(|source| source.copy == copy);
        let folds = self.folds.iter().filter(|(_, fold)| reads(fold)).map(|(id, _)| *id).collect();
        (sends, folds)
    }

    /// The fold that expects `transfer`, and which of its streams that is.
    pub fn stream_of(&self, transfer: TransferId) -> Option<(FoldId, usize)> {
        self.folds.iter().find_map(|(id, fold)| {
            fold.streams.iter().position(|stream| stream.transfer == transfer).map(|at| (*id, at))
        })
    }
}

/// The parts of the arena that belong to a copy: its progress block and its data.
fn places(extent: Extent) -> [(u64, u64); 2] {
    let Extent { block, offset, size } = extent;
    [(block, block + PROGRESS_BLOCK_BYTES), (offset, offset + size)]
}

fn overlaps(a: Extent, b: Extent) -> bool {
    let pairs = places(a).into_iter().flat_map(|a| places(b).map(|b| (a, b)));
    pairs.into_iter().any(|((a, a_end), (b, b_end))| a < b_end && b < a_end)
}

/// Whether `window` is part of `whole`'s data, with a block of its own.
fn lies_in(window: Extent, whole: Extent) -> bool {
    let (start, end) = (whole.offset, whole.offset + whole.size);
    let block_apart = window.block + PROGRESS_BLOCK_BYTES <= whole.block || window.block >= end;
    window.is_window() && block_apart && start <= window.offset && window.offset + window.size <= end
}

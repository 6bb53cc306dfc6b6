//! The slots of reduction trees on this node, and all folds: the participant's side of a reduction [design §6, paper
//! 3.4.2, 3.5.2]. The coordinator's side is `reductions`.
//!
//! ```text
//!  AssignSlot ─▶ Waiting ──space, inputs here──▶ Folding ────ended─────▶ Folded
//!                   │ │                                                   │ root: RootDone ─ Commit ─▶ sealed target
//!                   │ └──part_bytes is set────▶ Gathering ─all parts───▶──┤ whole: Commit ─▶ sealed target
//!                   └─▶ Failed ◀── the copy was doomed ── any of these    │ else: sealed partial sum
//!                                                                         ▼
//!                                                                      ReleaseSlots
//! ```
//! A slot folds its sources and its children's streams into one copy, or puts the target together from its parts. Its
//! parent, or any receiver of the target, streams from that copy. A newer attempt begins at `Waiting` again.
//!
//! - `table`: the state of each slot, and how slots are found
//! - `assign`: a slot is assigned, starts, and ends; `amend`: its assignment grows within an attempt
//! - `folds`: the inputs of a fold and its end
//! - `allgather`: the target of a striped allreduce is put together from its parts
//! - `verdicts`: the owner's verdict on a target; `commit`: the coordinator's commit
//! - `preemption`: slots that wait for space, and slots that release theirs
//! - `epochs`: slots released because their coordinator seemed dead are not started again
//! - `repeat`: reports that may have been lost are sent again

mod allgather;
mod amend;
mod assign;
mod commit;
mod epochs;
mod folds;
mod preemption;
mod repeat;
mod table;
mod verdicts;

use epochs::Epochs;
use folds::Folds;
use table::Table;

/// The slots here, and all folds.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    table: Table,
    folds: Folds,
    epochs: Epochs,
}

impl Slots {
    pub fn count(&self) -> usize {
        self.table.count()
    }

    /// Whether a root here has the complete sum, and waits for the commit.
    pub fn await_commits(&self) -> bool {
        self.table.iter().any(|(_, running)| running.is_complete_root())
    }

    /// Describes the slots that are left, in words. Epochs are not included: they are remembered for good.
    pub fn leftovers(&self) -> Vec<String> {
        self.table.leftovers().into_iter().chain(self.folds.leftovers()).collect()
    }
}

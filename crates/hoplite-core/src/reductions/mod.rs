//! Reductions that were called here: the coordinator's side [design §6, paper 3.4.2, 3.5.2]. The participants' side is
//! `slots`.
//!
//! - here: all reductions, and how one is advanced; `reduction`: the state of one
//! - `request`: the call and its start; `claims`: the right to make the target; `finish`: the end
//! - `advance`: each step; `choose`: the sources that take part, the copies they are read from, and their slots
//! - `shape`: the tree, which grows as sources arrive
//! - `plan`: the assignment that every slot should have now; slots whose assignment changed are sent it
//! - `reduce_scatter`: an allreduce of large objects as many rotated chains at once
//! - `small`: targets that fit into a message are folded by the coordinator itself
//! - `failures`: slots that cannot continue, and how the coordinator reacts; `preemption`: slots that wait for space
//! - `commit`: the end: committed, sealed, answered
//! - `epochs`: what nodes reported of slots that they released
//! - `repeat`: state that may have been lost is resent

mod advance;
mod choose;
mod claims;
mod commit;
mod epochs;
mod failures;
mod finish;
mod plan;
mod preemption;
mod reduce_scatter;
mod reduction;
mod repeat;
mod request;
mod shape;
mod small;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use hoplite_types::{Error, ErrorKind, NodeId, ObjectId, Shard};

use crate::cost::Degree;
use crate::io::FoldId;
use crate::lent::Lent;
use epochs::EpochsHeard;
use reduction::Reduction;
pub(crate) use request::Request;
use small::SmallFold;

/// A report of a node about a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotReport {
    pub from: NodeId,
    pub slot: u32,
    pub attempt: u32,
}

/// How a reduction ended: with the sources that took part, or an error.
type Outcome = Result<Vec<ObjectId>, Error>;

/// What a reduction is to do next.
enum Next {
    /// Something else has to happen first.
    Wait,
    /// More can be chosen or assigned.
    Advance,
    /// This fold was started.
    Fold(FoldId, SmallFold),
}

/// A step of a reduction, or its end.
type Step<T = Next> = ControlFlow<Outcome, T>;

const WAIT: Step = ControlFlow::Continue(Next::Wait);
const ADVANCE: Step = ControlFlow::Continue(Next::Advance);

fn fail<T>(kind: ErrorKind, message: &str) -> Step<T> {
    ControlFlow::Break(Err(Error::new(kind, message)))
}

/// Settings for measurements and tests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policy {
    /// Overrides the degree with the lowest cost.
    pub degree: Option<Degree>,
    /// See [`crate::Config::striped_bytes_min`].
    pub striped_bytes_min: Option<u64>,
}

/// All reductions that were called here.
#[derive(Debug, Default)]
pub(crate) struct Reductions {
    policy: Policy,
    table: BTreeMap<u64, Reduction>,
    /// The same reductions, by their targets.
    targets: BTreeSet<(Shard, ObjectId, u64)>,
    /// Questions that mark the start of a reduction, by token. The value is the reduction's number.
    barriers: BTreeMap<u64, u64>,
    /// Folds of small sources. Those of a reduction that is over are still to end.
    folds: BTreeMap<FoldId, SmallFold>,
    heard: EpochsHeard,
}

impl Reductions {
    pub fn new(policy: Policy) -> Self {
        Reductions { policy, ..Reductions::default() }
    }

    /// Lets a reduction react to an event, then advances it, as far as that asks for it. Returns false if the reduction
    /// is over: then there is nothing to do about the event.
    fn step(
        &mut self,
        lent: &mut Lent<'_>,
        number: u64,
        event: impl FnOnce(&mut Reduction, &mut Lent<'_>) -> Step,
    ) -> bool {
        let Some(reduction) = self.table.get_mut(&number) else { return false };
        let mut step = event(reduction, lent);
        while let ControlFlow::Continue(Next::Advance) = step {
            step = reduction.advance(lent, &self.heard);
        }
        match step {
            ControlFlow::Continue(Next::Wait | Next::Advance) => {}
            ControlFlow::Continue(Next::Fold(fold, small)) => drop(self.folds.insert(fold, small)),
            ControlFlow::Break(outcome) => self.finish(lent, number, outcome),
        }
        true
    }

    /// The numbers of the reductions that are meant.
    fn numbers(&self, which: impl Fn(&Reduction) -> bool) -> Vec<u64> {
        self.table.iter().filter(|(_, reduction)| which(reduction)).map(|(&number, _)| number).collect()
    }

    pub fn count(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Describes the reductions that are left, in words. What nodes reported of epochs is remembered.
    pub fn leftovers(&self) -> Option<String> {
        let Reductions { policy: _, table, targets, barriers, folds, heard: _ } = self;
        let is_left = !(table.is_empty() && targets.is_empty() && barriers.is_empty() && folds.is_empty());
        is_left.then(|| format!("reductions: {table:?}, {targets:?}, {barriers:?}, {folds:?}"))
    }

    /// A node is gone. It may be the root of a committed reduction.
    pub fn on_node_down(&mut self, lent: &mut Lent<'_>, node: NodeId) {
        self.heard.forget(node);
        self.on_root_down(lent, node);
    }
}

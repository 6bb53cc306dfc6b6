//! A coordinator's assignments for the slots of a reduction tree, and the reasons why a slot fails.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};

use super::Verdict;
use crate::{Claim, Dtype, Edition, Header, NodeId, ObjectId, Op, Stamp};

/// Why a slot stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum SlotFailure {
    /// The stream from this child slot broke off.
    #[n(0)]
    Child(#[n(0)] u32),
    /// A source that should be on the slot's node is not (or not in that edition).
    #[n(1)]
    Source(#[n(0)] ObjectId),
    /// The partial sum will never fit into the store.
    #[n(2)]
    NoSpace,
    /// The target's id is taken there.
    #[n(3)]
    Taken,
    /// The node let go of the slot: it took the coordinator for dead, or another reduction needed the space.
    #[n(4)]
    LetGo(
        /// Slots assigned in earlier epochs are refused (see `ResyncRequest`).
        #[n(0)]
        u64,
    ),
    /// The target's owner refused it: it is deleted, or has its content.
    #[n(5)]
    Refused(#[n(0)] Verdict),
}

/// One slot of a reduction tree as its node must run it: fold `sources` and the streams of
/// `children` into `out`.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct SlotAssignment {
    #[n(0)]
    pub slot: u32,
    /// Bumped when what was folded so far must be thrown away.
    #[n(1)]
    pub attempt: u32,
    /// The id the result goes by: the target at the root, a partial sum elsewhere.
    #[n(2)]
    pub out: ObjectId,
    /// The edition of `out`.
    #[n(3)]
    pub edition: Edition,
    #[n(4)]
    pub root: bool,
    #[n(5)]
    pub size: u64,
    #[n(6)]
    pub header: Header,
    #[n(7)]
    pub dtype: Dtype,
    #[n(8)]
    pub op: Op,
    /// At the root of a mean: how many sources to divide by.
    #[n(9)]
    pub divide_by: Option<u32>,
    /// Sources on this node, in fold order.
    #[n(10)]
    pub sources: Vec<Source>,
    #[n(11)]
    pub children: Vec<Child>,
    /// More inputs will be named later: fold what there is, but publish nothing yet.
    #[n(12)]
    pub open: bool,
    /// Grows with every change of the assignment: one that comes late, by an older connection, changes nothing.
    #[n(13)]
    pub version: u32,
    /// Some source may be incomplete: the slot gives up its space to a reduction that needs nothing else.
    #[n(14)]
    pub lacking: bool,
    /// Where in the sources the part begins that is folded; `size` says how long it is.
    #[n(15)]
    pub offset: u64,
    /// Nothing is folded: the children are the parts of `out`, side by side, each but the last so many
    /// bytes long, and `out` is put together from them.
    #[n(16)]
    pub part_bytes: Option<u64>,
    /// By which right `out` is made, where it is the target, and when that was accepted.
    #[n(17)]
    pub claim: Claim,
    #[n(18)]
    pub stamp: Stamp,
    /// The last epoch that the coordinator heard of from this node.
    #[n(19)]
    pub epoch: u64,
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Source {
    #[n(0)]
    pub id: ObjectId,
    #[n(1)]
    pub edition: Edition,
}

/// A child slot, as its parent needs to know it in order to pull from it.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct Child {
    #[n(0)]
    pub slot: u32,
    #[n(1)]
    pub node: NodeId,
    #[n(2)]
    pub id: ObjectId,
    #[n(3)]
    pub edition: Edition,
}

impl Child {
    /// Whether each of `some` is among `all`, where no slot is named twice.
    pub fn has_all(all: &[Child], some: &[Child]) -> bool {
        // As a rule they come in the same order.
        let mut rest = all.iter();
        if some.iter().all(|child| rest.any(|other| other == child)) {
            return true;
        }
        let by_slot: BTreeMap<_, _> = all.iter().map(|child| (child.slot, child)).collect();
        some.iter().all(|child| by_slot.get(&child.slot) == Some(&child))
    }

    /// Those of `all` that are not among `some`, where no slot is named twice.
    pub fn all_but<'a>(all: &'a [Child], some: &[Child]) -> Vec<&'a Child> {
        let by_slot: BTreeMap<_, _> = some.iter().map(|child| (child.slot, child)).collect();
        all.iter().filter(|child| by_slot.get(&child.slot) != Some(child)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_found_in_any_order_and_only_as_they_are() {
        let child = |slot: u32, writing| Child {
            slot,
            node: NodeId { addr: ([10, 0, 0, 1], 1).into(), incarnation: 1 },
            id: ObjectId([slot as u8; ObjectId::LEN]),
            edition: Edition { writing, attempt: 0 },
        };
        let all = [child(3, 1), child(1, 1), child(2, 1)];
        assert!(Child::has_all(&all, &[]) && Child::has_all(&all, &all[1..]));
        assert!(Child::has_all(&all, &[child(2, 1), child(3, 1)]));
        for foreign in [child(4, 1), child(2, 2)] {
            assert!(!Child::has_all(&all, &[child(3, 1), foreign]));
        }
        assert_eq!(Child::all_but(&all, &[child(1, 1), child(2, 2)]), [&all[0], &all[2]]);
        assert!(Child::all_but(&all, &all).is_empty());
    }
}

//! A coordinator's assignments for the slots of a reduction tree, and the reasons why a slot fails.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};

use super::Verdict;
use crate::{Claim, Dtype, Edition, Header, NodeId, ObjectId, Op, Stamp};

/// The reason why a slot has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Encode, Decode)]
pub enum SlotFailure {
    /// The stream from this child slot broke.
    #[n(0)]
    Child(#[n(0)] u32),
    /// The slot's node does not have this source (or not in that edition).
    #[n(1)]
    Source(#[n(0)] ObjectId),
    /// The partial sum will never fit into the store.
    #[n(2)]
    NoSpace,
    /// The target's id is in use on that node.
    #[n(3)]
    Taken,
    /// The node released the slot: it believed the coordinator dead, or another reduction needed the space.
    #[n(4)]
    LetGo(
        /// Slots assigned in earlier epochs are refused (see `ResyncRequest`).
        #[n(0)]
        u64,
    ),
    /// The target's owner refused it: it is deleted, or has its content already.
    #[n(5)]
    Refused(#[n(0)] Verdict),
}

/// What the node of one slot of a reduction tree must do: fold `sources` and the streams of `children` into `out`.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
pub struct SlotAssignment {
    #[n(0)]
    pub slot: u32,
    /// Incremented when everything folded so far must be discarded.
    #[n(1)]
    pub attempt: u32,
    /// The id of the result: the target at the root, a partial sum elsewhere.
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
    /// At the root of a mean: the number of sources to divide by.
    #[n(9)]
    pub divide_by: Option<u32>,
    /// Sources on this node, in fold order.
    #[n(10)]
    pub sources: Vec<Source>,
    #[n(11)]
    pub children: Vec<Child>,
    /// More inputs will be added later. The slot folds those it has, but publishes nothing yet.
    #[n(12)]
    pub open: bool,
    /// Grows with every change of the assignment, so that a late one from an older connection has no effect.
    #[n(13)]
    pub version: u32,
    /// Some source may be incomplete: the slot gives up its space to a reduction that lacks nothing but space.
    #[n(14)]
    pub lacking: bool,
    /// The offset, in each source, of the part that is folded. Its length is `size`.
    #[n(15)]
    pub offset: u64,
    /// If set, nothing is folded: `out` is put together from `children`, its parts side by side. Each part but the
    /// last has this many bytes.
    #[n(16)]
    pub part_bytes: Option<u64>,
    /// If `out` is the target: the claim under which it is made, and the stamp of its acceptance.
    #[n(17)]
    pub claim: Claim,
    #[n(18)]
    pub stamp: Stamp,
    /// The last epoch that this node reported to the coordinator.
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

/// A child slot, with all that its parent needs to pull from it.
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
    /// Whether `all` has each of `some`. No slot is named twice in either.
    pub fn has_all(all: &[Child], some: &[Child]) -> bool {
        // They usually come in the same order.
        let mut rest = all.iter();
        if some.iter().all(|child| rest.any(|other| other == child)) {
            return true;
        }
        let by_slot: BTreeMap<_, _> = all.iter().map(|child| (child.slot, child)).collect();
        some.iter().all(|child| by_slot.get(&child.slot) == Some(&child))
    }

    /// Those of `all` that are not among `some`. No slot is named twice in either.
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

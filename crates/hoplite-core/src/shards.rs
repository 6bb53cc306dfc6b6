//! Which live node owns the directory entry of an id: rendezvous (highest random weight) hashing.
//!
//! When a node joins or leaves, only the ids it wins or held move; no table, no coordination.

use hoplite_words::{NodeId, ObjectId};

/// The live members, each with the well-mixed bits that weigh it.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    members: Vec<(NodeId, u64)>,
}

impl Shards {
    /// Returns whether it was new.
    pub fn insert(&mut self, node: NodeId) -> bool {
        match self.members.binary_search_by_key(&node, |&(member, _)| member) {
            Ok(_) => false,
            Err(at) => {
                self.members.insert(at, (node, node.hash64()));
                true
            }
        }
    }

    /// Returns whether it was there.
    pub fn remove(&mut self, node: NodeId) -> bool {
        match self.members.binary_search_by_key(&node, |&(member, _)| member) {
            Ok(at) => {
                self.members.remove(at);
                true
            }
            Err(_) => false,
        }
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.members.binary_search_by_key(&node, |&(member, _)| member).is_ok()
    }

    /// Whether another, newer process lives at its address: also who came after its death knows by that.
    pub fn is_replaced(&self, node: NodeId) -> bool {
        let newer =
            |&(member, _): &(NodeId, u64)| member.addr == node.addr && member.incarnation > node.incarnation;
        self.members.iter().any(newer)
    }

    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().map(|&(node, _)| node)
    }

    /// Stands for this set of members: equal where it is the same.
    pub fn fingerprint(&self) -> u64 {
        self.members.iter().fold(0, |sum, &(_, salt)| sum ^ mix(salt))
    }

    /// The owner of `id`; the set is never empty, it holds at least ourselves.
    pub fn owner(&self, id: ObjectId) -> NodeId {
        self.owner_among(id, |_| true).expect("we are a member ourselves")
    }

    /// Who would own `id` if only these were members.
    pub fn owner_among(&self, id: ObjectId, eligible: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let bits = u64::from_le_bytes(id.0[..8].try_into().expect("8 bytes"))
            ^ u64::from_le_bytes(id.0[8..].try_into().expect("8 bytes")).rotate_left(32);
        let weight = |&(node, salt): &(NodeId, u64)| (mix(bits ^ salt), node);
        self.members.iter().filter(|(node, _)| eligible(*node)).map(weight).max().map(|(_, node)| node)
    }
}

/// The finaliser of SplitMix64: every input bit changes half of the output bits.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> NodeId {
        NodeId { addr: ([127, 0, 0, 1], port).into(), incarnation: 1 }
    }

    #[test]
    fn a_leaver_moves_only_its_own_ids_and_load_is_even() {
        let mut shards = Shards::default();
        (0..8).for_each(|port| assert!(shards.insert(node(port))));
        let ids: Vec<_> = (0..8000).map(|i| ObjectId::from_name(&i.to_string())).collect();
        let before: Vec<_> = ids.iter().map(|&id| shards.owner(id)).collect();
        for port in 0..8 {
            let share = before.iter().filter(|&&owner| owner == node(port)).count();
            assert!((800..1200).contains(&share), "{share} of 8000");
        }
        assert!(shards.remove(node(3)));
        for (id, &owner) in ids.iter().zip(&before) {
            assert_eq!(owner != node(3), shards.owner(*id) == owner);
        }
    }
}

//! The live node that owns each shard of the ids, and its backup: the two members with the highest weights for the
//! shard (rendezvous hashing), kept in a table.
//!
//! When a node joins or leaves, only the shards that it wins or held move, without coordination. A change costs one
//! weight for each of the [`SHARDS`] and, for those that a leaver held, one for each member.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_types::limits::SHARDS;
use hoplite_types::{mix64, NodeId, ObjectId, Shard};

use crate::shard_table::ShardTable;

/// A set of shards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShardSet(Box<[u64; SHARDS / 64]>);

impl Default for ShardSet {
    fn default() -> Self {
        ShardSet(Box::new([0; SHARDS / 64]))
    }
}

impl ShardSet {
    pub fn all() -> Self {
        ShardSet(Box::new([u64::MAX; SHARDS / 64]))
    }

    pub fn insert_all(&mut self, other: &ShardSet) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(word, more)| *word |= more);
    }

    /// Returns false if it was in the set already.
    pub fn insert(&mut self, shard: Shard) -> bool {
        self.set(shard, true)
    }

    /// Returns false if it was not in the set.
    pub fn remove(&mut self, shard: Shard) -> bool {
        self.set(shard, false)
    }

    pub fn remove_all(&mut self, other: &ShardSet) {
        self.0.iter_mut().zip(other.0.iter()).for_each(|(word, gone)| *word &= !gone);
    }

    /// Returns whether the set has changed.
    pub fn set(&mut self, shard: Shard, to: bool) -> bool {
        let bit = 1 << (shard.index() % 64);
        let word = &mut self.0[shard.index() / 64];
        let before = *word;
        match to {
            true => *word |= bit,
            false => *word &= !bit,
        }
        *word != before
    }

    pub fn contains(&self, shard: Shard) -> bool {
        self.0[shard.index() / 64] & 1 << (shard.index() % 64) != 0
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    pub fn iter(&self) -> impl Iterator<Item = Shard> + '_ {
        let words = self.0.iter().enumerate().filter(|(_, &word)| word != 0);
        words.flat_map(|(at, &word)| {
            let without_lowest = |rest: &u64| Some(rest & (rest - 1)).filter(|&rest| rest != 0);
            let rests = std::iter::successors(Some(word), without_lowest);
            rests.map(move |rest| Shard((at * 64) as u16 + rest.trailing_zeros() as u16))
        })
    }

    pub fn retain(&mut self, keep: impl Fn(Shard) -> bool) {
        let out: Vec<_> = self.iter().filter(|&shard| !keep(shard)).collect();
        for shard in out {
            self.remove(shard);
        }
    }
}

/// The effect of a change of members.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Moved {
    /// Shards that have another owner.
    pub owners: ShardSet,
    /// Shards that have another backup owner.
    pub backups: ShardSet,
    /// Shards that another node claimed to own for a while. Their owner has not received the reports that went there.
    pub claims_over: ShardSet,
}

/// The index of a member in the table of members; the index of one that left is used again.
type Slot = u32;
const NOBODY: Slot = Slot::MAX;

#[derive(Debug, Clone, Copy)]
struct Member {
    node: NodeId,
    /// Well-mixed bits for the member's weights.
    salt: u64,
}

/// The live members, and the shards that each of them owns.
#[derive(Debug)]
pub(crate) struct Shards {
    me: NodeId,
    slots: Vec<Option<Member>>,
    by_node: BTreeMap<NodeId, Slot>,
    owners: Vec<Slot>,
    backups: Vec<Slot>,
    /// Shards that another node has claimed to own, although by our membership it does not: it has learnt of a change
    /// of members before us.
    claimed: ShardTable<(NodeId, Duration)>,
    claims: usize,
}

/// How long a claim is believed: by then we know of the change, or there was none.
const CLAIMED_FOR: Duration = Duration::from_secs(3);

impl Shards {
    /// We are the only member.
    pub fn new(me: NodeId) -> Self {
        let member = Member { node: me, salt: me.hash64() };
        Shards {
            me,
            slots: vec![Some(member)],
            by_node: BTreeMap::from([(me, 0)]),
            owners: vec![0; SHARDS],
            backups: vec![NOBODY; SHARDS],
            claimed: ShardTable::default(),
            claims: 0,
        }
    }

    /// Returns `None` if it was a member before.
    pub fn insert(&mut self, node: NodeId) -> Option<Moved> {
        if self.contains(node) {
            return None;
        }
        let member = Member { node, salt: node.hash64() };
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.slots.len()) as Slot;
        match free {
            Some(free) => self.slots[free] = Some(member),
            None => self.slots.push(Some(member)),
        }
        self.by_node.insert(node, slot);
        let mut moved = Moved::default();
        for shard in Shard::all() {
            let (owner, backup) = (self.owners[shard.index()], self.backups[shard.index()]);
            let mine = weight(member, shard);
            if mine > self.weight_of(owner, shard) {
                self.owners[shard.index()] = slot;
                self.backups[shard.index()] = owner;
                moved.owners.insert(shard);
                moved.backups.insert(shard);
            } else if mine > self.weight_of(backup, shard) {
                self.backups[shard.index()] = slot;
                moved.backups.insert(shard);
            }
        }
        moved.claims_over = self.forget_claims(|shard, _, _| moved.owners.contains(shard));
        Some(moved)
    }

    /// Returns `None` if it was not a member, or is ourselves.
    pub fn remove(&mut self, node: NodeId) -> Option<Moved> {
        let slot = *self.by_node.get(&node).filter(|_| node != self.me)?;
        self.by_node.remove(&node);
        self.slots[slot as usize] = None;
        let mut moved = self.forget_claims_of(node);
        for shard in Shard::all() {
            let (owner, backup) = (self.owners[shard.index()], self.backups[shard.index()]);
            if owner == slot {
                self.owners[shard.index()] = backup;
                moved.owners.insert(shard);
            }
            if owner == slot || backup == slot {
                let owner = self.owners[shard.index()];
                self.backups[shard.index()] = self.heaviest(shard, |other| other != owner);
                moved.backups.insert(shard);
            }
        }
        let over = self.forget_claims(|shard, _, _| moved.owners.contains(shard));
        for shard in over.iter() {
            moved.claims_over.insert(shard);
        }
        Some(moved)
    }

    /// The node is gone that claimed some shards.
    pub fn forget_claims_of(&mut self, node: NodeId) -> Moved {
        let claims_over = self.forget_claims(|_, by, _| by == node);
        Moved { owners: claims_over.clone(), claims_over, ..Moved::default() }
    }

    /// Drops a claim to the shard: only that of `node`, or that of any node.
    pub fn forget_claim(&mut self, shard: Shard, node: Option<NodeId>) -> Moved {
        let mut claims_over = ShardSet::default();
        if self.claimed.get(shard).is_some_and(|&(by, _)| node.is_none_or(|node| node == by)) {
            self.claimed.remove(shard);
            self.claims -= 1;
            claims_over.insert(shard);
        }
        Moved { owners: claims_over.clone(), claims_over, ..Moved::default() }
    }

    /// Drops claims that are too old.
    pub fn forget_old_claims(&mut self, now: Duration) -> Moved {
        let claims_over = self.forget_claims(|_, _, until| until <= now);
        Moved { owners: claims_over.clone(), claims_over, ..Moved::default() }
    }

    fn forget_claims(&mut self, is_over: impl Fn(Shard, NodeId, Duration) -> bool) -> ShardSet {
        let mut forgotten = ShardSet::default();
        if self.has_claimed() {
            let over = self.claimed.iter().filter(|&(shard, &(by, until))| is_over(shard, by, until));
            for (shard, _) in over {
                forgotten.insert(shard);
            }
            for shard in forgotten.iter() {
                self.claimed.remove(shard);
                self.claims -= 1;
            }
        }
        forgotten
    }

    pub fn has_claimed(&self) -> bool {
        self.claims > 0
    }

    fn heaviest(&self, shard: Shard, eligible: impl Fn(Slot) -> bool) -> Slot {
        let slots = self.by_node.values().copied().filter(|&slot| eligible(slot));
        slots.max_by_key(|&slot| self.weight_of(slot, shard)).unwrap_or(NOBODY)
    }

    fn weight_of(&self, slot: Slot, shard: Shard) -> Option<(u64, NodeId)> {
        self.slots.get(slot as usize)?.and_then(|member| weight(member, shard))
    }

    fn node(&self, slot: Slot) -> Option<NodeId> {
        self.slots.get(slot as usize)?.map(|member| member.node)
    }

    pub fn contains(&self, node: NodeId) -> bool {
        self.by_node.contains_key(&node)
    }

    pub fn len(&self) -> usize {
        self.by_node.len()
    }

    /// Whether a newer process is known at its address, even one that joined after the node's death.
    pub fn is_replaced(&self, node: NodeId) -> bool {
        let newer = NodeId { incarnation: node.incarnation.saturating_add(1), ..node };
        self.by_node.range(newer..).next().is_some_and(|(member, _)| member.addr == node.addr)
    }

    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.by_node.keys().copied()
    }

    /// The next few members after ourselves in the ring of all members; each member is the neighbour of as many.
    pub fn neighbours(&self, count: usize) -> impl Iterator<Item = NodeId> + '_ {
        let behind = self.by_node.range(self.me..).chain(self.by_node.range(..self.me));
        behind.map(|(&node, _)| node).filter(|&node| node != self.me).take(count)
    }

    pub fn owner(&self, id: ObjectId) -> NodeId {
        self.owner_of(id.shard())
    }

    pub fn owner_of(&self, shard: Shard) -> NodeId {
        match self.claimed.get(shard) {
            Some(&(by, _)) => by,
            None => self.node(self.owners[shard.index()]).expect("we are a member ourselves"),
        }
    }

    /// The shards that the node owns.
    pub fn owned_by(&self, node: NodeId) -> ShardSet {
        let mut owned = ShardSet::default();
        if let Some(&slot) = self.by_node.get(&node) {
            for (word, owners) in owned.0.iter_mut().zip(self.owners.chunks_exact(64)) {
                let bits = owners.iter().enumerate().map(|(bit, &owner)| u64::from(owner == slot) << bit);
                *word = bits.sum();
            }
        }
        if self.has_claimed() {
            for (shard, &(by, _)) in self.claimed.iter() {
                owned.set(shard, by == node);
            }
        }
        owned
    }

    pub fn is_mine(&self, shard: Shard) -> bool {
        self.owner_of(shard) == self.me
    }

    /// The member that would own it without its owner.
    pub fn backup_of(&self, shard: Shard) -> Option<NodeId> {
        self.node(self.backups[shard.index()])
    }

    /// Another node claims to own the shard. Returns false if we knew that, or know better: a member that asks us knows
    /// us. If the shard is ours by all we know, it made the claim before it knew us.
    pub fn note_claimed(&mut self, now: Duration, shard: Shard, by: NodeId) -> bool {
        let is_ours = self.node(self.owners[shard.index()]) == Some(self.me) && self.contains(by);
        if self.owner_of(shard) == by || is_ours {
            return false;
        }
        self.claims -= usize::from(self.claimed.remove(shard).is_some());
        if self.node(self.owners[shard.index()]) != Some(by) {
            self.claimed.insert(shard, (by, now + CLAIMED_FOR));
            self.claims += 1;
        }
        true
    }

    /// The eligible member with the highest weight for `id`.
    pub fn first_for(&self, id: ObjectId, eligible: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let slot = self.heaviest(id.shard(), |slot| self.node(slot).is_some_and(&eligible));
        self.node(slot)
    }
}

fn weight(member: Member, shard: Shard) -> Option<(u64, NodeId)> {
    let bits = (u64::from(shard.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Some((mix64(bits ^ member.salt), member.node))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(port: u16) -> NodeId {
        NodeId { addr: ([127, 0, 0, 1], port).into(), incarnation: 1 }
    }

    const NOW: Duration = Duration::from_secs(5);

    fn cluster(nodes: std::ops::Range<u16>) -> Shards {
        let mut shards = Shards::new(node(nodes.start));
        nodes.skip(1).for_each(|port| assert!(shards.insert(node(port)).is_some()));
        shards
    }

    fn owners(shards: &Shards) -> Vec<NodeId> {
        Shard::all().map(|shard| shards.owner_of(shard)).collect()
    }

    #[test]
    fn a_leaver_moves_only_its_own_shards_and_load_is_even() {
        let mut shards = cluster(0..8);
        let before = owners(&shards);
        for port in 0..8 {
            let share = before.iter().filter(|&&owner| owner == node(port)).count();
            assert!((400..630).contains(&share), "{share} of {SHARDS}");
        }
        let backups: Vec<_> = Shard::all().map(|shard| shards.backup_of(shard)).collect();
        let moved = shards.remove(node(3)).unwrap();
        for shard in Shard::all() {
            let was_its = before[shard.index()] == node(3);
            assert_eq!(was_its, moved.owners.contains(shard));
            assert_eq!(was_its, shards.owner_of(shard) != before[shard.index()]);
            if was_its {
                assert_eq!(Some(shards.owner_of(shard)), backups[shard.index()]);
            }
        }
    }

    #[test]
    fn everyone_comes_to_the_same_table_whatever_the_order() {
        let mut one = cluster(0..20);
        let mut other = Shards::new(node(7));
        for port in (0..30).rev() {
            other.insert(node(port));
        }
        (20..30).for_each(|port| assert!(other.remove(node(port)).is_some()));
        assert_eq!(owners(&one), owners(&other));
        let backups = |shards: &Shards| Shard::all().map(|s| shards.backup_of(s)).collect::<Vec<_>>();
        assert_eq!(backups(&one), backups(&other));
        assert_eq!(one.insert(node(3)), None);
        assert_eq!(one.remove(node(99)), None);
    }

    #[test]
    fn who_knows_of_a_change_first_is_believed_until_we_know() {
        let mut shards = cluster(0..3);
        let shard = Shard::all().find(|&shard| shards.owner_of(shard) == node(1)).unwrap();
        assert!(shards.note_claimed(NOW, shard, node(9)));
        assert!(!shards.note_claimed(NOW, shard, node(9)));
        assert_eq!(shards.owner_of(shard), node(9));
        assert!(shards.forget_claims_of(node(9)).owners.contains(shard));
        assert_eq!(shards.owner_of(shard), node(1), "it is gone");
        shards.note_claimed(NOW, shard, node(9));
        assert!(shards.forget_old_claims(NOW).owners.is_empty());
        assert!(shards.forget_old_claims(NOW + CLAIMED_FOR).owners.contains(shard), "it was wrong");
        assert!(shards.note_claimed(NOW, shard, node(9)));
        shards.remove(node(1));
        assert!([node(0), node(2)].contains(&shards.owner_of(shard)), "what we learn ourselves is newer");
    }

    #[test]
    fn what_a_node_owns_is_what_it_is_the_owner_of() {
        let mut shards = cluster(0..7);
        let claimed = Shard::all().find(|&shard| shards.owner_of(shard) == node(1)).unwrap();
        shards.note_claimed(NOW, claimed, node(2));
        for port in 0..7 {
            let owned: Vec<_> = shards.owned_by(node(port)).iter().collect();
            let expected: Vec<_> =
                Shard::all().filter(|&shard| shards.owner_of(shard) == node(port)).collect();
            assert_eq!(owned, expected);
        }
        assert!(shards.forget_claim(claimed, Some(node(2))).owners.contains(claimed));
        assert!(shards.owned_by(node(1)).contains(claimed));
    }

    #[test]
    fn a_newer_process_at_the_same_address_is_seen() {
        let mut shards = cluster(0..3);
        shards.insert(NodeId { incarnation: 5, ..node(2) });
        assert!(shards.is_replaced(node(2)));
        assert!(!shards.is_replaced(NodeId { incarnation: 5, ..node(2) }));
    }

    #[test]
    fn neighbours_go_round() {
        let mut shards = Shards::new(node(5));
        (0..10).for_each(|port| drop(shards.insert(node(port))));
        let ports: Vec<_> = shards.neighbours(6).map(|node| node.addr.port()).collect();
        assert_eq!(ports, [6, 7, 8, 9, 0, 1]);
    }
}

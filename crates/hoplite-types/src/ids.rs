//! Identifiers: objects, nodes, editions, copies, transfers, reductions.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use minicbor::{Decode, Encode};

use crate::limits;

/// Names an immutable object: 16 bytes, from a unique string (BLAKE3) or random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct ObjectId(#[cbor(with = "minicbor::bytes")] pub [u8; 16]);

impl ObjectId {
    pub const LEN: usize = 16;

    /// Bytes of an abbreviated id, which keeps logs and messages readable.
    pub const SHORT_LEN: usize = 4;

    /// The id of a name: the first 16 bytes of the BLAKE3 hash of its UTF-8 bytes.
    pub fn from_name(name: &str) -> Self {
        let mut id = [0; Self::LEN];
        id.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..Self::LEN]);
        ObjectId(id)
    }

    /// The shard of the id. Ids are spread evenly, even those that callers chose.
    pub fn shard(self) -> Shard {
        let (low, high) = self.0.split_at(8);
        let bits = u64::from_le_bytes(low.try_into().expect("8 bytes"))
            ^ u64::from_le_bytes(high.try_into().expect("8 bytes")).rotate_left(32);
        Shard((mix64(bits) >> (u64::BITS - SHARD_BITS)) as u16)
    }

    /// The id of the partial sum of `slot` in a reduction. It cannot be guessed by accident.
    pub fn partial_sum(reduction: ReductionId, slot: u32) -> Self {
        Self::from_name(&format!("partial sum {reduction} {slot}"))
    }

    /// The id of a small source's copy that is kept only for this reduction.
    pub fn brought_source(reduction: ReductionId, index: usize) -> Self {
        Self::from_name(&format!("source {index} of {reduction}"))
    }

    /// The id under which other nodes have that partial sum, where it is a part of the target.
    pub fn target_part(reduction: ReductionId, slot: u32) -> Self {
        Self::from_name(&format!("target part {reduction} {slot}"))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..Self::SHORT_LEN].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for ObjectId {
    type Err = String;

    fn from_str(hex: &str) -> Result<Self, String> {
        let bad = || format!("an object id is 32 hexadecimal digits, not {hex:?}");
        if hex.len() != 2 * Self::LEN || !hex.is_ascii() {
            return Err(bad());
        }
        let mut id = [0; Self::LEN];
        for (i, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).map_err(|_| bad())?;
        }
        Ok(ObjectId(id))
    }
}

/// The finaliser of SplitMix64: every input bit changes half of the output bits.
pub const fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const SHARD_BITS: u32 = limits::SHARDS.trailing_zeros();

/// A part of all ids, whose directory entries are on one node. Below [`limits::SHARDS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct Shard(#[n(0)] pub u16);

impl Shard {
    /// All shards, in order.
    pub fn all() -> impl DoubleEndedIterator<Item = Shard> {
        (0..limits::SHARDS as u16).map(Shard)
    }

    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The time at which an object's owner accepted its content, or deleted it: milliseconds since the Unix epoch by the
/// cluster's clock, and a count within each. Later decisions of any owner have larger stamps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
#[cbor(transparent)]
pub struct Stamp(#[n(0)] pub u64);

impl Stamp {
    const COUNT_BITS: u32 = 20;

    /// The last stamp that is accepted, in the year 2248. While no clock is beyond it, no stamp overflows.
    pub const LATEST: Stamp = Stamp::from_ms((1 << (u64::BITS - Self::COUNT_BITS - 1)) - 1);

    pub const fn from_ms(ms: u64) -> Self {
        Stamp(ms << Self::COUNT_BITS)
    }

    pub const fn ms(self) -> u64 {
        self.0 >> Self::COUNT_BITS
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.ms(), self.0 & ((1 << Self::COUNT_BITS) - 1))
    }
}

/// The right to give an object its content, until the object is complete. The owner accepts one claim at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Claim {
    /// For a put: its `writing`. For a reduction: a number that only the writings of its target share.
    #[n(0)]
    pub number: u64,
    /// The node that puts, or that coordinates the reduction. The claim ends with it.
    #[n(1)]
    pub by: NodeId,
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}@{}", self.number & 0xffff, self.by)
    }
}

/// A node: its announced address, and an incarnation. A restarted daemon is a new node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct NodeId {
    #[n(0)]
    pub addr: SocketAddr,
    /// Grows with every start at the same address (milliseconds since the Unix epoch).
    #[n(1)]
    pub incarnation: u64,
}

impl NodeId {
    /// 64 well-mixed bits that differ between nodes and between their incarnations.
    pub fn hash64(&self) -> u64 {
        let digest = blake3::hash(format!("{}/{}", self.addr, self.incarnation).as_bytes());
        u64::from_le_bytes(digest.as_bytes()[..8].try_into().expect("8 bytes"))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.addr)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr, self.incarnation)
    }
}

/// Distinguishes one writing of an object from another. Bytes of two editions never mix in a copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Edition {
    /// Unique to one put, or to one slot of one reduction.
    #[n(0)]
    pub writing: u64,
    /// Counts the restarts of that writing; 0 for puts.
    #[n(1)]
    pub attempt: u32,
}

impl fmt::Debug for Edition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}.{}", self.writing & 0xffff, self.attempt)
    }
}

/// A copy on this node; never reused while the daemon lives, never sent to another node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct CopyId(#[n(0)] pub u64);

/// One receiver pulls one object from one sender. Chosen by the receiver; unique there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
#[cbor(transparent)]
pub struct TransferId(#[n(0)] pub u64);

/// One call of reduce: its coordinator, and a number unique there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Encode, Decode)]
pub struct ReductionId {
    #[n(0)]
    pub coordinator: NodeId,
    #[n(1)]
    pub number: u64,
}

impl ReductionId {
    /// The claim to make the reduction's target.
    pub fn claim(self) -> Claim {
        let number = mix64(self.coordinator.hash64() ^ mix64(mix64(self.number)));
        Claim { number, by: self.coordinator }
    }
}

impl fmt::Display for ReductionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}#{}", self.coordinator, self.number)
    }
}

/// The bytes of a small object inside a message.
#[derive(Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(transparent)]
pub struct Blob(#[cbor(with = "minicbor::bytes")] pub Vec<u8>);

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_even_even_for_chosen_ids() {
        let chosen = (0..100_000u128).map(|number| ObjectId(number.to_be_bytes()));
        let named = (0..100_000).map(|number| ObjectId::from_name(&number.to_string()));
        for ids in [chosen.collect::<Vec<_>>(), named.collect()] {
            let mut counts = vec![0; limits::SHARDS];
            ids.iter().for_each(|id| counts[id.shard().index()] += 1);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(*least >= 5 && *most <= 60, "{least} to {most} of 24 on average");
        }
    }

    #[test]
    fn stamps_order_by_time_first() {
        assert!(Stamp::from_ms(7) < Stamp(Stamp::from_ms(7).0 + 1));
        assert!(Stamp(Stamp::from_ms(7).0 + 1000) < Stamp::from_ms(8));
        assert_eq!(Stamp(Stamp::from_ms(7).0 + 1000).ms(), 7);
    }
}

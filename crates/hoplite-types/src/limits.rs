//! Every limit and default that more than one crate relies on, with its reason.

use std::time::Duration;

use crate::error::ensure;
use crate::Result;

/// Largest object size that a node accepts: as much as a process can address. No sum of a few such sizes overflows.
pub const OBJECT_BYTES_MAX: u64 = 1 << 47;

/// Objects up to this size travel inside directory messages [design §4].
pub const INLINE_BYTES_MAX: u64 = 64 << 10;

/// Objects up to this size are sent to a client inside the answer. In a loop this is faster up to 4 KiB. From 16 KiB
/// on, copying through the socket costs more than a view: reading from the arena, and a `Release`, for which a
/// sleeping node must wake.
pub const ANSWER_BYTES_MAX: u64 = 8 << 10;

/// Longest encoded header: enough for a structured dtype, not for data.
pub const HEADER_BYTES_MAX: usize = 16 << 10;

/// Most dimensions an array header may have (NumPy's own limit).
pub const DIMENSIONS_MAX: usize = 64;

/// Most sources of one reduction.
pub const SOURCES_MAX: usize = 4096;

/// Most ids in one delete, wait or prefetch.
pub const IDS_MAX: usize = 65_536;

/// Limit on the unanswered calls of one client. Each takes some hundred bytes of the node. A program that awaits one
/// call for each of its objects stays below it.
pub const CALLS_MAX: usize = 1 << 17;

/// Limit on the members of a cluster, and so on the nodes in one message. Larger than any cluster tried.
pub const MEMBERS_MAX: usize = 4096;

/// Longest control frame: several times the largest call (`IDS_MAX` ids).
pub const FRAME_BYTES_MAX: usize = 8 << 20;

/// Bytes in front of an object's data in the arena that hold its progress block.
pub const PROGRESS_BLOCK_BYTES: u64 = 64;

/// Objects start on cache lines: SIMD loads never straddle lines, and no two progress blocks share one.
pub const ALIGNMENT: u64 = 64;

/// Bytes that a relay moves at once: least CPU per byte, and no time lost on large objects [design §11].
pub const GRAIN_BYTES_MAX: usize = 256 << 10;

/// The smallest grain. Below it, the cost of a system call shows.
pub const GRAIN_BYTES_MIN: usize = 16 << 10;

/// The grain is this part of an object, within its limits. A relay adds one grain's time per hop: about a hundredth of
/// the object's time for six hops together. With 128 grains, 32 MiB over seven hops took 1.09 of the wire's time.
const GRAINS_PER_OBJECT: u64 = 512;

/// The grain for forwarding an object of `size` bytes while it arrives.
pub fn grain_bytes(size: u64) -> u64 {
    (size / GRAINS_PER_OBJECT).clamp(GRAIN_BYTES_MIN as u64, GRAIN_BYTES_MAX as u64)
}

/// Limit on the connections of one transfer. Where single flows are capped, a flow often gets an eighth of the link
/// or more.
pub const CONNECTIONS_MAX: u8 = 8;

/// How long a connection between nodes may take to be made. Three SYNs (0, 1 and 3 s) would be enough for a lossy link.
/// But to all that wait for a host, one that is silent for this long is as good as dead.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The same for bulk data: one SYN may be lost (the next follows after a second). The receiver requested the transfer
/// a moment ago over a working connection, and another node may have the object, too.
pub const BULK_DIAL_TIMEOUT: Duration = Duration::from_millis(1500);

/// Longest pause between two dials of a peer that fail: how long a peer that comes back waits for this node at most.
pub const DIAL_BACKOFF_MAX: Duration = Duration::from_millis(640);

/// How long a shortage of descriptors on this host may delay a connection before its messages are dropped. Peers that
/// wait for them ask for themselves after a second or two. Dropping makes all of those peers resync.
pub const SHORTAGE_PATIENCE: Duration = Duration::from_secs(5);

/// The port that nodes listen on by default.
pub const DEFAULT_PORT: u16 = 7420;

/// How long a deleted id is remembered, so that a late announcement cannot bring the object back.
pub const TOMBSTONE_TTL: Duration = Duration::from_secs(600);

/// Number of shards. A few for each node of the largest clusters, so that load is even. Not more, since each change
/// of members looks at all of them. A power of two.
pub const SHARDS: usize = 4096;

/// How many times a directory request may be forwarded between nodes whose views differ.
pub const FORWARD_HOPS_MAX: u8 = 4;

/// Longest wait that a caller can request; longer ones are shortened to it (30 days).
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Refuses a list that is too long.
pub(crate) fn at_most(what: &str, count: usize, limit: usize) -> Result<()> {
    ensure(count <= limit, || format!("{count} {what}, at most {limit} are allowed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_objects_are_forwarded_in_finer_grains() {
        assert_eq!(grain_bytes(1 << 10), 16 << 10);
        assert_eq!(grain_bytes(32 << 20), 64 << 10);
        assert_eq!(grain_bytes(128 << 20), 256 << 10);
        assert_eq!(grain_bytes(1 << 40), 256 << 10);
    }
}

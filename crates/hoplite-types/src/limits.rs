//! Every limit and default that more than one crate relies on, with its reason.

use std::time::Duration;

use crate::error::ensure;
use crate::Result;

/// Largest object that a node believes in: as much as a process can address. No sum of a few such sizes overflows.
pub const OBJECT_BYTES_MAX: u64 = 1 << 47;

/// Objects up to this size travel inside directory messages [design §4].
pub const INLINE_BYTES_MAX: u64 = 64 << 10;

/// Objects up to this size are answered to a client with their bytes. In a loop that is faster up to 4 KiB;
/// from 16 KiB on the copies on the way through the socket cost more than a look into the arena and the word
/// of having looked, for which a node that sleeps must wake.
pub const ANSWER_BYTES_MAX: u64 = 8 << 10;

/// Longest header, encoded: room for a structured dtype, not for data.
pub const HEADER_BYTES_MAX: usize = 16 << 10;

/// Most dimensions an array header may have (NumPy's own limit).
pub const DIMENSIONS_MAX: usize = 64;

/// Most sources of one reduction.
pub const SOURCES_MAX: usize = 4096;

/// Most ids in one delete, wait or prefetch.
pub const IDS_MAX: usize = 65_536;

/// Most calls of one client that are not answered yet: a program that awaits as many at once as it has objects has
/// fewer, and each takes some hundred bytes of the node.
pub const CALLS_MAX: usize = 1 << 17;

/// Most members of a cluster, and so most nodes in one message: more than any that this was tried with.
pub const MEMBERS_MAX: usize = 4096;

/// Longest control frame: the largest call (`IDS_MAX` ids) fits several times over.
pub const FRAME_BYTES_MAX: usize = 8 << 20;

/// Bytes in front of an object's data in the arena that hold its progress block.
pub const PROGRESS_BLOCK_BYTES: u64 = 64;

/// Objects start on cache lines, so SIMD loads never straddle and progress blocks never share one.
pub const ALIGNMENT: u64 = 64;

/// Bytes a relay moves at once: least CPU per byte, and no time lost on large objects [design §11].
pub const GRAIN_BYTES_MAX: usize = 256 << 10;

/// The finest grain: below this the cost of a system call shows.
pub const GRAIN_BYTES_MIN: usize = 16 << 10;

/// Most connections that one transfer goes by. Where single flows are capped, they often get an eighth of
/// the link or more.
pub const CONNECTIONS_MAX: u8 = 8;

/// The port nodes listen on unless told otherwise.
pub const DEFAULT_PORT: u16 = 7420;

/// How long a deleted id is remembered, so that a late announcement cannot raise it again.
pub const TOMBSTONE_TTL: Duration = Duration::from_secs(600);

/// Parts into which all ids are divided. A few for each node of the largest clusters, so that load is even; and
/// no more, since each change of members looks at all of them. A power of two.
pub const SHARDS: usize = 4096;

/// How long a directory request may be passed on between nodes whose views differ.
pub const FORWARD_HOPS_MAX: u8 = 4;

/// Longest wait a caller can ask for; longer ones are cut to it (30 days).
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Refuses a list that is too long.
pub(crate) fn at_most(what: &str, count: usize, limit: usize) -> Result<()> {
    ensure(count <= limit, || format!("{count} {what}, at most {limit} are allowed"))
}

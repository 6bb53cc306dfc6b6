//! Transfers that share a bundle: any of them that has bytes sends a piece.
//!
//! A striped allreduce has 2(n-1) streams from each node, all to the same neighbour. With a connection each, the link's
//! bytes come in as many small segments, reads and wake-ups; on one bundle they come as those of one stream. The
//! streams are served first come, first served: the first to have bytes sends all of them first. So early bytes travel
//! on early, and every node of the ring always has work that arrived while it sent something else.
//!
//! No stream ever waits for another's reader: the sender serves any stream that has bytes, and the receiver has a place
//! for every byte that comes, in the copy or in its sum.
//!
//! | file | contents |
//! |---|---|
//! | `outgoing` | a group's transfers to one peer |
//! | `incoming` | transfers from one peer, on one bundle |

mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;

pub(super) use incoming::Incoming;
pub(super) use outgoing::{Job, Order, Outgoing};

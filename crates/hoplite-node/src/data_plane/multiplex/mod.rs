//! Transfers that share a bundle: whoever has bytes sends a piece of them.
//!
//! A striped allreduce has 2(n-1) streams from each node, all to the same neighbour. With a connection each, the
//! link's bytes come in as many small segments, reads and wake-ups; on one bundle they come as those of one stream.
//! And there is an order: who came to have bytes first sends all of them first. So what came early goes on early,
//! and every node of the ring always has work that came in while it sent something else.
//!
//! No stream ever waits for another's reader: the sender takes whoever has bytes, and the receiver has a place for
//! every byte that comes, in the copy or in the sum that it is part of.
//!
//! | file | what |
//! |---|---|
//! | `outgoing` | a group's transfers to one peer |
//! | `incoming` | transfers from one peer, on one bundle |

mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;

pub(super) use incoming::Incoming;
pub(super) use outgoing::{Job, Order, Outgoing};

//! Reductions [design §6, paper 3.4.2, 3.5.2].
//!
//! - `coordinator`: one call, from its validation to the commit
//! - `choose`: which sources take part, taken from where, and on which slot
//! - `shape`: who is whose child in a tree that grows as sources arrive
//! - `plan`: what every slot should be doing now; the difference to what it was told is sent
//! - `seats`: a slot's own side: fold, stream, report
//! - `commit`: the end: committed, sealed, answered
//! - `repeat`: both sides say again what may have been lost
//! - `small`: targets that fit into a message are folded by the coordinator itself

mod choose;
mod commit;
mod coordinator;
mod plan;
mod repeat;
mod seats;
mod shape;
mod small;

pub(crate) use coordinator::{Reduction, Request};
pub(crate) use seats::Seats;

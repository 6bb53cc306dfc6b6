//! Reductions [design §6, paper 3.4.2, 3.5.2].
//!
//! - `request`: the call and its validation; `coordinator`: each step that brings it on; `finish`: its end
//! - `choose`: which sources take part, taken from where, and on which slot
//! - `shape`: who is whose child in a tree that grows as sources arrive
//! - `plan`: what every slot should be doing now; the difference to what it was told is sent
//! - `slots`: a slot's own side; `slot_table`: what is kept of it; `amend`: its assignment grows within an attempt;
//!   `folds`: what goes in, and how it ends
//! - `reduce_scatter`: an allreduce of large objects in many rotated chains at once; `allgather`: a node puts the
//!   target together from what they come to
//! - `failures`: slots that cannot go on by themselves, and what the coordinator does about it
//! - `preemption`: reductions that hold the space others wait for
//! - `commit`: the end: committed, sealed, answered
//! - `epochs`: slots that were let go because their coordinator seemed dead are not begun again
//! - `repeat`: both sides say again what may have been lost
//! - `small`: targets that fit into a message are folded by the coordinator itself

mod allgather;
mod amend;
mod choose;
mod commit;
mod coordinator;
mod epochs;
mod failures;
mod finish;
mod folds;
mod plan;
mod preemption;
mod reduce_scatter;
mod repeat;
mod request;
mod shape;
mod slot_table;
mod slots;
mod small;

pub(crate) use coordinator::Reduction;
pub(crate) use request::Request;
pub(crate) use slot_table::Slots;

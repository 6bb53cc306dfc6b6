//! Reductions [design §6, paper 3.4.2, 3.5.2].
//!
//! - `request`: the call and its validation; `coordinator`: each step that advances it; `finish`: its end
//! - `choose`: the sources that take part, the copies they are read from, and their slots
//! - `shape`: the tree, which grows as sources arrive
//! - `plan`: the assignment that every slot should have now; slots whose assignment changed are sent it
//! - `slots`: a slot on its node; `slot_table`: the state kept of it; `amend`: its assignment grows within an attempt;
//!   `folds`: its inputs and its end
//! - `reduce_scatter`: an allreduce of large objects as many rotated chains at once; `allgather`: each node assembles
//!   the target from the chains' sums
//! - `failures`: slots that cannot continue, and how the coordinator reacts
//! - `preemption`: reductions that hold the space that others need
//! - `commit`: the end: committed, sealed, answered
//! - `epochs`: slots released because their coordinator seemed dead are not started again
//! - `repeat`: both sides resend state that may have been lost
//! - `small`: targets that fit into a message are folded by the coordinator itself

mod choose;
mod commit;
mod coordinator;
mod epochs;
mod failures;
mod finish;
mod plan;
mod preemption;
mod reduce_scatter;
mod repeat;
mod request;
mod shape;
mod small;

pub(crate) use coordinator::Reduction;
pub(crate) use epochs::EpochsHeard;
pub(crate) use request::Request;
pub(crate) use small::SmallFold;

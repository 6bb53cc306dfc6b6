//! The top layer: methods of [`Core`](crate::Core), which hand on what comes in, and what one component has to say to
//! another. Only these see all components.
//!
//! - `clients`: requests of clients; `messages`: what other nodes say; `cluster`: members, links and owners
//! - `settle`: notices of components, until nothing is left; `outcomes`: objects go to those who want them
//! - `verdicts`: owners accept or refuse a content; `open_questions`: asks again; `inventory`: what is here
//! - `inspect`: what tests may see

mod clients;
mod cluster;
mod inspect;
mod inventory;
mod messages;
mod open_questions;
mod outcomes;
mod settle;
mod verdicts;

//! The event loop that drives the core, and the hoplited binary.
//!
//! A [`Daemon`] is one node. A control thread passes every event to the core and carries out its outputs; data threads
//! move bytes. Nothing is decided here.
//!
//! | file | contents |
//! |---|---|
//! | `options` | flags and environment of `hoplited` |
//! | `startup` | from options to sockets, addresses and sizes |
//! | `daemon` | one node from its start to its end, and the control loop |
//! | `event_loop` | the sources of the loop's events |
//! | `polling` | busy-polling for an event that is likely to follow |
//! | `events` | events as inputs of the core |
//! | `clock` | the core's time |
//! | `node` | carries out the core's outputs |
//! | `gauges` | fill levels of everything bounded |
//! | `copies`, `copy` | access to the bytes of each copy |
//! | `data_plane` | the threads that move bytes |
//! | `clients` | the Unix socket for clients |
#![forbid(unsafe_code)]

mod clients;
mod clock;
mod copies;
mod copy;
mod daemon;
mod data_plane;
mod event_loop;
mod events;
mod gauges;
mod node;
mod options;
mod polling;
mod startup;
mod sync;

pub use daemon::Daemon;
pub use options::Options;
pub use startup::StartError;

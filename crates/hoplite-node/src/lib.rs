//! The event loop that drives the core, and the hoplited binary.
//!
//! A [`Daemon`] is one node: a control thread that feeds everything that happens to the core and
//! carries out what it decides, and data threads that move bytes. No decision is made here.
//!
//! | file | what |
//! |---|---|
//! | `options` | flags and environment of `hoplited` |
//! | `startup` | from options to sockets, addresses and sizes |
//! | `daemon` | one node from its start to its end, and the control loop |
//! | `event_loop` | where the loop hears of what happens |
//! | `polling` | staying awake for what comes next |
//! | `events` | what happens, told to the core |
//! | `clock` | the core's time |
//! | `node` | what the core decided, carried out |
//! | `gauges` | how full everything bounded is |
//! | `copies`, `copy` | the way to the bytes of each copy |
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

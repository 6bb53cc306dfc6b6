//! Every decision of a Hoplite node, and no I/O.
#![forbid(unsafe_code)]

mod config;
pub mod io;

use std::time::Duration;

pub use config::Config;
pub use io::{Input, Output};

/// One node's decisions. Drive it: `handle`, then `poll_output` until `None`, then sleep until an
/// input comes or `next_deadline`.
pub struct Core {}

impl Core {
    /// A node that has not started yet; the first `handle` starts it (a `Tick` will do).
    pub fn new(_config: Config) -> Self {
        unimplemented!()
    }

    /// Takes in what happened at `now` (time since any fixed moment; never goes back).
    pub fn handle(&mut self, _now: Duration, _input: Input) {}

    /// What must be done next, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        None
    }

    /// When to call `handle` with `Tick` at the latest.
    pub fn next_deadline(&self) -> Option<Duration> {
        None
    }
}

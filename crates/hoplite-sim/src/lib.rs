//! Whole clusters of real `hoplite_core::Core`s in a deterministic simulated world.
//!
//! - `queue`, `dice`, `log`, `names`: the clock, the chances, the account, the short names
//! - `net`, `plane`: links, and the copies and jobs of a node's carry plane
//! - `world`: carries out what cores want and tells them what came of it
//! - `excuse`: why something goes that a rule forbids
//! - `task`: what clients do; `model`: what they must find
//! - `fault`: what may go wrong; `workload`, `crowd`, `mischief`: a seed draws a world, its tasks, its faults
//! - `masses`: many small objects; `coverage`: which messages met which troubles
//! - `script`: the drawn list; `run`, `ending`: play it, and say what went wrong; `minimise`: with fewer items
//! - `scale`: what a collective takes where nothing disturbs it
//! - `bare`, `operations`: cores without bytes, and what each operation takes on thousands of them
//! - `scenario`: commands and their recorded outcome, one behaviour per file
#![forbid(unsafe_code)]

mod bare;
pub mod coverage;
mod crowd;
mod dice;
mod ending;
pub mod excuse;
pub mod fault;
mod happening;
mod log;
mod masses;
pub mod minimise;
mod mischief;
mod model;
mod names;
mod net;
pub mod operations;
mod plane;
mod queue;
pub mod run;
pub mod scale;
pub mod scenario;
mod script;
mod show;
mod task;
mod workload;
mod world;

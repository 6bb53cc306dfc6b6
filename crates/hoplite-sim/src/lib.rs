//! Deterministic simulation of whole clusters of real `hoplite_core::Core`s.
//!
//! - World: `world` runs the cores; `queue`, `event` (time), `net` (links), `data_plane` (copies, jobs), `rng` (chance)
//! - Draw: `workload` (shape, calls), `task`, `masses`, `fault`, `fault_plan` (faults), `script` (list of both)
//! - Run: `run`, `phases`, `minimise` (fewer items), `scenario` (commands and their recorded outcome)
//! - Checks: `model` (expected contents), `excuse` (allowed exceptions), `coverage` (messages and troubles)
//! - Log: `log`, `names`, `show`; times: `scale` (collectives), `bare` and `operations` (thousands of nodes, no bytes)
#![forbid(unsafe_code)]

mod bare;
pub mod coverage;
mod data_plane;
mod event;
pub mod excuse;
pub mod fault;
mod fault_plan;
mod log;
mod masses;
pub mod minimise;
mod model;
mod names;
mod net;
pub mod operations;
mod phases;
mod queue;
mod rng;
pub mod run;
pub mod scale;
pub mod scenario;
mod script;
mod show;
mod task;
mod workload;
mod world;

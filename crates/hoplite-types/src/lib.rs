//! The terms of Hoplite (see the glossary in ARCHITECTURE.md) as plain types.
//!
//! Every other room speaks in these. They own no behaviour beyond parsing, printing and
//! validating themselves; how they look on the wire is the business of `hoplite-wire`.
#![forbid(unsafe_code)]

pub mod client;
mod connections;
mod dtype;
mod error;
mod header;
mod ids;
pub mod limits;
pub mod peer;

pub use connections::Connections;
pub use dtype::{Dtype, FoldOrder, Op};
pub use error::{Error, ErrorKind, Result};
pub use header::{Encoding, Header};
pub use ids::{mix64, Blob, Claim, CopyId, Edition, NodeId, ObjectId, ReductionId, Shard, Stamp, TransferId};

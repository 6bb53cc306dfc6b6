//! The terms of Hoplite (see the glossary in ARCHITECTURE.md) as plain types.
//!
//! All other crates use these. They have no behaviour beyond parsing, printing and validation; `hoplite-wire` decides
//! how they are encoded.
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

//! The atomics of the progress block; `tests/interleavings.rs` replaces them with a model checker's.

pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

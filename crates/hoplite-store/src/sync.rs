//! The atomics of the progress block; those of a model checker in `tests/interleavings.rs`.

pub(crate) use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

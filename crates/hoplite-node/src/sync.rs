//! What those who share a copy wait on, and what it is made of; a model's in `tests/interleavings`.

pub(crate) use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) use hoplite_store::{Mapping, Reader, Writer};
pub(crate) use tokio::sync::Notify;

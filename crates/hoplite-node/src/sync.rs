//! Locks, notifications and mappings that a shared copy is made of; `tests/interleavings` replaces them with a model
//! checker's.

pub(crate) use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) use hoplite_store::{Mapping, Reader, Writer};
pub(crate) use tokio::sync::Notify;

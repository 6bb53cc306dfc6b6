//! The private half of the Python package `hoplite`: tickets and memory.
//!
//! A `Connection` sends requests and returns a `Ticket` for each. A ticket's answer is a plain value, a `View`
//! (read-only memory), an `Arriving` (to be copied) or a `Writing` (writable memory). The public API, and every
//! sequence of these steps, is Python (`python/hoplite`).
//!
//! Every wait is made detached from the interpreter, and ends at once when a signal handler raises.

mod answer;
mod array;
mod arriving;
mod connection;
mod convert;
mod errors;
mod id;
mod memory;
mod ticket;
mod view;
mod writing;

use pyo3::prelude::*;

/// The private half of the package.
#[pymodule]
mod _hoplite {
    #[pymodule_export]
    use crate::arriving::Arriving;
    #[pymodule_export]
    use crate::connection::Connection;
    #[pymodule_export]
    use crate::errors::Stop;
    #[pymodule_export]
    use crate::id::PyObjectId;
    #[pymodule_export]
    use crate::ticket::Ticket;
    #[pymodule_export]
    use crate::view::View;
    #[pymodule_export]
    use crate::writing::Writing;

    #[pymodule_export]
    const INLINE_BYTES_MAX: u64 = hoplite_types::limits::INLINE_BYTES_MAX;
}

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

use std::path::PathBuf;

use pyo3::prelude::*;

/// The socket path of this user's node that listens on `port`, unless the node was given another one.
#[pyfunction]
#[pyo3(signature = (port))]
fn default_socket(port: u16) -> PathBuf {
    hoplite_client::default_socket_path(port)
}

/// The private half of the package.
#[pymodule]
mod _hoplite {
    use hoplite_types::{limits, Dtype, ObjectId};
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    use crate::convert;

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
    use crate::default_socket;

    #[pymodule_export]
    const ALIGNMENT: u64 = limits::ALIGNMENT;
    #[pymodule_export]
    const DEFAULT_PORT: u16 = limits::DEFAULT_PORT;
    #[pymodule_export]
    const OBJECT_BYTES_MAX: u64 = limits::OBJECT_BYTES_MAX;
    #[pymodule_export]
    const SHORT_ID_BYTES: usize = ObjectId::SHORT_LEN;
    #[pymodule_export]
    const TOMBSTONE_SECONDS: f64 = limits::TOMBSTONE_TTL.as_secs_f64();

    // The encodings in a header.
    #[pymodule_export]
    const BYTES: u8 = convert::BYTES;
    #[pymodule_export]
    const ARRAY: u8 = convert::ARRAY;
    #[pymodule_export]
    const PICKLE: u8 = convert::PICKLE;

    /// Adds the names of the dtypes that can be reduced.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("DTYPES", PyTuple::new(module.py(), Dtype::ALL.map(Dtype::name))?)
    }
}

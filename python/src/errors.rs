//! Hoplite's errors as Python's, and Python's signals as interrupts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use hoplite_types::{Error, ErrorKind, ObjectId, Result};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::id::PyObjectId;

/// The class in `hoplite.errors` for each kind.
fn class_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::TimedOut => "TimedOut",
        ErrorKind::Deleted => "ObjectDeleted",
        ErrorKind::Lost => "ObjectLost",
        ErrorKind::StoreFull => "StoreFull",
        ErrorKind::AlreadyExists => "ObjectExists",
        ErrorKind::Mismatch => "Mismatch",
        ErrorKind::BadArgument => "BadArgument",
        ErrorKind::NodeUnreachable => "NodeUnreachable",
        ErrorKind::Aborted => "Aborted",
        ErrorKind::VersionMismatch => "VersionMismatch",
        ErrorKind::Internal => "InternalError",
        ErrorKind::LimitReached => "LimitReached",
    }
}

pub fn to_py(error: Error) -> PyErr {
    Python::attach(|py| {
        let class = py.import("hoplite.errors").and_then(|module| module.getattr(class_of(error.kind)));
        let raised = match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
            Ok(class) => PyErr::from_type(class, error.message),
            Err(_) => return PyException::new_err(error.message),
        };
        match error.object.map_or(Ok(()), |object| name_object(py, &raised, object)) {
            Ok(()) => raised,
            Err(bug) => bug,
        }
    })
}

/// Sets the object that `raised` is about.
fn name_object(py: Python<'_>, raised: &PyErr, object: ObjectId) -> PyResult<()> {
    raised.value(py).setattr("object_id", PyObjectId::from(object))
}

pub fn bad_argument(message: impl Into<String>) -> PyErr {
    to_py(Error::new(ErrorKind::BadArgument, message))
}

/// A flag that ends the operations that watch it. Set when the client is closed, or when copying or connecting is
/// stopped.
#[pyclass(frozen, module = "hoplite._hoplite")]
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Stop::default()
    }

    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Stop {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs `wait` detached from the interpreter, with an interrupt that runs Python's signal handlers and checks
/// `stops`. An exception of a handler replaces the result of the wait.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    stops: &[&Stop],
    wait: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<T> + Send,
) -> std::result::Result<T, Ended> {
    let mut raised = None;
    let outcome = py.detach(|| {
        wait(&mut || {
            if stops.iter().any(|stop| stop.is_set()) {
                return Err(Error::new(ErrorKind::Aborted, "the client was closed, or the call stopped"));
            }
            Python::attach(|py| py.check_signals()).map_err(|error| {
                raised = Some(error);
                Error::new(ErrorKind::Aborted, "interrupted by a signal")
            })
        })
    });
    match raised {
        Some(error) => Err(Ended::Raised(error)),
        None => outcome.map_err(Ended::Failed),
    }
}

/// The reason why an interruptible wait failed.
pub enum Ended {
    /// A signal handler raised this.
    Raised(PyErr),
    Failed(Error),
}

impl From<Ended> for PyErr {
    fn from(ended: Ended) -> PyErr {
        match ended {
            Ended::Raised(error) => error,
            Ended::Failed(error) => to_py(error),
        }
    }
}

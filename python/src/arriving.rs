//! An object to be copied into private memory.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::{py_header, timeout};
use crate::errors::{interruptible, Stop};
use crate::memory::Room;

/// A copy, complete or arriving. The node keeps it until `release`, or until this is gone.
#[pyclass(frozen, module = "hoplite._hoplite")]
pub struct Arriving {
    inner: Mutex<Option<hoplite_client::Arriving>>,
    stop: Stop,
    closed: Stop,
}

impl Arriving {
    pub fn new(inner: hoplite_client::Arriving, closed: Stop) -> Self {
        Arriving { inner: Mutex::new(Some(inner)), stop: Stop::default(), closed }
    }

    fn with<T>(&self, py: Python<'_>, look: impl FnOnce(&hoplite_client::Arriving) -> T + Send) -> PyResult<T>
    where
        T: Send,
    {
        // Detached, because a thread that copies holds the lock and may need the interpreter.
        py.detach(|| {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.as_ref().map(look)
        })
        .ok_or_else(|| crate::errors::bad_argument("it was released before"))
    }
}

#[pymethods]
impl Arriving {
    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let header = self.with(py, |inner| inner.header().clone())?;
        py_header(py, &header)
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, hoplite_client::Arriving::size)
    }

    /// Copies the whole object, and waits for its bytes. False if this writing was abandoned.
    #[pyo3(signature = (out, timeout))]
    fn copy_into(&self, py: Python<'_>, out: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<bool> {
        let limit = self::timeout(timeout)?;
        let mut room = Room::of(out)?;
        let copied = interruptible(py, &[&self.stop, &self.closed], |interrupt| {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            match inner.as_ref() {
                Some(inner) => inner.copy_into(room.bytes(), limit, interrupt),
                None => Err(hoplite_types::Error::new(
                    hoplite_types::ErrorKind::BadArgument,
                    "it was released before",
                )),
            }
        })?;
        Ok(copied)
    }

    /// Makes a `copy_into` in another thread raise soon.
    fn stop(&self) {
        self.stop.set();
    }

    fn release(&self, py: Python<'_>) {
        let inner = py.detach(|| self.inner.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(inner);
    }
}

//! An object's memory while it is being written.

use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hoplite_client::{Created, Hold};
use hoplite_types::{Error, ErrorKind};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::answer::Question;
use crate::convert::timeout;
use crate::errors::{interruptible, to_py, Stop};
use crate::memory::{export, slices, sources};
use crate::ticket::Ticket;

/// Writable memory of an object that exists, but is not complete.
///
/// With a hold it is a buffer. All that take the buffer refer to this object. So the memory is theirs as long as one
/// of them is alive: even after the seal, and even if the object is gone.
#[pyclass(frozen, module = "hoplite._hoplite")]
pub struct Writing {
    created: Mutex<Option<Created>>,
    size: u64,
    kept: Option<Kept>,
    stop: Stop,
    closed: Stop,
}

/// The memory that the buffer shows, and what keeps it.
struct Kept {
    memory: Memory,
    _hold: Hold,
}

/// The object's memory.
struct Memory(*mut [u8]);

// SAFETY: only an address; the buffer protocol governs, under the interpreter's lock, what may be done with the
// memory behind it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Writing {
    pub fn new(py: Python<'_>, mut created: Created, closed: Stop) -> Self {
        let size = created.size();
        // A buffer needs all pages at once, and the kernel takes long to clear them. `write` needs them piece by piece.
        let kept = created.take_hold().map(|hold| {
            let memory = py.detach(|| Memory(created.writable()));
            Kept { memory, _hold: hold }
        });
        let created = Mutex::new(Some(created));
        Writing { created, size, kept, stop: Stop::default(), closed }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Created>> {
        self.created.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn over() -> Error {
    Error::new(ErrorKind::BadArgument, "the object is sealed or aborted already")
}

#[pymethods]
impl Writing {
    /// Copies `parts`, one behind the other, to the watermark, and publishes them piece by piece.
    fn write(&self, py: Python<'_>, parts: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let sources = sources(&parts)?;
        interruptible(py, &[&self.stop, &self.closed], |interrupt| {
            self.lock().as_mut().ok_or_else(over)?.write(&slices(&sources), interrupt)
        })?;
        Ok(())
    }

    /// Everything below `watermark` is final. A smaller watermark is no error and has no effect.
    fn advance(&self, py: Python<'_>, watermark: u64) -> PyResult<()> {
        py.detach(|| {
            let mut created = self.lock();
            let created = created.as_mut().ok_or_else(over)?;
            let done = created.watermark();
            if created.is_aborted() || watermark <= done {
                return Ok(());
            }
            created.advance(watermark - done)
        })
        .map_err(to_py)
    }

    /// Makes a `write` in another thread raise soon.
    fn stop(&self) {
        self.stop.set();
    }

    /// The ticket brings None once the object is complete for all readers.
    #[pyo3(signature = (timeout))]
    fn seal(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Ticket> {
        let limit = self::timeout(timeout)?;
        let ticket = py.detach(|| self.lock().take().ok_or_else(over)?.submit_seal(limit)).map_err(to_py)?;
        Ok(Ticket::new(ticket, Question::Plain, limit, self.closed.clone()))
    }

    /// Withdraws the object, if it is not sealed. A second call has no effect.
    fn abort(&self, py: Python<'_>) {
        let created = py.detach(|| self.lock().take());
        drop(created);
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let writing = slf.get();
        if slf.py().detach(|| writing.lock().is_none()) {
            return Err(PyBufferError::new_err("the object is sealed or aborted already"));
        }
        let Some(kept) = &writing.kept else {
            return Err(PyBufferError::new_err("the object was created to be written by `write` alone"));
        };
        // SAFETY: `view` is CPython's. The memory is kept by the hold beside it; until the seal it is the
        // writer's alone, and after it hoplite.Creation makes its array read-only.
        unsafe { export(slf.as_any(), kept.memory.0, true, view, flags) }
    }

    fn __repr__(&self) -> String {
        format!("<Writing of {} bytes>", self.size)
    }
}

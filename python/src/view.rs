//! A complete object's bytes, in the arena.

use std::ffi::c_int;
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::array::array_of;
use crate::convert::py_header;
use crate::memory::export;

/// Read-only memory of a complete object. It is in the arena, where the node keeps it until this is gone; or, for a
/// small object, in this process.
#[pyclass(frozen, module = "hoplite._hoplite")]
pub struct View(pub hoplite_client::View);

#[pymethods]
impl View {
    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        py_header(py, self.0.header())
    }

    #[getter]
    fn size(&self) -> usize {
        self.0.bytes().len()
    }

    /// The object as a NumPy array; None if its dtype is not one of NumPy's own.
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        array_of(slf)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = ptr::from_ref(slf.get().0.bytes()).cast_mut();
        // SAFETY: `view` is CPython's. The object is sealed, so nobody writes; the bytes stay as long as the `View`
        // in `slf`, to which the export holds a reference.
        unsafe { export(slf.as_any(), bytes, false, view, flags) }
    }
}

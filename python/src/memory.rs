//! Python buffers as slices, and our memory as Python buffers.

use std::ffi::c_int;

use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The bytes of a Python object that exports a contiguous buffer. The buffer is exported as long as this lives.
pub struct Source(PyBuffer<u8>);

impl Source {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        contiguous(PyBuffer::get(object)?).map(Source)
    }

    pub fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: a contiguous buffer of that many bytes, which stays where it is while `self.0` holds it exported.
        // As with every buffer, the caller promises that no thread writes to it meanwhile ("do not change `value`
        // until the put is done").
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

/// The bytes of several Python objects.
pub fn sources(objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<Source>> {
    objects.iter().map(Source::of).collect()
}

pub fn slices(sources: &[Source]) -> Vec<&[u8]> {
    sources.iter().map(Source::bytes).collect()
}

/// As [`Source`], for writing.
pub struct Room(PyBuffer<u8>);

impl Room {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = contiguous(PyBuffer::get(object)?)?;
        if buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        Ok(Room(buffer))
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: as in `Source::bytes`; writable, as checked above.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

fn contiguous(buffer: PyBuffer<u8>) -> PyResult<PyBuffer<u8>> {
    match buffer.is_c_contiguous() {
        true => Ok(buffer),
        false => Err(PyBufferError::new_err("the buffer is not C-contiguous")),
    }
}

/// The bytes of a C-contiguous buffer.
pub fn bytes_of(buffer: &PyUntypedBuffer) -> &[u8] {
    assert!(buffer.is_c_contiguous());
    if buffer.len_bytes() == 0 {
        return &[];
    }
    // SAFETY: as in `Source::bytes`.
    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) }
}

/// Exports `memory`, owned by `owner`, through the buffer protocol.
///
/// # Safety
/// `view` is what CPython passed to `__getbuffer__`. The bytes stay valid as long as `owner` lives. If `writable`, no
/// other code writes to them; otherwise no code at all does.
pub unsafe fn export(
    owner: &Bound<'_, PyAny>,
    memory: *mut [u8],
    writable: bool,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let readonly = c_int::from(!writable);
    let size = ffi::Py_ssize_t::try_from(memory.len()).expect("memory is never larger than isize::MAX");
    // SAFETY: `view` is CPython's; it takes a reference to `owner`, which keeps the bytes.
    let outcome =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), memory.cast(), size, readonly, flags) };
    match outcome {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}

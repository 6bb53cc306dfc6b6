//! NumPy arrays from and to an object's bytes, for the element types that NumPy has natively. `hoplite.values` handles
//! all other types, and everything that is not an array.

use hoplite_types::{Dtype, Encoding, Header};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use crate::memory::bytes_of;
use crate::view::View;

/// Objects of NumPy that are looked up once.
struct Numpy {
    ndarray: Py<PyType>,
    /// In the order of [`Dtype::ALL`].
    dtypes: Vec<Option<Py<PyAny>>>,
}

impl Numpy {
    fn get(py: Python<'_>) -> PyResult<&'static Numpy> {
        static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();
        NUMPY.get_or_try_init(py, || {
            let numpy = py.import("numpy")?;
            let dtype = numpy.getattr("dtype")?;
            let native = |kind: Dtype| match kind {
                Dtype::Bf16 => Ok(None),
                kind => Ok(Some(dtype.call1((kind.name(),))?.unbind())),
            };
            Ok(Numpy {
                ndarray: numpy.getattr("ndarray")?.cast_into::<PyType>()?.unbind(),
                dtypes: Dtype::ALL.into_iter().map(native).collect::<PyResult<_>>()?,
            })
        })
    }

    fn dtype(&self, kind: Dtype) -> Option<&Py<PyAny>> {
        let at = Dtype::ALL.iter().position(|&one| one == kind)?;
        self.dtypes[at].as_ref()
    }
}

/// The array with the bytes of `view`; `None` if its element type is not NumPy's own.
pub fn array_of<'py>(view: &Bound<'py, View>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = view.py();
    let numpy = Numpy::get(py)?;
    let object = &view.get().0;
    let header = object.header();
    let (kind, shape) = match header.encoding {
        Encoding::Array => (header.dtype, PyTuple::new(py, &header.shape)?),
        Encoding::Bytes | Encoding::Pickle => (Some(Dtype::U8), PyTuple::new(py, [object.bytes().len()])?),
    };
    match kind.and_then(|kind| numpy.dtype(kind)) {
        Some(dtype) => numpy.ndarray.bind(py).call1((shape, dtype, view)).map(Some),
        None => Ok(None),
    }
}

/// Header and bytes of `value`, if it is an array (no subclass) of NumPy's own reducible types, contiguous, and of at
/// most `bytes_max` bytes.
pub fn small_array(value: &Bound<'_, PyAny>, bytes_max: u64) -> PyResult<Option<(Header, Vec<u8>)>> {
    if !value.get_type().is(&Numpy::get(value.py())?.ndarray) {
        return Ok(None);
    }
    // NumPy exports no buffer of some arrays (of dates, say).
    let Ok(buffer) = PyUntypedBuffer::get(value) else { return Ok(None) };
    let Some(dtype) = dtype_of(buffer.format().to_bytes(), buffer.item_size()) else { return Ok(None) };
    if !buffer.is_c_contiguous() || buffer.len_bytes() as u64 > bytes_max {
        return Ok(None);
    }
    let shape = buffer.shape().iter().map(|&extent| extent as u64).collect();
    let header = Header { encoding: Encoding::Array, dtype: Some(dtype), shape, descr: String::new() };
    Ok(Some((header, bytes_of(&buffer).to_vec())))
}

/// The element type of a buffer's format; `None` for a byte order other than the machine's.
fn dtype_of(format: &[u8], bytes: usize) -> Option<Dtype> {
    let sized = |kinds: [Dtype; 4]| kinds.into_iter().find(|kind| kind.size() == bytes);
    match format {
        b"e" => Some(Dtype::F16),
        b"f" => Some(Dtype::F32),
        b"d" => Some(Dtype::F64),
        b"b" | b"h" | b"i" | b"l" | b"q" => sized([Dtype::I8, Dtype::I16, Dtype::I32, Dtype::I64]),
        b"B" | b"H" | b"I" | b"L" | b"Q" => sized([Dtype::U8, Dtype::U16, Dtype::U32, Dtype::U64]),
        _ => None,
    }
}

//! `hoplite.ObjectId`. It is native because every call reads one: its bytes are at hand here, and a name becomes an id
//! without a step in Python.

use std::fmt::Write;

use hoplite_types::ObjectId;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyType};

use crate::errors::bad_argument;

/// Names an immutable object: 16 bytes, made from a unique string or at random.
///
/// Hashable, ordered by its bytes, and picklable. An id made from a name remembers the name, for messages only:
/// equality compares the 16 bytes. Most callers use `from_name` or `random`.
#[pyclass(frozen, name = "ObjectId", module = "hoplite")]
pub struct PyObjectId {
    id: ObjectId,
    name: Option<Py<PyString>>,
}

/// The arguments from which it is unpickled.
type Parts<'py> = (Bound<'py, PyBytes>, Option<Py<PyString>>);

impl From<ObjectId> for PyObjectId {
    fn from(id: ObjectId) -> Self {
        PyObjectId { id, name: None }
    }
}

#[pymethods]
impl PyObjectId {
    /// Bytes of an id.
    #[classattr]
    const LENGTH: usize = ObjectId::LEN;

    #[new]
    #[pyo3(signature = (raw, name=None))]
    fn new(raw: &Bound<'_, PyAny>, name: Option<Py<PyString>>) -> PyResult<Self> {
        let bytes = raw.cast::<PyBytes>().ok().and_then(|raw| raw.as_bytes().try_into().ok());
        match bytes {
            Some(bytes) => Ok(PyObjectId { id: ObjectId(bytes), name }),
            None => Err(PyValueError::new_err(format!(
                "an object id is {} bytes, not {}",
                ObjectId::LEN,
                raw.repr()?
            ))),
        }
    }

    /// The id of a name: the first 16 bytes of the BLAKE3 hash of its UTF-8 bytes. `BadArgument` if it has no UTF-8
    /// form.
    #[staticmethod]
    fn from_name(name: &Bound<'_, PyString>) -> PyResult<Self> {
        Ok(PyObjectId { id: id_of_name(name)?, name: Some(name.clone().unbind()) })
    }

    /// A new, random id.
    #[staticmethod]
    fn random(py: Python<'_>) -> PyResult<Self> {
        let raw = py.import("os")?.call_method1("urandom", (ObjectId::LEN,))?;
        Self::new(&raw, None)
    }

    /// The id whose `hex()` is `text`: 32 hexadecimal digits. Otherwise ValueError.
    #[staticmethod]
    fn from_hex(text: &str) -> PyResult<Self> {
        text.parse().map(|id: ObjectId| id.into()).map_err(PyValueError::new_err)
    }

    /// `id` itself, or the id of the name `id`. Every call converts its arguments in this way.
    #[staticmethod]
    fn of<'py>(id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyObjectId>> {
        if let Ok(id) = id.cast_exact::<PyObjectId>() {
            return Ok(id.clone());
        }
        match id.cast::<PyString>() {
            Ok(name) => Bound::new(id.py(), Self::from_name(name)?),
            Err(_) => Err(no_id(id)),
        }
    }

    /// The name from which it was made, if that is known here.
    #[getter]
    fn name(&self, py: Python<'_>) -> Option<Py<PyString>> {
        self.name.as_ref().map(|name| name.clone_ref(py))
    }

    /// 32 hexadecimal digits.
    fn hex(&self) -> String {
        self.id.to_string()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.id.0)
    }

    fn __richcmp__(&self, other: &Bound<'_, PyAny>, op: pyo3::pyclass::CompareOp) -> PyResult<Py<PyAny>> {
        let py = other.py();
        match other.cast::<PyObjectId>() {
            Ok(other) => {
                let matches = op.matches(self.id.0.cmp(&other.get().id.0));
                Ok(matches.into_pyobject(py)?.to_owned().into_any().unbind())
            }
            Err(_) => Ok(py.NotImplemented()),
        }
    }

    fn __hash__(&self) -> u64 {
        let (low, high) = self.id.0.split_at(ObjectId::LEN / 2);
        let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of an id"));
        half(low) ^ half(high).rotate_left(1)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> (Bound<'py, PyType>, Parts<'py>) {
        let (py, this) = (slf.py(), slf.get());
        (slf.get_type(), (this.__bytes__(py), this.name(py)))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut text = String::from("ObjectId.");
        match &self.name {
            Some(name) => write!(text, "from_name({})", name.bind(py).repr()?),
            None => write!(text, "from_hex('{}')", self.id),
        }
        .expect("a string takes all");
        Ok(text)
    }

    fn __str__(&self, py: Python<'_>) -> String {
        self.name.as_ref().map_or_else(|| self.hex(), |name| name.bind(py).to_string())
    }
}

/// The object argument of a call: an `ObjectId`, or a str.
pub struct Id(pub ObjectId);

impl<'a, 'py> FromPyObject<'a, 'py> for Id {
    type Error = PyErr;

    fn extract(id: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(id) = id.cast::<PyObjectId>() {
            return Ok(Id(id.get().id));
        }
        match id.cast::<PyString>() {
            Ok(name) => Ok(Id(id_of_name(&name)?)),
            Err(_) => Err(no_id(&id)),
        }
    }
}

fn id_of_name(name: &Bound<'_, PyString>) -> PyResult<ObjectId> {
    let text = name.to_str().map_err(|_| {
        let shown = name.repr().map(|text| text.to_string()).unwrap_or_default();
        bad_argument(format!("the name {shown} cannot be written as UTF-8"))
    })?;
    Ok(ObjectId::from_name(text))
}

fn no_id(what: &Bound<'_, PyAny>) -> PyErr {
    match what.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!("an object is named by an ObjectId or a str, not {kind}")),
        Err(error) => error,
    }
}

/// Converts ids to Python's class.
pub fn py_ids(ids: Vec<ObjectId>) -> Vec<PyObjectId> {
    ids.into_iter().map(PyObjectId::from).collect()
}

/// Converts ids to Rust's type.
pub fn raw_ids(ids: Vec<Id>) -> Vec<ObjectId> {
    ids.into_iter().map(|Id(id)| id).collect()
}

use pyo3::prelude::*;

/// The private half of the package `hoplite`.
#[pymodule]
mod _hoplite {
    use super::*;
    use pyo3::types::PyBytes;

    #[pyfunction]
    fn id_of_name<'py>(py: Python<'py>, name: &str) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &hoplite_words::ObjectId::from_name(name).0)
    }
}

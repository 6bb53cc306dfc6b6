//! One connection to a node on this host.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use hoplite_client::{milliseconds, put_request, size_of_parts, Client, Lookup};
use hoplite_types::client::Request;
use hoplite_types::limits::{INLINE_BYTES_MAX, TIMEOUT_MAX};
use hoplite_types::{Blob, Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::answer::Question;
use crate::array::small_array;
use crate::convert::{header, nodes, op, order, timeout, PyHeader};
use crate::errors::{interruptible, to_py, Stop};
use crate::id::{raw_ids, Id};
use crate::memory::{slices, sources};
use crate::ticket::Ticket;
use crate::view::View;

/// Sends requests. It stays connected, even after `close`, until the last view or writing that came over it is gone:
/// the node keeps their bytes for this connection.
#[pyclass(frozen, module = "hoplite._hoplite")]
pub struct Connection {
    client: Mutex<Option<Arc<Client>>>,
    node: String,
    closed: Stop,
}

impl Connection {
    fn client(&self) -> PyResult<Arc<Client>> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.clone().ok_or_else(|| {
            let message = format!("the client of node {} was closed", self.node);
            to_py(Error::new(ErrorKind::Aborted, message))
        })
    }

    fn submit(&self, request: Request, question: Question, timeout: Option<f64>) -> PyResult<Ticket> {
        let limit = self::timeout(timeout)?;
        let client = self.client()?;
        let ticket = match client.wants_write() {
            // It may have to wait until the node has read some bytes: other threads run meanwhile.
            true => Python::attach(|py| py.detach(|| client.submit(request))),
            false => client.submit(request),
        };
        let ticket = ticket.map_err(to_py)?;
        Ok(Ticket::new(ticket, question, limit, self.closed.clone()))
    }
}

#[pymethods]
impl Connection {
    /// Setting `stop` in another thread makes the connecting raise soon.
    #[new]
    #[pyo3(signature = (socket, timeout, stop=None))]
    fn new(
        py: Python<'_>,
        socket: PathBuf,
        timeout: Option<f64>,
        stop: Option<Bound<'_, Stop>>,
    ) -> PyResult<Self> {
        let timeout = self::timeout(timeout)?.unwrap_or(TIMEOUT_MAX);
        let stop = stop.map(|stop| stop.get().clone()).unwrap_or_default();
        let client = interruptible(py, &[&stop], |interrupt| {
            Client::connect_interruptibly(&socket, timeout, interrupt)
        })?;
        let node = client.node().to_string();
        Ok(Connection { client: Mutex::new(Some(client)), node, closed: Stop::default() })
    }

    #[getter]
    fn node(&self) -> &str {
        &self.node
    }

    /// Readable when answers have come.
    fn fileno(&self) -> PyResult<i32> {
        Ok(self.client()?.fd().as_raw_fd())
    }

    /// Sends queued requests and receives answers; raises once the node is gone.
    fn pump(&self, py: Python<'_>) -> PyResult<()> {
        let client = self.client()?;
        py.detach(|| client.pump()).map_err(to_py)
    }

    /// As `pump`; False once the node is gone.
    fn is_alive(&self, py: Python<'_>) -> PyResult<bool> {
        let client = self.client()?;
        match py.detach(|| client.pump()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind == ErrorKind::NodeUnreachable => Ok(false),
            Err(error) => Err(to_py(error)),
        }
    }

    /// Whether requests wait for space in the socket. `pump` sends them once it is writable.
    fn wants_write(&self) -> PyResult<bool> {
        Ok(self.client()?.wants_write())
    }

    /// Every further request raises `Aborted`, and so does every wait that is under way.
    fn close(&self) {
        self.closed.set();
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(client);
    }

    /// Begins to put `parts`, one behind the other. The ticket brings a Writing, to which they must be written; None
    /// if they were sent with the request, or if the node has the object already.
    #[pyo3(signature = (id, header, parts, timeout))]
    fn put(
        &self,
        id: Id,
        header: PyHeader,
        parts: Vec<Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Ticket> {
        let (Id(id), sources) = (id, sources(&parts)?);
        let parts = slices(&sources);
        let request = put_request(id, self::header(header)?, &parts, self::timeout(timeout)?);
        self.submit(request, Question::Create { id, size: size_of_parts(&parts) }, timeout)
    }

    /// As `put` of `value`, in fewer steps; None if `value` is not a small array of a dtype that NumPy has natively.
    #[pyo3(signature = (id, value, timeout))]
    fn put_array(&self, id: Id, value: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Option<Ticket>> {
        let Some((header, bytes)) = small_array(value, INLINE_BYTES_MAX)? else { return Ok(None) };
        let timeout_ms = milliseconds(self::timeout(timeout)?);
        let request = Request::PutSmall { id: id.0, header, payload: Blob(bytes), timeout_ms };
        self.submit(request, Question::Plain, timeout).map(Some)
    }

    /// The ticket brings a Writing, which is a buffer; None if the node has the object already.
    #[pyo3(signature = (id, header, size, timeout))]
    fn create(&self, id: Id, header: PyHeader, size: u64, timeout: Option<f64>) -> PyResult<Ticket> {
        let Id(id) = id;
        let request = Request::Create {
            id,
            size,
            header: self::header(header)?,
            timeout_ms: milliseconds(self::timeout(timeout)?),
            keep: true,
        };
        self.submit(request, Question::Create { id, size }, timeout)
    }

    /// Returns the View if no request to the node is needed; otherwise a ticket that brings it.
    #[pyo3(signature = (id, timeout, fail_if_lost))]
    fn get(&self, py: Python<'_>, id: Id, timeout: Option<f64>, fail_if_lost: bool) -> PyResult<Py<PyAny>> {
        let Id(id) = id;
        let timeout_ms = milliseconds(self::timeout(timeout)?);
        let miss = match self.client()?.look_up(id).map_err(to_py)? {
            Lookup::Hit(view) => return Ok(Py::new(py, View(view))?.into_any()),
            Lookup::Miss(miss) => miss,
        };
        let request = Request::Get { id, timeout_ms, partial: false, fail_if_lost };
        Ok(Py::new(py, self.submit(request, Question::Get(miss), timeout)?)?.into_any())
    }

    /// The ticket brings an Arriving: with `partial` as soon as bytes may come, otherwise when all bytes are here.
    #[pyo3(signature = (id, timeout, partial, fail_if_lost))]
    fn get_copy(&self, id: Id, timeout: Option<f64>, partial: bool, fail_if_lost: bool) -> PyResult<Ticket> {
        let Id(id) = id;
        let timeout_ms = milliseconds(self::timeout(timeout)?);
        let request = Request::Get { id, timeout_ms, partial, fail_if_lost };
        self.submit(request, Question::Copy { id, fail_if_lost }, timeout)
    }

    #[pyo3(signature = (ids, timeout))]
    fn delete(&self, ids: Vec<Id>, timeout: Option<f64>) -> PyResult<Ticket> {
        let timeout_ms = milliseconds(self::timeout(timeout)?);
        self.submit(Request::Delete { ids: raw_ids(ids), timeout_ms }, Question::Plain, timeout)
    }

    /// The ticket brings the ids of the reduced sources, in fold order.
    #[pyo3(signature = (target, sources, num_objects, op, order, to_sources, timeout))]
    #[allow(clippy::too_many_arguments)] // Python's callers name each.
    fn reduce(
        &self,
        target: Id,
        sources: Vec<Id>,
        num_objects: u32,
        op: &Bound<'_, PyString>,
        order: &Bound<'_, PyString>,
        to_sources: bool,
        timeout: Option<f64>,
    ) -> PyResult<Ticket> {
        let request = Request::Reduce {
            target: target.0,
            sources: raw_ids(sources),
            num_objects,
            op: self::op(&op.to_string_lossy())?,
            order: self::order(&order.to_string_lossy())?,
            timeout_ms: milliseconds(self::timeout(timeout)?),
            to_sources,
        };
        self.submit(request, Question::Plain, timeout)
    }

    /// The ticket brings those of `ids` that are ready. With `fail_if_lost`, the loss of one raises unless
    /// `known_lost` has it.
    #[pyo3(signature = (ids, count, timeout, fail_if_lost, known_lost))]
    fn wait(
        &self,
        ids: Vec<Id>,
        count: u32,
        timeout: Option<f64>,
        fail_if_lost: bool,
        known_lost: Vec<Id>,
    ) -> PyResult<Ticket> {
        let timeout_ms = milliseconds(self::timeout(timeout)?);
        let (ids, known_lost) = (raw_ids(ids), raw_ids(known_lost));
        let request = Request::Wait { ids, count, timeout_ms, fail_if_lost, known_lost };
        self.submit(request, Question::Plain, timeout)
    }

    #[pyo3(signature = (ids, nodes, timeout))]
    fn prefetch(&self, ids: Vec<Id>, nodes: Vec<(String, u64)>, timeout: Option<f64>) -> PyResult<Ticket> {
        let request = Request::Prefetch { ids: raw_ids(ids), nodes: self::nodes(nodes)? };
        self.submit(request, Question::Plain, timeout)
    }

    /// The ticket brings (size or None, [(node, complete, pinned), ...]).
    #[pyo3(signature = (id, timeout))]
    fn locate(&self, id: Id, timeout: Option<f64>) -> PyResult<Ticket> {
        let timeout_ms = milliseconds(self::timeout(timeout)?);
        self.submit(Request::Locate { id: id.0, timeout_ms }, Question::Plain, timeout)
    }

    /// The ticket brings the node's status as a dict.
    #[pyo3(signature = (timeout))]
    fn status(&self, timeout: Option<f64>) -> PyResult<Ticket> {
        self.submit(Request::Status, Question::Plain, timeout)
    }
}

//! The answer of a ticket: the node's reply as Python sees it.

use std::sync::Arc;

use hoplite_client::{Client, Miss};
use hoplite_types::client::Reply;
use hoplite_types::{Error, ErrorKind, ObjectId, Result};
use pyo3::prelude::*;

use crate::arriving::Arriving;
use crate::convert::py_status;
use crate::errors::Stop;
use crate::id::py_ids;
use crate::view::View;
use crate::writing::Writing;

/// The request, as far as it is needed to interpret the reply.
#[derive(Clone, Copy)]
pub enum Question {
    /// The reply alone is enough.
    Plain,
    Create {
        id: ObjectId,
        size: u64,
    },
    Get(Miss),
    /// A get whose bytes will be copied.
    Copy {
        id: ObjectId,
        fail_if_lost: bool,
    },
}

/// A reply with the memory that came with it. Dropping it gives views and reserved memory back to the node.
pub enum Answer {
    View(hoplite_client::View),
    Arriving(hoplite_client::Arriving),
    Writing(Option<hoplite_client::Created>),
    Plain(Reply),
}

impl Answer {
    pub fn adopt(client: &Arc<Client>, question: Question, reply: Reply) -> Result<Answer> {
        match question {
            Question::Plain => Ok(Answer::Plain(reply)),
            Question::Create { id, size } => {
                hoplite_client::Created::adopt(client, id, size, reply).map(Answer::Writing)
            }
            Question::Get(miss) => hoplite_client::View::adopt(client, miss, reply).map(Answer::View),
            Question::Copy { id, fail_if_lost } => {
                hoplite_client::Arriving::adopt(client, id, fail_if_lost, reply).map(Answer::Arriving)
            }
        }
    }

    pub fn into_py(self, py: Python<'_>, closed: &Stop) -> PyResult<Py<PyAny>> {
        match self {
            Answer::View(view) => Ok(Py::new(py, View(view))?.into_any()),
            Answer::Arriving(arriving) => {
                Ok(Py::new(py, Arriving::new(arriving, closed.clone()))?.into_any())
            }
            Answer::Writing(None) => Ok(py.None()),
            Answer::Writing(Some(created)) => {
                Ok(Py::new(py, Writing::new(py, created, closed.clone()))?.into_any())
            }
            Answer::Plain(reply) => plain(py, reply),
        }
    }
}

fn plain(py: Python<'_>, reply: Reply) -> PyResult<Py<PyAny>> {
    match reply {
        Reply::Done => Ok(py.None()),
        Reply::Reduced { sources } => Ok(py_ids(sources).into_pyobject(py)?.unbind()),
        Reply::Ready { ids } => Ok(py_ids(ids).into_pyobject(py)?.unbind()),
        Reply::Located { size, copies } => {
            let copies: Vec<_> =
                copies.iter().map(|copy| (copy.node.to_string(), copy.complete, copy.pinned)).collect();
            Ok((size, copies).into_pyobject(py)?.into_any().unbind())
        }
        Reply::Status(status) => Ok(py_status(py, &status)?.into_any().unbind()),
        other => {
            let message = format!("{other:?} answers nothing that was asked");
            Err(crate::errors::to_py(Error::new(ErrorKind::Internal, message)))
        }
    }
}

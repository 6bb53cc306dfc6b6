//! Converts between Python's plain values and Hoplite's types.

use std::str::FromStr;
use std::time::Duration;

use hoplite_types::client::Status;
use hoplite_types::{Dtype, Encoding, FoldOrder, Header, NodeId, Op};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::bad_argument;

/// The encodings in a [`PyHeader`].
pub const BYTES: u8 = 0;
pub const ARRAY: u8 = 1;
pub const PICKLE: u8 = 2;

/// `(encoding, dtype, shape, descr)`, as in `hoplite.values.Header`.
pub type PyHeader = (u8, Option<String>, Vec<u64>, String);

/// Converts seconds from Python. `None` and infinity mean no limit.
pub fn timeout(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    match seconds {
        None => Ok(None),
        Some(seconds) if seconds >= 0.0 => Ok(Duration::try_from_secs_f64(seconds).ok()),
        Some(seconds) => {
            Err(bad_argument(format!("timeout is seconds from 0 up, or None for ever; not {seconds}")))
        }
    }
}

pub fn header((encoding, dtype, shape, descr): PyHeader) -> PyResult<Header> {
    let encoding = match encoding {
        BYTES => Encoding::Bytes,
        ARRAY => Encoding::Array,
        PICKLE => Encoding::Pickle,
        other => return Err(bad_argument(format!("unknown encoding {other}"))),
    };
    let dtype = dtype.map(|name| Dtype::from_str(&name).map_err(bad_argument)).transpose()?;
    Ok(Header { encoding, dtype, shape, descr })
}

pub fn py_header<'py>(py: Python<'py>, header: &Header) -> PyResult<Bound<'py, PyTuple>> {
    let encoding = match header.encoding {
        Encoding::Bytes => BYTES,
        Encoding::Array => ARRAY,
        Encoding::Pickle => PICKLE,
    };
    let shape = PyTuple::new(py, &header.shape)?;
    (encoding, header.dtype.map(Dtype::name), shape, &header.descr).into_pyobject(py)
}

pub fn op(name: &str) -> PyResult<Op> {
    Op::from_str(name).map_err(bad_argument)
}

pub fn order(name: &str) -> PyResult<FoldOrder> {
    match name {
        "arrival" => Ok(FoldOrder::Arrival),
        "fixed" => Ok(FoldOrder::Fixed),
        other => Err(bad_argument(format!("unknown order {other:?}; there are arrival and fixed"))),
    }
}

pub fn nodes(nodes: Vec<(String, u64)>) -> PyResult<Vec<NodeId>> {
    let node = |(addr, incarnation): (String, u64)| match addr.parse() {
        Ok(addr) => Ok(NodeId { addr, incarnation }),
        Err(_) => Err(bad_argument(format!("{addr:?} is no node's address (ip:port)"))),
    };
    nodes.into_iter().map(node).collect()
}

/// The fields of `hoplite.nodes.Status`, members with their incarnations, links as measured.
pub fn py_status<'py>(py: Python<'py>, status: &Status) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    let members: Vec<_> = status.members.iter().map(|node| (node.to_string(), node.incarnation)).collect();
    let links: Vec<_> =
        status.links.iter().map(|link| (link.peer.to_string(), link.latency_ns, link.bytes_per_s)).collect();
    fields.set_item("node", status.node.map(|node| node.to_string()).unwrap_or_default())?;
    fields.set_item("members", members)?;
    fields.set_item("links", links)?;
    let gauges: Vec<_> =
        status.gauges.iter().map(|gauge| (&gauge.name, gauge.value, gauge.limit, gauge.met)).collect();
    fields.set_item("gauges", gauges)?;
    for (name, number) in [
        ("store_bytes", status.store_bytes),
        ("used_bytes", status.used_bytes),
        ("copies", status.copies),
        ("entries", status.entries),
        ("tombstones", status.tombstones),
        ("transfers", status.transfers),
        ("reductions", status.reductions),
        ("clients", status.clients),
        ("sent_bytes", status.sent_bytes),
        ("received_bytes", status.received_bytes),
        ("folded_bytes", status.folded_bytes),
        ("evicted_copies", status.evicted_copies),
    ] {
        fields.set_item(name, number)?;
    }
    Ok(fields)
}

//! Calls that move no bytes between this process and the arena.

use std::sync::Arc;
use std::time::Duration;

use hoplite_types::client::{Location, Reply, Request, Status};
use hoplite_types::{FoldOrder, NodeId, ObjectId, Op, Result};

use crate::deadline::{milliseconds, Interrupt};
use crate::{Client, Ticket};

/// The arguments of a reduction; see [`Client::reduce`].
#[derive(Clone, PartialEq, Debug)]
pub struct ReduceCall {
    pub target: ObjectId,
    /// At most `SOURCES_MAX`, none twice.
    pub sources: Vec<ObjectId>,
    /// The number of sources to reduce: the first that become ready.
    pub num_objects: u32,
    pub op: Op,
    pub order: FoldOrder,
    /// Also brings the target to every node that supplied a source (allreduce).
    pub to_sources: bool,
    /// Time until the reduction must be committed; `None`: no limit.
    pub timeout: Option<Duration>,
}

impl Client {
    /// Deletes objects on all nodes. Returns when the directory has recorded it. Later gets fail with `Deleted`.
    /// Unknown ids are deleted in the same way.
    ///
    /// # Errors
    /// `TimedOut`, and those of [`Client::submit`].
    pub fn delete(
        self: &Arc<Self>,
        ids: Vec<ObjectId>,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let request = Request::Delete { ids, timeout_ms: milliseconds(timeout) };
        self.done("delete", self.call(request, timeout, interrupt)?)
    }

    /// Starts a reduction. The ticket's answer is `Reply::Reduced` once it is committed; gets of the target are
    /// possible at once. Dropping the ticket gives up the answer, not the reduction.
    ///
    /// # Errors
    /// Those of [`Client::submit`]; the node's own errors (`BadArgument`, `Mismatch`, …) come by the ticket.
    pub fn reduce(self: &Arc<Self>, what: ReduceCall) -> Result<Ticket> {
        self.submit(Request::Reduce {
            target: what.target,
            sources: what.sources,
            num_objects: what.num_objects,
            op: what.op,
            order: what.order,
            timeout_ms: milliseconds(what.timeout),
            to_sources: what.to_sources,
        })
    }

    /// Waits until `count` of `ids` are complete on some node. Returns those that are: fewer than `count` only if the
    /// time is up.
    ///
    /// # Errors
    /// Those of [`Client::submit`].
    pub fn wait(
        self: &Arc<Self>,
        ids: Vec<ObjectId>,
        count: u32,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<ObjectId>> {
        let request = Request::Wait {
            ids,
            count,
            timeout_ms: milliseconds(timeout),
            fail_if_lost: false,
            known_lost: Vec::new(),
        };
        match self.call(request, timeout, interrupt)? {
            Reply::Ready { ids } => Ok(ids),
            other => Err(self.unexpected_reply("wait", other)),
        }
    }

    /// Has the objects brought to `nodes` (empty: to this node), without waiting for them.
    ///
    /// # Errors
    /// Those of [`Client::submit`].
    pub fn prefetch(
        self: &Arc<Self>,
        ids: Vec<ObjectId>,
        nodes: Vec<NodeId>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let request = Request::Prefetch { ids, nodes };
        self.done("prefetch", self.call(request, Some(Duration::ZERO), interrupt)?)
    }

    /// The object's size, if it is known, and the nodes that have a copy.
    ///
    /// # Errors
    /// `Deleted`, `TimedOut`, and those of [`Client::submit`].
    pub fn locate(
        self: &Arc<Self>,
        id: ObjectId,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<(Option<u64>, Vec<Location>)> {
        let request = Request::Locate { id, timeout_ms: milliseconds(timeout) };
        match self.call(request, timeout, interrupt)? {
            Reply::Located { size, copies } => Ok((size, copies)),
            other => Err(self.unexpected_reply("locate", other)),
        }
    }

    /// The node's status.
    ///
    /// # Errors
    /// Those of [`Client::submit`], `TimedOut`.
    pub fn status(self: &Arc<Self>, interrupt: Interrupt<'_>) -> Result<Status> {
        match self.call(Request::Status, Some(Duration::ZERO), interrupt)? {
            Reply::Status(status) => Ok(status),
            other => Err(self.unexpected_reply("status", other)),
        }
    }
}

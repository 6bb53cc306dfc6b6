//! One connection to this host's node.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_store::Mapping;
use hoplite_types::client::{Answer, Call, Reply, Request};
use hoplite_types::{CopyId, Error, ErrorKind, NodeId, Result};

use crate::cache::Cache;
use crate::calls::{Calls, Lead};
use crate::deadline::{overdue_at, Interrupt};
use crate::handshake::greet;
use crate::link::{Link, LinkDown, Polled};
use crate::request::Subject;
use crate::Ticket;

/// A connection, shared by all threads of the process that made it.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    pid: u32,
    node: NodeId,
    mapping: Arc<Mapping>,
    link: Link,
    calls: Calls,
    cache: Cache,
}

impl Drop for Client {
    /// A forked child keeps the socket open, so closing it here alone would not end the connection.
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.link.shut_down();
        }
    }
}

impl Client {
    /// Connects to the node whose socket is at `path`. Waits up to `timeout` for its welcome.
    ///
    /// # Errors
    /// `NodeUnreachable` (at once if no node listens there), `VersionMismatch`.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Arc<Client>> {
        Client::connect_interruptibly(path, timeout, &mut crate::never)
    }

    /// As [`Client::connect`], with an interrupt that is checked during the wait.
    ///
    /// # Errors
    /// Those of `connect`, the interrupt's.
    pub fn connect_interruptibly(
        path: &Path,
        timeout: Duration,
        interrupt: Interrupt<'_>,
    ) -> Result<Arc<Client>> {
        let greeted = greet(path, timeout, interrupt)?;
        Ok(Arc::new(Client {
            path: path.to_owned(),
            pid: std::process::id(),
            node: greeted.node,
            mapping: greeted.mapping,
            link: greeted.link,
            calls: Calls::default(),
            cache: Cache::default(),
        }))
    }

    /// The node at the other end.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Readable when answers have come. For event loops, which then call `pump`.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.link.fd()
    }

    /// Whether calls wait for space in the socket. An event loop then also watches for that, and calls `pump` when
    /// there is some.
    pub fn wants_write(&self) -> bool {
        self.link.has_unsent()
    }

    /// Sends queued calls and receives answers, without waiting. Does nothing while another thread does so in a call
    /// that waits.
    ///
    /// # Errors
    /// `NodeUnreachable` once the node is gone (every ticket fails with it, too), `BadArgument` in a forked child.
    pub fn pump(&self) -> Result<()> {
        self.check_process()?;
        if let Some(lead) = self.calls.try_lead() {
            self.poll_socket(&lead, Duration::ZERO);
        }
        match self.calls.broken() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Sends a call. The ticket returns the node's answer.
    ///
    /// # Errors
    /// `BadArgument` over the limits of `hoplite_types::limits` or in a forked child, `NodeUnreachable` if the node
    /// is gone or takes no calls.
    pub fn submit(self: &Arc<Self>, request: Request) -> Result<Ticket> {
        let subject = Subject::of(&request);
        self.submit_about(request, subject)
    }

    pub(crate) fn submit_about(self: &Arc<Self>, request: Request, subject: Subject) -> Result<Ticket> {
        self.check_process()?;
        request.validate()?;
        let call = self.calls.register()?;
        // Created before sending, so that a failure unregisters the call.
        let ticket = Ticket::new(self.clone(), call, subject);
        self.link.send(&Call { call, request }).map_err(|down| self.gone(down))?;
        Ok(ticket)
    }

    /// Submits and waits. The node gets a little more time than `timeout`, so that the answer is its own diagnostics.
    pub(crate) fn call(
        self: &Arc<Self>,
        request: Request,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<Reply> {
        self.submit(request)?.wait(overdue_at(timeout), interrupt)
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Whether a call would reach the node. It receives nothing: answers are left to the threads that wait for them.
    pub(crate) fn is_connected(&self) -> bool {
        self.calls.broken().is_none() && self.link.is_up()
    }

    /// Waits up to `stretch` for an event on the socket, and handles it.
    pub(crate) fn poll_socket(&self, _lead: &Lead<'_>, stretch: Duration) -> Polled {
        self.link.poll(stretch, |answer| self.on_answer(answer)).unwrap_or_else(|down| {
            self.calls.on_broken(self.gone(down));
            Polled::Ready
        })
    }

    fn on_answer(&self, answer: Answer) {
        if let Some(unwanted) = self.calls.deliver(answer) {
            self.discard(unwanted);
        }
    }

    /// Gives back the copies that came with an answer which is no longer awaited.
    pub(crate) fn discard(&self, reply: Reply) {
        match reply {
            Reply::View { copy, .. } => self.release(copy),
            Reply::Created { copy, kept, .. } => {
                self.abort(copy);
                if kept {
                    self.release(copy);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn release(&self, copy: CopyId) {
        self.tell(Request::Release { copy });
    }

    pub(crate) fn abort(&self, copy: CopyId) {
        // It is answered with `Done`, which is ignored.
        if self.check_process().is_ok() {
            let call = self.calls.number();
            let _ = self.link.send(&Call { call, request: Request::Abort { copy } });
        }
    }

    /// Sends a request that has no answer. A node that is gone needs none, and a forked child must send none.
    pub(crate) fn tell(&self, request: Request) {
        if self.check_process().is_ok() {
            let _ = self.link.send(&Call { call: 0, request });
        }
    }

    pub(crate) fn check_process(&self) -> Result<()> {
        let pid = std::process::id();
        if pid == self.pid {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::BadArgument,
            format!(
                "process {pid} was forked from {}, which made this connection to node {}; it must \
                 connect itself",
                self.pid, self.node
            ),
        ))
    }

    /// Checks that the node is still there. For code that follows a copy in memory instead of waiting for an answer.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.pump()
    }

    fn gone(&self, down: LinkDown) -> Error {
        Error::new(
            ErrorKind::NodeUnreachable,
            format!(
                "node {} at {} is gone: {}; what only it held is lost, reconnect when it runs again",
                self.node,
                self.path.display(),
                down.0
            ),
        )
    }

    pub(crate) fn done(&self, verb: &str, reply: Reply) -> Result<()> {
        match reply {
            Reply::Done => Ok(()),
            other => Err(self.unexpected_reply(verb, other)),
        }
    }

    /// An error for an answer that does not belong to its request.
    pub(crate) fn unexpected_reply(&self, verb: &str, reply: Reply) -> Error {
        let message = format!("node {} answered {verb} with {reply:?}", self.node);
        self.discard(reply);
        Error::new(ErrorKind::Internal, message)
    }
}

/// The rest of `timeout`, for the later parts of a call that has several.
pub(crate) fn left_of(timeout: Option<Duration>, started: Instant) -> Option<Duration> {
    timeout.map(|timeout| timeout.saturating_sub(started.elapsed()))
}

//! Whether the process that made a connection still runs.
//!
//! Its end closes its sockets, but not those that a child of it has inherited: what the process was writing would
//! never be withdrawn while the child lives.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{pidfd_open, Pid, PidfdFlags};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tracing::debug;

use super::watch;

/// A watched process; nothing where the kernel (before 5.3) or its process namespace does not let us watch it: then
/// its connection alone tells.
#[derive(Debug)]
pub(super) struct Life(Option<AsyncFd<OwnedFd>>);

impl Life {
    /// Of the process at the other end, as the kernel knows it.
    pub(super) fn of(stream: &UnixStream) -> Life {
        let watched = Life::watched(stream);
        if let Err(error) = &watched {
            debug!(%error, "a client's process cannot be watched; its connection is");
        }
        Life(watched.ok())
    }

    fn watched(stream: &UnixStream) -> io::Result<AsyncFd<OwnedFd>> {
        let pid = stream.peer_cred()?.pid().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("it has no id here"))?;
        // It has just said hello, so that its id is not another's yet.
        watch(pidfd_open(pid, PidfdFlags::NONBLOCK)?, Interest::READABLE)
    }

    /// Waits until it has ended.
    pub(super) async fn end(&self) {
        match &self.0 {
            Some(process) => drop(process.readable().await),
            None => pending().await,
        }
    }
}

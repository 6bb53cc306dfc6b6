//! Watches whether the process that made a connection still runs.
//!
//! The end of a process closes its sockets, except those that a child has inherited. Without this watch, its
//! unfinished objects would not be withdrawn while the child lives.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;

use hoplite_net::is_shortage;
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tracing::debug;

use super::watch;

/// A watched process.
#[derive(Debug)]
pub(super) enum Life {
    Watched(AsyncFd<OwnedFd>),
    /// It ended before it could be watched.
    Over,
    /// The kernel (before 5.3) or the process's namespace allows no watching: only its connection shows its end.
    Unknown,
}

impl Life {
    /// The life of the process at the other end, as the kernel knows it.
    ///
    /// # Errors
    /// If there is no descriptor for watching it.
    pub(super) fn of(stream: &UnixStream) -> io::Result<Life> {
        match Life::watched(stream) {
            Ok(process) => Ok(Life::Watched(process)),
            Err(error) if is_shortage(&error) => Err(error),
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(Life::Over),
            Err(error) => {
                debug!(%error, "a client's process cannot be watched; its connection is");
                Ok(Life::Unknown)
            }
        }
    }

    fn watched(stream: &UnixStream) -> io::Result<AsyncFd<OwnedFd>> {
        let pid = stream.peer_cred()?.pid().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("it has no id here"))?;
        // It has just sent its hello, so its id does not belong to another process yet.
        watch(pidfd_open(pid, PidfdFlags::NONBLOCK)?, Interest::READABLE)
    }

    /// Waits until it has ended.
    pub(super) async fn end(&self) {
        match self {
            Life::Watched(process) => drop(process.readable().await),
            Life::Over => {}
            Life::Unknown => pending().await,
        }
    }
}

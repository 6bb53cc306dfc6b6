//! Connects to the node at a path: exchanges hellos, checks versions, maps the arena.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hoplite_store::{pass_fd, Mapping};
use hoplite_types::client::{Answer, Call, Reply, Request, CLIENT_PROTOCOL_VERSION};
use hoplite_types::{Error, ErrorKind, NodeId, Result};
use hoplite_wire::Deframer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::deadline::{deadline_after, Deadline, Interrupt};
use crate::link::Link;

/// Enough for a welcome, the only frame that may come before the first call.
const WELCOME_BYTES: usize = 4096;

/// Pause between two tries to connect to a socket whose queue is full. There is nothing to wait for, and 5 ms do not
/// matter to a caller that has to queue.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);

/// The socket path of this user's node that listens on `port`: `${XDG_RUNTIME_DIR:-/tmp}/hoplite-<uid>/<port>.sock`.
pub fn default_socket_path(port: u16) -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let uid = rustix::process::getuid().as_raw();
    PathBuf::from(base.unwrap_or_else(|| "/tmp".into()))
        .join(format!("hoplite-{uid}"))
        .join(format!("{port}.sock"))
}

/// The result of the handshake.
pub(crate) struct Greeted {
    pub(crate) link: Link,
    pub(crate) node: NodeId,
    pub(crate) mapping: Arc<Mapping>,
}

/// Connects, sends the hello, and maps the arena that comes with the welcome.
pub(crate) fn greet(path: &Path, timeout: Duration, interrupt: Interrupt<'_>) -> Result<Greeted> {
    let unreachable = |why: &dyn std::fmt::Display| unreachable(path, why);
    let mut deadline = Deadline::new(deadline_after(Some(timeout)), interrupt);
    let socket = call(path, timeout, &mut deadline)?;
    let mut hello = BytesMut::new();
    let request = Request::Hello { version: CLIENT_PROTOCOL_VERSION, pid: std::process::id() };
    hoplite_wire::encode(&Call { call: 0, request }, &mut hello);
    // A fresh socket's buffer has space for all of these few bytes.
    match rustix::net::send(&socket, &hello, rustix::net::SendFlags::NOSIGNAL) {
        // A node that refuses this client may have answered and closed already: reading shows it.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(error) => return Err(unreachable(&error)),
    }
    let (reply, fd, deframer) = welcome(&socket, path, timeout, &mut deadline)?;
    let (version, node, arena_bytes) = match reply {
        Reply::Welcome { version, node, arena_bytes } => (version, node, arena_bytes),
        Reply::Failed(error) => return Err(error),
        other => return Err(unreachable(&format!("{other:?} is no welcome"))),
    };
    if version != CLIENT_PROTOCOL_VERSION {
        return Err(Error::new(
            ErrorKind::VersionMismatch,
            format!(
                "node {node} at {} speaks version {version} of the client protocol, this library \
                 {CLIENT_PROTOCOL_VERSION}",
                path.display()
            ),
        ));
    }
    // The kernel drops the received descriptor if this process has no free one.
    let fd = fd.ok_or_else(|| match rustix::io::dup(&socket) {
        Err(error) => refused(path, error),
        Ok(_) => unreachable(&"its welcome brought no arena"),
    })?;
    let mapping = Mapping::attach(fd, arena_bytes)
        .map_err(|error| unreachable(&format!("its arena cannot be mapped ({error})")))?;
    let link = Link::new(socket, deframer).map_err(|error| unreachable(&error))?;
    Ok(Greeted { link, node, mapping })
}

fn unreachable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    let message = format!("no hoplite node answers at {}: {why}", path.display());
    Error::new(ErrorKind::NodeUnreachable, message)
}

/// The error if this process, or the node, cannot connect.
fn refused(path: &Path, errno: Errno) -> Error {
    let why = std::io::Error::from(errno);
    match errno {
        Errno::MFILE | Errno::NFILE => {
            let message =
                format!("this process has no descriptor left to connect to {} ({why})", path.display());
            Error::new(ErrorKind::LimitReached, message)
        }
        _ => unreachable(path, &why),
    }
}

/// Connects without ever blocking. A stopped node accepts no clients, and when its queue is full a blocking `connect`
/// would wait for ever.
fn call(path: &Path, timeout: Duration, deadline: &mut Deadline<'_>) -> Result<UnixStream> {
    let unreachable = |errno: Errno| refused(path, errno);
    let address = SocketAddrUnix::new(path).map_err(unreachable)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    loop {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(unreachable)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return Ok(UnixStream::from(socket)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(unreachable(error)),
        }
        let Some(stretch) = deadline.stretch() else {
            let why = format!("it took no caller in {:.1} s", timeout.as_secs_f64());
            return Err(self::unreachable(path, &why));
        };
        std::thread::sleep(stretch.min(QUEUE_PAUSE));
        deadline.check_interrupt()?;
    }
}

fn welcome(
    socket: &UnixStream,
    path: &Path,
    timeout: Duration,
    deadline: &mut Deadline<'_>,
) -> Result<(Reply, Option<OwnedFd>, Deframer)> {
    let mut deframer = Deframer::new();
    let mut arena = None;
    let mut buffer = [0; WELCOME_BYTES];
    loop {
        let Some(stretch) = deadline.stretch() else {
            return Err(unreachable(path, &format!("no welcome in {:.1} s", timeout.as_secs_f64())));
        };
        if !readable(socket, stretch).map_err(|why| unreachable(path, &why))? {
            deadline.check_interrupt_now()?;
            continue;
        }
        let (received, fd) =
            pass_fd::recv_with_fd(socket, &mut buffer).map_err(|why| unreachable(path, &why))?;
        arena = fd.or(arena);
        if received == 0 {
            return Err(unreachable(path, &"it closed the connection"));
        }
        deframer.push(&buffer[..received]);
        if let Some(frame) = deframer.next_frame().map_err(|why| unreachable(path, &why))? {
            let answer: Answer = hoplite_wire::decode(&frame).map_err(|why| unreachable(path, &why))?;
            return Ok((answer.reply, arena, deframer));
        }
    }
}

fn readable(socket: &UnixStream, timeout: Duration) -> std::result::Result<bool, String> {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

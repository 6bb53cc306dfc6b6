//! The Unix socket for clients: one task per connection, answers queued with a bound.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use hoplite_core::io::ClientId;
use hoplite_net::{read_frame, FrameError, Outbox};
use hoplite_store::pass_fd::send_with_fd;
use hoplite_store::Arena;
use hoplite_wire::{decode, encode, Deframer};
use hoplite_words::client::{Answer, Call, Reply, Request, CLIENT_PROTOCOL_VERSION};
use hoplite_words::{Error, ErrorKind, NodeId};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, Semaphore};
use tracing::{debug, warn};

/// Bytes of answers that may wait for one client: several of the longest (`IDS_MAX` ids ready). A
/// client this far behind does not read at all.
pub const CLIENT_OUTBOX_BYTES_MAX: usize = 16 << 20;

/// Clients at a time; more wait to be accepted. Leaves descriptors for peers under the usual limit
/// of 1024.
pub const CLIENTS_MAX: usize = 512;

/// Read at once: several calls, or the largest small object.
const READ_BYTES: usize = 128 << 10;

/// How long a client may take for its hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause after `accept` failed: descriptors have run out, and some may be closed meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What happens on clients' connections.
#[derive(Debug)]
pub enum ClientEvent {
    /// Welcomed; answers go into the outbox.
    Joined {
        client: ClientId,
        outbox: Arc<Outbox>,
    },
    Called {
        client: ClientId,
        call: u64,
        request: Request,
    },
    /// The connection is over, after `Joined`.
    Gone {
        client: ClientId,
    },
}

/// What every connection needs to know.
#[derive(Clone, Debug)]
struct Host {
    node: NodeId,
    arena: Arc<Arena>,
    events: mpsc::Sender<ClientEvent>,
}

/// Accepts clients for ever.
pub async fn serve(
    listener: UnixListener,
    node: NodeId,
    arena: Arc<Arena>,
    events: mpsc::Sender<ClientEvent>,
) {
    let host = Host { node, arena, events };
    let room = Arc::new(Semaphore::new(CLIENTS_MAX));
    let mut numbers = 0;
    loop {
        let permit = room.clone().acquire_owned().await.expect("never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                numbers += 1;
                let (host, client) = (host.clone(), ClientId(numbers));
                tokio::spawn(async move {
                    host.attend(client, stream).await;
                    drop(permit);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Host {
    async fn attend(&self, client: ClientId, mut stream: UnixStream) {
        match tokio::time::timeout(HELLO_TIMEOUT, self.welcome(&mut stream)).await {
            Ok(Ok(pid)) => debug!(client = client.0, pid, "client joined"),
            Ok(Err(error)) => return debug!(client = client.0, %error, "client turned away"),
            Err(_) => return debug!(client = client.0, "client turned away: no hello"),
        }
        let outbox = Arc::new(Outbox::new(CLIENT_OUTBOX_BYTES_MAX));
        if self.events.send(ClientEvent::Joined { client, outbox: outbox.clone() }).await.is_err() {
            return;
        }
        let ended = self.converse(client, stream, &outbox).await;
        outbox.close();
        match ended {
            Ok(()) | Err(FrameError::Closed) => debug!(client = client.0, "client left"),
            Err(FrameError::Io(error)) => debug!(client = client.0, %error, "client lost"),
            Err(error) => warn!(client = client.0, %error, "the client sent what is no call; dropped"),
        }
        let _ = self.events.send(ClientEvent::Gone { client }).await;
    }

    /// Answers the hello; gives the client's process id.
    async fn welcome(&self, stream: &mut UnixStream) -> Result<u32, FrameError> {
        let Call { call, request } = read_frame(stream).await?;
        let refusal = match request {
            Request::Hello { version: CLIENT_PROTOCOL_VERSION, pid } => {
                let reply = Reply::Welcome {
                    version: CLIENT_PROTOCOL_VERSION,
                    node: self.node,
                    arena_bytes: self.arena.bytes(),
                };
                self.send_welcome(stream, &Answer { call, reply }).await?;
                return Ok(pid);
            }
            Request::Hello { version, .. } => Error::new(
                ErrorKind::VersionMismatch,
                format!(
                    "the client speaks protocol version {version}, the node {} version \
                     {CLIENT_PROTOCOL_VERSION}: use the same release of both",
                    self.node
                ),
            ),
            _ => Error::new(ErrorKind::BadArgument, "the first call of a connection must be Hello"),
        };
        let error = io::Error::new(io::ErrorKind::InvalidData, refusal.message.clone());
        let mut frame = BytesMut::new();
        encode(&Answer { call, reply: Reply::Failed(refusal) }, &mut frame);
        stream.write_all(&frame).await?;
        Err(error.into())
    }

    /// The arena's descriptor goes with the first byte of the frame.
    async fn send_welcome(&self, stream: &mut UnixStream, welcome: &Answer) -> io::Result<()> {
        let mut frame = BytesMut::new();
        encode(welcome, &mut frame);
        let socket = stream.as_fd();
        let sent =
            stream.async_io(Interest::WRITABLE, || send_with_fd(socket, &frame, self.arena.fd())).await?;
        frame.advance(sent);
        stream.write_all(&frame).await
    }

    async fn converse(
        &self,
        client: ClientId,
        stream: UnixStream,
        outbox: &Outbox,
    ) -> Result<(), FrameError> {
        let socket = stream.into_std()?;
        // For reading only: else every answer that the client takes would wake this process, to tell that
        // there is room for more.
        let socket = watch(socket, Interest::READABLE)?;
        tokio::select! {
            ended = self.relay_calls(client, &socket) => ended,
            ended = write_answers(outbox, socket.get_ref()) => ended.map_err(FrameError::Io),
            () = outbox.closed() => Ok(()),
        }
    }

    async fn relay_calls(&self, client: ClientId, socket: &AsyncFd<StdUnixStream>) -> Result<(), FrameError> {
        let mut deframer = Deframer::new();
        let mut scratch = vec![0; READ_BYTES].into_boxed_slice();
        loop {
            while let Some(frame) = deframer.next_frame()? {
                let Call { call, request } = decode(&frame)?;
                if self.events.send(ClientEvent::Called { client, call, request }).await.is_err() {
                    return Ok(());
                }
            }
            let mut ready = socket.readable().await?;
            match rustix::net::recv(socket.get_ref(), &mut scratch[..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(FrameError::Closed),
                Ok((received, _)) => {
                    deframer.push(&scratch[..received]);
                    if received < scratch.len() {
                        // That was all: a look that finds nothing is spared.
                        ready.clear_ready();
                    }
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }
}

async fn write_answers(outbox: &Outbox, socket: &StdUnixStream) -> io::Result<()> {
    while let Some(mut answers) = outbox.take().await {
        while !answers.is_empty() {
            match rustix::net::send(socket, &answers, SendFlags::NOSIGNAL) {
                Ok(sent) => answers.advance(sent),
                Err(Errno::AGAIN) => room(socket).await?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Waits until the client has taken some of what lies in its socket.
async fn room(socket: &StdUnixStream) -> io::Result<()> {
    let watched = watch(socket.try_clone()?, Interest::WRITABLE)?;
    let room = watched.writable().await;
    room.map(drop)
}

#[allow(deprecated, reason = "what replaces it is unsafe, for types that do not own their descriptor")]
fn watch(socket: StdUnixStream, interest: Interest) -> io::Result<AsyncFd<StdUnixStream>> {
    AsyncFd::with_interest(socket, interest)
}

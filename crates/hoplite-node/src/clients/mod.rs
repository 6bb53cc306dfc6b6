//! The Unix socket for clients: one task per connection, answers in a bounded queue.
//!
//! | file | contents |
//! |---|---|
//! | `admission` | which clients are admitted; the reasons for refusals |
//! | `life` | whether the process of a client still runs |

mod admission;
mod life;

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use hoplite_core::io::ClientId;
use hoplite_net::{is_shortage, FrameError, Meter, Outbox, Shortage};
use hoplite_store::Arena;
use hoplite_types::client::{Call, Gauge, Request};
use hoplite_types::NodeId;
use hoplite_wire::{decode, Deframer};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tracing::{debug, warn};

pub use admission::serve;
use life::Life;

/// Limit on the queued bytes of answers to one client: several of the longest answers (`IDS_MAX` ids ready). A client
/// this far behind does not read at all.
pub const CLIENT_OUTBOX_BYTES_MAX: usize = 16 << 20;

/// With this many queued bytes, a client gets views of small objects instead of their bytes. Before it reads the
/// first answer, a client may have requested as many objects as it may have calls open. Their bytes must not exceed
/// the limit of the queue.
pub const CLIENT_TOLD_BYTES_MAX: usize = 1 << 20;

/// Pause before answers are sent again to a full socket, if there is no descriptor for waiting.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);

/// Default limit on the clients: many times the processors of any host, with two descriptors each.
pub const CLIENTS_MAX: usize = 4096;

/// Limit on the callers whose hello is awaited; more wait in the kernel's queue.
const GREETING_MAX: usize = 256;

/// Bytes read at once: several calls, or the largest small object.
const READ_BYTES: usize = 128 << 10;

/// An event on a client's connection.
#[derive(Debug)]
pub enum ClientEvent {
    /// The client was admitted; its answers go into the outbox.
    Joined {
        client: ClientId,
        outbox: Arc<Outbox>,
    },
    Called {
        client: ClientId,
        call: u64,
        request: Request,
    },
    /// The connection has ended, after `Joined`.
    Gone {
        client: ClientId,
    },
}

/// The numbers of clients, and of callers that are not admitted yet.
#[derive(Clone, Debug)]
pub struct Meters {
    clients: Arc<Meter>,
    greeting: Arc<Meter>,
}

impl Default for Meters {
    fn default() -> Self {
        Meters::new(CLIENTS_MAX)
    }
}

impl Meters {
    pub fn new(clients_max: usize) -> Self {
        let clients = Meter::new("clients", clients_max);
        Meters { clients, greeting: Meter::new("clients whose hello is awaited", GREETING_MAX) }
    }

    pub fn gauges(&self) -> [Gauge; 2] {
        [self.clients.gauge(), self.greeting.gauge()]
    }
}

/// The data that all connections share.
#[derive(Clone, Debug)]
pub struct Host {
    pub node: NodeId,
    pub arena: Arc<Arena>,
    pub events: mpsc::Sender<ClientEvent>,
    pub meters: Meters,
    pub shortage: Arc<Shortage>,
}

impl Host {
    /// Serves an admitted client until it ends.
    async fn attend(&self, client: ClientId, stream: UnixStream, life: Life) {
        let outbox = Arc::new(Outbox::new(CLIENT_OUTBOX_BYTES_MAX));
        if self.events.send(ClientEvent::Joined { client, outbox: outbox.clone() }).await.is_err() {
            return;
        }
        let ended = self.converse(client, stream, life, &outbox).await;
        outbox.close();
        match ended {
            Ok(()) | Err(FrameError::Closed) => debug!(client = client.0, "client left"),
            Err(FrameError::Io(error)) => debug!(client = client.0, %error, "client lost"),
            Err(error) => warn!(client = client.0, %error, "the client sent what is no call; dropped"),
        }
        let _ = self.events.send(ClientEvent::Gone { client }).await;
    }

    async fn converse(
        &self,
        client: ClientId,
        stream: UnixStream,
        life: Life,
        outbox: &Outbox,
    ) -> Result<(), FrameError> {
        let socket = stream.into_std()?;
        // Watched for reading only. Otherwise each answer that the client reads would wake this process, to report
        // free space.
        let socket = watch(socket, Interest::READABLE)?;
        tokio::select! {
            ended = self.relay_calls(client, &socket, &life) => ended,
            ended = write_answers(outbox, socket.get_ref()) => ended.map_err(FrameError::Io),
            () = outbox.closed() => Ok(()),
        }
    }

    /// Runs until the client closes the connection, or until its process has ended and everything that it sent is
    /// read. A forked child may keep the connection open for ever.
    async fn relay_calls(
        &self,
        client: ClientId,
        socket: &AsyncFd<StdUnixStream>,
        life: &Life,
    ) -> Result<(), FrameError> {
        let mut deframer = Deframer::new();
        let mut scratch = vec![0; READ_BYTES].into_boxed_slice();
        let mut end = pin!(life.end());
        let mut has_ended = false;
        loop {
            while let Some(frame) = deframer.next_frame()? {
                let Call { call, request } = decode(&frame)?;
                if self.events.send(ClientEvent::Called { client, call, request }).await.is_err() {
                    return Ok(());
                }
            }
            let mut ready = None;
            if !has_ended {
                tokio::select! {
                    biased;
                    () = &mut end => has_ended = true,
                    readable = socket.readable() => ready = Some(readable?),
                }
            }
            let received = rustix::net::recv(socket.get_ref(), &mut scratch[..], RecvFlags::DONTWAIT);
            let is_all = match received {
                Ok((0, _)) => return Err(FrameError::Closed),
                Ok((received, _)) => {
                    deframer.push(&scratch[..received]);
                    // That was everything: a further read, which would find nothing, is saved.
                    received < scratch.len()
                }
                Err(Errno::AGAIN) if has_ended => return Err(FrameError::Closed),
                Err(Errno::AGAIN) => true,
                Err(Errno::INTR) => false,
                Err(error) => return Err(io::Error::from(error).into()),
            };
            if let Some(mut ready) = ready.filter(|_| is_all) {
                ready.clear_ready();
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

/// Waits until the client has read some bytes from its socket.
async fn room(socket: &StdUnixStream) -> io::Result<()> {
    let watched = socket.try_clone().and_then(|socket| watch(socket, Interest::WRITABLE));
    match watched {
        Ok(watched) => watched.writable().await.map(drop),
        Err(error) if is_shortage(&error) => {
            tokio::time::sleep(SHORTAGE_PAUSE).await;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

#[allow(deprecated, reason = "what replaces it is unsafe, for types that do not own their descriptor")]
fn watch<T: AsRawFd>(socket: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(socket, interest)
}

//! Admits clients or refuses them with a reason. Every caller gets an answer: one that gets none would believe the
//! node dead.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use hoplite_core::io::ClientId;
use hoplite_net::{is_shortage, read_hello, FrameError, Held, ACCEPT_PAUSE};
use hoplite_store::pass_fd::send_with_fd;
use hoplite_types::client::{Answer, Call, Reply, Request, CLIENT_PROTOCOL_VERSION};
use hoplite_types::{Error, ErrorKind};
use hoplite_wire::encode;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tracing::debug;

use super::life::Life;
use super::{Host, GREETING_MAX};

/// How long a client may take to send its hello. It sends it at once, but a starved process may take surprisingly
/// long.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a caller may take to read its refusal, if there is no descriptor for it. Others wait behind it.
const REFUSAL_LINGER: Duration = Duration::from_millis(100);

/// An admitted client.
struct Guest {
    pid: u32,
    life: Life,
    held: Held,
}

/// Accepts clients for ever.
pub async fn serve(listener: UnixListener, host: Host) {
    let greeting = std::sync::Arc::new(Semaphore::new(GREETING_MAX));
    let mut reserve = Reserve::new();
    let mut numbers = 0;
    loop {
        if greeting.available_permits() == 0 {
            host.meters.greeting.on_met();
        }
        let permit = greeting.clone().acquire_owned().await.expect("never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => match host.accept_without(&listener, &mut reserve, &error).await {
                Some(stream) => stream,
                None => continue,
            },
        };
        numbers += 1;
        let (host, client) = (host.clone(), ClientId(numbers));
        let greeted = (permit, host.meters.greeting.count());
        tokio::spawn(async move {
            if let Some((stream, Guest { life, held: _held, .. })) = host.greet(client, stream, greeted).await
            {
                host.attend(client, stream, life).await;
            }
        });
    }
}

/// A descriptor kept for the time when none is left. It allows telling a caller so.
#[derive(Debug)]
struct Reserve(Option<File>);

impl Reserve {
    fn new() -> Self {
        let mut reserve = Reserve(None);
        reserve.fill();
        reserve
    }

    /// Opens it again if necessary. Returns whether it is there.
    fn fill(&mut self) -> bool {
        if self.0.is_none() {
            self.0 = File::open("/dev/null").ok();
        }
        self.0.is_some()
    }
}

impl Host {
    /// Returns the client's connection and its place, if it is admitted. `greeted` counts the caller until that is
    /// decided.
    async fn greet<T>(
        &self,
        client: ClientId,
        mut stream: UnixStream,
        greeted: T,
    ) -> Option<(UnixStream, Guest)> {
        let welcomed = tokio::time::timeout(HELLO_TIMEOUT, self.welcome(&mut stream)).await;
        drop(greeted);
        match welcomed {
            Ok(Ok(guest)) => {
                debug!(client = client.0, guest.pid, "client joined");
                return Some((stream, guest));
            }
            Ok(Err(error)) => debug!(client = client.0, %error, "client turned away"),
            Err(_) => debug!(client = client.0, "client turned away: no hello"),
        }
        None
    }

    /// Answers the hello.
    async fn welcome(&self, stream: &mut UnixStream) -> Result<Guest, FrameError> {
        let Call { call, request } = read_hello(stream).await?;
        let refusal = match request {
            Request::Hello { version: CLIENT_PROTOCOL_VERSION, pid } => match self.admit(stream) {
                Ok((held, life)) => {
                    let reply = Reply::Welcome {
                        version: CLIENT_PROTOCOL_VERSION,
                        node: self.node,
                        arena_bytes: self.arena.bytes(),
                    };
                    self.send_welcome(stream, &Answer { call, reply }).await?;
                    return Ok(Guest { pid, life, held });
                }
                Err(refusal) => refusal,
            },
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
        refuse(stream, call, refusal).await?;
        Err(error.into())
    }

    /// Takes a place among the clients, and watches the process that has it. An unwatched process may end while its
    /// child keeps the connection for ever.
    fn admit(&self, stream: &UnixStream) -> Result<(Held, Life), Error> {
        let held = self.meters.clients.hold().ok_or_else(|| self.is_full())?;
        let life = Life::of(stream).map_err(|error| {
            let message = format!(
                "node {} has no descriptor left for another client ({error}); its limit is that of `ulimit -n`",
                self.node
            );
            Error::new(ErrorKind::LimitReached, message)
        })?;
        Ok((held, life))
    }

    fn is_full(&self) -> Error {
        let clients_max = self.meters.clients.limit();
        let message = format!(
            "node {} has {clients_max} clients already, and takes no more at a time (`hoplited --clients-max`, and \
             four descriptors of its limit for each)",
            self.node
        );
        Error::new(ErrorKind::LimitReached, message)
    }

    /// The arena's descriptor travels with the first byte of the frame.
    async fn send_welcome(&self, stream: &mut UnixStream, welcome: &Answer) -> io::Result<()> {
        let mut frame = BytesMut::new();
        encode(welcome, &mut frame);
        let socket = stream.as_fd();
        let sent =
            stream.async_io(Interest::WRITABLE, || send_with_fd(socket, &frame, self.arena.fd())).await?;
        frame.advance(sent);
        stream.write_all(&frame).await
    }

    /// No caller could be accepted; callers wait in the kernel's queue. If descriptors are missing, the first caller
    /// is told so, unless some have become free.
    async fn accept_without(
        &self,
        listener: &UnixListener,
        reserve: &mut Reserve,
        error: &io::Error,
    ) -> Option<UnixStream> {
        if self.shortage.on_error(error, "cannot accept a client") {
            return None;
        }
        if !is_shortage(error) || reserve.0.take().is_none() {
            debug!(%error, "cannot accept a client");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            reserve.fill();
            return None;
        }
        // The kernel takes a descriptor first, so perhaps there is no caller.
        let accepted = tokio::time::timeout(ACCEPT_PAUSE, listener.accept()).await;
        let has_room = reserve.fill();
        let Ok(Ok((mut stream, _))) = accepted else { return None };
        if has_room {
            return Some(stream);
        }
        let message = format!("node {} has no descriptor left for a client: {error}", self.node);
        let refusing = async {
            refuse(&mut stream, 0, Error::new(ErrorKind::LimitReached, message)).await?;
            // Read its hello: a caller that sends it to a closed connection may not receive the answer.
            read_hello::<Call>(&mut stream).await
        };
        let _ = tokio::time::timeout(REFUSAL_LINGER, refusing).await;
        drop(stream);
        reserve.fill();
        None
    }
}

async fn refuse(stream: &mut UnixStream, call: u64, refusal: Error) -> io::Result<()> {
    let mut frame = BytesMut::new();
    encode(&Answer { call, reply: Reply::Failed(refusal) }, &mut frame);
    stream.write_all(&frame).await
}

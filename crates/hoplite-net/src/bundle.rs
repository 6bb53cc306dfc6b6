//! A bundle: connections that carry one stream of bytes together.
//!
//! The stream is cut into chunks: chunk *k* of a bundle of *m* goes by connection *k* mod *m*. Both ends count the
//! same bytes from the first one on, so chunks need no numbers on the wire. While one connection's chunk has to wait,
//! the sockets' buffers keep the others busy. A single connection is a bundle without chunks.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{ready, Context, Poll};

use hoplite_types::Connections;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::listen::Accepted;
use crate::meter::Held;

/// How much goes by one connection before it is the next one's turn. A relay sends on what is there in order:
/// each hop adds up to the time of a chunk on every connection. Smaller ones cost more system calls.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// One way only, as every connection between nodes: who dialled it writes, the other reads.
#[derive(Debug)]
pub struct Bundle {
    connections: Vec<TcpStream>,
    /// Bytes written or read so far.
    at: u64,
    /// What counts those that were dialled by a peer.
    counted: Vec<Held>,
}

impl From<TcpStream> for Bundle {
    fn from(stream: TcpStream) -> Self {
        Bundle::new(vec![stream])
    }
}

impl Bundle {
    /// Of connections on which nothing but the hello was said, in the order of their numbers: one at least.
    pub fn new(connections: Vec<TcpStream>) -> Self {
        Bundle { connections, at: 0, counted: Vec::new() }
    }

    /// As [`Bundle::new`], dialled by a peer.
    pub(crate) fn accepted(accepted: Vec<Accepted>) -> Self {
        let (connections, counted) = accepted.into_iter().map(|each| (each.stream, each.counted)).unzip();
        Bundle { connections, at: 0, counted }
    }

    pub fn connections(&self) -> Connections {
        let count = u8::try_from(self.connections.len()).ok();
        count.and_then(Connections::new).expect("as many as were asked for")
    }

    /// Reads what is there, at most to the end of the chunk. 0: the stream is at its end.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there; what the kernel reports, if a connection broke.
    pub fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (stream, len) = self.turn(buffer.len());
        let read = stream.try_read(&mut buffer[..len])?;
        self.at += read as u64;
        Ok(read)
    }

    /// Writes what there is room for, at most to the end of the chunk.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; what the kernel reports, if a connection broke.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (stream, len) = self.turn(bytes.len());
        let written = stream.try_write(&bytes[..len])?;
        self.at += written as u64;
        Ok(written)
    }

    /// Writes `first` and `second` behind it, as [`Bundle::try_write`] does: by one call, so that a short `first`
    /// never leaves in a segment of its own.
    ///
    /// # Errors
    /// As [`Bundle::try_write`].
    pub fn try_write_both(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        let (stream, len) = self.turn(first.len() + second.len());
        let first = &first[..first.len().min(len)];
        let second = &second[..len - first.len()];
        let written = stream.try_write_vectored(&[IoSlice::new(first), IoSlice::new(second)])?;
        self.at += written as u64;
        Ok(written)
    }

    /// Waits until `try_read` may have something to say.
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.turn(0).0.readable().await
    }

    /// Waits until `try_write` may find room.
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub async fn writable(&self) -> io::Result<()> {
        self.turn(0).0.writable().await
    }

    /// As [`Bundle::readable`].
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.turn(0).0.poll_read_ready(cx)
    }

    /// Waits until the reading side closes it, as it closes all connections together.
    pub async fn closed_by_peer(&self) {
        closed_by_peer(self.turn(0).0).await;
    }

    /// Whether no connection has ended; for the writing side.
    pub(crate) fn is_open(&self) -> bool {
        self.connections.iter().all(is_open)
    }

    /// Takes the connections from this thread's poller.
    ///
    /// # Errors
    /// If the kernel does not let go of one.
    pub fn detach(self) -> io::Result<Detached> {
        let connections = self.connections.into_iter().map(TcpStream::into_std);
        let connections = connections.collect::<io::Result<_>>()?;
        Ok(Detached { connections, at: self.at, counted: self.counted })
    }

    /// Whose turn it is, and how many of `wanted` bytes it is for.
    fn turn(&self, wanted: usize) -> (&TcpStream, usize) {
        if let [alone] = &self.connections[..] {
            return (alone, wanted);
        }
        let turn = (self.at / CHUNK_BYTES) as usize % self.connections.len();
        let left = (CHUNK_BYTES - self.at % CHUNK_BYTES) as usize;
        (&self.connections[turn], wanted.min(left))
    }
}

/// A bundle on its way from one thread's poller to another's.
#[derive(Debug)]
pub struct Detached {
    connections: Vec<std::net::TcpStream>,
    at: u64,
    counted: Vec<Held>,
}

impl Detached {
    /// Gives the connections to this thread's poller.
    ///
    /// # Errors
    /// If it does not take one.
    pub fn attach(self) -> io::Result<Bundle> {
        let connections = self.connections.into_iter().map(TcpStream::from_std);
        let connections = connections.collect::<io::Result<_>>()?;
        Ok(Bundle { connections, at: self.at, counted: self.counted })
    }
}

impl AsyncRead for Bundle {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let bundle = self.get_mut();
        loop {
            ready!(bundle.poll_read_ready(cx))?;
            match bundle.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Bundle {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let bundle = self.get_mut();
        loop {
            ready!(bundle.turn(0).0.poll_write_ready(cx))?;
            match bundle.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Nothing is held back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for stream in &mut self.get_mut().connections {
            ready!(Pin::new(stream).poll_shutdown(cx))?;
        }
        Poll::Ready(Ok(()))
    }
}

/// The other side of a one-way connection never writes: whatever can be read is its end.
fn is_open(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// Waits until the listening side of a one-way connection closes it.
pub async fn closed_by_peer(stream: &TcpStream) {
    while stream.readable().await.is_ok() && is_open(stream) {}
}

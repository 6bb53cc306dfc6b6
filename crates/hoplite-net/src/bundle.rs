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

/// Bytes that go by one connection before the next one is used. A relay forwards bytes in order, so each hop adds up
/// to the time of a chunk on every connection. Smaller chunks cost more system calls.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// One way only, as every connection between nodes: the dialling side writes, the other side reads.
#[derive(Debug)]
pub struct Bundle {
    connections: Vec<TcpStream>,
    /// Bytes written or read so far.
    at: u64,
    /// The counts of connections that a peer dialled.
    counted: Vec<Held>,
}

impl From<TcpStream> for Bundle {
    fn from(stream: TcpStream) -> Self {
        Bundle::new(vec![stream])
    }
}

impl Bundle {
    /// Of connections on which only the hello was sent, in the order of their numbers. There must be at least one.
    pub fn new(connections: Vec<TcpStream>) -> Self {
        Bundle { connections, at: 0, counted: Vec::new() }
    }

    /// As [`Bundle::new`], for connections that a peer dialled.
    pub(crate) fn accepted(accepted: Vec<Accepted>) -> Self {
        let (connections, counted) = accepted.into_iter().map(|each| (each.stream, each.counted)).unzip();
        Bundle { connections, at: 0, counted }
    }

    pub fn connections(&self) -> Connections {
        let count = u8::try_from(self.connections.len()).ok();
        count.and_then(Connections::new).expect("as many as were asked for")
    }

    /// Reads available bytes, at most to the end of the chunk. Returns 0 at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes are there; the kernel's error, if a connection broke.
    pub fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (stream, len) = self.turn(buffer.len());
        let read = stream.try_read(&mut buffer[..len])?;
        self.at += read as u64;
        Ok(read)
    }

    /// Writes as much as there is space for, at most to the end of the chunk.
    ///
    /// # Errors
    /// `WouldBlock` if there is no space; the kernel's error, if a connection broke.
    pub fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (stream, len) = self.turn(bytes.len());
        let written = stream.try_write(&bytes[..len])?;
        self.at += written as u64;
        Ok(written)
    }

    /// Writes `first` and then `second`, as [`Bundle::try_write`] does, with one call. So a short `first` never
    /// travels in a segment of its own.
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

    /// Waits until `try_read` may return something.
    ///
    /// # Errors
    /// If the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.turn(0).0.readable().await
    }

    /// Waits until `try_write` may find space.
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

    /// Waits until the reading side closes the bundle. It closes all connections together.
    pub async fn closed_by_peer(&self) {
        closed_by_peer(self.turn(0).0).await;
    }

    /// Whether no connection has ended. For the writing side.
    pub(crate) fn is_open(&self) -> bool {
        self.connections.iter().all(is_open)
    }

    /// Removes the connections from this thread's poller.
    ///
    /// # Errors
    /// If the kernel does not release one.
    pub fn detach(self) -> io::Result<Detached> {
        let connections = self.connections.into_iter().map(TcpStream::into_std);
        let connections = connections.collect::<io::Result<_>>()?;
        Ok(Detached { connections, at: self.at, counted: self.counted })
    }

    /// The connection to use now, and how many of `wanted` bytes it may carry.
    fn turn(&self, wanted: usize) -> (&TcpStream, usize) {
        if let [alone] = &self.connections[..] {
            return (alone, wanted);
        }
        let turn = (self.at / CHUNK_BYTES) as usize % self.connections.len();
        let left = (CHUNK_BYTES - self.at % CHUNK_BYTES) as usize;
        (&self.connections[turn], wanted.min(left))
    }
}

/// A bundle that moves from one thread's poller to another's.
#[derive(Debug)]
pub struct Detached {
    connections: Vec<std::net::TcpStream>,
    at: u64,
    counted: Vec<Held>,
}

impl Detached {
    /// Adds the connections to this thread's poller.
    ///
    /// # Errors
    /// If the poller does not accept one.
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
        // No written bytes are held back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for stream in &mut self.get_mut().connections {
            ready!(Pin::new(stream).poll_shutdown(cx))?;
        }
        Poll::Ready(Ok(()))
    }
}

/// The other side of a one-way connection never writes, so a readable connection has ended.
fn is_open(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

/// Waits until the listening side of a one-way connection closes it.
pub async fn closed_by_peer(stream: &TcpStream) {
    while stream.readable().await.is_ok() && is_open(stream) {}
}

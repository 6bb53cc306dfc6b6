//! The first frame of a connection between nodes; which callers are refused, and the refusal message.

use std::io;
use std::time::Duration;

use hoplite_types::peer::{BundlePart, PeerHello, PeerRefusal, Purpose, PEER_PROTOCOL_VERSION};
use hoplite_types::{Connections, NodeId};
use hoplite_wire::{decode, Deframer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::frames::{read_hello, write_frame, FrameError};
use crate::socket;

/// How long a caller may take to send its hello. It sends it right behind the handshake.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a refused caller may take to read the refusal and to close. It does so at once.
const REFUSAL_LINGER: Duration = Duration::from_secs(1);

/// More than a refusal has. A listener that sends more is not read any further.
const REFUSAL_BYTES_MAX: usize = 1 << 10;

/// The reason why a caller was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("the caller speaks protocol version {theirs}, this node {PEER_PROTOCOL_VERSION}: run the same release of hoplited everywhere")]
    OtherVersion { theirs: u32 },
    #[error("the caller {from:?} looks for {wanted:?}, which is gone; this is {me:?}")]
    OtherNode { from: NodeId, wanted: NodeId, me: NodeId },
    #[error("the caller says that this is part of a bundle that cannot be: {part:?}")]
    BadPart { part: BundlePart },
    #[error("no hello within {HELLO_TIMEOUT:?}")]
    Silent,
    #[error("no hello: {0}")]
    Unreadable(#[from] FrameError),
}

pub(crate) fn hello(me: NodeId, to: NodeId, purpose: Purpose, part: Option<BundlePart>) -> PeerHello {
    PeerHello { version: PEER_PROTOCOL_VERSION, from: me, to, purpose, part }
}

/// Reads the hello of an accepted connection, checks it, and sets the socket's options. A caller with another
/// protocol version, or one that means another node, gets a refusal. For any other error the connection is just
/// closed.
///
/// # Errors
/// See [`Refusal`].
pub async fn admit(stream: &mut TcpStream, me: NodeId) -> Result<PeerHello, Refusal> {
    let hello: PeerHello = match tokio::time::timeout(HELLO_TIMEOUT, read_hello(stream)).await {
        Ok(hello) => hello?,
        Err(_) => return Err(Refusal::Silent),
    };
    if hello.version != PEER_PROTOCOL_VERSION {
        refuse(stream, me).await;
        return Err(Refusal::OtherVersion { theirs: hello.version });
    }
    if hello.to != me {
        refuse(stream, me).await;
        return Err(Refusal::OtherNode { from: hello.from, wanted: hello.to, me });
    }
    if let Some(part) = hello.part.filter(|part| !is_sound(part, hello.purpose)) {
        return Err(Refusal::BadPart { part });
    }
    socket::prepare(stream, hello.purpose, hello.part.map_or(1, |part| part.of)).map_err(FrameError::from)?;
    Ok(hello)
}

fn is_sound(part: &BundlePart, purpose: Purpose) -> bool {
    purpose == Purpose::Bulk && Connections::new(part.of).is_some() && part.number < part.of
}

async fn refuse(stream: &mut TcpStream, me: NodeId) {
    let saying = async {
        write_frame(stream, &PeerRefusal { version: PEER_PROTOCOL_VERSION, node: me }).await?;
        stream.shutdown().await?;
        // Closing with unread bytes resets the connection, which could overtake the refusal.
        tokio::io::copy(stream, &mut tokio::io::sink()).await
    };
    // A caller that does not read the refusal learns of it by its own time-outs.
    let _ = tokio::time::timeout(REFUSAL_LINGER, saying).await;
}

/// Reads what the listening side of a one-way connection sends before it closes it: a refusal, or nothing.
#[derive(Debug, Default)]
pub(crate) struct RefusalReader(Deframer);

impl RefusalReader {
    /// Waits until the other side closes, and reads its refusal if there is one. If cancelled, it can be called
    /// again.
    ///
    /// # Errors
    /// The kernel's error, if the connection broke instead.
    pub(crate) async fn wait(&mut self, stream: &TcpStream) -> io::Result<()> {
        loop {
            stream.readable().await?;
            match self.read(stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                ended => return ended,
            }
        }
    }

    /// Reads the bytes that are there.
    ///
    /// # Errors
    /// `WouldBlock` if more may come; the kernel's error, if the connection broke.
    pub(crate) fn read(&mut self, stream: &TcpStream) -> io::Result<()> {
        let mut bytes = [0; REFUSAL_BYTES_MAX];
        while self.0.buffered() < REFUSAL_BYTES_MAX {
            match stream.try_read(&mut bytes)? {
                0 => break,
                read => self.0.push(&bytes[..read]),
            }
        }
        Ok(())
    }

    pub(crate) fn take(&mut self) -> Option<PeerRefusal> {
        // Invalid bytes are no refusal. The connection is over anyway.
        self.0.next_frame().ok().flatten().and_then(|frame| decode(&frame).ok())
    }
}

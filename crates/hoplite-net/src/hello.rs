//! The first frame of a connection between nodes, and who is turned away.

use std::time::Duration;

use hoplite_words::peer::{PeerHello, Purpose, PEER_PROTOCOL_VERSION};
use hoplite_words::NodeId;
use tokio::net::TcpStream;

use crate::frames::{read_frame, FrameError};
use crate::socket;

/// How long a caller may take to say who it is; it sends the hello right behind the handshake.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a caller was turned away. The connection is closed; the caller sees nothing else.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("the caller speaks protocol version {theirs}, this node {PEER_PROTOCOL_VERSION}: run the same release of hoplited everywhere")]
    OtherVersion { theirs: u32 },
    #[error("the caller {from:?} looks for {wanted:?}, which is gone; this is {me:?}")]
    OtherNode { from: NodeId, wanted: NodeId, me: NodeId },
    #[error("no hello within {HELLO_TIMEOUT:?}")]
    Silent,
    #[error("no hello: {0}")]
    Unreadable(#[from] FrameError),
}

pub(crate) fn hello(me: NodeId, to: NodeId, purpose: Purpose) -> PeerHello {
    PeerHello { version: PEER_PROTOCOL_VERSION, from: me, to, purpose }
}

/// Reads the hello of a connection that was accepted, checks it, and sets the socket's options.
///
/// # Errors
/// See [`Refusal`].
pub async fn admit(stream: &mut TcpStream, me: NodeId) -> Result<PeerHello, Refusal> {
    let hello: PeerHello = match tokio::time::timeout(HELLO_TIMEOUT, read_frame(stream)).await {
        Ok(hello) => hello?,
        Err(_) => return Err(Refusal::Silent),
    };
    if hello.version != PEER_PROTOCOL_VERSION {
        return Err(Refusal::OtherVersion { theirs: hello.version });
    }
    if hello.to != me {
        return Err(Refusal::OtherNode { from: hello.from, wanted: hello.to, me });
    }
    socket::prepare(stream, hello.purpose).map_err(FrameError::from)?;
    Ok(hello)
}

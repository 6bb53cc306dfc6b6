//! Connections out.

use std::io;
use std::time::Duration;

use hoplite_words::peer::Purpose;
use hoplite_words::NodeId;
use tokio::net::TcpStream;

use crate::frames::write_frame;
use crate::{hello, socket};

/// How long a connection may take to be made: three SYNs (0, 1 and 3 s) would be patience enough
/// for a lossy link, but a host silent this long is as good as dead to everyone who waits for it.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Connects to `to` and says hello. Whether it is welcome shows only by the connection staying open.
///
/// # Errors
/// What the kernel reports; `TimedOut` after [`DIAL_TIMEOUT`].
pub async fn dial(me: NodeId, to: NodeId, purpose: Purpose) -> io::Result<TcpStream> {
    let connected = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(to.addr)).await;
    let mut stream = connected.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("{to} did not answer within {DIAL_TIMEOUT:?}"))
    })??;
    socket::prepare(&stream, purpose)?;
    write_frame(&mut stream, &hello::hello(me, to, purpose)).await?;
    Ok(stream)
}

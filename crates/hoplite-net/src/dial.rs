//! Connections out.

use std::io;
use std::time::Duration;

use hoplite_words::peer::{BundlePart, Purpose};
use hoplite_words::{Connections, NodeId};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::bundle::Bundle;
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
    connect(me, to, purpose, None).await
}

/// Connects to `to` for bulk data, so many times at once. `number` is unlike that of any other bundle.
///
/// # Errors
/// As [`dial`], of the first connection that fails.
pub async fn dial_bundle(me: NodeId, to: NodeId, count: Connections, number: u64) -> io::Result<Bundle> {
    if count == Connections::ONE {
        return Ok(dial(me, to, Purpose::Bulk).await?.into());
    }
    let mut dialling = JoinSet::new();
    for part in 0..count.get() {
        let part = BundlePart { bundle: number, number: part, of: count.get() };
        dialling.spawn(async move { (part.number, connect(me, to, Purpose::Bulk, Some(part)).await) });
    }
    let mut connected = Vec::new();
    while let Some(dialled) = dialling.join_next().await {
        let (part, stream) = dialled.map_err(io::Error::other)?;
        connected.push((part, stream?));
    }
    connected.sort_by_key(|&(part, _)| part);
    Ok(Bundle::new(connected.into_iter().map(|(_, stream)| stream).collect()))
}

async fn connect(
    me: NodeId,
    to: NodeId,
    purpose: Purpose,
    part: Option<BundlePart>,
) -> io::Result<TcpStream> {
    let connected = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(to.addr)).await;
    let mut stream = connected.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("{to} did not answer within {DIAL_TIMEOUT:?}"))
    })??;
    socket::prepare(&stream, purpose, part.map_or(1, |part| part.of))?;
    write_frame(&mut stream, &hello::hello(me, to, purpose, part)).await?;
    Ok(stream)
}

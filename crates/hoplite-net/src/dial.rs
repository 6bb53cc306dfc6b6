//! Outgoing connections.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use hoplite_types::limits::{BULK_DIAL_TIMEOUT, DIAL_TIMEOUT};
use hoplite_types::peer::{BundlePart, Purpose};
use hoplite_types::{Connections, NodeId};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::bundle::Bundle;
use crate::frames::write_frame;
use crate::shortage::Shortage;
use crate::{hello, socket};

/// Connects to `to` and sends the hello. Only a connection that stays open shows that the hello was accepted.
///
/// # Errors
/// The kernel's error; `TimedOut` after [`DIAL_TIMEOUT`], or [`BULK_DIAL_TIMEOUT`].
pub async fn dial(me: NodeId, to: NodeId, purpose: Purpose) -> io::Result<TcpStream> {
    connect(me, to, purpose, None).await
}

/// Opens `count` connections to `to` at once, for bulk data. `number` must be unique to this bundle.
///
/// # Errors
/// As [`dial`], for the first connection that fails.
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

/// As [`dial_bundle`], with a new number. If this host lacks descriptors, idle bundles are closed to free some. If
/// there are none, it fails at once, since another node may serve the receiver.
///
/// # Errors
/// As [`dial_bundle`].
pub async fn dial_bundle_with(
    shortage: &Shortage,
    numbers: &AtomicU64,
    (me, to): (NodeId, NodeId),
    count: Connections,
) -> io::Result<Bundle> {
    // Each try has a new number, because some connections of the first try may have been made.
    let dial = || dial_bundle(me, to, count, numbers.fetch_add(1, Ordering::Relaxed));
    match dial().await {
        Err(error) if shortage.on_error(&error, "no bulk connection") => dial().await,
        dialled => dialled,
    }
}

async fn connect(
    me: NodeId,
    to: NodeId,
    purpose: Purpose,
    part: Option<BundlePart>,
) -> io::Result<TcpStream> {
    let patience = match purpose {
        Purpose::Control => DIAL_TIMEOUT,
        Purpose::Bulk => BULK_DIAL_TIMEOUT,
    };
    let connected = tokio::time::timeout(patience, TcpStream::connect(to.addr)).await;
    let mut stream = connected.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("{to} did not answer within {patience:?}"))
    })??;
    socket::prepare(&stream, purpose, part.map_or(1, |part| part.of))?;
    write_frame(&mut stream, &hello::hello(me, to, purpose, part)).await?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream as StdTcpStream};

    use socket2::{Domain, Socket, Type};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_host_that_does_not_answer_is_given_up_sooner_for_bulk_data() {
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        silent.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        // Its queue takes one caller; SYNs of others are dropped.
        silent.listen(0).unwrap();
        let addr = silent.local_addr().unwrap().as_socket().unwrap();
        let _waits = StdTcpStream::connect(addr).unwrap();
        let node = NodeId { addr, incarnation: 1 };
        for (purpose, timeout) in [(Purpose::Bulk, BULK_DIAL_TIMEOUT), (Purpose::Control, DIAL_TIMEOUT)] {
            let began = Instant::now();
            let error = dial(node, node, purpose).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
            assert_eq!(began.elapsed().as_millis(), timeout.as_millis());
        }
    }
}

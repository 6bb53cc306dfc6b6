//! Options of the sockets between nodes, and why.

use std::io;
use std::time::Duration;

use hoplite_types::peer::Purpose;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Time until an idle connection is probed. Gossip detects dead hosts earlier. The probes are for a peer that gossip
/// still reaches while the connection does not.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_RETRIES: u32 = 3;

/// Control bytes that stay unacknowledged for this long mean a dead peer. Bulk connections have no such limit: while
/// a source of a fold is late, the fold's full window may rightly block its senders.
const CONTROL_USER_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit on the unsent bytes in the sockets of a bundle. Enough that the sender never runs dry between two wake-ups;
/// few enough that the bytes of an aborted transfer do not clog the link [design §11].
const BULK_NOTSENT_BYTES_MAX: u32 = 512 << 10;

/// Delay-based defaults (BBR) halve the rate of unshaped links between containers [design §11].
const BULK_CONGESTION: &[u8] = b"cubic";

/// Sets the options of a connection for `purpose`, one of `of` that belong together, at either end.
///
/// # Errors
/// The kernel's error for options that every kernel has. The choice of congestion control may be forbidden; its
/// failure is ignored.
pub(crate) fn prepare(stream: &TcpStream, purpose: Purpose, of: u8) -> io::Result<()> {
    let socket = SockRef::from(stream);
    // A frame is a whole message, so waiting for more brings nothing. Bulk data comes in large writes.
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    socket.set_tcp_keepalive(&keepalive)?;
    match purpose {
        Purpose::Control => socket.set_tcp_user_timeout(Some(CONTROL_USER_TIMEOUT))?,
        Purpose::Bulk => {
            socket.set_tcp_notsent_lowat(BULK_NOTSENT_BYTES_MAX / u32::from(of))?;
            if let Err(error) = socket.set_tcp_congestion(BULK_CONGESTION) {
                tracing::debug!(%error, "cubic is not allowed here; bulk data goes with the default");
            }
        }
    }
    Ok(())
}

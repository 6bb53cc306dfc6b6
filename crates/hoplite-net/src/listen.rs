//! Incoming connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hoplite_types::client::Gauge;
use hoplite_types::peer::{PeerHello, Purpose};
use hoplite_types::NodeId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};

use crate::bundle::Bundle;
use crate::forming::{Forming, Joined, BUNDLES_FORMING_MAX, BUNDLE_FORMING_TIMEOUT};
use crate::gossip::GossipSocket;
use crate::hello::{admit, Refusal};
use crate::meter::{Held, Meter};
use crate::shortage::Shortage;

/// Limit on the connections whose hello is awaited; more wait in the kernel's queue. A flood of silent callers takes
/// this many descriptors, not all of them.
pub const ADMITTING_MAX: usize = 256;

/// Limit on the bulk connections that peers may have open here at a time, in use or idle. A further one is closed,
/// from which its sender learns to try elsewhere. Peers keep so few idle ones that only a cluster of hundreds meets
/// this limit.
pub const BULK_ACCEPTED_MAX: usize = 4096;

/// Pause after a failed `accept`. It fails when descriptors have run out; some may be closed during the pause.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many free TCP ports to try until one is free for UDP too (only if any port is allowed).
const PORT_TRIES_MAX: usize = 32;

/// An accepted connection.
#[derive(Debug)]
pub enum Arrival {
    Control { from: NodeId, stream: TcpStream },
    Bulk { from: NodeId, bundle: Bundle },
}

/// The TCP listener, and the socket for gossip datagrams on the same port.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    addr: SocketAddr,
    meters: Meters,
    shortage: Arc<Shortage>,
}

/// The numbers of connections that are being admitted, and that are admitted.
#[derive(Clone, Debug)]
pub struct Meters {
    admitting: Arc<Meter>,
    forming: Arc<Meter>,
    bulk: Arc<Meter>,
}

impl Default for Meters {
    fn default() -> Self {
        Meters {
            admitting: Meter::new("peer connections whose hello is awaited", ADMITTING_MAX),
            forming: Meter::new("bundles not whole yet", BUNDLES_FORMING_MAX),
            bulk: Meter::new("bulk connections taken", BULK_ACCEPTED_MAX),
        }
    }
}

impl Meters {
    pub fn gauges(&self) -> [Gauge; 3] {
        [&self.admitting, &self.forming, &self.bulk].map(|meter| meter.gauge())
    }
}

impl Listener {
    /// Listens on `addr`. Port 0 takes any port that is free for both.
    ///
    /// # Errors
    /// The kernel's error, with the address in the message.
    pub async fn bind(addr: SocketAddr) -> io::Result<(Listener, GossipSocket)> {
        let mut tries = if addr.port() == 0 { PORT_TRIES_MAX } else { 1 };
        loop {
            tries -= 1;
            let named = |protocol: &str, error: io::Error| {
                io::Error::new(error.kind(), format!("cannot listen on {protocol} {addr}: {error}"))
            };
            let tcp = TcpListener::bind(addr).await.map_err(|error| named("TCP", error))?;
            let bound = tcp.local_addr()?;
            match GossipSocket::bind(bound).await {
                Ok(gossip) => {
                    let listener =
                        Listener { tcp, addr: bound, meters: Meters::default(), shortage: Arc::default() };
                    return Ok((listener, gossip));
                }
                Err(_) if tries > 0 => continue,
                Err(error) => return Err(named("UDP", error)),
            }
        }
    }

    /// The address on which it listens, with the actual port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Uses the node's shared knowledge of shortages on this host.
    pub fn sharing(self, shortage: Arc<Shortage>) -> Self {
        Listener { shortage, ..self }
    }

    pub fn meters(&self) -> Meters {
        self.meters.clone()
    }

    /// Accepts for ever, as node `me`. Passes each admitted connection to `deliver`.
    pub async fn run(self, me: NodeId, deliver: impl Fn(Arrival) + Send + Sync + 'static) {
        let deliver = Arc::new(deliver);
        let admitting = Arc::new(Semaphore::new(ADMITTING_MAX));
        let forming = Arc::new(Forming::new(self.meters.forming.clone()));
        let meters = self.meters;
        loop {
            if admitting.available_permits() == 0 {
                meters.admitting.on_met();
            }
            let permit = admitting.clone().acquire_owned().await.expect("never closed");
            let (mut stream, caller) = match self.tcp.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    if !self.shortage.on_error(&error, "cannot accept a peer's connection") {
                        debug!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    continue;
                }
            };
            let (deliver, forming, bulk) = (deliver.clone(), forming.clone(), meters.bulk.clone());
            let counted = meters.admitting.count();
            tokio::spawn(async move {
                let admitted = admit(&mut stream, me).await;
                drop((permit, counted));
                match admitted {
                    Ok(hello) => {
                        if let Some(arrival) = welcome(hello, stream, &forming, &bulk).await {
                            deliver(arrival);
                        }
                    }
                    // Port scanners and health checks connect and send nothing: not worth a warning.
                    Err(refusal @ Refusal::Unreadable(_)) => debug!(%caller, %refusal, "turned away"),
                    Err(refusal) => warn!(%caller, %refusal, "turned away"),
                }
            });
        }
    }
}

/// An admitted bulk connection. It is counted while it is open.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: TcpStream,
    pub(crate) counted: Held,
}

/// The arrival that this connection completes, if any. If the connection is the first of a bundle, this waits until
/// the bundle is complete or given up.
async fn welcome(
    hello: PeerHello,
    stream: TcpStream,
    forming: &Forming,
    bulk: &Arc<Meter>,
) -> Option<Arrival> {
    let from = hello.from;
    if hello.purpose == Purpose::Control {
        return Some(Arrival::Control { from, stream });
    }
    let Some(counted) = bulk.hold() else {
        debug!(peer = %from, "closed: {BULK_ACCEPTED_MAX} bulk connections are open here already");
        return None;
    };
    let accepted = Accepted { stream, counted };
    let Some(part) = hello.part else {
        return Some(Arrival::Bulk { from, bundle: Bundle::accepted(vec![accepted]) });
    };
    match forming.join(from, part, accepted) {
        Joined::Complete(bundle) => return Some(Arrival::Bulk { from, bundle }),
        Joined::Waiting => {}
        Joined::Refused => warn!(peer = %from, ?part, "a bundle that does not fit together, or one too many"),
        Joined::Begun => {
            tokio::time::sleep(BUNDLE_FORMING_TIMEOUT).await;
            if forming.give_up((from, part.bundle)) {
                info!(peer = %from, ?part, "a bundle was not whole within {BUNDLE_FORMING_TIMEOUT:?}; closed");
            }
        }
    }
    None
}

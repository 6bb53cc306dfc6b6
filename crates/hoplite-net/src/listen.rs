//! Connections in.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hoplite_words::peer::{PeerHello, Purpose};
use hoplite_words::NodeId;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};

use crate::bundle::Bundle;
use crate::forming::{Forming, Joined, BUNDLE_FORMING_TIMEOUT};
use crate::gossip::GossipSocket;
use crate::hello::{admit, Refusal};

/// Connections whose hello is still awaited; more wait in the kernel's queue. A flood of silent
/// callers costs this many descriptors, not all of them.
pub const ADMITTING_MAX: usize = 256;

/// Pause after `accept` failed, which it does when descriptors have run out: time for some to be
/// closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many free TCP ports to try until one is free for UDP too (only when any port will do).
const PORT_TRIES_MAX: usize = 32;

/// A caller that was let in.
#[derive(Debug)]
pub enum Arrival {
    Control { from: NodeId, stream: TcpStream },
    Bulk { from: NodeId, bundle: Bundle },
}

/// The TCP listener and, on the same port, the socket for gossip datagrams.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    addr: SocketAddr,
}

impl Listener {
    /// Listens on `addr`; port 0 takes any that is free for both.
    ///
    /// # Errors
    /// What the kernel reports, with the address in the message.
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
                Ok(gossip) => return Ok((Listener { tcp, addr: bound }, gossip)),
                Err(_) if tries > 0 => continue,
                Err(error) => return Err(named("UDP", error)),
            }
        }
    }

    /// The address listened on, with its real port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepts for ever, as node `me`; every caller that is let in goes to `deliver`.
    pub async fn run(self, me: NodeId, deliver: impl Fn(Arrival) + Send + Sync + 'static) {
        let deliver = Arc::new(deliver);
        let admitting = Arc::new(Semaphore::new(ADMITTING_MAX));
        let forming = Arc::new(Forming::default());
        loop {
            let permit = admitting.clone().acquire_owned().await.expect("never closed");
            let (mut stream, caller) = match self.tcp.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (deliver, forming) = (deliver.clone(), forming.clone());
            tokio::spawn(async move {
                let admitted = admit(&mut stream, me).await;
                drop(permit);
                match admitted {
                    Ok(hello) => {
                        if let Some(arrival) = welcome(hello, stream, &forming).await {
                            deliver(arrival);
                        }
                    }
                    // Port scanners and health checks connect and say nothing: not worth a warning.
                    Err(refusal @ Refusal::Unreadable(_)) => debug!(%caller, %refusal, "turned away"),
                    Err(refusal) => warn!(%caller, %refusal, "turned away"),
                }
            });
        }
    }
}

/// What is whole with this connection, if anything is. Stays with a bundle that it began until that is whole,
/// or given up.
async fn welcome(hello: PeerHello, stream: TcpStream, forming: &Forming) -> Option<Arrival> {
    let from = hello.from;
    let Some(part) = hello.part else {
        return Some(match hello.purpose {
            Purpose::Control => Arrival::Control { from, stream },
            Purpose::Bulk => Arrival::Bulk { from, bundle: stream.into() },
        });
    };
    match forming.join(from, part, stream) {
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

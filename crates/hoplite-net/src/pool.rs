//! Idle bulk connections, by peer: a transfer that finds one saves a handshake and a slow start.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_words::NodeId;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a connection waits for its next transfer. Only the sending side lets go of idle
/// connections, so a transfer never starts on one that the other side is just closing.
pub const BULK_IDLE_MAX: Duration = Duration::from_secs(30);

/// Idle connections kept to one peer; more transfers than this at a time to one peer are rare.
pub const BULK_IDLE_PER_PEER_MAX: usize = 4;

/// The pool of one carry thread (a socket stays with the thread whose poller knows it).
#[derive(Debug, Default)]
pub struct BulkPool {
    idle: Mutex<HashMap<NodeId, Vec<Idle>>>,
    filled: Notify,
}

#[derive(Debug)]
struct Idle {
    stream: TcpStream,
    since: Instant,
}

impl BulkPool {
    /// The connection to `peer` that was used last, if it is still open.
    pub fn take(&self, peer: NodeId) -> Option<TcpStream> {
        let mut idle = self.lock();
        let streams = idle.get_mut(&peer)?;
        let open = std::iter::from_fn(|| streams.pop()).map(|idle| idle.stream).find(is_open);
        if streams.is_empty() {
            idle.remove(&peer);
        }
        open
    }

    /// Keeps a connection whose last transfer ended in order.
    pub fn put(&self, peer: NodeId, stream: TcpStream) {
        let mut idle = self.lock();
        let streams = idle.entry(peer).or_default();
        if streams.len() < BULK_IDLE_PER_PEER_MAX {
            streams.push(Idle { stream, since: Instant::now() });
        }
        drop(idle);
        self.filled.notify_one();
    }

    /// Closes what is open to a peer that is gone.
    pub fn forget(&self, peer: NodeId) {
        self.lock().remove(&peer);
    }

    /// Closes connections as they get too old; asleep while there are none.
    pub async fn expire(&self) {
        loop {
            match self.oldest() {
                None => self.filled.notified().await,
                Some(since) => {
                    tokio::time::sleep_until(since + BULK_IDLE_MAX).await;
                    self.drop_older_than(BULK_IDLE_MAX);
                }
            }
        }
    }

    fn oldest(&self) -> Option<Instant> {
        self.lock().values().flatten().map(|idle| idle.since).min()
    }

    fn drop_older_than(&self, age: Duration) {
        self.lock().retain(|_, streams| {
            streams.retain(|idle| idle.since.elapsed() < age);
            !streams.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (out, accepted) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (out.unwrap(), accepted.unwrap().0)
    }

    fn peer() -> NodeId {
        NodeId { addr: "127.0.0.1:1".parse().unwrap(), incarnation: 1 }
    }

    #[tokio::test]
    async fn an_open_connection_is_given_out_once() {
        let (out, _in) = pair().await;
        let local = out.local_addr().unwrap();
        let pool = BulkPool::default();
        pool.put(peer(), out);
        assert_eq!(pool.take(peer()).unwrap().local_addr().unwrap(), local);
        assert!(pool.take(peer()).is_none());
    }

    #[tokio::test]
    async fn a_connection_that_the_peer_closed_is_not_given_out() {
        let (out, accepted) = pair().await;
        drop(accepted);
        closed_by_peer(&out).await;
        let pool = BulkPool::default();
        pool.put(peer(), out);
        assert!(pool.take(peer()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_closed_after_a_while() {
        let (out, accepted) = pair().await;
        let pool = std::sync::Arc::new(BulkPool::default());
        let expiring = pool.clone();
        let expirer = tokio::spawn(async move { expiring.expire().await });
        pool.put(peer(), out);
        closed_by_peer(&accepted).await;
        assert!(pool.take(peer()).is_none());
        expirer.abort();
    }
}

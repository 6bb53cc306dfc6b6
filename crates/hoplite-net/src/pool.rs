//! Idle bundles, by peer: a transfer that finds one of as many connections as it wants saves a handshake and a
//! slow start.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_words::{Connections, NodeId};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bundle::Bundle;

/// How long a bundle waits for its next transfer: versions of weights and rounds of training come minutes apart,
/// and the windows of new connections leave a link at two thirds of its rate for up to two seconds. Only the
/// sending side lets go of idle ones, so a transfer never starts on one that the other side is just closing.
pub const BULK_IDLE_MAX: Duration = Duration::from_secs(600);

/// Idle bundles kept to one peer; more transfers than this at a time to one peer are rare.
pub const BULK_IDLE_PER_PEER_MAX: usize = 4;

/// The pool of one carry thread (a socket stays with the thread whose poller knows it).
#[derive(Debug, Default)]
pub struct BulkPool {
    idle: Mutex<HashMap<NodeId, Vec<Idle>>>,
    filled: Notify,
}

#[derive(Debug)]
struct Idle {
    bundle: Bundle,
    since: Instant,
}

impl BulkPool {
    /// The bundle of `count` connections to `peer` that was used last, if it is still open.
    pub fn take(&self, peer: NodeId, count: Connections) -> Option<Bundle> {
        let mut idle = self.lock();
        let bundles = idle.get_mut(&peer)?;
        let fits = |idle: &Idle| idle.bundle.connections() == count;
        let newest = || bundles.iter().rposition(fits).map(|at| bundles.remove(at).bundle);
        let open = std::iter::from_fn(newest).find(Bundle::is_open);
        if bundles.is_empty() {
            idle.remove(&peer);
        }
        open
    }

    /// Keeps a bundle whose last transfer ended in order.
    pub fn put(&self, peer: NodeId, bundle: Bundle) {
        let mut idle = self.lock();
        let bundles = idle.entry(peer).or_default();
        if bundles.len() == BULK_IDLE_PER_PEER_MAX {
            // Perhaps nobody wants as many connections any more as the oldest has.
            bundles.remove(0);
        }
        bundles.push(Idle { bundle, since: Instant::now() });
        drop(idle);
        self.filled.notify_one();
    }

    /// Closes what is open to a peer that is gone.
    pub fn forget(&self, peer: NodeId) {
        self.lock().remove(&peer);
    }

    /// Closes bundles as they get too old; asleep while there are none.
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
        self.lock().retain(|_, bundles| {
            bundles.retain(|idle| idle.since.elapsed() < age);
            !bundles.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::closed_by_peer;
    use tokio::net::{TcpListener, TcpStream};

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
    async fn an_open_bundle_is_given_out_once_to_who_wants_as_many_connections() {
        let (one, two) = (Connections::ONE, Connections::new(2).unwrap());
        let ((a, _in_a), (b, _in_b), (c, _in_c)) = (pair().await, pair().await, pair().await);
        let pool = BulkPool::default();
        pool.put(peer(), Bundle::new(vec![a, b]));
        pool.put(peer(), c.into());
        assert_eq!(pool.take(peer(), two).unwrap().connections(), two);
        assert!(pool.take(peer(), two).is_none());
        assert_eq!(pool.take(peer(), one).unwrap().connections(), one);
        assert!(pool.take(peer(), one).is_none());
    }

    #[tokio::test]
    async fn a_bundle_of_which_the_peer_closed_a_connection_is_not_given_out() {
        let ((a, _in_a), (b, accepted)) = (pair().await, pair().await);
        drop(accepted);
        closed_by_peer(&b).await;
        let pool = BulkPool::default();
        pool.put(peer(), Bundle::new(vec![a, b]));
        assert!(pool.take(peer(), Connections::new(2).unwrap()).is_none());
    }

    #[tokio::test]
    async fn of_too_many_the_oldest_is_closed() {
        let pool = BulkPool::default();
        let (first, accepted) = pair().await;
        pool.put(peer(), first.into());
        let mut ends = Vec::new();
        for _ in 0..BULK_IDLE_PER_PEER_MAX {
            let (out, end) = pair().await;
            pool.put(peer(), out.into());
            ends.push(end);
        }
        closed_by_peer(&accepted).await;
        for _ in &ends {
            assert!(pool.take(peer(), Connections::ONE).is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_closed_after_a_while() {
        let (out, accepted) = pair().await;
        let pool = std::sync::Arc::new(BulkPool::default());
        let expiring = pool.clone();
        let expirer = tokio::spawn(async move { expiring.expire().await });
        pool.put(peer(), out.into());
        closed_by_peer(&accepted).await;
        assert!(pool.take(peer(), Connections::ONE).is_none());
        expirer.abort();
    }
}

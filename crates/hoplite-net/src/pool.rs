//! Idle bundles, by peer. A transfer that finds one with as many connections as it wants saves a handshake and a slow
//! start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hoplite_types::client::Gauge;
use hoplite_types::{Connections, NodeId};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bundle::Bundle;
use crate::meter::{Held, Meter};

/// How long a bundle may be idle. Versions of weights and rounds of training come minutes apart. The windows of new
/// connections leave a link at two thirds of its rate for up to two seconds. Only the sending side closes idle
/// bundles, so a transfer never starts on one that the other side is just closing.
pub const BULK_IDLE_MAX: Duration = Duration::from_secs(600);

/// Limit on the idle bundles to one peer. More transfers than this at a time to one peer are rare.
pub const BULK_IDLE_PER_PEER_MAX: usize = 4;

/// Limit on the idle connections to all peers together. Each takes a descriptor here and one at its peer. A node that
/// sends to more peers than this in turn pays a handshake for each, which is little beside a transfer.
pub const BULK_IDLE_CONNECTIONS_MAX: usize = 256;

/// The pool of one data thread: a socket belongs to the poller of one thread.
#[derive(Debug, Default)]
pub struct BulkPool {
    idle: Arc<IdleBundles>,
    thread: usize,
}

/// The pools of all data threads of a node.
#[derive(Debug)]
pub(crate) struct IdleBundles {
    bundles: Mutex<HashMap<Key, Vec<Idle>>>,
    filled: Notify,
    meter: Arc<Meter>,
}

/// A data thread and a peer.
type Key = (usize, NodeId);

#[derive(Debug)]
struct Idle {
    bundle: Bundle,
    since: Instant,
    /// One for each connection.
    _counted: Vec<Held>,
}

impl BulkPool {
    pub(crate) fn new(idle: Arc<IdleBundles>, thread: usize) -> Self {
        BulkPool { idle, thread }
    }

    /// Takes the most recently used open bundle of `count` connections to `peer`.
    pub fn take(&self, peer: NodeId, count: Connections) -> Option<Bundle> {
        let mut idle = self.idle.lock();
        let bundles = idle.get_mut(&(self.thread, peer))?;
        let fits = |idle: &Idle| idle.bundle.connections() == count;
        let newest = || bundles.iter().rposition(fits).map(|at| bundles.remove(at).bundle);
        let open = std::iter::from_fn(newest).find(Bundle::is_open);
        if bundles.is_empty() {
            idle.remove(&(self.thread, peer));
        }
        open
    }

    /// Keeps a bundle whose last transfer ended without an error.
    pub fn put(&self, peer: NodeId, bundle: Bundle) {
        self.idle.put((self.thread, peer), bundle);
    }

    /// Closes the idle bundles to a peer that is gone.
    pub fn forget(&self, peer: NodeId) {
        self.idle.lock().remove(&(self.thread, peer));
    }

    /// Closes bundles of every thread that have been idle for too long. Sleeps while there are none.
    pub async fn expire(&self) {
        loop {
            match self.idle.oldest() {
                None => self.idle.filled.notified().await,
                Some(since) => {
                    tokio::time::sleep_until(since + BULK_IDLE_MAX).await;
                    self.idle.drop_older_than(BULK_IDLE_MAX);
                }
            }
        }
    }
}

impl Default for IdleBundles {
    fn default() -> Self {
        let meter = Meter::new("idle bulk connections", BULK_IDLE_CONNECTIONS_MAX);
        IdleBundles { bundles: Mutex::default(), filled: Notify::new(), meter }
    }
}

impl IdleBundles {
    pub(crate) fn gauge(&self) -> Gauge {
        self.meter.gauge()
    }

    /// Closes all bundles. Returns the number of their connections.
    pub(crate) fn let_go(&self) -> usize {
        let bundles = std::mem::take(&mut *self.lock());
        bundles.values().flatten().map(Idle::connections).sum()
    }

    fn put(&self, key: Key, bundle: Bundle) {
        let mut idle = self.lock();
        let bundles = idle.entry(key).or_default();
        if bundles.len() == BULK_IDLE_PER_PEER_MAX {
            // The oldest may have a number of connections that is no longer used.
            bundles.remove(0);
        }
        let counted = (0..bundle.connections().get()).map(|_| self.meter.count()).collect();
        bundles.push(Idle { bundle, since: Instant::now(), _counted: counted });
        while self.meter.gauge().value > self.meter.limit() && drop_oldest(&mut idle) {
            self.meter.on_met();
        }
        drop(idle);
        self.filled.notify_one();
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

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Idle>>> {
        self.bundles.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle {
    fn connections(&self) -> usize {
        self.bundle.connections().get().into()
    }
}

/// Closes the bundle that has been idle for longest, of any thread and peer.
fn drop_oldest(idle: &mut HashMap<Key, Vec<Idle>>) -> bool {
    // Each thread's bundles to a peer are in the order of their age.
    let oldest = idle.iter().min_by_key(|(_, bundles)| bundles.first().map(|idle| idle.since));
    let Some(key) = oldest.map(|(&key, _)| key) else { return false };
    if let Some(bundles) = idle.get_mut(&key).filter(|bundles| bundles.len() > 1) {
        bundles.remove(0);
        return true;
    }
    idle.remove(&key).is_some()
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
    async fn an_open_bundle_is_given_out_once_to_a_send_with_as_many_connections() {
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
    async fn the_oldest_of_too_many_bundles_is_closed() {
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

    #[tokio::test]
    async fn the_oldest_of_too_many_bundles_to_all_peers_is_closed_on_any_thread() {
        let idle = Arc::new(IdleBundles::default());
        let pools = [0, 1].map(|thread| BulkPool::new(idle.clone(), thread));
        let to = |n: u16| NodeId { addr: ([127, 0, 0, 1], n).into(), incarnation: 1 };
        let mut ends = Vec::new();
        for n in 0..=BULK_IDLE_CONNECTIONS_MAX as u16 {
            let (out, end) = pair().await;
            pools[usize::from(n % 2)].put(to(n), out.into());
            ends.push(end);
        }
        closed_by_peer(&ends[0]).await;
        assert!(pools[0].take(to(0), Connections::ONE).is_none());
        assert!(pools[1].take(to(1), Connections::ONE).is_some());
        let Gauge { value, met, .. } = idle.gauge();
        assert_eq!((value, met), (BULK_IDLE_CONNECTIONS_MAX as u64 - 1, 1));
        assert_eq!(idle.let_go(), BULK_IDLE_CONNECTIONS_MAX - 1);
        assert_eq!(idle.gauge().value, 0);
    }
}

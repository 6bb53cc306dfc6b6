//! Shortages of this host: no socket can be made for want of descriptors, ports or memory. A shortage passes, and is
//! no evidence against any peer.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hoplite_types::client::Gauge;
use rustix::io::Errno;
use tokio::time::Instant;
use tracing::warn;

use crate::meter::{Held, Meter};
use crate::pool::{BulkPool, IdleBundles};

/// Shortest time between two log lines: during a shortage every connection meets it.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// A node has one, shared by all code that makes or accepts connections.
#[derive(Debug)]
pub struct Shortage {
    meter: Arc<Meter>,
    idle: Arc<IdleBundles>,
    logged: Mutex<Option<Instant>>,
}

impl Default for Shortage {
    fn default() -> Self {
        let meter = Meter::new("connections that wait for this host's means", 0);
        Shortage { meter, idle: Arc::default(), logged: Mutex::default() }
    }
}

/// Whether `error` is due to this host's resources, and not to the peer, the network or the caller.
pub fn is_shortage(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    errno.is_some_and(|errno| {
        is_of_descriptors(errno)
            || matches!(
                errno,
                Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL | Errno::ADDRINUSE | Errno::AGAIN
            )
    })
}

fn is_of_descriptors(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

impl Shortage {
    /// The idle bundles of one data thread. They are closed when descriptors run out.
    pub fn pool(&self, thread: usize) -> BulkPool {
        BulkPool::new(self.idle.clone(), thread)
    }

    /// Records that a connection could not be made or accepted because of `error`, if that [`is_shortage`]. Returns
    /// true if idle bundles were closed, so that another try at once may succeed.
    pub fn on_error(&self, error: &io::Error, doing: &str) -> bool {
        if !is_shortage(error) {
            return false;
        }
        self.meter.on_met();
        let freed = match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(errno) if is_of_descriptors(errno) => self.idle.let_go(),
            _ => 0,
        };
        self.log(error, doing, freed);
        freed > 0
    }

    /// Counts one connection that waits for the shortage to end, until the result is dropped.
    pub(crate) fn waiting(&self) -> Held {
        self.meter.count()
    }

    pub fn gauges(&self) -> [Gauge; 2] {
        [self.meter.gauge(), self.idle.gauge()]
    }

    fn log(&self, error: &io::Error, doing: &str, freed: usize) {
        let now = Instant::now();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_some_and(|at| now.duration_since(at) < LOG_EVERY) {
            return;
        }
        *logged = Some(now);
        let times = self.meter.gauge().met;
        warn!(%error, times, closed_idle = freed, "{doing}: this host has no means for it just now");
    }
}

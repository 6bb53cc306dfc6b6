//! One data thread.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{sync_channel, Receiver};
use std::sync::Arc;

use hoplite_net::BulkPool;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime, the idle bundles that belong to it, and its load.
#[derive(Debug)]
pub(super) struct DataThread {
    handle: Handle,
    pool: Arc<BulkPool>,
    load: Load,
    stop: oneshot::Sender<()>,
    stopped: Receiver<()>,
}

impl DataThread {
    pub(super) fn start(number: usize, pool: BulkPool) -> io::Result<DataThread> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let pool = Arc::new(pool);
        let (stop, stopping) = oneshot::channel::<()>();
        let (ended, stopped) = sync_channel(1);
        let expiring = pool.clone();
        std::thread::Builder::new().name(format!("data-{number}")).spawn(move || {
            let _ = runtime.block_on(async {
                tokio::select! {
                    stopped = stopping => stopped,
                    () = expiring.expire() => unreachable!("it never ends"),
                }
            });
            drop(runtime);
            let _ = ended.send(());
        })?;
        Ok(DataThread { handle, pool, load: Load::default(), stop, stopped })
    }

    pub(super) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(job);
    }

    pub(super) fn pool(&self) -> Arc<BulkPool> {
        self.pool.clone()
    }

    pub(super) fn load(&self) -> Load {
        self.load.clone()
    }

    /// Makes the thread drop all its jobs and end. The returned receiver completes when it has ended.
    pub(super) fn stop(self) -> Receiver<()> {
        let _ = self.stop.send(());
        self.stopped
    }
}

/// The number of jobs of a thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Load(Arc<AtomicUsize>);

impl Load {
    pub(super) fn jobs(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds one job, until the result is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.0.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }
}

#[derive(Debug)]
pub(super) struct Busy(Load);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0 .0.fetch_sub(1, Ordering::Relaxed);
    }
}

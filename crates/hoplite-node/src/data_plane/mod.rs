//! The threads that move bytes, and how the control thread gives them jobs.
//!
//! Each data thread runs its jobs on its own runtime: jobs share no locks, and a long copy does not delay the control
//! thread. A `Receive` runs on the thread of its bulk connection, a group's `Send`s on that of their peer's connection.
//! Other `Send`s, and `Fold`s, run on the least loaded thread.
//!
//! | file | contents |
//! |---|---|
//! | `thread` | one data thread |
//! | `arrivals` | the transfers that are expected, and what to do with each |
//! | `inbound` | a bundle from a peer: transfer after transfer |
//! | `receive` | one transfer into a copy |
//! | `send` | one transfer out of a copy |
//! | `sends` | how the control thread starts and stops them |
//! | `fold` | several inputs into one copy |
//! | `multiplex` | transfers that share a bundle |
//! | `framing` | frames, as their bytes come |
//! | `completion` | every job ends in exactly one input for the core |
//! | `receive_rate`, `send_rate` | the measured rate of a transfer, in and out |
//! | `stall_timer` | how long a stream has brought nothing |
//! | `disconnects` | closing idle connections of peers that are gone |

mod arrivals;
mod completion;
mod disconnects;
mod fold;
mod framing;
mod inbound;
mod multiplex;
mod receive;
mod receive_rate;
mod send;
mod send_rate;
mod sends;
mod stall_timer;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_core::io::{Broken, FoldId, FoldRule, Input, SendId};
use hoplite_net::{Bundle, Shortage};
use hoplite_types::client::Gauge;
use hoplite_types::{NodeId, ReductionId, TransferId};
use tokio::sync::{mpsc, Notify};
use tracing::warn;

use crate::copies::Copy;
use arrivals::{Arrivals, Expected};
use completion::Completion;
use disconnects::Disconnects;
use fold::SharedSum;
use multiplex::Order;
use sends::Sending;
pub use sends::Way;
use thread::DataThread;

/// How long data threads may take to end. Jobs yield after each grain, which is much less.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Counters that data threads share with the rest of the daemon. Bytes since the start.
#[derive(Debug, Default)]
pub struct Counters {
    pub sent_bytes: AtomicU64,
    pub received_bytes: AtomicU64,
    pub folded_bytes: AtomicU64,
}

impl Counters {
    fn add(counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The data that all jobs share.
#[derive(Debug)]
struct Shared {
    me: NodeId,
    /// Unbounded, but never long: each job sends at most two inputs per stream, and one more for every `stall_after`
    /// that the stream stands still.
    inputs: mpsc::UnboundedSender<Input>,
    arrivals: Arrivals,
    disconnects: Disconnects,
    shortage: Arc<Shortage>,
    counters: Counters,
    /// The number of the last bundle dialled here.
    last_bundle: AtomicU64,
    /// How long a stream may bring no bytes before it is reported, and between two reports.
    stall_after: Duration,
}

/// The sources and streams of a fold; the sources as copies.
#[derive(Debug, Default)]
pub struct Inputs {
    pub sources: Vec<Arc<Copy>>,
    pub streams: Vec<(TransferId, NodeId)>,
}

/// The control thread's handle of a running fold.
#[derive(Debug)]
struct Folding {
    commands: mpsc::UnboundedSender<fold::Command>,
    sum: SharedSum,
}

/// The control thread's handle of all data threads.
#[derive(Debug)]
pub struct DataPlane {
    shared: Arc<Shared>,
    threads: Vec<DataThread>,
    receives: HashMap<TransferId, Arc<Notify>>,
    sends: HashMap<SendId, Sending>,
    /// The order queues of the tasks that send a group's transfers to a node. Closed when the task has ended.
    groups: HashMap<(NodeId, ReductionId), mpsc::UnboundedSender<Order>>,
    folds: HashMap<FoldId, Folding>,
    arrived: usize,
    /// The next time to check for transfers that have not arrived.
    next_look: Option<Instant>,
}

impl DataPlane {
    /// Starts `threads` threads. Their jobs report to `inputs`, also about streams that have brought no bytes for
    /// `stall_after`.
    ///
    /// # Errors
    /// If the system provides no more threads or pollers.
    pub fn start(
        me: NodeId,
        threads: usize,
        stall_after: Duration,
        inputs: mpsc::UnboundedSender<Input>,
    ) -> io::Result<DataPlane> {
        let (arrivals, disconnects, shortage, counters, last_bundle) =
            <(_, _, Arc<Shortage>, _, _)>::default();
        let start = |number| DataThread::start(number, shortage.pool(number));
        let threads = (0..threads).map(start).collect::<io::Result<_>>()?;
        let shared =
            Shared { me, inputs, arrivals, disconnects, shortage, counters, last_bundle, stall_after };
        Ok(DataPlane {
            shared: Arc::new(shared),
            threads,
            receives: HashMap::new(),
            sends: HashMap::new(),
            groups: HashMap::new(),
            folds: HashMap::new(),
            arrived: 0,
            next_look: None,
        })
    }

    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The shortages of this host, for all code that makes connections.
    pub fn shortage(&self) -> Arc<Shortage> {
        self.shared.shortage.clone()
    }

    pub fn gauges(&self) -> Vec<Gauge> {
        self.shared.shortage.gauges().into()
    }

    /// Takes bulk connections that `from` dialled. Bundles are distributed over the threads in turn, and stay there.
    ///
    /// # Errors
    /// If the kernel cannot remove them from this thread's poller.
    pub fn arrive(&mut self, from: NodeId, bundle: Bundle) -> io::Result<()> {
        let bundle = bundle.detach()?;
        self.arrived = (self.arrived + 1) % self.threads.len();
        let thread = &self.threads[self.arrived];
        let disconnected = self.shared.disconnects.watch(from);
        thread.spawn(inbound::serve_handed_over(
            thread.load(),
            self.shared.clone(),
            from,
            disconnected,
            bundle,
        ));
        Ok(())
    }

    /// `Output::Receive`. The transfer is registered when this returns: the peer may then be asked to start.
    pub fn receive(&mut self, transfer: TransferId, from: NodeId, copy: Arc<Copy>, offset: u64) {
        let stop = Arc::new(Notify::new());
        self.receives.insert(transfer, stop.clone());
        let broken = Input::ReceiveEnded { transfer, watermark: offset, outcome: Err(Broken) };
        let completion = Completion::new(self.shared.inputs.clone(), broken);
        let receive = receive::Receive { transfer, from, copy, offset, stop, completion };
        self.expect(transfer, from, Expected::Receive(Box::new(receive)));
    }

    pub fn stop_receive(&mut self, transfer: TransferId) {
        // If it has not arrived yet, forgetting it ends it.
        self.shared.arrivals.forget(transfer);
        if let Some(stop) = self.receives.get(&transfer) {
            stop.notify_one();
        }
    }

    /// `Output::Fold`. Its streams are registered when this returns.
    pub fn fold(&mut self, fold: FoldId, out: Arc<Copy>, rule: FoldRule, inputs: Inputs) {
        let (commands, orders) = mpsc::unbounded_channel();
        let broken = Input::FoldEnded { fold, outcome: Err(Broken) };
        let completion = Completion::new(self.shared.inputs.clone(), broken);
        let (key, streams) = (out.id().0, inputs.streams.clone());
        let job = fold::Fold::new(fold, out, rule, inputs, self.shared.clone(), orders);
        let folding = Folding { commands, sum: job.sum() };
        self.expect_streams(&streams, &folding);
        self.folds.insert(fold, folding);
        let thread = self.least_loaded(key);
        thread.spawn(job.run(completion, thread.load()));
    }

    pub fn amend_fold(&mut self, fold: FoldId, rule: FoldRule, added: Inputs) {
        if let Some(folding) = self.folds.remove(&fold) {
            let streams = added.streams.clone();
            self.expect_streams(&streams, &folding);
            // A fold that has ended accepts no more orders. Its end is queued for the core.
            if folding.commands.send(fold::Command::Amend { rule, added }).is_err() {
                streams.iter().for_each(|&(transfer, _)| self.shared.arrivals.forget(transfer));
            }
            self.folds.insert(fold, folding);
        }
    }

    pub fn stop_fold(&mut self, fold: FoldId) {
        if let Some(folding) = self.folds.get(&fold) {
            let _ = folding.commands.send(fold::Command::Stop);
        }
    }

    /// Checks a job's report on its way to the core: jobs that have ended take no more orders.
    pub fn on_input(&mut self, input: &Input) {
        match input {
            Input::ReceiveEnded { transfer, .. } => drop(self.receives.remove(transfer)),
            Input::SendEnded { send, .. } | Input::SendNotBegun { send } => drop(self.sends.remove(send)),
            Input::FoldEnded { fold, .. } => drop(self.folds.remove(fold)),
            _ => {}
        }
    }

    /// When to call [`DataPlane::stalled`].
    pub fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Reports transfers that should have arrived long ago.
    pub fn stalled(&mut self, now: Instant) -> Vec<Input> {
        let stalled = self.shared.arrivals.stalled(now, self.shared.stall_after);
        self.next_look = self.shared.arrivals.next_due(self.shared.stall_after);
        stalled
    }

    /// Closes idle connections to and from a peer that is gone. Connections in use end with their transfers, which
    /// the core stops.
    pub fn forget(&self, peer: NodeId) {
        self.threads.iter().for_each(|thread| thread.pool().forget(peer));
        self.shared.disconnects.on_gone(peer);
    }

    /// Ends all threads, and drops their jobs at the point they have reached. Waits for [`STOP_TIMEOUT`] at most.
    pub fn stop(self) {
        let stopping: Vec<_> = self.threads.into_iter().map(DataThread::stop).collect();
        let deadline = Instant::now() + STOP_TIMEOUT;
        for stopped in stopping {
            if stopped.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                warn!("a data thread did not end within {STOP_TIMEOUT:?}; leaving it");
            }
        }
    }

    fn expect(&mut self, transfer: TransferId, from: NodeId, expected: Expected) {
        self.shared.arrivals.expect(transfer, from, expected);
        // Transfers that are awaited already are due earlier.
        self.next_look.get_or_insert_with(|| Instant::now() + self.shared.stall_after);
    }

    fn expect_streams(&mut self, streams: &[(TransferId, NodeId)], folding: &Folding) {
        for &(transfer, from) in streams {
            let (orders, sum) = (folding.commands.clone(), folding.sum.clone());
            self.expect(transfer, from, Expected::FoldStream { orders, sum });
        }
    }

    /// `key` decides between equally loaded threads. So the same peer or copy gets the same thread (and its idle
    /// connections) while there is no other load.
    fn least_loaded(&self, key: u64) -> &DataThread {
        let first = key as usize % self.threads.len();
        let (before, after) = self.threads.split_at(first);
        after.iter().chain(before).min_by_key(|thread| thread.load().jobs()).expect("at least one thread")
    }
}

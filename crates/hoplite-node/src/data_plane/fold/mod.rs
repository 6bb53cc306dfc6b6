//! Folds several inputs into one copy while they arrive.
//!
//! The first input to reach a region of `out` writes it; the others are folded into it. `out` is published as far as
//! *every* input has been folded in. Elements are folded in the order `stream ∘ source₀ ∘ source₁ …`, starting with
//! the first stream to bring them; further streams are folded on top as they come.
//!
//! ```text
//! Folding ──all folded, sealed, not open──▶ ended Ok
//!    │ ├────stop, an input or `out` aborted──▶ ended Broken
//!    └─stream broke──▶ Standing still ──stop──▶ ended Broken
//! ```

mod scratch;
mod shared;
mod stream;
mod sum;

use std::future::{poll_fn, Future};
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use hoplite_core::io::{Broken, FoldId, FoldRule, Input};
use hoplite_net::Detached;
use hoplite_types::limits::GRAIN_BYTES_MAX;
use hoplite_types::peer::BulkHead;
use hoplite_types::TransferId;
use tokio::sync::{mpsc, Notify};
use tokio::time::{sleep, Sleep};
use tracing::debug;

use super::completion::Completion;
use super::thread::Load;
use super::{inbound, Counters, Inputs, Shared};
use crate::copies::{Copy, Following};
pub(in crate::data_plane) use shared::SharedSum;
use stream::{Read, Stream};
use sum::Sum;

/// Scratch memory of all streams of a fold together, since wide trees have many short scratches. A single stream has
/// one grain, so that bytes which were read are still in the L2 cache when they are folded.
const SCRATCH_BYTES_MAX: usize = 4 << 20;

/// An order to a running fold, from the control thread or a bulk connection.
#[derive(Debug)]
pub(in crate::data_plane) enum Command {
    /// A stream has arrived, on a bundle from another thread's poller.
    Arrived { head: BulkHead, bundle: Detached },
    /// A stream has begun on a shared bundle, whose reader puts its bytes into the sum.
    Landing { transfer: TransferId },
    /// All bytes of that stream have come, and its seal.
    Landed { transfer: TransferId },
    /// A stream arrived, but then broke.
    Failed { transfer: TransferId },
    /// `Output::AmendFold`.
    Amend { rule: FoldRule, added: Inputs },
    /// `Output::StopFold`.
    Stop,
}

/// `Output::Fold`, running.
pub(in crate::data_plane) struct Fold {
    fold: FoldId,
    sum: SharedSum,
    sources: Vec<Following>,
    streams: Vec<Stream>,
    wake: Arc<Notify>,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedReceiver<Command>,
}

/// The result of one step.
enum Step {
    Moved,
    /// Nothing can be done until something changes.
    Still,
    StreamBroken(TransferId),
}

impl Fold {
    pub(in crate::data_plane) fn new(
        fold: FoldId,
        out: Arc<Copy>,
        rule: FoldRule,
        inputs: Inputs,
        shared: Arc<Shared>,
        orders: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let sum = SharedSum::new(Sum::new(out, rule, !rule.open && inputs.streams.len() == 1));
        let wake = Arc::new(Notify::new());
        let mut job = Fold { fold, sum, sources: Vec::new(), streams: Vec::new(), wake, shared, orders };
        job.add(inputs);
        job
    }

    pub(in crate::data_plane) fn sum(&self) -> SharedSum {
        self.sum.clone()
    }

    pub(in crate::data_plane) async fn run(mut self, completion: Completion, load: Load) {
        let _busy = load.busy();
        let outcome = self.fold_all(&load).await;
        // Later orders are refused. Streams of the last orders are no longer awaited.
        self.orders.close();
        while let Ok(command) = self.orders.try_recv() {
            self.pass_over(&command);
        }
        for stream in &self.streams {
            self.shared.arrivals.forget(stream.transfer());
        }
        debug!(
            fold = self.fold.0,
            published = self.sum.lock().published(),
            ok = outcome.is_ok(),
            "fold ended"
        );
        let fold = self.fold;
        // Copies and connections are released before the core may reuse their space.
        self.sum.lock().close();
        drop(self);
        completion.conclude(Input::FoldEnded { fold, outcome });
    }

    fn add(&mut self, inputs: Inputs) {
        let streams = self.streams.len() + inputs.streams.len();
        let scratch = (SCRATCH_BYTES_MAX / streams.max(1)).min(GRAIN_BYTES_MAX);
        self.sources.extend(inputs.sources.iter().map(|source| source.follow(self.wake.clone())));
        self.streams
            .extend(inputs.streams.into_iter().map(|(transfer, from)| Stream::new(transfer, from, scratch)));
        self.sum.lock().add_sources(inputs.sources);
    }

    async fn fold_all(&mut self, load: &Load) -> Result<(), Broken> {
        let mut alarm = pin!(sleep(self.shared.stall_after));
        let mut asked = false;
        loop {
            self.look_for_stalled(alarm.as_mut());
            while let Ok(command) = self.orders.try_recv() {
                if let Some(transfer) = self.obey(command)? {
                    return self.stand_still(transfer).await;
                }
            }
            match self.step(load)? {
                Step::StreamBroken(transfer) => return self.stand_still(transfer).await,
                Step::Moved => {
                    asked = false;
                    tokio::task::yield_now().await;
                }
                Step::Still if self.is_finished()? => return Ok(()),
                // Ask writing clients to report their progress, and look once more before sleeping.
                Step::Still if !asked => {
                    asked = true;
                    self.sources.iter().for_each(|source| source.copy().reader().want());
                }
                Step::Still => {
                    if let Some(transfer) = self.wait(alarm.as_mut()).await? {
                        return self.stand_still(transfer).await;
                    }
                    asked = false;
                }
            }
        }
    }

    /// Carries out an order. Returns the stream that it broke, if any.
    fn obey(&mut self, command: Command) -> Result<Option<TransferId>, Broken> {
        match command {
            Command::Stop => return Err(Broken),
            Command::Failed { transfer } => return Ok(Some(transfer)),
            Command::Landing { transfer } => {
                if let Some(stream) = self.stream(transfer) {
                    stream.land();
                }
            }
            Command::Landed { transfer } => {
                if let Some(stream) = self.stream(transfer) {
                    stream.landed();
                }
            }
            Command::Amend { rule, added } => {
                self.sum.lock().set_rule(rule);
                self.add(added);
            }
            Command::Arrived { head, bundle } => {
                let size = self.sum.lock().size();
                let awaited = self.stream(head.transfer);
                if !awaited.is_some_and(|awaited| awaited.arrive(&head, size, bundle)) {
                    return Ok(Some(head.transfer));
                }
            }
        }
        Ok(None)
    }

    fn stream(&mut self, transfer: TransferId) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.transfer() == transfer)
    }

    /// One pass over all inputs: at most one read from each stream, then the folding that this allows.
    fn step(&mut self, load: &Load) -> Result<Step, Broken> {
        for source in &self.sources {
            source.copy().seal_if_any()?;
        }
        let mut sum = self.sum.lock();
        let mut moved = false;
        let alone = self.streams.is_empty();
        for stream in &mut self.streams {
            match stream.read(sum.size()) {
                Read::Nothing => {}
                Read::Bytes(read) => {
                    Counters::add(&self.shared.counters.received_bytes, read);
                    moved = true;
                }
                Read::Ended(bundle) => {
                    moved = true;
                    let shared = self.shared.clone();
                    if let Some(measured) = stream.measured() {
                        let _ = shared.inputs.send(measured);
                    }
                    let disconnected = shared.disconnects.watch(stream.from());
                    tokio::spawn(inbound::serve(load.clone(), shared, stream.from(), disconnected, bundle));
                }
                Read::Broken => return Ok(Step::StreamBroken(stream.transfer())),
            }
            let folded = sum.fold_stream(stream.folded(), stream.unfolded())?;
            stream.on_folded(folded);
            moved |= folded > 0;
        }
        moved |= sum.fold_landed()?;
        moved |= sum.fold_late_sources()?;
        if alone {
            moved |= sum.fold_sources_alone()?;
        }
        let streams = self.streams.iter().filter_map(Stream::mark).min();
        sum.publish(streams)?;
        Counters::add(&self.shared.counters.folded_bytes, sum.take_folded_bytes());
        Ok(if moved { Step::Moved } else { Step::Still })
    }

    fn is_finished(&self) -> Result<bool, Broken> {
        for source in &self.sources {
            if source.copy().seal_if_any()?.is_none() {
                return Ok(false);
            }
        }
        Ok(self.sum.lock().is_complete() && self.streams.iter().all(Stream::is_done))
    }

    /// Reports streams that bring no bytes although there is space for them. `alarm` tells when to look, even if the
    /// fold is busy: one stream may keep it busy while another has stalled.
    fn look_for_stalled(&mut self, alarm: Pin<&mut Sleep>) {
        let now = Instant::now();
        if now < alarm.deadline().into_std() {
            return;
        }
        let after = self.shared.stall_after;
        for stream in &mut self.streams {
            if let Some(watermark) = stream.stalled(now, after) {
                let transfer = stream.transfer();
                let _ = self.shared.inputs.send(Input::ReceiveStalled { transfer, watermark });
            }
        }
        let next = self.streams.iter().filter_map(|stream| stream.stall_due(after)).min();
        alarm.reset(next.unwrap_or(now + after).into());
    }

    /// Sleeps until an order, bytes, a seal or the `alarm`. Returns the stream that an order broke, if any.
    async fn wait(&mut self, mut alarm: Pin<&mut Sleep>) -> Result<Option<TransferId>, Broken> {
        let order = {
            let mut woken = pin!(self.wake.notified());
            let (orders, streams) = (&mut self.orders, &self.streams);
            poll_fn(|cx| {
                if let Poll::Ready(order) = orders.poll_recv(cx) {
                    // The control thread forgets a fold only after its end: no sender means shutdown.
                    return Poll::Ready(Some(order.unwrap_or(Command::Stop)));
                }
                let mut ready = woken.as_mut().poll(cx).is_ready();
                ready |= alarm.as_mut().poll(cx).is_ready();
                for stream in streams {
                    ready |= stream.poll_readable(cx).is_ready();
                }
                if ready {
                    Poll::Ready(None)
                } else {
                    Poll::Pending
                }
            })
            .await
        };
        order.map_or(Ok(None), |order| self.obey(order))
    }

    /// Reports a broken stream, then waits for the stop.
    async fn stand_still(&mut self, transfer: TransferId) -> Result<(), Broken> {
        let _ = self.shared.inputs.send(Input::FoldStreamBroken { fold: self.fold, transfer });
        while let Some(command) = self.orders.recv().await {
            if matches!(command, Command::Stop) {
                break;
            }
            self.pass_over(&command);
        }
        Err(Broken)
    }

    /// Streams that were added too late are not awaited.
    fn pass_over(&self, command: &Command) {
        if let Command::Amend { added, .. } = command {
            added.streams.iter().for_each(|&(transfer, _)| self.shared.arrivals.forget(transfer));
        }
    }
}

#[cfg(test)]
mod tests;

//! One transfer into a copy: bytes go from the socket straight to their place in the arena.
//!
//! A sender that brings no bytes is reported, but not dropped: the core decides what to do about it.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use hoplite_core::io::{Broken, Input};
use hoplite_net::{read_frame, Bundle};
use hoplite_types::limits::GRAIN_BYTES_MAX;
use hoplite_types::peer::{BulkHead, Seal};
use hoplite_types::{NodeId, TransferId};
use tokio::sync::Notify;
use tracing::{debug, warn};

use super::completion::Completion;
use super::receive_rate::ReceiveRate;
use super::stall_timer::StallWatch;
use super::{Counters, Shared};
use crate::copies::Copy;

/// `Output::Receive`, before or after its connection has come.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) transfer: TransferId,
    pub(super) from: NodeId,
    pub(super) copy: Arc<Copy>,
    pub(super) offset: u64,
    pub(super) stop: Arc<Notify>,
    pub(super) completion: Completion,
}

impl Receive {
    /// Receives the transfer that `head` begins from `bundle`.
    ///
    /// # Errors
    /// [`Broken`] if the trailer was not received. The bundle cannot be used any more then.
    pub(super) async fn run(
        self,
        head: BulkHead,
        bundle: &mut Bundle,
        shared: &Shared,
    ) -> Result<(), Broken> {
        let mut receive_rate = ReceiveRate::new();
        let outcome = tokio::select! {
            biased;
            () = self.stop.notified() => Err(Broken),
            outcome = self.take(&head, bundle, shared, &mut receive_rate) => outcome,
        };
        let kept = outcome.as_ref().map(drop).map_err(|broken| *broken);
        if let Some(measured) = receive_rate.measured(self.from) {
            let _ = shared.inputs.send(measured);
        }
        self.end(outcome);
        kept
    }

    /// Whether `head` begins the expected transfer. Logs a warning if not.
    pub(super) fn fits(&self, head: &BulkHead) -> bool {
        let expected = (self.offset, self.copy.size());
        let fits = (head.offset, head.size) == expected && self.copy.watermark() == self.offset;
        if !fits {
            warn!(peer = %self.from, ?head, ?expected, "the transfer does not fit its copy");
        }
        fits
    }

    pub(super) fn end(self, outcome: Result<Seal, Broken>) {
        let outcome = outcome.and_then(|seal| match seal.validate() {
            Ok(()) => Ok(seal),
            Err(error) => {
                warn!(transfer = self.transfer.0, peer = %self.from, %error, "this is no seal");
                Err(Broken)
            }
        });
        let (watermark, size) = (self.copy.watermark(), self.copy.size());
        debug!(transfer = self.transfer.0, peer = %self.from, watermark, size, complete = outcome.is_ok(), "receive ended");
        self.completion.conclude(Input::ReceiveEnded { transfer: self.transfer, watermark, outcome });
    }

    async fn take(
        &self,
        head: &BulkHead,
        bundle: &mut Bundle,
        shared: &Shared,
        receive_rate: &mut ReceiveRate,
    ) -> Result<Seal, Broken> {
        if !self.fits(head) {
            return Err(Broken);
        }
        let stalled = |watermark| {
            let _ = shared.inputs.send(Input::ReceiveStalled { transfer: self.transfer, watermark });
        };
        let mut watch = StallWatch::new(shared.stall_after);
        let mut at = self.offset;
        let mut since_yield = 0;
        while at < head.size {
            watch.over(bundle.readable(), || stalled(at)).await.map_err(|_| Broken)?;
            let read = match self.read_some(at, head.size - at, bundle)? {
                Ok(0) => return Err(Broken),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => {
                    debug!(peer = %self.from, %error, "bulk connection broke");
                    return Err(Broken);
                }
            };
            at += read as u64;
            let now = Instant::now();
            receive_rate.on_read(now, read);
            watch.on_read(now);
            Counters::add(&shared.counters.received_bytes, read);
            since_yield += read;
            if since_yield >= GRAIN_BYTES_MAX {
                // Tasks on this thread that forward these bytes get their turn at every grain.
                since_yield = 0;
                tokio::task::yield_now().await;
            }
        }
        watch.over(read_frame(bundle), || stalled(at)).await.map_err(|_| Broken)
    }

    /// One read into the copy, of at most `bytes_max` bytes, published at once.
    pub(super) fn read_some(
        &self,
        at: u64,
        bytes_max: u64,
        bundle: &mut Bundle,
    ) -> Result<io::Result<usize>, Broken> {
        self.copy.write(|writer| {
            let to = writer.size().min(at + bytes_max.min(GRAIN_BYTES_MAX as u64));
            let read = bundle.try_read(writer.unpublished(at, to))?;
            writer.publish(at + read as u64);
            Ok(read)
        })
    }
}

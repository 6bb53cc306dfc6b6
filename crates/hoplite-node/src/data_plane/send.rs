//! One transfer out of a copy, behind its watermark.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use hoplite_core::io::{Broken, Input, SendId};
use hoplite_net::{dial_bundle_with, is_shortage, write_frame, BulkPool, Bundle};
use hoplite_types::limits::{grain_bytes, GRAIN_BYTES_MAX};
use hoplite_types::peer::{BulkFrame, BulkHead};
use hoplite_types::{Connections, NodeId, TransferId};
use tokio::sync::Notify;
use tracing::{debug, info};

use super::completion::Completion;
use super::send_rate::SendRate;
use super::thread::Busy;
use super::{Counters, Shared};
use crate::copies::{Copy, Following};

/// `Output::Send`.
#[derive(Debug)]
pub(super) struct Send {
    pub(super) send: SendId,
    pub(super) to: NodeId,
    pub(super) transfer: TransferId,
    pub(super) copy: Arc<Copy>,
    pub(super) offset: u64,
    pub(super) connections: Connections,
    pub(super) stop: Arc<Notify>,
    pub(super) completion: Completion,
}

impl Send {
    pub(super) async fn run(self, shared: Arc<Shared>, pool: Arc<BulkPool>, _busy: Busy) {
        let send = self.send;
        let ended = tokio::select! {
            biased;
            () = self.stop.notified() => Input::SendEnded { send, outcome: Err(Broken) },
            ended = self.deliver(&shared, &pool) => ended,
        };
        self.completion.conclude(ended);
    }

    async fn deliver(&self, shared: &Shared, pool: &BulkPool) -> Input {
        let send = self.send;
        let mut bundle = match pool.take(self.to, self.connections) {
            Some(bundle) => bundle,
            None => match dial(shared, self.to, self.connections).await {
                Ok(bundle) => bundle,
                Err(_) => return Input::SendNotBegun { send },
            },
        };
        let outcome = self.stream(&mut bundle, shared).await.unwrap_or_else(|error| {
            debug!(peer = %self.to, transfer = self.transfer.0, %error, "bulk connection broke");
            Err(Broken)
        });
        // A bundle with half a transfer on it is dropped; that is how the receiver learns of it.
        let outcome = outcome.map(|()| pool.put(self.to, bundle));
        Input::SendEnded { send, outcome }
    }

    async fn stream(&self, bundle: &mut Bundle, shared: &Shared) -> io::Result<Result<(), Broken>> {
        let size = self.copy.size();
        let following = self.copy.follow(Arc::new(Notify::new()));
        let head = BulkHead { transfer: self.transfer, offset: self.offset, size };
        write_frame(bundle, &BulkFrame::Whole(head)).await?;
        let grain = grain_bytes(size);
        let mut send_rate = SendRate::new(Instant::now());
        let mut at = self.offset;
        while at < size {
            let enough = size.min(at + grain);
            let waiting = Instant::now();
            let Some(Ok(present)) = unless_closed(bundle, following.present(enough)).await else {
                return Ok(Err(Broken));
            };
            send_rate.on_waited(waiting.elapsed());
            let to = present.min(at + GRAIN_BYTES_MAX as u64);
            write_bytes(bundle, &following, at, to).await?;
            Counters::add(&shared.counters.sent_bytes, (to - at) as usize);
            at = to;
            tokio::task::yield_now().await;
        }
        if let Some(measured) = send_rate.measured(Instant::now(), self.send, size - self.offset) {
            let _ = shared.inputs.send(measured);
        }
        let Some(Ok(seal)) = unless_closed(bundle, following.sealed()).await else {
            return Ok(Err(Broken));
        };
        write_frame(bundle, seal).await?;
        Ok(Ok(()))
    }
}

/// Dials a new bundle. If the peer's process is gone, this is reported to the core.
pub(super) async fn dial(shared: &Shared, to: NodeId, connections: Connections) -> io::Result<Bundle> {
    let dialled = dial_bundle_with(&shared.shortage, &shared.last_bundle, (shared.me, to), connections).await;
    dialled.inspect_err(|error| {
        if is_shortage(error) {
            // It is in the log already, once for all connections that meet the shortage.
            return debug!(peer = %to, %error, "no bulk connection");
        }
        info!(peer = %to, %error, "no bulk connection");
        if error.kind() == io::ErrorKind::ConnectionRefused {
            let _ = shared.inputs.send(Input::PeerGone { node: to });
        }
    })
}

/// Waits for new bytes of the copy, but not for a receiver that is gone.
async fn unless_closed<T>(bundle: &Bundle, waiting: impl std::future::Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        brought = waiting => Some(brought),
        () = bundle.closed_by_peer() => None,
    }
}

/// Writes the bytes `from..to` directly from the copy.
async fn write_bytes(bundle: &mut Bundle, following: &Following, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        bundle.writable().await?;
        match bundle.try_write(following.copy().reader().bytes(at, to)) {
            Ok(written) => at += written as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

//! One transfer out of a copy, behind its watermark.

use std::io;
use std::sync::Arc;

use hoplite_core::io::{Broken, Input, SendId};
use hoplite_net::{closed_by_peer, dial, write_frame, BulkPool};
use hoplite_words::limits::GRAIN_BYTES_MAX;
use hoplite_words::peer::{BulkHead, Purpose};
use hoplite_words::{NodeId, TransferId};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tracing::{debug, info};

use super::ending::Ending;
use super::grain::grain;
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
    pub(super) stop: Arc<Notify>,
    pub(super) ending: Ending,
}

impl Send {
    pub(super) async fn run(self, shared: Arc<Shared>, pool: Arc<BulkPool>, _busy: Busy) {
        let outcome = tokio::select! {
            biased;
            () = self.stop.notified() => Err(Broken),
            outcome = self.deliver(&shared, &pool) => outcome,
        };
        // A connection with half a transfer on it is dropped, which is how the receiver hears of it.
        let outcome = outcome.map(|stream| pool.put(self.to, stream));
        self.ending.conclude(Input::SendEnded { send: self.send, outcome });
    }

    async fn deliver(&self, shared: &Shared, pool: &BulkPool) -> Result<TcpStream, Broken> {
        let mut stream = match pool.take(self.to) {
            Some(stream) => stream,
            None => dial(shared.me, self.to, Purpose::Bulk).await.map_err(|error| {
                info!(peer = %self.to, %error, "no bulk connection");
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    let _ = shared.inputs.send(Input::PeerGone { node: self.to });
                }
                Broken
            })?,
        };
        match self.stream(&mut stream, shared).await {
            Ok(outcome) => outcome.map(|()| stream),
            Err(error) => {
                debug!(peer = %self.to, transfer = self.transfer.0, %error, "bulk connection broke");
                Err(Broken)
            }
        }
    }

    async fn stream(&self, stream: &mut TcpStream, shared: &Shared) -> io::Result<Result<(), Broken>> {
        let size = self.copy.size();
        let following = self.copy.follow(Arc::new(Notify::new()));
        let head = BulkHead { transfer: self.transfer, offset: self.offset, size };
        write_frame(stream, &head).await?;
        let grain = grain(size);
        let mut at = self.offset;
        while at < size {
            let enough = size.min(at + grain);
            let Some(Ok(present)) = unless_closed(stream, following.present(enough)).await else {
                return Ok(Err(Broken));
            };
            let to = present.min(at + GRAIN_BYTES_MAX as u64);
            write_bytes(stream, &following, at, to).await?;
            Counters::add(&shared.counters.sent_bytes, (to - at) as usize);
            at = to;
            tokio::task::yield_now().await;
        }
        let Some(Ok(seal)) = unless_closed(stream, following.sealed()).await else {
            return Ok(Err(Broken));
        };
        write_frame(stream, seal).await?;
        Ok(Ok(()))
    }
}

/// Waits for what the copy brings, but not for a receiver that is gone.
async fn unless_closed<T>(stream: &TcpStream, waiting: impl std::future::Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        brought = waiting => Some(brought),
        () = closed_by_peer(stream) => None,
    }
}

/// Writes the bytes `from..to` of the copy from where they lie.
async fn write_bytes(stream: &TcpStream, following: &Following, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        stream.writable().await?;
        match stream.try_write(following.copy().reader().bytes(at, to)) {
            Ok(written) => at += written as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

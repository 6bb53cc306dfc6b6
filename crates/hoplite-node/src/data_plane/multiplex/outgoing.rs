//! A group's transfers to one peer, behind the watermarks of their copies.
//!
//! ```text
//!           ┌───────── nothing more to send ─────────┐
//!           ▼                                        │
//!  Begin ▶ Waiting ──a grain, or the last bytes──▶ in turn ──last byte──▶ Trailing ──seal──▶ End
//!     (from each of them: copy aborted, or stopped ──▶ Abort)
//! ```

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use hoplite_core::io::{Input, SendId};
use hoplite_net::{BulkPool, Bundle};
use hoplite_types::limits::{grain_bytes, GRAIN_BYTES_MAX};
use hoplite_types::peer::{BulkFrame, BulkHead};
use hoplite_types::{Connections, NodeId, TransferId};
use hoplite_wire::encode;
use tokio::sync::{mpsc, Notify};
use tracing::debug;

use crate::copies::{Copy, Following};
use crate::data_plane::completion::Completion;
use crate::data_plane::send::dial;
use crate::data_plane::thread::Busy;
use crate::data_plane::{Counters, Shared};

/// An order from the control thread.
#[derive(Debug)]
pub(in crate::data_plane) enum Order {
    /// `Output::Send`.
    Send(Box<Job>),
    /// `Output::StopSend`.
    Stop(SendId),
}

#[derive(Debug)]
pub(in crate::data_plane) struct Job {
    pub(in crate::data_plane) send: SendId,
    pub(in crate::data_plane) transfer: TransferId,
    pub(in crate::data_plane) copy: Arc<Copy>,
    pub(in crate::data_plane) offset: u64,
    pub(in crate::data_plane) completion: Completion,
}

#[derive(Debug)]
struct Stream {
    job: Job,
    following: Following,
    at: u64,
    in_turn: bool,
}

/// Bytes of a copy whose frame is already encoded.
#[derive(Debug)]
struct Piece {
    send: SendId,
    copy: Arc<Copy>,
    from: u64,
    to: u64,
}

/// All transfers of a group to one peer.
#[derive(Debug)]
pub(in crate::data_plane) struct Outgoing {
    to: NodeId,
    connections: Connections,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedReceiver<Order>,
    streams: Vec<Stream>,
    /// Transfers that have bytes to send, in the order in which they got some.
    turns: VecDeque<TransferId>,
    /// Frames that are sent before the next piece.
    frames: BytesMut,
    /// Transfers whose end is among `frames`.
    ended: Vec<Job>,
    wake: Arc<Notify>,
}

impl Outgoing {
    pub(in crate::data_plane) fn new(
        to: NodeId,
        connections: Connections,
        shared: Arc<Shared>,
        orders: mpsc::UnboundedReceiver<Order>,
    ) -> Self {
        let (streams, turns, frames, ended, wake) = Default::default();
        Outgoing { to, connections, shared, orders, streams, turns, frames, ended, wake }
    }

    /// Runs until every ordered transfer has ended, or until the bundle breaks, which ends all of them.
    pub(in crate::data_plane) async fn run(mut self, pool: Arc<BulkPool>, _busy: Busy) {
        match self.deliver(&pool).await {
            Ok(bundle) => pool.put(self.to, bundle),
            Err(error) => debug!(peer = %self.to, %error, "no bulk connection for a group, or it broke"),
        }
    }

    async fn deliver(&mut self, pool: &BulkPool) -> io::Result<Bundle> {
        let mut bundle = match pool.take(self.to, self.connections) {
            Some(bundle) => bundle,
            None => match self.dial().await {
                Ok(bundle) => bundle,
                Err(error) => {
                    for Stream { job: Job { send, completion, .. }, .. } in self.streams.drain(..) {
                        completion.conclude(Input::SendNotBegun { send });
                    }
                    return Err(error);
                }
            },
        };
        loop {
            self.send_all(&mut bundle).await?;
            // Later transfers start a new bundle. Those that were ordered just before are still sent.
            self.orders.close();
            if self.orders.is_empty() {
                return Ok(bundle);
            }
        }
    }

    async fn dial(&mut self) -> io::Result<Bundle> {
        let shared = self.shared.clone();
        let mut dialling = pin!(dial(&shared, self.to, self.connections));
        loop {
            tokio::select! {
                biased;
                // A stopped transfer does not wait for a host that does not answer.
                Some(order) = self.orders.recv() => self.obey(order),
                dialled = &mut dialling => return dialled,
            }
        }
    }

    async fn send_all(&mut self, bundle: &mut Bundle) -> io::Result<()> {
        let mut asked = false;
        loop {
            while let Ok(order) = self.orders.try_recv() {
                self.obey(order);
            }
            self.look();
            let piece = self.next_piece();
            if piece.is_some() || !self.frames.is_empty() {
                asked = false;
                self.write(bundle, piece).await?;
                tokio::task::yield_now().await;
            } else if self.streams.is_empty() {
                return Ok(());
            } else if !asked {
                // Ask writing clients to report their progress, and look once more before sleeping.
                asked = true;
                self.streams.iter().for_each(|stream| stream.following.copy().reader().want());
            } else {
                asked = false;
                self.wait(bundle).await?;
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Send(job) => {
                let job = *job;
                let (transfer, offset, size) = (job.transfer, job.offset, job.copy.size());
                encode(&BulkFrame::Begin(BulkHead { transfer, offset, size }), &mut self.frames);
                let following = job.copy.follow(self.wake.clone());
                self.streams.push(Stream { at: offset, job, following, in_turn: false });
            }
            Order::Stop(send) => {
                if let Some(at) = self.streams.iter().position(|stream| stream.job.send == send) {
                    self.abort(at);
                }
            }
        }
    }

    fn abort(&mut self, at: usize) {
        let stream = self.streams.remove(at);
        encode(&BulkFrame::Abort { transfer: stream.job.transfer }, &mut self.frames);
    }

    /// Checks the transfers for new bytes, seals and aborted copies.
    fn look(&mut self) {
        let mut at = 0;
        while let Some(stream) = self.streams.get_mut(at) {
            let transfer = stream.job.transfer;
            match stream.following.copy().seal_if_any() {
                Err(_) => {
                    self.abort(at);
                    continue;
                }
                Ok(Some(seal)) if stream.is_trailing() => {
                    encode(&BulkFrame::End { transfer, seal: seal.clone() }, &mut self.frames);
                    self.ended.push(self.streams.remove(at).job);
                    continue;
                }
                Ok(_) if !stream.in_turn && stream.ready().is_some() => {
                    stream.in_turn = true;
                    self.turns.push_back(transfer);
                }
                Ok(_) => {}
            }
            at += 1;
        }
    }

    /// Takes the next piece, of the first transfer in turn, and encodes its frame.
    fn next_piece(&mut self) -> Option<Piece> {
        while let Some(&transfer) = self.turns.front() {
            if let Some(stream) = self.streams.iter_mut().find(|stream| stream.job.transfer == transfer) {
                if let Some(present) = stream.ready() {
                    let (from, to) = (stream.at, present.min(stream.at + GRAIN_BYTES_MAX as u64));
                    let bytes = (to - from) as u32;
                    encode(&BulkFrame::Piece { transfer, bytes }, &mut self.frames);
                    stream.at = to;
                    return Some(Piece { send: stream.job.send, copy: stream.job.copy.clone(), from, to });
                }
                stream.in_turn = false;
            }
            self.turns.pop_front();
        }
        None
    }

    /// Writes all frames, then `piece`. If its transfer is stopped meanwhile, the bundle breaks, too: the peer may
    /// not be reading, and the copy's space may be needed.
    async fn write(&mut self, bundle: &mut Bundle, piece: Option<Piece>) -> io::Result<()> {
        // Frames for orders that arrive meanwhile go behind the piece.
        let mut frames = self.frames.split();
        let mut at = piece.as_ref().map_or(0, |piece| piece.from);
        let to = piece.as_ref().map_or(0, |piece| piece.to);
        while !frames.is_empty() || at < to {
            tokio::select! {
                biased;
                Some(order) = self.orders.recv() => {
                    if matches!((&order, &piece), (Order::Stop(send), Some(piece)) if *send == piece.send) {
                        return Err(io::Error::other("stopped half-way through a piece"));
                    }
                    self.obey(order);
                    continue;
                }
                writable = bundle.writable() => writable?,
            }
            let bytes = piece.as_ref().map_or(&[][..], |piece| piece.copy.reader().bytes(at, to));
            match bundle.try_write_both(&frames, bytes) {
                Ok(written) => {
                    let of_frames = written.min(frames.len());
                    frames.advance(of_frames);
                    at += (written - of_frames) as u64;
                    Counters::add(&self.shared.counters.sent_bytes, written - of_frames);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        for Job { send, completion, .. } in self.ended.drain(..) {
            completion.conclude(Input::SendEnded { send, outcome: Ok(()) });
        }
        Ok(())
    }

    async fn wait(&mut self, bundle: &Bundle) -> io::Result<()> {
        tokio::select! {
            biased;
            Some(order) = self.orders.recv() => self.obey(order),
            () = self.wake.notified() => {}
            () = bundle.closed_by_peer() => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
        Ok(())
    }
}

impl Stream {
    /// Every byte is sent, but not the seal.
    fn is_trailing(&self) -> bool {
        self.at == self.job.copy.size()
    }

    /// The present bytes of the copy, if there are enough new ones for a piece.
    fn ready(&self) -> Option<u64> {
        let size = self.job.copy.size();
        let present = self.job.copy.watermark();
        (present >= size.min(self.at + grain_bytes(size)) && !self.is_trailing()).then_some(present)
    }
}

//! Transfers from one peer on one bundle: each piece is read straight to its place.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::time::Instant;

use hoplite_core::io::{Broken, Input};
use hoplite_net::Bundle;
use hoplite_types::limits::{GRAIN_BYTES_MAX, SOURCES_MAX};
use hoplite_types::peer::{BulkFrame, BulkHead, Seal};
use hoplite_types::{NodeId, TransferId};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::data_plane::arrivals::Expected;
use crate::data_plane::fold::{Command, SharedSum};
use crate::data_plane::framing::Framing;
use crate::data_plane::receive::Receive;
use crate::data_plane::stall_timer::StallTimer;
use crate::data_plane::{Counters, Shared};

/// Limit on the transfers that share a bundle: the streams of an allreduce over the largest number of nodes.
const STREAMS_MAX: usize = 2 * SOURCES_MAX;

/// Bytes read at once of transfers that are no longer wanted.
const UNWANTED_BYTES_MAX: usize = 64 << 10;

/// A bundle while transfers share it.
pub(in crate::data_plane) struct Incoming<'a> {
    from: NodeId,
    shared: &'a Arc<Shared>,
    bundle: &'a mut Bundle,
    streams: HashMap<TransferId, Stream>,
    framing: Framing,
    /// The transfer of the next bytes, and how many they are. `None` if a frame comes next.
    piece: Option<(TransferId, u64)>,
    /// One task for each transfer into a copy; it ends when the core stops the transfer.
    stops: JoinSet<TransferId>,
}

struct Stream {
    /// Bytes that no piece has announced yet.
    lacking: u64,
    place: Place,
}

/// The destination of the bytes.
enum Place {
    Copy(Box<Receive>),
    Sum {
        sum: SharedSum,
        fold: mpsc::UnboundedSender<Command>,
    },
    /// The bytes are no longer wanted; the sender may not know it yet.
    Nowhere,
}

impl<'a> Incoming<'a> {
    pub(in crate::data_plane) fn new(from: NodeId, shared: &'a Arc<Shared>, bundle: &'a mut Bundle) -> Self {
        let (streams, framing, piece, stops) = Default::default();
        Incoming { from, shared, bundle, streams, framing, piece, stops }
    }

    /// Receives the transfer that `head` begins, and all later ones, until none is left.
    ///
    /// # Errors
    /// [`Broken`] if the bundle broke, the peer violated the protocol, or the peer `disconnected`.
    pub(in crate::data_plane) async fn run(
        mut self,
        head: BulkHead,
        disconnected: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Broken> {
        let outcome = match self.begin(head) {
            Ok(()) => self.take_all(disconnected).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &outcome {
            debug!(peer = %self.from, %error, streams = self.streams.len(), "a shared bundle broke");
        }
        for (transfer, stream) in std::mem::take(&mut self.streams) {
            stream.place.end(transfer, Err(Broken));
        }
        outcome.map_err(|_| Broken)
    }

    async fn take_all(&mut self, mut disconnected: Pin<&mut impl Future<Output = ()>>) -> io::Result<()> {
        let after = self.shared.stall_after;
        // A transfer that waits for others has not stalled. Only the whole bundle can stall.
        let mut stall_timer = StallTimer::new(Instant::now());
        let mut alarm = pin!(sleep(after));
        while !self.streams.is_empty() {
            tokio::select! {
                biased;
                () = &mut disconnected => return Err(io::Error::other("the peer is gone")),
                Some(Ok(stopped)) = self.stops.join_next() => self.leave(stopped),
                () = &mut alarm => {
                    if stall_timer.is_reportable(Instant::now(), after) {
                        self.report_stalled();
                    }
                    alarm.as_mut().reset(stall_timer.due(after).into());
                }
                readable = self.bundle.readable() => {
                    readable?;
                    if self.read_grain()? > 0 {
                        stall_timer.restart(Instant::now());
                    }
                    // Tasks on this thread that forward these bytes get their turn.
                    tokio::task::yield_now().await;
                }
            }
        }
        Ok(())
    }

    /// Reads the bytes that are there, up to a grain.
    fn read_grain(&mut self) -> io::Result<usize> {
        let mut taken = 0;
        while taken < GRAIN_BYTES_MAX && !self.streams.is_empty() {
            let read = match self.piece {
                None => self.read_frame(),
                Some((transfer, left)) => self.read_piece(transfer, left),
            };
            match read {
                Ok(read) => taken += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    fn read_frame(&mut self) -> io::Result<usize> {
        match self.framing.read(self.bundle)? {
            None => {}
            Some(BulkFrame::Begin(head)) => self.begin(head)?,
            Some(BulkFrame::Piece { transfer, bytes }) => {
                let bytes = u64::from(bytes);
                let stream = self.streams.get_mut(&transfer).filter(|stream| stream.lacking >= bytes);
                stream.ok_or_else(unfitting)?.lacking -= bytes;
                self.piece = Some((transfer, bytes)).filter(|_| bytes > 0);
            }
            Some(BulkFrame::End { transfer, seal }) => {
                let stream = self.streams.remove(&transfer).ok_or_else(unfitting)?;
                let outcome = if stream.lacking == 0 { Ok(seal) } else { Err(Broken) };
                stream.place.end(transfer, outcome);
            }
            Some(BulkFrame::Abort { transfer }) => {
                let stream = self.streams.remove(&transfer).ok_or_else(unfitting)?;
                stream.place.end(transfer, Err(Broken));
            }
            Some(BulkFrame::Whole(_)) => return Err(unfitting()),
        }
        // Bytes have come, if only for a part of a frame.
        Ok(1)
    }

    fn read_piece(&mut self, transfer: TransferId, left: u64) -> io::Result<usize> {
        let stream = self.streams.get_mut(&transfer).expect("only a frame ends it, and its piece goes first");
        let read = match &mut stream.place {
            Place::Copy(receive) => receive.read_some(receive.copy.watermark(), left, self.bundle),
            Place::Sum { sum, .. } => sum.land(left, |free| self.bundle.try_read(free)),
            Place::Nowhere => {
                let mut unwanted = [0; UNWANTED_BYTES_MAX];
                let len = (left as usize).min(UNWANTED_BYTES_MAX);
                Ok(self.bundle.try_read(&mut unwanted[..len]))
            }
        };
        let Ok(read) = read else {
            self.leave(transfer);
            return Ok(0);
        };
        let read = read?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Counters::add(&self.shared.counters.received_bytes, read);
        self.piece = Some((transfer, left - read as u64)).filter(|(_, left)| *left > 0);
        Ok(read)
    }

    fn begin(&mut self, head: BulkHead) -> io::Result<()> {
        if self.streams.len() == STREAMS_MAX || self.streams.contains_key(&head.transfer) {
            return Err(unfitting());
        }
        let place = match self.shared.arrivals.claim(head.transfer, self.from) {
            Some(Expected::Receive(receive)) => {
                let (stop, transfer) = (receive.stop.clone(), head.transfer);
                self.stops.spawn(async move {
                    stop.notified().await;
                    transfer
                });
                Place::Copy(receive)
            }
            Some(Expected::FoldStream { orders, sum }) => Place::Sum { sum, fold: orders },
            None => Place::Nowhere,
        };
        let lacking = head.size.checked_sub(head.offset).filter(|_| place.begin(&head));
        let Some(lacking) = lacking else {
            warn!(peer = %self.from, ?head, "the transfer does not fit what is expected; connection closed");
            place.end(head.transfer, Err(Broken));
            return Err(unfitting());
        };
        self.streams.insert(head.transfer, Stream { lacking, place });
        Ok(())
    }

    /// The transfer is no longer wanted here. Its further bytes are discarded.
    fn leave(&mut self, transfer: TransferId) {
        let Some(stream) = self.streams.get_mut(&transfer) else { return };
        match std::mem::replace(&mut stream.place, Place::Nowhere) {
            // The sum accepts no more bytes: its fold has ended, or is about to be stopped.
            Place::Sum { fold, .. } => drop(fold.send(Command::Stop)),
            place => place.end(transfer, Err(Broken)),
        }
    }

    fn report_stalled(&self) {
        for (&transfer, stream) in &self.streams {
            let watermark = match &stream.place {
                Place::Copy(receive) => receive.copy.watermark(),
                Place::Sum { sum, .. } => sum.landed(),
                Place::Nowhere => continue,
            };
            let _ = self.shared.inputs.send(Input::ReceiveStalled { transfer, watermark });
        }
    }
}

impl Place {
    /// Returns false if the transfer does not fit this place.
    fn begin(&self, head: &BulkHead) -> bool {
        match self {
            Place::Copy(receive) => receive.fits(head),
            Place::Sum { sum, fold } => {
                // A fold that has ended accepts no more orders.
                let _ = fold.send(Command::Landing { transfer: head.transfer });
                sum.begin(head)
            }
            Place::Nowhere => true,
        }
    }

    fn end(self, transfer: TransferId, outcome: Result<Seal, Broken>) {
        match self {
            Place::Copy(receive) => receive.end(outcome),
            Place::Sum { fold, .. } => {
                // A fold that has ended accepts no more orders.
                let _ = fold.send(match outcome {
                    Ok(_) => Command::Landed { transfer },
                    Err(Broken) => Command::Failed { transfer },
                });
            }
            Place::Nowhere => {}
        }
    }
}

/// The peer violated the protocol: its further bytes cannot be interpreted.
fn unfitting() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a frame that does not fit those before it")
}

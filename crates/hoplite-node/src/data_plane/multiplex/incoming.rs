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

/// Transfers that may share a bundle: as many as the streams of an allreduce over as many nodes as there may be.
const STREAMS_MAX: usize = 2 * SOURCES_MAX;

/// Read at once of what nobody wants any more.
const UNWANTED_BYTES_MAX: usize = 64 << 10;

/// A bundle while transfers share it.
pub(in crate::data_plane) struct Incoming<'a> {
    from: NodeId,
    shared: &'a Arc<Shared>,
    bundle: &'a mut Bundle,
    streams: HashMap<TransferId, Stream>,
    framing: Framing,
    /// Whose bytes are next, and how many; if none are, a frame is.
    piece: Option<(TransferId, u64)>,
    /// Ends with those that the core has stopped.
    stops: JoinSet<TransferId>,
}

struct Stream {
    /// What has not been announced by a piece yet.
    lacking: u64,
    place: Place,
}

/// Where the bytes go.
enum Place {
    Copy(Box<Receive>),
    Sum {
        sum: SharedSum,
        fold: mpsc::UnboundedSender<Command>,
    },
    /// Nobody wants them any more; the sender may not know yet.
    Nowhere,
}

impl<'a> Incoming<'a> {
    pub(in crate::data_plane) fn new(from: NodeId, shared: &'a Arc<Shared>, bundle: &'a mut Bundle) -> Self {
        let (streams, framing, piece, stops) = Default::default();
        Incoming { from, shared, bundle, streams, framing, piece, stops }
    }

    /// Takes the transfer that `head` begins, and all that begin until there is none left.
    ///
    /// # Errors
    /// [`Broken`] if the bundle, or the peer's way to use it, broke, or it was `disconnected`.
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
        // One that waits its turn behind others is not silent: the bundle is, or is not.
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
                    // Whoever forwards these bytes on this thread gets its turn.
                    tokio::task::yield_now().await;
                }
            }
        }
        Ok(())
    }

    /// Takes what is there, up to a grain.
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
        // Something came, if only a part of a frame.
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

    /// Nobody here wants the transfer any more; what comes of it yet is passed over.
    fn leave(&mut self, transfer: TransferId) {
        let Some(stream) = self.streams.get_mut(&transfer) else { return };
        match std::mem::replace(&mut stream.place, Place::Nowhere) {
            // Its sum takes no more: if it has not ended, it is about to be told to.
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
    /// False if it is no place for such a transfer.
    fn begin(&self, head: &BulkHead) -> bool {
        match self {
            Place::Copy(receive) => receive.fits(head),
            Place::Sum { sum, fold } => {
                // A fold that has ended takes no more orders.
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
                // A fold that has ended takes no more orders.
                let _ = fold.send(match outcome {
                    Ok(_) => Command::Landed { transfer },
                    Err(Broken) => Command::Failed { transfer },
                });
            }
            Place::Nowhere => {}
        }
    }
}

/// The peer breaks the rules; what it sends cannot be told apart any more.
fn unfitting() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a frame that does not fit those before it")
}

//! One stream into a fold.
//!
//! ```text
//! Awaited ──arrive──▶ Flowing ──last byte──▶ Trailing ──seal──▶ Done
//!    └─────land──────▶ Landing ──────────────────────seal─────▶ Landed
//! ```

use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hoplite_core::io::Input;
use hoplite_net::{Bundle, Detached};
use hoplite_types::peer::{BulkHead, Seal};
use hoplite_types::{NodeId, TransferId};
use tracing::{debug, warn};

use super::scratch::Scratch;
use crate::data_plane::framing::Framing;
use crate::data_plane::receive_rate::ReceiveRate;
use crate::data_plane::stall_timer::StallTimer;

/// A transfer whose bytes are folded as they come.
#[derive(Debug)]
pub(super) struct Stream {
    transfer: TransferId,
    from: NodeId,
    state: State,
    scratch: Scratch,
    received: u64,
    folded: u64,
    receive_rate: ReceiveRate,
    stall_timer: StallTimer,
}

#[derive(Debug)]
enum State {
    Awaited,
    Flowing(Bundle),
    Trailing(Bundle, Framing),
    /// The stream shares a bundle, whose reader puts the bytes into the sum.
    Landing,
    Landed,
    Done,
}

/// The result of one read from the socket.
#[derive(Debug)]
pub(super) enum Read {
    Nothing,
    Bytes(usize),
    /// The seal has come: the bundle is free for its next transfer.
    Ended(Bundle),
    Broken,
}

impl Stream {
    pub(super) fn new(transfer: TransferId, from: NodeId, scratch_bytes_max: usize) -> Self {
        let scratch = Scratch::new(scratch_bytes_max);
        let (state, receive_rate, stall_timer) =
            (State::Awaited, ReceiveRate::new(), StallTimer::new(Instant::now()));
        Stream { transfer, from, state, scratch, received: 0, folded: 0, receive_rate, stall_timer }
    }

    pub(super) fn transfer(&self) -> TransferId {
        self.transfer
    }

    pub(super) fn from(&self) -> NodeId {
        self.from
    }

    pub(super) fn folded(&self) -> u64 {
        self.folded
    }

    /// How many bytes are folded; `None` if the reader of a shared bundle keeps track of that.
    pub(super) fn mark(&self) -> Option<u64> {
        (!matches!(self.state, State::Landing | State::Landed)).then_some(self.folded)
    }

    pub(super) fn unfolded(&self) -> &[u8] {
        self.scratch.unfolded()
    }

    pub(super) fn on_folded(&mut self, bytes: usize) {
        let was_full = self.scratch.is_full();
        self.folded += bytes as u64;
        self.scratch.consume(bytes);
        if was_full && !self.scratch.is_full() {
            // This fold delayed the sender until now. From now on the fold waits for the sender.
            self.stall_timer.restart(Instant::now());
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Landed | State::Done)
    }

    /// Returns how many bytes have come, if the stream has brought none for another `after` although it was being
    /// read. Before it arrives, `Arrivals` watches it.
    pub(super) fn stalled(&mut self, now: Instant, after: Duration) -> Option<u64> {
        (self.is_listened_to() && self.stall_timer.is_reportable(now, after)).then_some(self.received)
    }

    /// When to check whether it has stalled, while it is being read.
    pub(super) fn stall_due(&self, after: Duration) -> Option<Instant> {
        self.is_listened_to().then(|| self.stall_timer.due(after))
    }

    fn is_listened_to(&self) -> bool {
        match self.state {
            State::Flowing(_) => !self.scratch.is_full(),
            State::Trailing(..) => true,
            // `Arrivals` or the reader of the shared bundle watches it.
            State::Awaited | State::Landing | State::Landed | State::Done => false,
        }
    }

    /// The stream has begun on a shared bundle.
    pub(super) fn land(&mut self) {
        self.state = State::Landing;
    }

    /// All its bytes are in the sum, and its seal has come.
    pub(super) fn landed(&mut self) {
        self.state = State::Landed;
    }

    /// The measured rate of the peer's link.
    pub(super) fn measured(&self) -> Option<Input> {
        self.receive_rate.measured(self.from)
    }

    /// The stream's bundle has come. Returns false if the stream does not fit the fold.
    pub(super) fn arrive(&mut self, head: &BulkHead, size: u64, bundle: Detached) -> bool {
        if (head.offset, head.size) != (0, size) {
            warn!(peer = %self.from, ?head, size, "the stream does not fit the fold; connection closed");
            return false;
        }
        match (&self.state, bundle.attach()) {
            (State::Awaited, Ok(bundle)) => {
                self.state = State::Flowing(bundle);
                self.stall_timer.restart(Instant::now());
                true
            }
            _ => false,
        }
    }

    /// Reads once, if there is space.
    pub(super) fn read(&mut self, size: u64) -> Read {
        if self.received == size {
            self.begin_trailer();
        }
        let read = match &mut self.state {
            State::Awaited | State::Landing | State::Landed | State::Done => return Read::Nothing,
            State::Flowing(_) if self.scratch.is_full() => return Read::Nothing,
            State::Flowing(bundle) => self.scratch.fill(size - self.received, |free| bundle.try_read(free)),
            State::Trailing(bundle, trailer) => match trailer.read::<Seal>(bundle) {
                // The coordinator knows the sources of a partial sum; only the arrival of the seal matters.
                Ok(Some(Seal { .. })) => return self.end(),
                Ok(None) => return Read::Bytes(0),
                Err(error) => Err(error),
            },
        };
        match read {
            Ok(0) => Read::Broken,
            Ok(read) => self.on_read(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Read::Nothing,
            Err(error) => {
                debug!(peer = %self.from, transfer = self.transfer.0, %error, "stream broke");
                Read::Broken
            }
        }
    }

    /// Whether `read` may have something to do. Registers for a wake-up otherwise.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.state {
            State::Flowing(_) if self.scratch.is_full() => Poll::Pending,
            State::Flowing(bundle) | State::Trailing(bundle, _) => bundle.poll_read_ready(cx).map(drop),
            State::Awaited | State::Landing | State::Landed | State::Done => Poll::Pending,
        }
    }

    fn begin_trailer(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Done) {
            State::Flowing(bundle) => State::Trailing(bundle, Framing::default()),
            other => other,
        };
    }

    fn on_read(&mut self, read: usize) -> Read {
        self.received += read as u64;
        let now = Instant::now();
        self.receive_rate.on_read(now, read);
        self.stall_timer.restart(now);
        Read::Bytes(read)
    }

    fn end(&mut self) -> Read {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Trailing(bundle, _) => {
                self.scratch_done();
                Read::Ended(bundle)
            }
            other => unreachable!("{other:?} is no trailing stream"),
        }
    }

    fn scratch_done(&mut self) {
        if self.scratch.unfolded().is_empty() {
            self.scratch.release();
        }
    }
}

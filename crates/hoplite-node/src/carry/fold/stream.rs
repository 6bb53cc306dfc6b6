//! One stream into a fold.
//!
//! ```text
//! Awaited ──arrive──▶ Flowing ──last byte──▶ Trailing ──seal──▶ Done
//! ```

use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hoplite_core::io::Input;
use hoplite_net::{Bundle, Detached};
use hoplite_wire::{body_bytes, decode, FRAME_HEADER_BYTES};
use hoplite_words::peer::{BulkHead, Seal};
use hoplite_words::{NodeId, TransferId};
use tracing::{debug, warn};

use super::scratch::Scratch;
use crate::carry::flow::Flow;
use crate::carry::silence::Silence;

/// A transfer whose bytes are folded as they come.
#[derive(Debug)]
pub(super) struct Stream {
    transfer: TransferId,
    from: NodeId,
    state: State,
    scratch: Scratch,
    received: u64,
    folded: u64,
    flow: Flow,
    silence: Silence,
}

#[derive(Debug)]
enum State {
    Awaited,
    Flowing(Bundle),
    Trailing(Bundle, Trailer),
    Done,
}

/// What one look at the socket brought.
#[derive(Debug)]
pub(super) enum Read {
    Nothing,
    Bytes(usize),
    /// The seal: the bundle is free for its next transfer.
    Ended(Bundle),
    Broken,
}

impl Stream {
    pub(super) fn new(transfer: TransferId, from: NodeId, scratch_bytes_max: usize) -> Self {
        let scratch = Scratch::new(scratch_bytes_max);
        let (state, flow, silence) = (State::Awaited, Flow::new(), Silence::new(Instant::now()));
        Stream { transfer, from, state, scratch, received: 0, folded: 0, flow, silence }
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

    pub(super) fn unfolded(&self) -> &[u8] {
        self.scratch.unfolded()
    }

    pub(super) fn on_folded(&mut self, bytes: usize) {
        let was_full = self.scratch.is_full();
        self.folded += bytes as u64;
        self.scratch.consume(bytes);
        if was_full && !self.scratch.is_full() {
            // Its sender was kept waiting by us; from here on it is us who wait.
            self.silence.restart(Instant::now());
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// How far it has come, if another `after` has passed in which it brought nothing although it was
    /// listened to. Before it has arrived, `Arrivals` watches it.
    pub(super) fn stalled(&mut self, now: Instant, after: Duration) -> Option<u64> {
        (self.is_listened_to() && self.silence.is_reportable(now, after)).then_some(self.received)
    }

    /// When to look whether it is stalled, while it is listened to.
    pub(super) fn stall_due(&self, after: Duration) -> Option<Instant> {
        self.is_listened_to().then(|| self.silence.due(after))
    }

    fn is_listened_to(&self) -> bool {
        match self.state {
            State::Flowing(_) => !self.scratch.is_full(),
            State::Trailing(..) => true,
            State::Awaited | State::Done => false,
        }
    }

    /// What this stream told of its peer's link.
    pub(super) fn measured(&self) -> Option<Input> {
        self.flow.measured(self.from)
    }

    /// Its bundle is here. False if it does not bring what the fold needs.
    pub(super) fn arrive(&mut self, head: &BulkHead, size: u64, bundle: Detached) -> bool {
        if (head.offset, head.size) != (0, size) {
            warn!(peer = %self.from, ?head, size, "the stream does not fit the fold; connection closed");
            return false;
        }
        match (&self.state, bundle.attach()) {
            (State::Awaited, Ok(bundle)) => {
                self.state = State::Flowing(bundle);
                self.silence.restart(Instant::now());
                true
            }
            _ => false,
        }
    }

    /// Takes what one read gives, if there is room for it.
    pub(super) fn read(&mut self, size: u64) -> Read {
        if self.received == size {
            self.begin_trailer();
        }
        let read = match &mut self.state {
            State::Awaited | State::Done => return Read::Nothing,
            State::Flowing(_) if self.scratch.is_full() => return Read::Nothing,
            State::Flowing(bundle) => self.scratch.fill(size - self.received, |free| bundle.try_read(free)),
            State::Trailing(bundle, trailer) => trailer.read(bundle),
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

    /// Whether `read` may have something to do; registers for being woken otherwise.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.state {
            State::Flowing(_) if self.scratch.is_full() => Poll::Pending,
            State::Flowing(bundle) | State::Trailing(bundle, _) => bundle.poll_read_ready(cx).map(drop),
            State::Awaited | State::Done => Poll::Pending,
        }
    }

    fn begin_trailer(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Done) {
            State::Flowing(bundle) => State::Trailing(bundle, Trailer::default()),
            other => other,
        };
    }

    fn on_read(&mut self, read: usize) -> Read {
        match &self.state {
            State::Trailing(_, trailer) if trailer.is_whole() => {
                match std::mem::replace(&mut self.state, State::Done) {
                    State::Trailing(bundle, _) => {
                        self.scratch_done();
                        Read::Ended(bundle)
                    }
                    other => unreachable!("{other:?} is no trailing stream"),
                }
            }
            State::Trailing(..) => Read::Bytes(0),
            _ => {
                self.received += read as u64;
                let now = Instant::now();
                self.flow.on_read(now, read);
                self.silence.restart(now);
                Read::Bytes(read)
            }
        }
    }

    fn scratch_done(&mut self) {
        if self.scratch.unfolded().is_empty() {
            self.scratch.release();
        }
    }
}

/// A `Seal` frame in the making: read byte-exactly, since the next transfer may follow it.
#[derive(Debug, Default)]
struct Trailer {
    bytes: Vec<u8>,
    whole: bool,
}

impl Trailer {
    fn read(&mut self, bundle: &mut Bundle) -> io::Result<usize> {
        let had = self.bytes.len();
        let needed = match self.bytes.first_chunk() {
            None => FRAME_HEADER_BYTES,
            Some(header) => FRAME_HEADER_BYTES + body_bytes(*header).map_err(io::Error::other)?,
        };
        self.bytes.resize(needed, 0);
        let read = bundle.try_read(&mut self.bytes[had..]);
        self.bytes.truncate(had + *read.as_ref().unwrap_or(&0));
        if read.is_ok() && self.bytes.len() == needed && needed > FRAME_HEADER_BYTES {
            // The sources of a partial sum are known to the coordinator; only its coming matters.
            decode::<Seal>(&self.bytes[FRAME_HEADER_BYTES..]).map_err(io::Error::other)?;
            self.whole = true;
        }
        read
    }

    fn is_whole(&self) -> bool {
        self.whole
    }
}

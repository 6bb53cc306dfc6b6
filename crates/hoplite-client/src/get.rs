//! Getting objects: as a view, or copied behind their arrival.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_store::{copy_streaming, Followed, STREAM_FROM_BYTES};
use hoplite_words::client::Request;
use hoplite_words::{Error, ErrorKind, Header, ObjectId, Result};

use crate::client::{left_of, milliseconds};
use crate::patience::{deadline, Interrupt, Patience};
use crate::view::{hold, Held};
use crate::{Client, Destination, View};

/// Copied between two looks at watermark and interrupt.
const PIECE_BYTES: u64 = 1 << 20;

pub(crate) enum Copied {
    Whole,
    /// The writing was abandoned; nothing of it counts.
    Aborted,
}

impl Client {
    /// Waits until the object exists and is complete on this node; returns a view without copying.
    ///
    /// With `fail_if_lost` a get fails with `Lost` when the last complete copy dies; else it waits
    /// for the object to be put again.
    ///
    /// # Errors
    /// `TimedOut`, `Deleted`, `Lost`, `StoreFull`, those of [`Client::submit`], the interrupt's.
    pub fn get(
        self: &Arc<Self>,
        id: ObjectId,
        timeout: Option<Duration>,
        fail_if_lost: bool,
        interrupt: Interrupt<'_>,
    ) -> Result<View> {
        let request = Request::Get { id, timeout_ms: milliseconds(timeout), partial: false, fail_if_lost };
        View::adopt(self, id, self.call(request, timeout, interrupt)?)
    }

    /// Copies the object into private memory while it arrives, and returns its header once all of
    /// it is there and final. After an error the destination holds anything.
    ///
    /// # Errors
    /// As [`Client::get`], and those of the destination.
    pub fn get_into(
        self: &Arc<Self>,
        id: ObjectId,
        timeout: Option<Duration>,
        fail_if_lost: bool,
        destination: &mut dyn Destination,
        interrupt: Interrupt<'_>,
    ) -> Result<Header> {
        let started = Instant::now();
        let mut patience = Patience::new(deadline(timeout), interrupt);
        loop {
            let left = left_of(timeout, started);
            let request = Request::Get { id, timeout_ms: milliseconds(left), partial: true, fail_if_lost };
            let reply = self.call(request, left, patience.interrupt())?;
            let (held, header) = hold(self, id, reply)?;
            let room = destination.room(held.reader.size(), &header)?;
            if room.len() as u64 != held.reader.size() {
                return Err(Error::new(
                    ErrorKind::BadArgument,
                    format!("room for {} of {} bytes of {id}", room.len(), held.reader.size()),
                ));
            }
            match self.copy_behind(&held, id, room, &mut patience)? {
                Copied::Whole => return Ok(header),
                // Released first, so that the node can let go of it; then the next writing.
                Copied::Aborted => drop(held),
            }
        }
    }

    pub(crate) fn copy_behind(
        &self,
        held: &Held,
        id: ObjectId,
        room: &mut [u8],
        patience: &mut Patience<'_>,
    ) -> Result<Copied> {
        let reader = &held.reader;
        let mut done = 0;
        loop {
            let Some(stretch) = patience.stretch() else {
                return Err(self.get_timed_out(id, done, reader.size(), patience.waited()));
            };
            match reader.follow(done, stretch) {
                Followed::Advanced(watermark) => {
                    let to = watermark.min(done + PIECE_BYTES);
                    let piece = &mut room[done as usize..to as usize];
                    match reader.size() >= STREAM_FROM_BYTES {
                        true => copy_streaming(piece, reader.bytes(done, to)),
                        false => piece.copy_from_slice(reader.bytes(done, to)),
                    }
                    done = to;
                }
                Followed::Sealed => return Ok(Copied::Whole),
                Followed::Aborted => return Ok(Copied::Aborted),
                Followed::Interrupted => patience.look_now()?,
                // Nobody aborts the copies of a node that has died.
                Followed::TimedOut => self.check_alive()?,
            }
            patience.look()?;
        }
    }

    fn get_timed_out(&self, id: ObjectId, done: u64, size: u64, waited: Duration) -> Error {
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "get {id} at node {}: {done} of {size} bytes after {:.1} s",
                self.node(),
                waited.as_secs_f64()
            ),
        )
    }
}

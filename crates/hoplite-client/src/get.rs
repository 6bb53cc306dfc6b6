//! Getting objects: as a view, or copied while they arrive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_store::{copy_streaming, Followed, STREAM_FROM_BYTES};
use hoplite_types::client::Request;
use hoplite_types::{Error, ErrorKind, Header, ObjectId, Result};

use crate::client::left_of;
use crate::deadline::{deadline_after, milliseconds, Deadline, Interrupt};
use crate::view::Held;
use crate::{Arriving, Client, Destination, Lookup, Ticket, View};

/// Bytes copied between two checks of watermark and interrupt.
const PIECE_BYTES: u64 = 1 << 20;

/// Limit on the extra time of a copying get whose time is up, to receive the node's diagnostics. It is far more than
/// a running node needs, and little beside a time-out.
const DIAGNOSTICS_WAIT_MAX: Duration = Duration::from_millis(200);

impl Client {
    /// Waits until the object exists and is complete on this node. Returns a view, without copying an object larger
    /// than `INLINE_BYTES_MAX`.
    ///
    /// With `fail_if_lost`, a get fails with `Lost` when the last complete copy is lost. Otherwise it waits until the
    /// object is put again.
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
        let miss = match self.look_up(id)? {
            Lookup::Hit(view) => return Ok(view),
            Lookup::Miss(miss) => miss,
        };
        let request = Request::Get { id, timeout_ms: milliseconds(timeout), partial: false, fail_if_lost };
        View::adopt(self, miss, self.call(request, timeout, interrupt)?)
    }

    /// Copies the object into private memory while it arrives. Returns its header once all of it is there and final.
    /// After an error the contents of the destination are undefined.
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
        let mut deadline = Deadline::new(deadline_after(timeout), interrupt);
        loop {
            let left = left_of(timeout, started);
            let request = Request::Get { id, timeout_ms: milliseconds(left), partial: true, fail_if_lost };
            let reply = self.call(request, left, deadline.interrupt())?;
            let arriving = Arriving::adopt(self, id, fail_if_lost, reply)?;
            let room = destination.room(arriving.size(), arriving.header())?;
            // The writing was abandoned. The copy is released first, so that the node can free it; then the next
            // writing is copied.
            if arriving.copy_with(room, &mut deadline)? {
                return Ok(arriving.into_header());
            }
        }
    }

    /// `false`: the writing was abandoned; the copied bytes are void.
    pub(crate) fn copy_behind(
        self: &Arc<Self>,
        held: &Held,
        id: ObjectId,
        fail_if_lost: bool,
        room: &mut [u8],
        deadline: &mut Deadline<'_>,
    ) -> Result<bool> {
        let reader = &held.reader;
        let mut enquiry = Enquiry { id, fail_if_lost, ticket: None };
        let mut done = 0;
        loop {
            let Some(stretch) = deadline.stretch() else {
                let diagnostics = enquiry.diagnostics(self);
                return Err(self.get_timed_out(id, done, reader.size(), deadline.waited(), diagnostics));
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
                Followed::Sealed => {
                    // Its answer comes at once. If it were cancelled instead, a view that is already under way would
                    // keep the object until this client next reads its socket.
                    let _ = enquiry.answer(self);
                    return Ok(true);
                }
                Followed::Aborted => return Ok(false),
                Followed::Interrupted => deadline.check_interrupt_now()?,
                Followed::TimedOut => {
                    // A dead node does not abort its copies.
                    self.check_alive()?;
                    if let Some(diagnostics) = enquiry.look(self, deadline.left())? {
                        return Err(self.get_timed_out(
                            id,
                            done,
                            reader.size(),
                            deadline.waited(),
                            Some(diagnostics),
                        ));
                    }
                }
            }
            deadline.check_interrupt()?;
        }
    }

    fn get_timed_out(
        &self,
        id: ObjectId,
        done: u64,
        size: u64,
        waited: Duration,
        diagnostics: Option<String>,
    ) -> Error {
        let (node, waited) = (self.node(), waited.as_secs_f64());
        let diagnostics = diagnostics.map(|diagnostics| format!("; {diagnostics}")).unwrap_or_default();
        let message = format!(
            "get {id} at node {node}: {done} of {size} bytes copied after {waited:.1} s{diagnostics}"
        );
        Error::new(ErrorKind::TimedOut, message).about(id)
    }
}

/// A get of the whole object, beside a copy that is being followed. It is sent when the copy's bytes first stop
/// coming: its answer shows whether more will come.
struct Enquiry {
    id: ObjectId,
    fail_if_lost: bool,
    ticket: Option<Ticket>,
}

impl Enquiry {
    /// Sends the get, or checks for its answer. Fails if the node answers with an error. `Some`: the time is up, with
    /// the node's message.
    fn look(&mut self, client: &Arc<Client>, left: Option<Duration>) -> Result<Option<String>> {
        let Some(ticket) = &mut self.ticket else {
            self.ticket = Some(self.ask(client, left)?);
            return Ok(None);
        };
        match ticket.try_take()? {
            None => return Ok(None),
            // The object is complete after all. The code that follows the copy sees that there.
            Some(Ok(view)) => client.discard(view),
            Some(Err(error)) if error.kind == ErrorKind::TimedOut => return Ok(Some(error.message)),
            Some(Err(error)) => return Err(error),
        }
        self.ticket = None;
        Ok(None)
    }

    /// The node's message on why the object is late.
    fn diagnostics(mut self, client: &Arc<Client>) -> Option<String> {
        self.ticket = self.ticket.take().or_else(|| self.ask(client, Some(Duration::ZERO)).ok());
        self.answer(client)
    }

    /// The message of the get's error, if a get was sent and has failed.
    fn answer(self, client: &Arc<Client>) -> Option<String> {
        match self.ticket?.wait(deadline_after(Some(DIAGNOSTICS_WAIT_MAX)), &mut crate::never) {
            Ok(view) => {
                client.discard(view);
                None
            }
            Err(error) => Some(error.message),
        }
    }

    fn ask(&self, client: &Arc<Client>, left: Option<Duration>) -> Result<Ticket> {
        client.submit(Request::Get {
            id: self.id,
            timeout_ms: milliseconds(left),
            partial: false,
            fail_if_lost: self.fail_if_lost,
        })
    }
}

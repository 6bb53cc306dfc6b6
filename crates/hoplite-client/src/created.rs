//! An object being written straight into the arena.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hoplite_store::{copy_streaming, State, Writer, STREAM_FROM_BYTES};
use hoplite_types::client::{Reply, Request};
use hoplite_types::{CopyId, Error, ErrorKind, ObjectId, Result};

use crate::deadline::{milliseconds, overdue_at, Deadline, Interrupt};
use crate::request::Subject;
use crate::{Client, Hold, Ticket};

/// Bytes written between two advances of the watermark. Receivers start after the first one, and the cost of an
/// advance does not show.
const PIECE_BYTES: usize = 1 << 20;

/// The memory of one new object. Fill `writable`, call `advance` when bytes are final (receivers stream behind), then
/// `seal`. If this is dropped before that, the object is withdrawn.
///
/// The memory is reused once the object is withdrawn, or sealed and deleted. A caller that passes the memory on,
/// other than by borrows of this, must request it with `keep`. It drops the hold when the last user has ended.
pub struct Created {
    client: Arc<Client>,
    id: ObjectId,
    copy: CopyId,
    writer: Writer,
    phase: Phase,
    hold: Option<Hold>,
}

/// ```text
/// Writing ──seal──▶ Settled      (the node decides)
///    └────drop / abort──▶ Settled  (the node is notified)
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Writing,
    Settled,
}

impl Created {
    /// Takes the answer to a `Create` of `size` bytes, or to a [`crate::put_request`], that the caller submitted.
    /// `None`: the node has the object, and there is nothing to write.
    ///
    /// # Errors
    /// `Internal` if it is no answer to `Create`.
    pub fn adopt(client: &Arc<Client>, id: ObjectId, size: u64, reply: Reply) -> Result<Option<Created>> {
        let (copy, offset, kept) = match reply {
            Reply::Done => return Ok(None),
            Reply::Created { copy, offset, kept } => (copy, offset, kept),
            other => return Err(client.unexpected_reply("create", other)),
        };
        let hold = kept.then(|| Hold::new(client, copy));
        match client.mapping().writer(offset, size) {
            Ok(writer) => {
                let client = client.clone();
                Ok(Some(Created { client, id, copy, writer, phase: Phase::Writing, hold }))
            }
            Err(error) => {
                client.abort(copy);
                Err(Error::new(
                    ErrorKind::Internal,
                    format!("node {} gave room for {id} that cannot be: {error}", client.node()),
                ))
            }
        }
    }

    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Takes the hold, which keeps the memory after this is gone, if `keep` was requested. Otherwise it is dropped
    /// with this.
    pub fn take_hold(&mut self) -> Option<Hold> {
        self.hold.take()
    }

    /// Bytes of the whole object.
    pub fn size(&self) -> u64 {
        self.writer.size()
    }

    /// Bytes published so far.
    pub fn watermark(&self) -> u64 {
        self.writer.watermark()
    }

    /// The unpublished bytes, from the watermark to the end. Their address at watermark 0 is a multiple of 64.
    pub fn writable(&mut self) -> &mut [u8] {
        let (from, to) = (self.writer.watermark(), self.writer.size());
        self.writer.unpublished(from, to)
    }

    /// Declares the next `bytes` bytes of `writable` final: receivers may read them.
    ///
    /// # Errors
    /// `BadArgument` past the end or in a forked child.
    pub fn advance(&mut self, bytes: u64) -> Result<()> {
        self.client.check_process()?;
        self.check_fits(bytes)?;
        let watermark = self.watermark() + bytes;
        self.writer.publish(watermark);
        if self.writer.take_wanted() {
            self.client.tell(Request::Progress { copy: self.copy, watermark });
        }
        Ok(())
    }

    /// Copies `bytes` to the watermark and advances over them.
    ///
    /// # Errors
    /// `BadArgument` past the end or in a forked child.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        // Checked before a byte is written: the memory is the parent's, too.
        self.client.check_process()?;
        let (from, streaming) = (self.watermark(), self.size() >= STREAM_FROM_BYTES);
        let more = bytes.len() as u64;
        self.check_fits(more)?;
        let room = self.writer.unpublished(from, from + more);
        match streaming {
            true => copy_streaming(room, bytes),
            false => room.copy_from_slice(bytes),
        }
        self.advance(more)
    }

    /// Copies `parts`, one behind the other, to the watermark, and advances behind each piece. It stops early if the
    /// node abandons the object; `seal` then returns the reason.
    ///
    /// # Errors
    /// `BadArgument` past the end or in a forked child, `NodeUnreachable`, the interrupt's.
    pub fn write(&mut self, parts: &[&[u8]], interrupt: Interrupt<'_>) -> Result<()> {
        let mut deadline = Deadline::new(None, interrupt);
        for piece in parts.iter().flat_map(|part| part.chunks(PIECE_BYTES)) {
            if self.is_aborted() {
                break;
            }
            self.append(piece)?;
            if deadline.is_check_due() {
                // A dead node does not abort its copies.
                self.client.check_alive()?;
                deadline.check_interrupt_now()?;
            }
        }
        Ok(())
    }

    fn check_fits(&self, more: u64) -> Result<()> {
        let left = self.size() - self.watermark();
        if more <= left {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::BadArgument,
            format!("{more} more bytes of {}: {left} are left of {}", self.id, self.size()),
        ))
    }

    /// Whether the node has abandoned the object meanwhile (it was deleted, or refused by its owner). `seal` then
    /// returns the reason.
    pub fn is_aborted(&self) -> bool {
        self.writer.state() == State::Aborted
    }

    /// Everything is written: the object is complete and immutable once the directory accepts it. Bytes that are not
    /// yet published are published as they are.
    ///
    /// # Errors
    /// `Deleted`, `AlreadyExists`, `TimedOut`, those of [`Client::submit`], the interrupt's. After the last three the
    /// object is withdrawn, unless it was complete before the node learned of that.
    pub fn seal(self, timeout: Option<Duration>, interrupt: Interrupt<'_>) -> Result<()> {
        let client = self.client.clone();
        let reply = self.submit_seal(timeout)?.wait(overdue_at(timeout), interrupt)?;
        client.done("seal", reply)
    }

    /// As `seal`, without waiting: the ticket's answer is `Reply::Done`. Dropping the ticket before the answer has
    /// come withdraws the object.
    ///
    /// # Errors
    /// Those of [`Client::submit`].
    pub fn submit_seal(mut self, timeout: Option<Duration>) -> Result<Ticket> {
        self.client.check_process()?;
        if !self.is_aborted() {
            self.advance(self.size() - self.watermark())?;
        }
        let subject = Subject { verb: "seal", id: Some(self.id) };
        let request = Request::Seal { copy: self.copy, timeout_ms: milliseconds(timeout) };
        let ticket = self.client.submit_about(request, subject)?;
        self.phase = Phase::Settled;
        Ok(ticket)
    }

    /// Withdraws the object, as dropping does.
    pub fn abort(self) {
        drop(self);
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        if std::mem::replace(&mut self.phase, Phase::Settled) == Phase::Writing {
            self.client.abort(self.copy);
        }
    }
}

impl fmt::Debug for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Created {:?}: {} of {} bytes", self.id, self.watermark(), self.size())
    }
}

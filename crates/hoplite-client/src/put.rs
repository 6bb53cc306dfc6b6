//! Putting objects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_types::client::Request;
use hoplite_types::limits::INLINE_BYTES_MAX;
use hoplite_types::{Blob, Header, ObjectId, Result};

use crate::client::{left_of, milliseconds};
use crate::deadline::{deadline_after, Deadline, Interrupt};
use crate::{Client, Created};

/// Bytes written between two advances of the watermark. Receivers start after the first one, and the cost of an
/// advance does not show.
const PIECE_BYTES: usize = 1 << 20;

impl Client {
    /// Creates an object from `parts`, one behind the other. It is announced before its bytes are copied, so that
    /// receivers stream behind the copy. It is complete when this returns. Another put of the same id and size is
    /// accepted; another size is not.
    ///
    /// # Errors
    /// `BadArgument` (header and size do not fit), `AlreadyExists`, `Deleted`, `StoreFull`, `TimedOut`, those of
    /// [`Client::submit`], the interrupt's. The object is then withdrawn.
    pub fn put(
        self: &Arc<Self>,
        id: ObjectId,
        header: Header,
        parts: &[&[u8]],
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let started = Instant::now();
        let size = parts.iter().map(|part| part.len() as u64).sum();
        if size <= INLINE_BYTES_MAX {
            let request = Request::PutSmall {
                id,
                header,
                payload: Blob(parts.concat()),
                timeout_ms: milliseconds(timeout),
            };
            return self.done("put", self.call(request, timeout, interrupt)?);
        }
        let Some(mut created) = self.create(id, size, header, timeout, interrupt)? else {
            return Ok(());
        };
        let mut deadline = Deadline::new(deadline_after(left_of(timeout, started)), interrupt);
        for piece in parts.iter().flat_map(|part| part.chunks(PIECE_BYTES)) {
            if created.is_aborted() {
                break;
            }
            created.append(piece)?;
            if deadline.is_check_due() {
                // A dead node does not abort its copies.
                self.check_alive()?;
                deadline.check_interrupt_now()?;
            }
        }
        created.seal(left_of(timeout, started), deadline.interrupt())
    }

    /// Reserves space for an object of `size` bytes and announces it at once; the caller writes it in place. `None`:
    /// this node has the object already, with this size.
    ///
    /// # Errors
    /// As [`Client::put`].
    pub fn create(
        self: &Arc<Self>,
        id: ObjectId,
        size: u64,
        header: Header,
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<Option<Created>> {
        let timeout_ms = milliseconds(timeout);
        let request = Request::Create { id, size, header, timeout_ms, keep: false };
        Created::adopt(self, id, size, self.call(request, timeout, interrupt)?)
    }
}

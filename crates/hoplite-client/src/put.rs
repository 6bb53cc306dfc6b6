//! Putting objects.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hoplite_types::client::Request;
use hoplite_types::limits::INLINE_BYTES_MAX;
use hoplite_types::{Blob, Header, ObjectId, Result};

use crate::client::left_of;
use crate::deadline::{milliseconds, Interrupt};
use crate::{Client, Created};

/// Bytes of `parts`, one behind the other.
pub fn size_of_parts(parts: &[&[u8]]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

/// The first request of a put of `parts`, one behind the other. It has the bytes if they are few. Otherwise it reserves
/// space for them, and its answer goes to [`Created::adopt`]: then follow [`Created::write`] and a seal.
pub fn put_request(id: ObjectId, header: Header, parts: &[&[u8]], timeout: Option<Duration>) -> Request {
    let (size, timeout_ms) = (size_of_parts(parts), milliseconds(timeout));
    if size <= INLINE_BYTES_MAX {
        return Request::PutSmall { id, header, payload: Blob(parts.concat()), timeout_ms };
    }
    Request::Create { id, size, header, timeout_ms, keep: false }
}

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
        let reply = self.call(put_request(id, header, parts, timeout), timeout, interrupt)?;
        let Some(mut created) = Created::adopt(self, id, size_of_parts(parts), reply)? else {
            return Ok(());
        };
        created.write(parts, interrupt)?;
        created.seal(left_of(timeout, started), interrupt)
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

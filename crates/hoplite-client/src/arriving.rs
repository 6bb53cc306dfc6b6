//! An object that is arriving at the node: its bytes are copied as they come in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hoplite_types::client::Reply;
use hoplite_types::{Error, ErrorKind, Header, ObjectId, Result};

use crate::deadline::{deadline_after, Deadline, Interrupt};
use crate::view::{receive, Received};
use crate::Client;

/// A copy that may still be incomplete, kept until this is dropped. For callers such as event loops, which cannot
/// wait inside [`Client::get_into`] until the object exists.
pub struct Arriving {
    client: Arc<Client>,
    id: ObjectId,
    fail_if_lost: bool,
    received: Received,
}

impl Arriving {
    /// Takes the answer to a `partial` `Get`, which the caller submitted with the same `fail_if_lost`.
    ///
    /// # Errors
    /// `Internal` if it is no answer to a get.
    pub fn adopt(client: &Arc<Client>, id: ObjectId, fail_if_lost: bool, reply: Reply) -> Result<Arriving> {
        let received = receive(client, id, reply)?;
        Ok(Arriving { client: client.clone(), id, fail_if_lost, received })
    }

    /// Bytes of the whole object.
    pub fn size(&self) -> u64 {
        match &self.received {
            Received::View(held, _) => held.reader.size(),
            Received::Small(bytes, _) => bytes.len() as u64,
        }
    }

    pub fn header(&self) -> &Header {
        let (Received::View(_, header) | Received::Small(_, header)) = &self.received;
        header
    }

    pub(crate) fn into_header(self) -> Header {
        let (Received::View(_, header) | Received::Small(_, header)) = self.received;
        header
    }

    /// Copies the object, and waits for its bytes. `false`: this writing was abandoned; drop this and get the object
    /// again.
    ///
    /// # Errors
    /// `BadArgument` unless `room` has exactly `size` bytes, `TimedOut`, `Lost`, `Deleted`, `NodeUnreachable`, the
    /// interrupt's. The contents of `room` are then undefined.
    pub fn copy_into(
        &self,
        room: &mut [u8],
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<bool> {
        self.copy_with(room, &mut Deadline::new(deadline_after(timeout), interrupt))
    }

    pub(crate) fn copy_with(&self, room: &mut [u8], deadline: &mut Deadline<'_>) -> Result<bool> {
        if room.len() as u64 != self.size() {
            return Err(Error::new(
                ErrorKind::BadArgument,
                format!("room for {} of {} bytes of {}", room.len(), self.size(), self.id),
            ));
        }
        match &self.received {
            Received::Small(bytes, _) => {
                room.copy_from_slice(bytes);
                Ok(true)
            }
            Received::View(held, _) => {
                self.client.copy_behind(held, self.id, self.fail_if_lost, room, deadline)
            }
        }
    }
}

impl fmt::Debug for Arriving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present = match &self.received {
            Received::View(held, _) => held.reader.watermark(),
            Received::Small(bytes, _) => bytes.len() as u64,
        };
        write!(f, "Arriving {:?}: {present} of {} bytes", self.id, self.size())
    }
}

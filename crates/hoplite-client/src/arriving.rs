//! An object on its way here, to be copied behind its arrival.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hoplite_words::client::Reply;
use hoplite_words::{Error, ErrorKind, Header, ObjectId, Result};

use crate::get::Copied;
use crate::patience::{deadline, Interrupt, Patience};
use crate::view::{hold, Held};
use crate::Client;

/// A copy that may still be incomplete, kept until dropped; for who cannot wait inside
/// [`Client::get_into`] until the object exists, such as an event loop.
pub struct Arriving {
    client: Arc<Client>,
    id: ObjectId,
    fail_if_lost: bool,
    held: Held,
    header: Header,
}

impl Arriving {
    /// Takes over the answer to a `partial` `Get`, submitted by hand with the same `fail_if_lost`.
    ///
    /// # Errors
    /// `Internal` if it is no view.
    pub fn adopt(client: &Arc<Client>, id: ObjectId, fail_if_lost: bool, reply: Reply) -> Result<Arriving> {
        let (held, header) = hold(client, id, reply)?;
        Ok(Arriving { client: client.clone(), id, fail_if_lost, held, header })
    }

    /// Bytes of the whole object.
    pub fn size(&self) -> u64 {
        self.held.reader.size()
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Copies the object, waiting for its bytes. `false`: this writing of it was abandoned; drop
    /// this and ask again.
    ///
    /// # Errors
    /// `BadArgument` unless `room` has exactly `size` bytes, `TimedOut`, `Lost`, `Deleted`,
    /// `NodeUnreachable`, the interrupt's. Then `room` holds anything.
    pub fn copy_into(
        &self,
        room: &mut [u8],
        timeout: Option<Duration>,
        interrupt: Interrupt<'_>,
    ) -> Result<bool> {
        if room.len() as u64 != self.size() {
            return Err(Error::new(
                ErrorKind::BadArgument,
                format!("room for {} of {} bytes of {}", room.len(), self.size(), self.id),
            ));
        }
        let mut patience = Patience::new(deadline(timeout), interrupt);
        match self.client.copy_behind(&self.held, self.id, self.fail_if_lost, room, &mut patience)? {
            Copied::Whole => Ok(true),
            Copied::Aborted => Ok(false),
        }
    }
}

impl fmt::Debug for Arriving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arriving {:?}: {} of {} bytes", self.id, self.held.reader.watermark(), self.size())
    }
}

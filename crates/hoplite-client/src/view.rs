//! A read-only, zero-copy view of a complete object.

use std::fmt;
use std::sync::Arc;

use hoplite_store::Reader;
use hoplite_words::client::Reply;
use hoplite_words::{CopyId, Error, ErrorKind, Header, ObjectId, Result};

use crate::Client;

/// Keeps an object's bytes where they are, on this node, until dropped.
pub struct View {
    held: Held,
    header: Header,
}

/// A copy that the node keeps for us; released when dropped.
pub(crate) struct Held {
    client: Arc<Client>,
    copy: CopyId,
    pub(crate) reader: Reader,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.client.release(self.copy);
    }
}

impl View {
    /// Takes over the answer to a `Get` that was not `partial`, submitted by hand.
    ///
    /// # Errors
    /// `Internal` if it is no view of a complete object.
    pub fn adopt(client: &Arc<Client>, id: ObjectId, reply: Reply) -> Result<View> {
        let (held, header) = hold(client, id, reply)?;
        let (watermark, size) = (held.reader.watermark(), held.reader.size());
        if watermark < size {
            return Err(Error::new(
                ErrorKind::Internal,
                format!("node {} gave a view of {id} with {watermark} of {size} bytes", client.node()),
            ));
        }
        Ok(View { held, header })
    }

    /// The object's bytes. Their address is a multiple of 64.
    pub fn bytes(&self) -> &[u8] {
        self.held.reader.bytes(0, self.held.reader.size())
    }

    pub fn header(&self) -> &Header {
        &self.header
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View of {} bytes", self.held.reader.size())
    }
}

/// Takes over whatever copy `reply` brings, complete or not.
pub(crate) fn hold(client: &Arc<Client>, id: ObjectId, reply: Reply) -> Result<(Held, Header)> {
    let Reply::View { copy, offset, size, header, .. } = reply else {
        return Err(client.misfit("get", reply));
    };
    match client.mapping().reader(offset, size) {
        Ok(reader) => Ok((Held { client: client.clone(), copy, reader }, header)),
        Err(error) => {
            client.release(copy);
            Err(Error::new(
                ErrorKind::Internal,
                format!("node {} gave a view of {id} that cannot be: {error}", client.node()),
            ))
        }
    }
}

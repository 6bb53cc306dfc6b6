//! A read-only view of a complete object.

use std::fmt;
use std::sync::Arc;

use hoplite_store::Reader;
use hoplite_words::client::Reply;
use hoplite_words::{CopyId, Error, ErrorKind, Header, ObjectId, Result};

use crate::cache::{is_small, Small};
use crate::{Client, Miss};

/// An object's bytes: where they are, on this node, which keeps them until this is dropped; or, of a small
/// object, in private memory.
pub struct View(Memory);

enum Memory {
    Arena(Held, Header),
    Private(Arc<Small>),
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
    pub(crate) fn of(small: Arc<Small>) -> View {
        View(Memory::Private(small))
    }

    /// Takes over the answer to a `Get` that was not `partial`, submitted by hand after the `miss`.
    ///
    /// # Errors
    /// `Internal` if it is no view of a complete object.
    pub fn adopt(client: &Arc<Client>, miss: Miss, reply: Reply) -> Result<View> {
        let (held, header) = hold(client, miss.id, reply)?;
        let (watermark, size) = (held.reader.watermark(), held.reader.size());
        if watermark < size {
            let (node, id) = (client.node(), miss.id);
            return Err(Error::new(
                ErrorKind::Internal,
                format!("node {node} gave a view of {id} with {watermark} of {size} bytes"),
            ));
        }
        if !is_small(size) {
            return Ok(View(Memory::Arena(held, header)));
        }
        let small = Arc::new(Small::copy(held.reader.bytes(0, size), header));
        client.cache().keep(miss, small.clone());
        Ok(View::of(small))
    }

    /// The object's bytes. Their address is a multiple of 64.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Memory::Arena(held, _) => held.reader.bytes(0, held.reader.size()),
            Memory::Private(small) => small.bytes(),
        }
    }

    pub fn header(&self) -> &Header {
        match &self.0 {
            Memory::Arena(_, header) => header,
            Memory::Private(small) => &small.header,
        }
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View of {} bytes", self.bytes().len())
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

//! A read-only view of a complete object.

use std::fmt;
use std::sync::Arc;

use hoplite_store::Reader;
use hoplite_types::client::Reply;
use hoplite_types::{CopyId, Error, ErrorKind, Header, ObjectId, Result};

use crate::cache::{is_small, Small};
use crate::{Client, Miss};

/// An object's bytes. They are in the arena, where the node keeps them until this is dropped; or, for a small object,
/// in private memory.
pub struct View(Memory);

enum Memory {
    Arena(Held, Header),
    Private(Arc<Small>),
}

/// Keeps the memory of a copy mapped, and keeps the node from reusing it, until this is dropped.
pub struct Hold {
    client: Arc<Client>,
    copy: CopyId,
}

impl Hold {
    pub(crate) fn new(client: &Arc<Client>, copy: CopyId) -> Hold {
        Hold { client: client.clone(), copy }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.client.release(self.copy);
    }
}

/// A copy that the node keeps for this client.
pub(crate) struct Held {
    pub(crate) reader: Reader,
    _hold: Hold,
}

impl View {
    pub(crate) fn of(small: Arc<Small>) -> View {
        View(Memory::Private(small))
    }

    /// Takes the answer to a `Get` that was not `partial`, and that the caller submitted after the `miss`.
    ///
    /// # Errors
    /// `Internal` if it is no view of a complete object.
    pub fn adopt(client: &Arc<Client>, miss: Miss, reply: Reply) -> Result<View> {
        let (held, header) = match receive(client, miss.id, reply)? {
            Received::View(held, header) => (held, header),
            Received::Small(bytes, header) => return Ok(View::keep(client, miss, &bytes, header)),
        };
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
        Ok(View::keep(client, miss, held.reader.bytes(0, size), header))
    }

    /// Copies a small object to private memory, and caches it for the next get.
    fn keep(client: &Client, miss: Miss, bytes: &[u8], header: Header) -> View {
        let small = Arc::new(Small::copy(bytes, header));
        client.cache().keep(miss, small.clone());
        View::of(small)
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

/// The result of a get.
pub(crate) enum Received {
    /// A copy in the arena, complete or not.
    View(Held, Header),
    /// The bytes of a small object.
    Small(Vec<u8>, Header),
}

/// Takes the copy or the bytes that come with `reply`.
pub(crate) fn receive(client: &Arc<Client>, id: ObjectId, reply: Reply) -> Result<Received> {
    let (copy, offset, size, header) = match reply {
        Reply::View { copy, offset, size, header, .. } => (copy, offset, size, header),
        Reply::Small { header, payload } => return Ok(Received::Small(payload.0, header)),
        other => return Err(client.unexpected_reply("get", other)),
    };
    let hold = Hold::new(client, copy);
    match client.mapping().reader(offset, size) {
        Ok(reader) => Ok(Received::View(Held { reader, _hold: hold }, header)),
        Err(error) => Err(Error::new(
            ErrorKind::Internal,
            format!("node {} gave a view of {id} that cannot be: {error}", client.node()),
        )),
    }
}

//! Frames that are read byte-exactly, as their bytes come: raw ones may follow.

use std::io;

use hoplite_net::Bundle;
use hoplite_wire::{body_bytes, decode, FRAME_HEADER_BYTES};
use minicbor::Decode;

/// The frame in the making.
#[derive(Debug, Default)]
pub(super) struct Framing {
    bytes: Vec<u8>,
}

impl Framing {
    /// Takes what one read gives. `None`: there is more to come of the frame.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there; what the kernel or the decoder reports, after which the bundle is of no
    /// more use.
    pub(super) fn read<T>(&mut self, bundle: &mut Bundle) -> io::Result<Option<T>>
    where
        T: for<'b> Decode<'b, ()>,
    {
        let had = self.bytes.len();
        let needed = match self.bytes.first_chunk() {
            None => FRAME_HEADER_BYTES,
            Some(header) => FRAME_HEADER_BYTES + body_bytes(*header).map_err(io::Error::other)?,
        };
        self.bytes.resize(needed, 0);
        let read = bundle.try_read(&mut self.bytes[had..]);
        self.bytes.truncate(had + *read.as_ref().unwrap_or(&0));
        if read? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.bytes.len() < needed || needed == FRAME_HEADER_BYTES {
            return Ok(None);
        }
        let frame = decode(&self.bytes[FRAME_HEADER_BYTES..]).map_err(io::Error::other)?;
        self.bytes.clear();
        Ok(Some(frame))
    }
}

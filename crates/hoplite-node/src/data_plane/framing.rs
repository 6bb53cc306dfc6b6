//! Reads frames byte-exactly as their bytes arrive, because raw bytes may follow.

use std::io;

use hoplite_net::Bundle;
use hoplite_wire::{body_bytes, decode, FRAME_HEADER_BYTES};
use minicbor::Decode;

/// Most space reserved for a long frame because of its announced length alone.
const READ_BYTES_MAX: usize = 64 << 10;

/// The received part of a frame.
#[derive(Debug, Default)]
pub(super) struct Framing {
    bytes: Vec<u8>,
}

impl Framing {
    /// Reads once. `None` if more of the frame is to come.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes are there; otherwise the kernel's or the decoder's error, after which the bundle
    /// cannot be used any more.
    pub(super) fn read<T>(&mut self, bundle: &mut Bundle) -> io::Result<Option<T>>
    where
        T: for<'b> Decode<'b, ()>,
    {
        let had = self.bytes.len();
        let needed = match self.bytes.first_chunk() {
            None => FRAME_HEADER_BYTES,
            Some(header) => FRAME_HEADER_BYTES + body_bytes(*header).map_err(io::Error::other)?,
        };
        self.bytes.resize(needed.min(had + READ_BYTES_MAX), 0);
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

#[cfg(test)]
mod tests {
    use hoplite_types::limits::FRAME_BYTES_MAX;
    use hoplite_types::peer::BulkFrame;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn the_length_of_a_frame_alone_makes_no_room_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut bundle = Bundle::from(listener.accept().await.unwrap().0);
        let mut framing = Framing::default();
        stream.write_all(&(FRAME_BYTES_MAX as u32).to_le_bytes()).await.unwrap();
        for _ in 0..3 {
            stream.write_all(&[0]).await.unwrap();
            bundle.readable().await.unwrap();
            while framing.read::<BulkFrame>(&mut bundle).is_ok() {}
            let room = framing.bytes.capacity();
            assert!(room <= 4 * READ_BYTES_MAX, "{room} bytes for {}", framing.bytes.len());
        }
    }
}

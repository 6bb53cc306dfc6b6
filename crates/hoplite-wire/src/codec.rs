//! Encodes a message as one frame, and decodes a frame's body.

use std::convert::Infallible;

use bytes::{BufMut, BytesMut};
use hoplite_types::limits::FRAME_BYTES_MAX;
use minicbor::{Decode, Decoder, Encode, Encoder};

use crate::{WireError, FRAME_HEADER_BYTES};

/// Appends `value` as one frame to `out`.
///
/// # Panics
/// If the frame would be longer than `FRAME_BYTES_MAX`. Every list in a message has a limit far below it in
/// `hoplite_types::limits`, and the code that builds a message checks those limits.
pub fn encode<T: Encode<()>>(value: &T, out: &mut BytesMut) {
    let start = out.len();
    out.put_bytes(0, FRAME_HEADER_BYTES);
    let Ok(()) = Encoder::new(Appending(out)).encode(value).map(drop).map_err(unencodable);
    let body = out.len() - start - FRAME_HEADER_BYTES;
    assert!(
        body <= FRAME_BYTES_MAX,
        "a {} of {body} bytes does not fit a frame; its builder must keep to the limits",
        std::any::type_name::<T>()
    );
    let length = u32::try_from(body).expect("FRAME_BYTES_MAX fits 32 bits");
    out[start..start + FRAME_HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
}

/// Decodes the body of one frame (without its length) as a `T`.
///
/// # Errors
/// [`WireError::Malformed`] if it is no `T`, [`WireError::Trailing`] if more bytes follow the `T`.
pub fn decode<T>(frame: &[u8]) -> Result<T, WireError>
where
    T: for<'b> Decode<'b, ()>,
{
    let message = std::any::type_name::<T>();
    let mut decoder = Decoder::new(frame);
    let value =
        decoder.decode().map_err(|source| WireError::Malformed { message, bytes: frame.len(), source })?;
    match frame.len() - decoder.position() {
        0 => Ok(value),
        trailing => Err(WireError::Trailing { message, bytes: frame.len(), trailing }),
    }
}

/// minicbor's own writers are for `Vec` and slices; frames are built in place in a `BytesMut`.
struct Appending<'a>(&'a mut BytesMut);

impl minicbor::encode::Write for Appending<'_> {
    type Error = Infallible;

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// Writing to memory cannot fail, so the only error is a type that refuses to be encoded. No message does.
fn unencodable(error: minicbor::encode::Error<Infallible>) -> Infallible {
    unreachable!("a word of the protocol cannot be encoded: {error}")
}

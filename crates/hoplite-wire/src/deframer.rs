//! Extracts whole frames from a byte stream that arrives in arbitrary pieces.

use bytes::{Buf, BytesMut};
use hoplite_types::limits::FRAME_BYTES_MAX;

use crate::WireError;

/// Bytes of the length field in front of every frame.
pub const FRAME_HEADER_BYTES: usize = 4;

/// Least free space for a read: most frames, or many of them, come with one call.
const READ_BYTES_MIN: usize = 8 << 10;

/// Most space reserved for a long frame because of its announced length alone.
const READ_BYTES_MAX: usize = 128 << 10;

/// The body length that a frame's first four bytes announce.
///
/// # Errors
/// [`WireError::TooLong`] over `FRAME_BYTES_MAX`.
pub fn body_bytes(header: [u8; FRAME_HEADER_BYTES]) -> Result<usize, WireError> {
    let bytes = u32::from_le_bytes(header);
    match usize::try_from(bytes) {
        Ok(body) if body <= FRAME_BYTES_MAX => Ok(body),
        _ => Err(WireError::TooLong { bytes: bytes.into() }),
    }
}

/// Collects received bytes and returns whole frame bodies.
///
/// Take frames until there is none before pushing more. Then at most one frame and one push are buffered, and a frame
/// that is too long is rejected as soon as its length is there.
#[derive(Default, Debug)]
pub struct Deframer {
    buffer: BytesMut,
}

impl Deframer {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that wait for the rest of their frame.
    pub fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The buffer itself, for readers that append to it without a copy (`read_buf`). It has free space for the
    /// missing bytes of a frame that has begun.
    pub fn buffer_mut(&mut self) -> &mut BytesMut {
        let body = self.buffer.first_chunk().and_then(|header| body_bytes(*header).ok());
        let lacking = (FRAME_HEADER_BYTES + body.unwrap_or(0)).saturating_sub(self.buffer.len());
        self.buffer.reserve(lacking.clamp(READ_BYTES_MIN, READ_BYTES_MAX));
        &mut self.buffer
    }

    /// The next whole frame's body, if it is there.
    ///
    /// # Errors
    /// [`WireError::TooLong`], on every further call too: the stream cannot be used any more.
    pub fn next_frame(&mut self) -> Result<Option<BytesMut>, WireError> {
        let Some(header) = self.buffer.first_chunk() else {
            return Ok(None);
        };
        let body = body_bytes(*header)?;
        if self.buffer.len() < FRAME_HEADER_BYTES + body {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEADER_BYTES);
        Ok(Some(self.buffer.split_to(body)))
    }

    /// Takes the bytes that were received behind the last frame: on a bulk connection, the first raw bytes after a
    /// `BulkFrame`.
    pub fn take_rest(&mut self) -> BytesMut {
        self.buffer.split()
    }

    /// Whether no incomplete frame is buffered: a stream that ends now ends between frames.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

//! Errors in received bytes: always the other side's fault.

use hoplite_types::limits::FRAME_BYTES_MAX;

/// The other side sent bytes that are no message of this protocol version. The connection cannot be used any more:
/// the start of the next frame cannot be found reliably, and later frames cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The length in front of a frame is over [`FRAME_BYTES_MAX`]. None of the frame was buffered.
    #[error("a frame of {bytes} bytes was announced, at most {FRAME_BYTES_MAX} are allowed")]
    TooLong { bytes: u64 },
    /// The frame is not CBOR, or not this message.
    #[error("a frame of {bytes} bytes is no {message}: {source}")]
    Malformed {
        /// The Rust name of the expected type.
        message: &'static str,
        bytes: usize,
        source: minicbor::decode::Error,
    },
    /// A message is followed by other bytes in the same frame.
    #[error("a frame of {bytes} bytes has {trailing} bytes behind its {message}")]
    Trailing { message: &'static str, bytes: usize, trailing: usize },
}

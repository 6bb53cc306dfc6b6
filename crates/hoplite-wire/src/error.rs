//! Errors in received bytes: always the other side's fault.

use hoplite_types::limits::FRAME_BYTES_MAX;

/// The other side sent something that is no message of this protocol version. The connection it
/// came over is of no use any more: there is no way to find the next frame's start reliably, and
/// nothing it says can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The length in front of a frame is over [`FRAME_BYTES_MAX`]; nothing of it was buffered.
    #[error("a frame of {bytes} bytes was announced, at most {FRAME_BYTES_MAX} are allowed")]
    TooLong { bytes: u64 },
    /// The frame is not CBOR, or not this message.
    #[error("a frame of {bytes} bytes is no {message}: {source}")]
    Malformed {
        /// The Rust name of the type it should have been.
        message: &'static str,
        bytes: usize,
        source: minicbor::decode::Error,
    },
    /// A message, and then something else in the same frame.
    #[error("a frame of {bytes} bytes has {trailing} bytes behind its {message}")]
    Trailing { message: &'static str, bytes: usize, trailing: usize },
}

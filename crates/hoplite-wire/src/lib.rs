//! Control messages to bytes and back, versioned.
//!
//! A frame is a length (4 bytes, little-endian, not counting itself) and that many bytes of CBOR. The same frames go
//! over the client's Unix socket and the control connections between nodes. They also go in front of and behind the raw
//! bytes of a bulk transfer.
//!
//! Order of use: append frames with [`encode`]. On the other side push bytes from the socket into a [`Deframer`], take
//! whole frame bodies out of it, and [`decode`] each as the type that the connection carries.
//!
//! # Versions
//! Structs are CBOR arrays. Unknown last elements are skipped, and missing optional ones are `None`, so fields can be
//! added at the end without breaking older peers. Everything else (an unknown variant, a missing mandatory field) is a
//! [`WireError`]; such changes must bump the protocol version in the first frame of each connection. `tests/golden.txt`
//! pins the bytes of every message.
#![forbid(unsafe_code)]

mod codec;
mod deframer;
mod error;

pub use codec::{decode, encode};
pub use deframer::{body_bytes, Deframer, FRAME_HEADER_BYTES};
pub use error::WireError;

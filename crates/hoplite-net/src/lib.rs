//! TCP between nodes: control frames and bulk bytes.
//!
//! Every connection is one-way, from the caller to the listener, and starts with a `PeerHello`
//! frame that says who calls, whom it believes to be calling, and what for:
//!
//! - **control**: `PeerMessage` frames; each node dials its own to every peer it has something to
//!   say to ([`ControlLinks`]), and reads those that others dialled ([`read_control`]);
//! - **bulk**: per transfer a `BulkHead` frame, raw bytes, a `Seal` frame; then the connection is
//!   free for the next one ([`BulkPool`]).
//!
//! | file | what |
//! |---|---|
//! | `announce` | which address to tell the others |
//! | `networks` | which networks this host is directly on |
//! | `socket` | options of each kind of socket, and why |
//! | `frames` | one frame from and to a stream, no byte more |
//! | `hello` | the first frame, and who is turned away |
//! | `dial`, `listen` | connections out and in |
//! | `outbox` | bounded queue of encoded frames towards one reader |
//! | `control` | control connections, out and in |
//! | `pool` | idle bulk connections, by peer |
#![forbid(unsafe_code)]

pub mod announce;
mod control;
mod dial;
mod frames;
mod hello;
mod listen;
mod networks;
mod outbox;
mod pool;
mod socket;

pub use control::{read_control, ControlEvent, ControlLinks, Overflow, CONTROL_OUTBOX_BYTES_MAX};
pub use dial::{dial, DIAL_TIMEOUT};
pub use frames::{read_frame, write_frame, FrameError};
pub use hello::{admit, Refusal, HELLO_TIMEOUT};
pub use listen::{Arrival, Listener, ADMITTING_MAX};
pub use outbox::{Outbox, OutboxFull};
pub use pool::{closed_by_peer, BulkPool, BULK_IDLE_MAX, BULK_IDLE_PER_PEER_MAX};

//! TCP between nodes: control frames and bulk bytes.
//!
//! Every connection is one-way, from the caller to the listener, and starts with a `PeerHello`
//! frame that says who calls, whom it believes to be calling, and what for. A listener who is somebody
//! else says so (`PeerRefusal`) and closes it.
//!
//! - **control**: `PeerMessage` frames; each node dials its own to every peer it has something to
//!   say to ([`ControlLinks`]), and reads those that others dialled ([`ControlReaders`]);
//! - **bulk**: `BulkFrame`s and raw bytes of one transfer, or of several that share the connection; then it is
//!   free for the next ([`BulkPool`]). Several connections may carry transfers together ([`Bundle`]).
//!
//! | file | what |
//! |---|---|
//! | `announce` | which address to tell the others |
//! | `networks` | which networks this host is directly on |
//! | `socket` | options of each kind of socket, and why |
//! | `frames` | one frame from and to a stream, no byte more |
//! | `hello` | the first frame, and who is refused, and with what message |
//! | `dial`, `listen` | connections out and in |
//! | `bundle` | connections that carry one stream of bytes together |
//! | `forming` | bundles of which not every connection is here yet |
//! | `gossip` | the socket for gossip datagrams |
//! | `outbox` | bounded queue of encoded frames towards one reader |
//! | `control_out` | control connections dialled here |
//! | `link` | one of them, from its first try to its end |
//! | `idle_close` | those that are closed because they are idle |
//! | `control_in` | control connections that peers dialled |
//! | `pool` | idle bundles, by peer |
//! | `shortage` | what this host has run out of |
//! | `meter` | how full something bounded is |
#![forbid(unsafe_code)]

pub mod announce;
mod bundle;
mod control_in;
mod control_out;
mod dial;
mod forming;
mod frames;
mod gossip;
mod hello;
mod idle_close;
mod link;
mod listen;
mod meter;
mod networks;
mod outbox;
mod pool;
mod shortage;
mod socket;

pub use bundle::{closed_by_peer, Bundle, Detached, CHUNK_BYTES};
pub use control_in::{ControlReaders, CONTROL_ACCEPTED_MAX};
pub use control_out::{
    ConnectionId, ControlEvent, ControlLinks, LinkEnd, Overflow, CONTROL_OUTBOX_BYTES_MAX,
};
pub use dial::{dial, dial_bundle, dial_bundle_with, BULK_DIAL_TIMEOUT, DIAL_TIMEOUT};
pub use forming::{BUNDLES_FORMING_MAX, BUNDLE_FORMING_TIMEOUT};
pub use frames::{read_frame, read_hello, write_frame, FrameError, HELLO_BYTES_MAX};
pub use gossip::{GossipSocket, DATAGRAM_BYTES_MAX};
pub use hello::{admit, Refusal, HELLO_TIMEOUT};
pub use idle_close::{CONTROL_IDLE_AFTER, CONTROL_IDLE_MAX};
pub use link::SHORTAGE_PATIENCE;
pub use listen::{Arrival, Listener, Meters, ADMITTING_MAX, BULK_ACCEPTED_MAX};
pub use meter::{Held, Meter};
pub use outbox::{Outbox, OutboxFull};
pub use pool::{BulkPool, BULK_IDLE_CONNECTIONS_MAX, BULK_IDLE_MAX, BULK_IDLE_PER_PEER_MAX};
pub use shortage::{is_shortage, Shortage};

//! TCP between nodes: control frames and bulk bytes.
//!
//! Every connection is one-way, from the caller to the listener. It starts with a `PeerHello` frame: the caller, the
//! node it means to reach, and the purpose. A listener that is another node answers `PeerRefusal` and closes it.
//!
//! - **control**: `PeerMessage` frames. Each node dials a connection to every peer that it has messages for
//!   ([`ControlLinks`]), and reads those that others dialled ([`ControlReaders`]).
//! - **bulk**: `BulkFrame`s and raw bytes of one transfer, or of several that share the connection; then it is
//!   free for the next ([`BulkPool`]). Several connections may carry transfers together ([`Bundle`]).
//!
//! | file | contents |
//! |---|---|
//! | `announce` | the address to announce to the others |
//! | `networks` | the networks that this host is directly on |
//! | `socket` | options of each kind of socket, and why |
//! | `frames` | one frame from and to a stream, no byte more |
//! | `hello` | the first frame; which callers are refused, and the refusal message |
//! | `dial`, `listen` | outgoing and incoming connections |
//! | `bundle` | connections that carry one stream of bytes together |
//! | `forming` | bundles some of whose connections have not arrived yet |
//! | `gossip` | the socket for gossip datagrams |
//! | `outbox` | bounded queue of encoded frames to one reader |
//! | `control_out` | control connections dialled here |
//! | `link` | one of them, from its first try to its end |
//! | `idle_close` | closing those that are idle |
//! | `control_in` | control connections that peers dialled |
//! | `pool` | idle bundles, by peer |
//! | `shortage` | resources that this host has run out of |
//! | `meter` | fill levels of bounded tables and queues |
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
pub use dial::{dial, dial_bundle, dial_bundle_with};
pub use forming::{BUNDLES_FORMING_MAX, BUNDLE_FORMING_TIMEOUT};
pub use frames::{read_frame, read_hello, write_frame, FrameError, HELLO_BYTES_MAX};
pub use gossip::{GossipSocket, DATAGRAM_BYTES_MAX};
pub use hello::{admit, Refusal, HELLO_TIMEOUT};
pub use idle_close::{CONTROL_IDLE_AFTER, CONTROL_IDLE_MAX};
pub use listen::{Arrival, Listener, Meters, ACCEPT_PAUSE, ADMITTING_MAX, BULK_ACCEPTED_MAX};
pub use meter::{Held, Meter};
pub use outbox::{Outbox, OutboxFull};
pub use pool::{BulkPool, BULK_IDLE_CONNECTIONS_MAX, BULK_IDLE_MAX, BULK_IDLE_PER_PEER_MAX};
pub use shortage::{is_shortage, Shortage};

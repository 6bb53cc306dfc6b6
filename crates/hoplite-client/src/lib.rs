//! Put, get, reduce and delete over the local socket and mapped memory.
//!
//! A [`Client`] is one connection to this host's node and one mapping of its arena. Any number of threads share it:
//! each call has a number, and the first thread that waits reads the socket for all. Nothing runs in the background.
//!
//! Calling order: [`Client::connect`]; then either the calls that wait ([`Client::put`], [`Client::get`], …), or
//! [`Client::submit`] and the [`Ticket`] it returns. An event loop watches [`Client::fd`], calls [`Client::pump`]
//! when it is readable, then [`Ticket::try_take`]. No other thread should wait on such a connection: it would read
//! the event loop's answers first.
//!
//! - Small objects: those of up to `INLINE_BYTES_MAX` bytes are copied and cached by a get. Another get needs no
//!   request, as long as they exist on the node ([`Client::look_up`]).
//! - Interrupts: every wait takes an `interrupt`, called at once when a signal arrives and otherwise every
//!   [`INTERRUPT_EVERY`]. An error that it returns ends the wait; this is how Python raises KeyboardInterrupt. The
//!   interrupted call is cancelled, and a view or created copy that its answer brings goes back to the node.
//! - Forks: a forked process must connect again; every call on the inherited connection fails in it. Memory taken
//!   before the fork (of views and created objects) stays the object's as long as the parent holds it.
#![forbid(unsafe_code)]

mod arriving;
mod cache;
mod calls;
mod client;
mod control;
mod created;
mod deadline;
mod destination;
mod get;
mod handshake;
mod link;
mod put;
mod request;
mod ticket;
mod view;

pub use arriving::Arriving;
pub use cache::{Lookup, Miss};
pub use client::Client;
pub use control::ReduceCall;
pub use created::Created;
pub use deadline::{milliseconds, overdue_at, Interrupt, INTERRUPT_EVERY};
pub use destination::Destination;
pub use handshake::default_socket_path;
pub use put::{put_request, size_of_parts};
pub use ticket::Ticket;
pub use view::{Hold, View};

/// An `interrupt` for callers that have nothing to check.
pub fn never() -> hoplite_types::Result<()> {
    Ok(())
}

//! put, get, reduce, delete over the local socket and mapped memory.
//!
//! A [`Client`] is one connection to this host's node and one mapping of its arena. Any number of
//! threads share it: each call gets a number, whichever waiting thread comes first reads the socket
//! for all. Nothing runs in the background.
//!
//! Calling order: [`Client::connect`]; then either the calls that wait ([`Client::put`],
//! [`Client::get`], …), or [`Client::submit`] and the [`Ticket`] it returns. An event loop watches
//! [`Client::fd`], calls [`Client::pump`] when it is readable and [`Ticket::try_take`] after that;
//! such a connection should have no other thread waiting on it, which would read its answers first.
//!
//! Objects of up to `INLINE_BYTES_MAX` bytes are copied when they are got, and kept: getting them again asks
//! nobody, as long as they exist on the node ([`Client::look_up`]).
//!
//! Every wait takes an `interrupt`, called at once when a signal arrives and every
//! [`INTERRUPT_EVERY`] otherwise; the error it returns ends the wait (Python raises
//! KeyboardInterrupt so). A call given up that way is cancelled, and what its answer would have
//! brought (a view, a created copy) goes back to the node.
//!
//! A process forked from the one that connected must connect anew; in it every call fails, and
//! memory taken before the fork, of views and of what is created, is the object's as long as the parent holds it.
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
pub use deadline::{Interrupt, INTERRUPT_EVERY};
pub use destination::Destination;
pub use handshake::default_socket_path;
pub use ticket::Ticket;
pub use view::{Hold, View};

/// An `interrupt` for callers that have nothing to look at.
pub fn never() -> hoplite_types::Result<()> {
    Ok(())
}

//! The wire format against other versions, arbitrary cuts of the stream and hostile peers.
#![forbid(unsafe_code)]

mod deframing;
mod draw;
mod entry;
mod golden;
mod hostile;
mod messages;
mod round_trip;
mod versions;

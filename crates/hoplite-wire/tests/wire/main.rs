//! The wire as other versions, careless networks and hostile peers see it.
#![forbid(unsafe_code)]

mod deframing;
mod draw;
mod entry;
mod golden;
mod hostile;
mod messages;
mod round_trip;
mod versions;

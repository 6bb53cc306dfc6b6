//! From options to sockets, addresses and sizes.

mod descriptors;
mod incarnation;
mod memory;
mod seeds;
mod socket_path;

use std::io;
use std::path::PathBuf;

pub(crate) use descriptors::raise_limit;
pub(crate) use incarnation::next_incarnation;
pub(crate) use memory::usable_bytes;
pub(crate) use seeds::resolve;
pub(crate) use socket_path::{bind, default_path};

/// The reason why a daemon could not start: always a fault of the environment or the caller.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Network(io::Error),
    #[error("none of the seeds {seeds:?} could be resolved")]
    NoSeed { seeds: Vec<String> },
    #[error("cannot make a store of {bytes} bytes: {error}")]
    Store { bytes: u64, error: io::Error },
    #[error("another hoplited serves {path}", path = .0.display())]
    SocketInUse(PathBuf),
    #[error("cannot make the socket {path}: {error}", path = .path.display())]
    Socket { path: PathBuf, error: io::Error },
    #[error("cannot start data threads: {0}")]
    Threads(io::Error),
}

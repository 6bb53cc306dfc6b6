//! Raises this process's limit of open descriptors.

use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use tracing::{debug, warn};

/// Raises the soft limit of open descriptors to the hard one, and returns the new limit. The soft limit is 1024
/// nearly everywhere, for programs that use `select`; this one does not.
pub(crate) fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        debug!(limit = ?maximum, "descriptors that may be open");
        return maximum.unwrap_or(u64::MAX);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => {
            debug!(from = ?current, to = ?maximum, "raised the limit of open descriptors");
            maximum.unwrap_or(u64::MAX)
        }
        Err(error) => {
            warn!(limit = ?current, %error, "cannot raise the limit of open descriptors");
            current.unwrap_or(u64::MAX)
        }
    }
}

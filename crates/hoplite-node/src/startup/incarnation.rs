//! The incarnation of a daemon: a number that distinguishes each start at an address from every earlier one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::warn;

/// Milliseconds since the epoch, but always more than at every earlier start with this socket, even if the clock was
/// set back. The last number is kept in a file beside the socket. If that fails, the clock alone is used.
pub(crate) fn next_incarnation(socket: Option<&PathBuf>) -> u64 {
    let Some(socket) = socket else { return now_ms() };
    let path = record_of(socket);
    let next = after(last(&path), now_ms());
    if let Err(error) = record(&path, next) {
        warn!(path = %path.display(), %error, "cannot keep the time of this start: clocks must not be set back");
    }
    next
}

fn record_of(socket: &Path) -> PathBuf {
    socket.with_extension("incarnation")
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// A file that holds no number counts as missing.
fn last(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn after(last: Option<u64>, now: u64) -> u64 {
    last.map_or(now, |last| now.max(last.saturating_add(1)))
}

/// Writes the whole number or nothing: a start that dies here must not leave half a number.
fn record(path: &Path, incarnation: u64) -> io::Result<()> {
    let draft = path.with_extension("incarnation.new");
    fs::write(&draft, incarnation.to_string())?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("hoplite-test-{}-{name}.sock", std::process::id()))
    }

    #[test]
    fn a_start_counts_on_from_the_last_one_when_the_clock_was_set_back() {
        assert_eq!(after(None, 1_000), 1_000);
        assert_eq!(after(Some(900), 1_000), 1_000);
        assert_eq!(after(Some(5_000), 1_000), 5_001);
        assert_eq!(after(Some(u64::MAX), 1_000), u64::MAX);
    }

    #[test]
    fn every_start_with_a_socket_is_later_than_the_one_before() {
        let socket = socket("starts");
        let ahead = now_ms() + 3_600_000;
        record(&record_of(&socket), ahead).unwrap();
        assert_eq!(next_incarnation(Some(&socket)), ahead + 1);
        assert_eq!(next_incarnation(Some(&socket)), ahead + 2);
        fs::write(record_of(&socket), "no number").unwrap();
        assert!(next_incarnation(Some(&socket)) <= now_ms());
        fs::remove_file(record_of(&socket)).unwrap();
    }

    #[test]
    fn the_clock_decides_where_no_file_can_be_kept() {
        let socket = socket("no folder").join("a.sock");
        assert!(next_incarnation(Some(&socket)) > 0);
    }
}

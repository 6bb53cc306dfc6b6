//! The path of the clients' socket, and taking it over from a dead daemon.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

use super::StartError;

/// Limit on the clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// `${XDG_RUNTIME_DIR:-/tmp}/hoplite-<uid>/<port>.sock`. Creates the directory, for this user only.
///
/// # Errors
/// If the directory cannot be created, or belongs to another user.
pub(crate) fn default_path(port: u16) -> Result<PathBuf, StartError> {
    let base = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let uid = rustix::process::getuid().as_raw();
    let dir = base.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from).join(format!("hoplite-{uid}"));
    private_dir(&dir, uid).map_err(|error| StartError::Socket { path: dir.clone(), error })?;
    Ok(dir.join(format!("{port}.sock")))
}

fn private_dir(dir: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // In /tmp, any user could have created the directory before, or a link of that name.
    let found = fs::symlink_metadata(dir)?;
    if found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it exists and is not a directory of this user alone (mode 0700)",
        ))
    }
}

/// Listens on `path`, for this user only (mode 0600). Replaces a socket on which no process listens.
///
/// # Errors
/// [`StartError::SocketInUse`] if a process listens on it; otherwise the kernel's error.
pub(crate) fn bind(path: &Path) -> Result<UnixListener, StartError> {
    let failed = |error| StartError::Socket { path: path.to_owned(), error };
    // The kernel refuses a connection to another kind of file just as one to a dead socket.
    let other_kind = fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket());
    if other_kind {
        return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, "it exists and is no socket")));
    }
    match call(path) {
        Ok(()) => return Err(StartError::SocketInUse(path.to_owned())),
        // The daemon accepts no clients at the moment (it may be stopped), and its queue is full.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(StartError::SocketInUse(path.to_owned()));
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    listen(path).map_err(failed)
}

/// Connects without waiting.
fn call(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // Between bind and listen no process can connect yet, whatever the umask was.
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("hoplite-test-{}-{name}.sock", std::process::id()))
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let path = path("taken");
        let first = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(bind(&path), Err(StartError::SocketInUse(_))));
        drop(first);
        let second = bind(&path).unwrap();
        drop(second);
        fs::remove_file(&path).unwrap();
    }

    /// It may be stopped, and its queue is full.
    #[tokio::test]
    async fn a_daemon_that_takes_no_callers_is_not_waited_for() {
        let path = path("stopped");
        let stopped = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        stopped.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        stopped.listen(0).unwrap();
        let _caller = UnixStream::connect(&path).unwrap();
        let (bound, told) = std::sync::mpsc::channel();
        std::thread::spawn({
            let path = path.clone();
            move || bound.send(matches!(bind(&path), Err(StartError::SocketInUse(_))))
        });
        let outcome = told.recv_timeout(std::time::Duration::from_secs(5));
        fs::remove_file(&path).unwrap();
        assert_eq!(outcome, Ok(true));
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone() {
        let path = path("file");
        fs::write(&path, "precious").unwrap();
        let refused = bind(&path);
        assert_eq!(fs::read_to_string(&path).unwrap_or_default(), "precious", "{refused:?}");
        assert!(refused.is_err());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let dir = path("dir");
        let uid = rustix::process::getuid().as_raw();
        private_dir(&dir, uid).unwrap();
        private_dir(&dir, uid).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        assert!(private_dir(&dir, uid).is_err());
        fs::remove_dir(&dir).unwrap();
    }
}

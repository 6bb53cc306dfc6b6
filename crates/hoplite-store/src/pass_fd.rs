//! Passes a file descriptor to another process beside bytes on a Unix socket (SCM_RIGHTS).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

/// Sends `bytes` with `fd` attached to the first of them. Returns how many bytes were sent. If any byte was sent, so
/// was the descriptor.
///
/// # Errors
/// The errors of `sendmsg`; `WouldBlock` on a full non-blocking socket.
pub fn send_with_fd(socket: impl AsFd, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    let fitted = control.push(SendAncillaryMessage::ScmRights(&fds));
    assert!(fitted, "the space was made for one descriptor");
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(sent)
}

/// Receives up to `buffer.len()` bytes, and the descriptor that came with them, if any. 0 bytes mean that the other
/// side has closed.
///
/// # Errors
/// The errors of `recvmsg`; `WouldBlock` on an empty non-blocking socket.
pub fn recv_with_fd(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        // Programs that the client executes must not inherit it.
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut received = None;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = ancillary {
            received = fds.last().or(received);
        }
    }
    Ok((message.bytes, received))
}

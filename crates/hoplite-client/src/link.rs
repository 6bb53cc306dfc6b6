//! The socket: sends and receives frames. It blocks only where a method's documentation says so.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use hoplite_types::client::{Answer, Call};
use hoplite_wire::Deframer;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::deadline::INTERRUPT_EVERY;

/// Limit on the unsent bytes of calls. Beyond it, a thread that makes another call has to wait.
const UNSENT_BYTES_MAX: usize = 64 << 20;

/// How long that thread waits without progress. A node that reads none of so many bytes does not answer anyway; a
/// node that is only slower than the calls does.
const SOCKET_FULL_MAX: Duration = Duration::from_secs(2);

/// Bytes read at once: many answers. The announcement of a small object is far below it.
const READ_BYTES: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Polled {
    Ready,
    Quiet,
    Interrupted,
}

/// The link cannot be used any more; the string is the reason.
#[derive(Debug)]
pub(crate) struct LinkDown(pub(crate) String);

#[derive(Debug)]
pub(crate) struct Link {
    socket: UnixStream,
    outgoing: Mutex<BytesMut>,
    incoming: Mutex<Incoming>,
}

#[derive(Debug)]
struct Incoming {
    deframer: Deframer,
    scratch: Box<[u8]>,
}

impl Link {
    /// `deframer` holds the bytes that the handshake read beyond its own.
    pub(crate) fn new(socket: UnixStream, deframer: Deframer) -> std::io::Result<Link> {
        // Blocking, so that waiting for an answer and reading it is one system call.
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(INTERRUPT_EVERY))?;
        let incoming = Incoming { deframer, scratch: vec![0; READ_BYTES].into_boxed_slice() };
        Ok(Link { socket, outgoing: Mutex::default(), incoming: Mutex::new(incoming) })
    }

    /// Ends the connection for all processes that hold the socket.
    pub(crate) fn shut_down(&self) {
        // If the node is gone already, this fails; the connection has ended anyway.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a frame, or as much of it as the socket takes; later `flush`es send the rest. Waits if too many bytes
    /// are unsent already.
    pub(crate) fn send(&self, call: &Call) -> Result<(), LinkDown> {
        let mut outgoing = self.outgoing();
        let (mut waiting, mut since) = (outgoing.len(), Instant::now());
        while outgoing.len() > UNSENT_BYTES_MAX {
            if since.elapsed() >= SOCKET_FULL_MAX {
                return Err(LinkDown(format!("it takes no calls, {} bytes wait for it", outgoing.len())));
            }
            drop(outgoing);
            self.poll_room(INTERRUPT_EVERY);
            outgoing = self.outgoing();
            Self::write(&self.socket, &mut outgoing);
            if outgoing.len() < waiting {
                (waiting, since) = (outgoing.len(), Instant::now());
            }
        }
        hoplite_wire::encode(call, &mut outgoing);
        Self::write(&self.socket, &mut outgoing);
        Ok(())
    }

    pub(crate) fn flush(&self) {
        Self::write(&self.socket, &mut self.outgoing());
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.outgoing().is_empty()
    }

    fn outgoing(&self) -> MutexGuard<'_, BytesMut> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(socket: &UnixStream, outgoing: &mut BytesMut) {
        while !outgoing.is_empty() {
            match rustix::net::send(socket, outgoing, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => outgoing.advance(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The other side is gone. Reading reports that too, after the answers that it still sent.
                Err(_) => outgoing.clear(),
            }
        }
    }

    /// Waits for answers up to `timeout`, and passes whole answers on in order. Meanwhile it sends calls that wait
    /// for space in the socket.
    pub(crate) fn poll(&self, timeout: Duration, on_answer: impl FnMut(Answer)) -> Result<Polled, LinkDown> {
        let unsent = self.has_unsent();
        if timeout >= INTERRUPT_EVERY && !unsent {
            return self.read(RecvFlags::empty(), on_answer);
        }
        let out = if unsent { PollFlags::OUT } else { PollFlags::empty() };
        match self.poll_for(PollFlags::IN | out, timeout) {
            Polled::Ready => {
                self.flush();
                self.read(RecvFlags::DONTWAIT, on_answer).map(|_| Polled::Ready)
            }
            nothing => Ok(nothing),
        }
    }

    /// Waits for space for unsent calls, while another thread waits for answers.
    pub(crate) fn poll_room(&self, timeout: Duration) -> Polled {
        self.poll_for(PollFlags::OUT, timeout)
    }

    /// Whether the other end still has it open. Does not wait.
    pub(crate) fn is_up(&self) -> bool {
        let mut ends = [PollFd::new(&self.socket, PollFlags::empty())];
        let looked = rustix::event::poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        looked.is_ok() && ends[0].revents().is_empty()
    }

    fn poll_for(&self, events: PollFlags, timeout: Duration) -> Polled {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match rustix::event::poll(&mut [PollFd::new(&self.socket, events)], Some(&timeout)) {
            Ok(0) => Polled::Quiet,
            Ok(_) => Polled::Ready,
            Err(Errno::INTR) => Polled::Interrupted,
            Err(error) => unreachable!("poll of our own socket failed: {error}"),
        }
    }

    /// Reads the bytes that are there, and passes whole answers on in order. Unless `flags` has `DONTWAIT`, it waits
    /// for the first bytes, up to `INTERRUPT_EVERY`.
    fn read(&self, mut flags: RecvFlags, mut on_answer: impl FnMut(Answer)) -> Result<Polled, LinkDown> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let Incoming { deframer, scratch } = &mut *incoming;
        let mut polled = Polled::Quiet;
        loop {
            let received = match rustix::net::recv(&self.socket, &mut scratch[..], flags) {
                Ok((0, _)) => return Err(LinkDown("it closed the connection".into())),
                Ok((received, _)) => received,
                Err(Errno::AGAIN) => return Ok(polled),
                Err(Errno::INTR) if polled == Polled::Quiet => return Ok(Polled::Interrupted),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(LinkDown(std::io::Error::from(error).to_string())),
            };
            polled = Polled::Ready;
            flags |= RecvFlags::DONTWAIT;
            deframer.push(&scratch[..received]);
            while let Some(frame) = deframer.next_frame().map_err(misspoken)? {
                on_answer(hoplite_wire::decode(&frame).map_err(misspoken)?);
            }
            if received < scratch.len() {
                return Ok(polled);
            }
        }
    }
}

fn misspoken(error: hoplite_wire::WireError) -> LinkDown {
    LinkDown(format!("it sent what is no answer ({error})"))
}

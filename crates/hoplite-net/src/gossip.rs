//! The socket for gossip datagrams.

use std::io;
use std::net::SocketAddr;

use rustix::net::{recvfrom, sendto, RecvFlags, SendFlags};
use socket2::SockRef;
use tokio::net::UdpSocket;

/// The longest datagram that UDP can carry.
pub const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// Enough for the datagrams of several seconds in a large cluster. A node that was paused or starved for that long
/// then finds the answers to its probes. The kernel reduces the size to what it allows.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// On the port of the node's TCP listener.
///
/// Calls that do not wait use the kernel directly. Tokio's calls would first check the last state that its poller
/// saw: nothing ready, for a new socket or a process that was just paused.
#[derive(Debug)]
pub struct GossipSocket(UdpSocket);

impl GossipSocket {
    /// # Errors
    /// The kernel's error.
    pub async fn bind(addr: SocketAddr) -> io::Result<Self> {
        let udp = UdpSocket::bind(addr).await?;
        SockRef::from(&udp).set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
        Ok(GossipSocket(udp))
    }

    /// The address to which it is bound.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Waits for a datagram. Returns its length.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.recv_from(buffer).await.map(|(bytes, _)| bytes)
    }

    /// Takes a datagram that has arrived already. Returns its length.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; otherwise the kernel's error.
    pub fn receive_waiting(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let (bytes, _, _) = recvfrom(&self.0, buffer, RecvFlags::DONTWAIT)?;
        Ok(bytes)
    }

    /// Sends one datagram.
    ///
    /// # Errors
    /// `WouldBlock` if the kernel has no space for it; otherwise the kernel's error.
    pub fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        sendto(&self.0, bytes, SendFlags::DONTWAIT, &to)?;
        Ok(())
    }

    /// Sends one datagram as soon as there is space for it.
    ///
    /// # Errors
    /// The kernel's error.
    pub async fn send_patiently(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.0.send_to(bytes, to).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_datagrams_are_received_before_a_poller_has_looked() {
        let here = GossipSocket::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let there = GossipSocket::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let none = there.receive_waiting(&mut buffer).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
        for n in 1..=3u8 {
            here.send(&[n; 9], there.addr().unwrap()).unwrap();
        }
        // Loopback delivers within the call, without a turn of the runtime in between.
        for n in 1..=2u8 {
            assert_eq!(there.receive_waiting(&mut buffer).unwrap(), 9);
            assert_eq!(buffer[..9], [n; 9]);
        }
        assert_eq!(there.receive(&mut buffer).await.unwrap(), 9);
        assert_eq!(buffer[0], 3);
    }
}

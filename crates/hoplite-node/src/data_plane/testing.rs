//! Data threads with a test at both ends: copies in a real arena, peers on loopback sockets.

use std::sync::Arc;
use std::time::Duration;

use hoplite_core::io::{Extent, Input};
use hoplite_net::{read_frame, write_frame, Bundle};
use hoplite_store::Arena;
use hoplite_types::peer::{BulkFrame, BulkHead, BundlePart, PeerHello, Seal};
use hoplite_types::{CopyId, NodeId, TransferId};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::DataPlane;
use crate::copies::Copy;

/// Long enough to mean "never", so that a hanging test ends with a message.
const NEVER: Duration = Duration::from_secs(60);

pub(super) struct Bench {
    arena: Arena,
    pub(super) data_plane: DataPlane,
    inputs: mpsc::UnboundedReceiver<Input>,
    next: u64,
}

pub(super) fn peer(n: u16) -> NodeId {
    NodeId { addr: ([127, 0, 0, 1], n).into(), incarnation: 1 }
}

impl Bench {
    /// The stall time-out is so long that no test sees a stall reported.
    pub(super) fn new() -> Self {
        Self::with_stall_after(NEVER)
    }

    pub(super) fn with_stall_after(stall_after: Duration) -> Self {
        let (tx, inputs) = mpsc::unbounded_channel();
        let data_plane = DataPlane::start(peer(1), 2, stall_after, tx).unwrap();
        Bench { arena: Arena::create(64 << 20).unwrap(), data_plane, inputs, next: 4096 }
    }

    /// An empty copy.
    pub(super) fn copy(&mut self, size: u64) -> Arc<Copy> {
        let extent = Extent::behind_block(self.next, size);
        self.next += (size + 64).next_multiple_of(64);
        Arc::new(Copy::open(&self.arena.mapping(), CopyId(extent.offset), extent).unwrap())
    }

    /// A sealed copy of these bytes.
    pub(super) fn sealed(&mut self, bytes: &[u8]) -> Arc<Copy> {
        let copy = self.copy(bytes.len() as u64);
        append(&copy, bytes);
        copy.seal(Seal::default());
        copy
    }

    /// The next input for the core, except measured rates.
    pub(super) async fn input(&mut self) -> Input {
        loop {
            match self.any_input().await {
                Input::Measured { .. } | Input::SendMeasured { .. } => {}
                input => return input,
            }
        }
    }

    pub(super) async fn any_input(&mut self) -> Input {
        let input = tokio::time::timeout(NEVER, self.inputs.recv()).await.expect("nothing came");
        let input = input.expect("the data plane lives");
        self.data_plane.on_input(&input);
        input
    }

    /// A bulk connection of `from`, after its hello.
    pub(super) async fn connect(&mut self, from: NodeId) -> TcpStream {
        self.connect_parts(from, 1).await.remove(0)
    }

    /// A bundle of `from`, after its hellos.
    pub(super) async fn connect_bundle(&mut self, from: NodeId, count: usize) -> Bundle {
        Bundle::new(self.connect_parts(from, count).await)
    }

    /// The connections of such a bundle.
    pub(super) async fn connect_parts(&mut self, from: NodeId, count: usize) -> Vec<TcpStream> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (mut dialled, mut accepted) = (Vec::new(), Vec::new());
        for _ in 0..count {
            dialled.push(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
            accepted.push(listener.accept().await.unwrap().0);
        }
        self.data_plane.arrive(from, Bundle::new(accepted)).unwrap();
        dialled
    }

    /// Ends the data plane. No job may report anything more.
    pub(super) async fn finish(mut self) {
        self.data_plane.stop();
        while let Some(input) = self.inputs.recv().await {
            let is_rate = matches!(input, Input::Measured { .. } | Input::SendMeasured { .. });
            assert!(is_rate, "{input:?} came too");
        }
    }
}

impl DataPlane {
    /// The number of awaited transfers.
    pub(super) fn awaited(&self) -> usize {
        self.shared.arrivals.len()
    }
}

/// Writes and publishes more of a copy.
pub(super) fn append(copy: &Copy, bytes: &[u8]) {
    copy.write(|writer| {
        let at = writer.watermark();
        writer.unpublished(at, at + bytes.len() as u64).copy_from_slice(bytes);
        writer.publish(at + bytes.len() as u64);
    })
    .unwrap();
}

pub(super) fn contents(copy: &Copy) -> Vec<u8> {
    copy.reader().bytes(0, copy.watermark()).to_vec()
}

/// Waits until `bytes` bytes of the copy are published.
pub(super) async fn published(copy: &Arc<Copy>, bytes: u64) {
    let following = copy.follow(Arc::default());
    tokio::time::timeout(NEVER, following.present(bytes)).await.expect("not published").unwrap();
}

pub(super) async fn head(stream: &mut (impl AsyncWrite + Unpin), transfer: u64, offset: u64, size: u64) {
    let head = BulkHead { transfer: TransferId(transfer), offset, size };
    write_frame(stream, &BulkFrame::Whole(head)).await.unwrap();
}

pub(super) async fn trailer(stream: &mut (impl AsyncWrite + Unpin)) {
    write_frame(stream, &Seal::default()).await.unwrap();
}

/// Sends a whole transfer.
pub(super) async fn transfer(stream: &mut (impl AsyncWrite + Unpin), transfer: u64, bytes: &[u8]) {
    head(stream, transfer, 0, bytes.len() as u64).await;
    stream.write_all(bytes).await.unwrap();
    trailer(stream).await;
}

/// Waits for the other side to close the connection.
pub(super) async fn closed(stream: &TcpStream) {
    tokio::time::timeout(NEVER, hoplite_net::closed_by_peer(stream)).await.expect("still open");
}

/// A listening peer, as `send` dials it.
pub(super) struct Listening {
    listener: TcpListener,
    pub(super) id: NodeId,
}

impl Listening {
    pub(super) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let id = NodeId { addr: listener.local_addr().unwrap(), incarnation: 1 };
        Listening { listener, id }
    }

    /// The next connection, after its hello.
    pub(super) async fn accept(&self) -> TcpStream {
        let (stream, part) = self.accept_any().await;
        assert_eq!(part, None);
        stream
    }

    /// The next bundle, of `count` connections.
    pub(super) async fn accept_bundle(&self, count: usize) -> Bundle {
        let mut parts: Vec<_> = (0..count).map(|_| None).collect();
        for _ in 0..count {
            let (stream, part) = self.accept_any().await;
            let BundlePart { number, of, .. } = part.expect("part of a bundle");
            assert_eq!(usize::from(of), count);
            assert!(parts[usize::from(number)].replace(stream).is_none(), "two have the number {number}");
        }
        Bundle::new(parts.into_iter().flatten().collect())
    }

    async fn accept_any(&self) -> (TcpStream, Option<BundlePart>) {
        let (mut stream, _) = tokio::time::timeout(NEVER, self.listener.accept()).await.unwrap().unwrap();
        let hello: PeerHello = read_frame(&mut stream).await.unwrap();
        assert_eq!((hello.from, hello.to), (peer(1), self.id));
        (stream, hello.part)
    }

    /// Whether another connection waits to be accepted.
    pub(super) async fn has_another(&self) -> bool {
        tokio::select! {
            biased;
            _ = self.listener.accept() => true,
            () = tokio::task::yield_now() => false,
        }
    }
}

/// Pseudo-random bytes of this seed.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

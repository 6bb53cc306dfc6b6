//! A node scripted by the test, over a real socket and a real arena.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hoplite_client::Client;
use hoplite_store::{pass_fd, Arena, Writer};
use hoplite_types::client::{Answer, Call, Reply, Request, CLIENT_PROTOCOL_VERSION};
use hoplite_types::{Blob, CopyId, Header, NodeId, ObjectId};
use hoplite_wire::Deframer;

const ARENA_BYTES: u64 = 16 << 20;
/// Where the scripts put their only copy.
pub const OFFSET: u64 = 4096;
pub const COPY: CopyId = CopyId(77);
/// Longer than any machine needs.
pub const LONG: Duration = Duration::from_secs(60);

pub struct Node {
    dir: PathBuf,
    listener: UnixListener,
    pub arena: Arena,
}

/// The node's end of one connection.
pub struct Session {
    socket: UnixStream,
    deframer: Deframer,
}

pub fn id() -> ObjectId {
    ObjectId::from_name("the object")
}

pub fn node_id() -> NodeId {
    NodeId { addr: "127.0.0.1:7420".parse().unwrap(), incarnation: 9 }
}

pub fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|i| ((i * 31) >> 3) as u8).collect()
}

impl Node {
    pub fn start() -> Node {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("hoplite-client-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let listener = UnixListener::bind(dir.join("node.sock")).unwrap();
        Node { dir, listener, arena: Arena::create(ARENA_BYTES).unwrap() }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.join("node.sock")
    }

    pub fn accept(&self) -> Session {
        Session { socket: self.listener.accept().unwrap().0, deframer: Deframer::new() }
    }

    /// Both ends of a connection, greeted.
    pub fn connect(&self) -> (Arc<Client>, Session) {
        std::thread::scope(|scope| {
            let client = scope.spawn(|| connect(&self.path()));
            let mut session = self.accept();
            assert!(
                matches!(session.next().request, Request::Hello { pid, .. } if pid == std::process::id())
            );
            session.welcome(&self.arena, CLIENT_PROTOCOL_VERSION);
            (client.join().unwrap(), session)
        })
    }

    /// The copy at `OFFSET`, with nothing written.
    pub fn open(&self, size: usize) -> Writer {
        self.arena.mapping().create(OFFSET, size as u64).unwrap()
    }

    /// The same, complete.
    pub fn open_sealed(&self, contents: &[u8]) {
        let mut writer = self.open(contents.len());
        append(&mut writer, contents);
        writer.seal();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub fn connect(path: &Path) -> Arc<Client> {
    Client::connect(path, LONG).unwrap()
}

pub fn append(writer: &mut Writer, contents: &[u8]) {
    let from = writer.watermark();
    let to = from + contents.len() as u64;
    writer.unpublished(from, to).copy_from_slice(contents);
    writer.publish(to);
}

pub fn view(size: usize, sealed: bool) -> Reply {
    Reply::View { copy: COPY, offset: OFFSET, size: size as u64, header: Header::default(), sealed }
}

pub fn small(contents: &[u8]) -> Reply {
    Reply::Small { header: Header::default(), payload: Blob(contents.to_vec()) }
}

impl Session {
    pub fn welcome(&mut self, arena: &Arena, version: u32) {
        let reply = Reply::Welcome { version, node: node_id(), arena_bytes: arena.bytes() };
        let mut frame = BytesMut::new();
        hoplite_wire::encode(&Answer { call: 0, reply }, &mut frame);
        // In two parts: a welcome need not arrive whole.
        assert_eq!(pass_fd::send_with_fd(&self.socket, &frame[..3], arena.fd()).unwrap(), 3);
        self.socket.write_all(&frame[3..]).unwrap();
    }

    /// The next frame of the client.
    pub fn next(&mut self) -> Call {
        loop {
            if let Some(frame) = self.deframer.next_frame().unwrap() {
                return hoplite_wire::decode(&frame).unwrap();
            }
            let mut buffer = [0; 65_536];
            let received = self.socket.read(&mut buffer).unwrap();
            assert!(received > 0, "the client closed the connection");
            self.deframer.push(&buffer[..received]);
        }
    }

    pub fn answer(&mut self, call: u64, reply: Reply) {
        let mut frame = BytesMut::new();
        hoplite_wire::encode(&Answer { call, reply }, &mut frame);
        self.socket.write_all(&frame).unwrap();
    }

    /// Answers the next call, which is returned.
    pub fn answer_next(&mut self, reply: Reply) -> Request {
        let Call { call, request } = self.next();
        assert_ne!(call, 0, "{request:?} wants no answer");
        self.answer(call, reply);
        request
    }

    /// A frame that is no answer.
    pub fn gibberish(&mut self) {
        self.socket.write_all(&[1, 0, 0, 0, 0xff]).unwrap();
    }

    pub fn expect(&mut self, request: Request) {
        assert_eq!(self.next().request, request);
    }
}

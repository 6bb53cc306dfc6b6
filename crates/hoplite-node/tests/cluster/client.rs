//! A client reduced to frames and mapped memory: the minimum that a binding for any language has to do.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hoplite_store::pass_fd::recv_with_fd;
use hoplite_store::{Mapping, Reader};
use hoplite_types::client::{Answer, Call, Reply, Request, CLIENT_PROTOCOL_VERSION};
use hoplite_types::{CopyId, Header, NodeId, ObjectId};
use hoplite_wire::{decode, encode, Deframer};

/// Bytes between two looks at whether the node wants to hear of progress.
const PIECE_BYTES: usize = 1 << 20;

/// Long enough to mean "never": a hanging test ends with a message.
pub const NEVER: Duration = Duration::from_secs(60);

pub struct Client {
    stream: UnixStream,
    deframer: Deframer,
    arena: Arc<Mapping>,
    pub node: NodeId,
    calls: u64,
}

/// A connection that has not said hello.
pub fn raw(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(NEVER)).unwrap();
    stream
}

pub fn send(mut stream: &UnixStream, call: u64, request: Request) {
    let mut frame = BytesMut::new();
    encode(&Call { call, request }, &mut frame);
    stream.write_all(&frame).unwrap();
}

pub fn next_answer(mut stream: &UnixStream, deframer: &mut Deframer) -> Answer {
    loop {
        if let Some(frame) = deframer.next_frame().unwrap() {
            return decode(&frame).unwrap();
        }
        let mut buffer = [0; 64 << 10];
        let read = stream.read(&mut buffer).expect("no answer");
        assert_ne!(read, 0, "the node closed the connection");
        deframer.push(&buffer[..read]);
    }
}

pub fn hello(version: u32) -> Request {
    Request::Hello { version, pid: std::process::id() }
}

impl Client {
    pub fn connect(path: &Path) -> Client {
        let stream = raw(path);
        send(&stream, 1, hello(CLIENT_PROTOCOL_VERSION));
        let mut buffer = [0; 4096];
        let (read, fd) = recv_with_fd(&stream, &mut buffer).unwrap();
        let mut deframer = Deframer::new();
        deframer.push(&buffer[..read]);
        match next_answer(&stream, &mut deframer) {
            Answer { call: 1, reply: Reply::Welcome { node, arena_bytes, .. } } => {
                let arena = Mapping::attach(fd.expect("the arena comes with Welcome"), arena_bytes).unwrap();
                Client { stream, deframer, arena, node, calls: 1 }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends a request without waiting for its answer.
    pub fn start(&mut self, request: Request) -> u64 {
        self.calls += 1;
        send(&self.stream, self.calls, request);
        self.calls
    }

    /// The answer to that call; it must be the next one.
    pub fn finish(&mut self, call: u64) -> Reply {
        let answer = next_answer(&self.stream, &mut self.deframer);
        assert_eq!(answer.call, call, "{answer:?}");
        answer.reply
    }

    pub fn call(&mut self, request: Request) -> Reply {
        let call = self.start(request);
        self.finish(call)
    }

    pub fn create(&mut self, id: ObjectId, size: u64, header: Header) -> Created {
        match self.call(Request::Create { id, size, header, timeout_ms: None, keep: false }) {
            Reply::Created { copy, offset, .. } => Created { copy, offset, size },
            other => panic!("{other:?}"),
        }
    }

    /// Writes `bytes` of a created object, from `from` on, telling the node when it asks.
    pub fn write(&mut self, created: &Created, from: usize, bytes: &[u8]) {
        let mut writer = self.arena.writer(created.offset, created.size).unwrap();
        let mut at = from;
        for piece in bytes.chunks(PIECE_BYTES) {
            let to = at + piece.len();
            writer.unpublished(at as u64, to as u64).copy_from_slice(piece);
            writer.publish(to as u64);
            at = to;
            if writer.take_wanted() {
                send(&self.stream, 0, Request::Progress { copy: created.copy, watermark: at as u64 });
            }
        }
    }

    pub fn seal(&mut self, created: &Created) -> Reply {
        self.call(Request::Seal { copy: created.copy, timeout_ms: None })
    }

    pub fn put(&mut self, id: ObjectId, header: Header, bytes: &[u8]) {
        let created = self.create(id, bytes.len() as u64, header);
        self.write(&created, 0, bytes);
        assert_eq!(self.seal(&created), Reply::Done);
    }

    pub fn start_get(&mut self, id: ObjectId) -> u64 {
        self.start(Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: false })
    }

    /// The bytes of a view, without a copy.
    pub fn reader(&self, offset: u64, size: u64) -> Reader {
        self.arena.reader(offset, size).unwrap()
    }

    pub fn release(&self, copy: CopyId) {
        send(&self.stream, 0, Request::Release { copy });
    }

    /// The bytes of the object that call asked for.
    pub fn finish_get(&mut self, call: u64) -> Vec<u8> {
        match self.finish(call) {
            Reply::Small { payload, .. } => payload.0,
            Reply::View { copy, offset, size, sealed: true, .. } => {
                let bytes = self.reader(offset, size).bytes(0, size).to_vec();
                self.release(copy);
                bytes
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn get(&mut self, id: ObjectId) -> Vec<u8> {
        let call = self.start_get(id);
        self.finish_get(call)
    }
}

pub struct Created {
    pub copy: CopyId,
    pub offset: u64,
    pub size: u64,
}

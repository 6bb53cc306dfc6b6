//! The handshake, and the node's death.

use std::time::Duration;

use hoplite_client::{default_socket_path, never, Client};
use hoplite_types::client::{Reply, Request, CLIENT_PROTOCOL_VERSION};
use hoplite_types::{Error, ErrorKind, Header};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::node::{append, bytes, connect, id, node_id, view, Node, COPY, LONG, OFFSET};

#[test]
fn a_welcome_brings_node_and_arena() {
    let node = Node::start();
    let (client, _session) = node.connect();
    assert_eq!(client.node(), node_id());
    assert!(!client.wants_write());
}

#[test]
fn nobody_listening_is_said_at_once() {
    let error = Client::connect("/nonexistent/node.sock".as_ref(), LONG).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NodeUnreachable);
    assert!(error.message.contains("/nonexistent/node.sock"), "{error}");
}

#[test]
fn a_silent_listener_is_given_up() {
    let node = Node::start();
    let error = Client::connect(&node.path(), Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NodeUnreachable);
}

#[test]
fn a_full_queue_of_callers_is_given_up() {
    let node = Node::start();
    // The listener accepts nothing, so in the end the kernel refuses connections.
    let mut queued = Vec::new();
    loop {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None);
        let socket = socket.unwrap();
        match rustix::net::connect(&socket, &SocketAddrUnix::new(node.path()).unwrap()) {
            Ok(()) => queued.push(socket),
            Err(error) => break assert_eq!(error, Errno::AGAIN),
        }
    }
    let error = Client::connect(&node.path(), Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NodeUnreachable);
    assert!(error.message.contains("took no caller"), "{error}");
    let stop = Error::new(ErrorKind::Aborted, "Ctrl-C");
    let stopped = Client::connect_interruptibly(&node.path(), LONG, &mut || Err(stop.clone()));
    assert_eq!(stopped.unwrap_err(), stop);
    // The caller connects when the queue has room again.
    std::thread::scope(|scope| {
        let client = scope.spawn(|| connect(&node.path()));
        queued.iter().for_each(|_| drop(node.accept()));
        let mut session = node.accept();
        session.next();
        session.welcome(&node.arena, CLIENT_PROTOCOL_VERSION);
        assert_eq!(client.join().unwrap().node(), node_id());
    });
}

#[test]
fn another_version_is_refused() {
    let node = Node::start();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Client::connect(&node.path(), LONG).unwrap_err());
        let mut session = node.accept();
        session.next();
        session.welcome(&node.arena, CLIENT_PROTOCOL_VERSION + 1);
        let error = client.join().unwrap();
        assert_eq!(error.kind, ErrorKind::VersionMismatch);
    });
}

#[test]
fn a_node_may_refuse_with_its_own_words() {
    let node = Node::start();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| Client::connect(&node.path(), LONG).unwrap_err());
        let refusal = Error::new(ErrorKind::VersionMismatch, "too old");
        let mut session = node.accept();
        session.next();
        session.answer(0, Reply::Failed(refusal.clone()));
        assert_eq!(client.join().unwrap(), refusal);
    });
}

#[test]
fn a_dead_node_fails_running_and_later_calls() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    std::thread::scope(|scope| {
        let waiters: Vec<_> =
            (0..3).map(|_| scope.spawn(|| client.get(id(), None, false, &mut never).unwrap_err())).collect();
        for _ in 0..3 {
            session.next();
        }
        drop(session);
        for waiter in waiters {
            let error = waiter.join().unwrap();
            assert_eq!(error.kind, ErrorKind::NodeUnreachable);
            assert!(error.message.contains(node.path().to_str().unwrap()), "{error}");
            assert!(error.message.contains(&node_id().to_string()), "{error}");
        }
    });
    assert_eq!(client.submit(Request::Status).unwrap_err().kind, ErrorKind::NodeUnreachable);
    assert_eq!(client.pump().unwrap_err().kind, ErrorKind::NodeUnreachable);
}

#[test]
fn a_dead_node_ends_a_get_behind_its_copy() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let mut writer = node.open(1000);
    append(&mut writer, &bytes(10));
    std::thread::scope(|scope| {
        let getter =
            scope.spawn(|| client.get_into(id(), None, false, &mut Vec::new(), &mut never).unwrap_err());
        session.answer_next(view(1000, false));
        drop(session);
        assert_eq!(getter.join().unwrap().kind, ErrorKind::NodeUnreachable);
    });
}

#[test]
fn a_dead_node_ends_a_running_put() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    // Parts of one byte take far longer than the time between two checks.
    let contents = bytes(15 << 20);
    let reader = node.open(contents.len()).reader();
    std::thread::scope(|scope| {
        let client = &client;
        let put = scope.spawn(move || {
            let parts: Vec<&[u8]> = contents.chunks(1).collect();
            client.put(id(), Header::default(), &parts, None, &mut never).unwrap_err()
        });
        session.answer_next(Reply::Created { copy: COPY, offset: OFFSET, kept: false });
        drop(session);
        assert_eq!(put.join().unwrap().kind, ErrorKind::NodeUnreachable);
    });
    assert!(reader.watermark() < reader.size());
}

#[test]
fn answers_sent_before_the_end_still_count() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let mut ticket = client.submit(Request::Status).unwrap();
    session.answer_next(Reply::Done);
    drop(session);
    assert_eq!(ticket.wait(None, &mut never).unwrap(), Reply::Done);
}

#[test]
fn gibberish_ends_the_connection() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let mut ticket = client.submit(Request::Status).unwrap();
    session.gibberish();
    let error = ticket.wait(None, &mut never).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NodeUnreachable);
    assert!(error.message.contains("no answer"), "{error}");
}

#[test]
fn two_connections_share_the_arena() {
    let node = Node::start();
    let (_first, _first_session) = node.connect();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| connect(&node.path()));
        let mut session = node.accept();
        session.next();
        session.welcome(&node.arena, CLIENT_PROTOCOL_VERSION);
        assert_eq!(second.join().unwrap().node(), node_id());
    });
}

#[test]
fn the_socket_path_names_user_and_port() {
    let path = default_socket_path(7421);
    assert_eq!(path.file_name().unwrap(), "7421.sock");
    let parent = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
    assert_eq!(parent, format!("hoplite-{}", rustix::process::getuid().as_raw()));
}

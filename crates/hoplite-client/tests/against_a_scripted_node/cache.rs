//! The cache of small objects.

use std::sync::Arc;

use hoplite_client::{never, Client, View};
use hoplite_types::client::{Reply, Request};
use hoplite_types::limits::INLINE_BYTES_MAX;
use hoplite_types::{Error, ErrorKind, Result};

use crate::node::{bytes, id, small, view, Node, Session, COPY};

fn get(client: &Arc<Client>) -> Result<View> {
    client.get(id(), None, true, &mut never)
}

/// A get that the node answers with its copy of `contents`. `meanwhile` runs before the answer.
fn got_from_node(
    node: &Node,
    client: &Arc<Client>,
    session: &mut Session,
    contents: &[u8],
    meanwhile: impl FnOnce(),
) -> View {
    node.open_sealed(contents);
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| get(client).unwrap());
        let asked = session.next();
        assert!(matches!(asked.request, Request::Get { .. }), "{asked:?}");
        meanwhile();
        session.answer(asked.call, view(contents.len(), true));
        getter.join().unwrap()
    })
}

/// Checks that the node gets no request before this one.
fn hears_next(client: &Arc<Client>, session: &mut Session) {
    drop(client.submit(Request::Status).unwrap());
    session.expect(Request::Status);
    assert!(matches!(session.next().request, Request::Cancel { .. }));
}

#[test]
fn a_cached_object_is_not_requested_again() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    for contents in [bytes(1000), bytes(INLINE_BYTES_MAX as usize), Vec::new()] {
        let first = got_from_node(&node, &client, &mut session, &contents, || {});
        // Nothing is pinned, though the first view lives.
        session.expect(Request::Release { copy: COPY });
        let again = get(&client).unwrap();
        assert_eq!((again.bytes(), again.header()), (&contents[..], first.header()));
        assert_eq!(again.bytes().as_ptr(), first.bytes().as_ptr());
        hears_next(&client, &mut session);
        node.arena.mapping().count_removal(id());
        assert_eq!(again.bytes(), contents, "views outlive the object");
    }
}

#[test]
fn the_bytes_of_an_answer_are_cached_and_nothing_is_released() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| get(&client).unwrap());
        session.answer_next(small(b"some bytes"));
        assert_eq!(getter.join().unwrap().bytes(), b"some bytes");
    });
    assert_eq!(get(&client).unwrap().bytes(), b"some bytes");
    hears_next(&client, &mut session);
    node.arena.mapping().count_removal(id());
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| get(&client).unwrap());
        session.answer_next(small(b"others"));
        assert_eq!(getter.join().unwrap().bytes(), b"others");
    });
}

#[test]
fn once_a_copy_has_gone_the_node_is_asked() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    drop(got_from_node(&node, &client, &mut session, &bytes(1000), || {}));
    session.expect(Request::Release { copy: COPY });
    node.arena.mapping().count_removal(id());
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| get(&client).unwrap_err());
        session.answer_next(Reply::Failed(Error::new(ErrorKind::Deleted, "it was deleted")));
        assert_eq!(getter.join().unwrap().kind, ErrorKind::Deleted);
    });
    let other = bytes(2000);
    assert_eq!(got_from_node(&node, &client, &mut session, &other, || {}).bytes(), other);
    session.expect(Request::Release { copy: COPY });
    assert_eq!(get(&client).unwrap().bytes(), other);
}

#[test]
fn a_copy_removed_before_its_answer_is_not_cached() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let contents = bytes(1000);
    let removed = || node.arena.mapping().count_removal(id());
    assert_eq!(got_from_node(&node, &client, &mut session, &contents, removed).bytes(), contents);
    session.expect(Request::Release { copy: COPY });
    got_from_node(&node, &client, &mut session, &contents, || {});
}

#[test]
fn large_objects_are_asked_for_every_time() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let contents = bytes(INLINE_BYTES_MAX as usize + 1);
    for _ in 0..2 {
        drop(got_from_node(&node, &client, &mut session, &contents, || {}));
        session.expect(Request::Release { copy: COPY });
    }
}

#[test]
fn the_cache_is_not_used_after_the_death_of_the_node() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    got_from_node(&node, &client, &mut session, &bytes(1000), || {});
    drop(session);
    assert_eq!(get(&client).unwrap_err().kind, ErrorKind::NodeUnreachable);
}

/// An event loop reads answers when the socket is readable. No other call may read them.
#[test]
fn answers_to_others_stay_in_the_socket() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    got_from_node(&node, &client, &mut session, &bytes(1000), || {});
    session.expect(Request::Release { copy: COPY });
    let mut other = client.submit(Request::Status).unwrap();
    session.answer_next(Reply::Status(Default::default()));
    get(&client).unwrap();
    assert!(other.try_take().unwrap().is_none());
    client.pump().unwrap();
    assert!(other.try_take().unwrap().is_some());
}

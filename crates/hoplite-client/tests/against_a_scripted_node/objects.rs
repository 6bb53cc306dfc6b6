//! Moving bytes: put, create, get, copying get.

use std::time::Duration;

use hoplite_client::{never, Arriving, Created};
use hoplite_types::client::{Reply, Request};
use hoplite_types::limits::INLINE_BYTES_MAX;
use hoplite_types::{Blob, Dtype, Error, ErrorKind, Header};

use crate::node::{append, bytes, id, small, view, Node, COPY, LONG, OFFSET};

fn created() -> Reply {
    Reply::Created { copy: COPY, offset: OFFSET, kept: false }
}

#[test]
fn small_objects_go_in_the_call() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    std::thread::scope(|scope| {
        let header = Header::array(Dtype::U8, 5);
        let put = {
            let header = header.clone();
            scope.spawn(|| client.put(id(), header, &[b"ab", b"", b"cde"], Some(LONG), &mut never))
        };
        let timeout_ms = Some(LONG.as_millis() as u64);
        let payload = Blob(b"abcde".to_vec());
        let expected = Request::PutSmall { id: id(), header, payload, timeout_ms };
        assert_eq!(session.answer_next(Reply::Done), expected);
        put.join().unwrap().unwrap();
    });
}

#[test]
fn large_objects_are_written_into_the_arena() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let contents = bytes(3 << 20);
    let reader = node.open(contents.len()).reader();
    reader.want();
    std::thread::scope(|scope| {
        let (head, tail) = contents.split_at(100);
        let client = &client;
        let put = scope.spawn(move || client.put(id(), Header::default(), &[head, tail], None, &mut never));
        let create = session.answer_next(created());
        assert!(matches!(create, Request::Create { size, .. } if size == contents.len() as u64));
        // Asked once, told once: the first advance.
        session.expect(Request::Progress { copy: COPY, watermark: 100 });
        let Request::Seal { copy, .. } = session.answer_next(Reply::Done) else { panic!() };
        assert_eq!(copy, COPY);
        put.join().unwrap().unwrap();
    });
    assert!(reader.bytes(0, reader.size()) == contents);
}

#[test]
fn an_object_that_exists_is_not_written_again() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    std::thread::scope(|scope| {
        let contents = bytes(INLINE_BYTES_MAX as usize + 1);
        let client = &client;
        let put = scope.spawn(move || client.put(id(), Header::default(), &[&contents], None, &mut never));
        session.answer_next(Reply::Done);
        put.join().unwrap().unwrap();
    });
    drop(client.submit(Request::Status).unwrap());
    session.expect(Request::Status);
}

#[test]
fn an_interrupted_put_is_withdrawn() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let contents = bytes(8 << 20);
    node.open(contents.len());
    let interrupted = Error::new(ErrorKind::Aborted, "Ctrl-C");
    std::thread::scope(|scope| {
        let (client, failure) = (&client, interrupted.clone());
        // One-byte parts take long enough for the interrupt to be looked at.
        let put = scope.spawn(move || {
            let parts: Vec<&[u8]> = contents.chunks(1).collect();
            client.put(id(), Header::default(), &parts, None, &mut || Err(failure.clone()))
        });
        session.answer_next(created());
        session.expect(Request::Abort { copy: COPY });
        assert_eq!(put.join().unwrap().unwrap_err(), interrupted);
    });
}

#[test]
fn a_withdrawn_put_returns_the_reason() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let contents = bytes(1 << 20);
    node.open(contents.len()).abort();
    let deleted = Error::new(ErrorKind::Deleted, "deleted meanwhile");
    std::thread::scope(|scope| {
        let client = &client;
        let put = scope.spawn(move || client.put(id(), Header::default(), &[&contents], None, &mut never));
        session.answer_next(created());
        let Request::Seal { .. } = session.answer_next(Reply::Failed(deleted.clone())) else { panic!() };
        assert_eq!(put.join().unwrap().unwrap_err(), deleted);
    });
}

#[test]
fn a_created_object_is_written_in_place() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let reader = node.open(1000).reader();
    std::thread::scope(|scope| {
        let client = &client;
        let writing = scope.spawn(move || {
            let created = client.create(id(), 1000, Header::default(), None, &mut never).unwrap();
            let mut created = created.unwrap();
            created.writable()[..400].fill(1);
            created.advance(400).unwrap();
            assert_eq!((created.watermark(), created.size()), (400, 1000));
            assert_eq!(created.advance(601).unwrap_err().kind, ErrorKind::BadArgument);
            assert_eq!(created.append(&[0; 601]).unwrap_err().kind, ErrorKind::BadArgument);
            created.append(&[3; 100]).unwrap();
            created.writable().fill(2);
            created.seal(None, &mut never)
        });
        session.answer_next(created());
        session.answer_next(Reply::Done);
        writing.join().unwrap().unwrap();
    });
    assert!(reader.bytes(0, 400).iter().all(|&byte| byte == 1));
    assert!(reader.bytes(400, 500).iter().all(|&byte| byte == 3));
    assert!(reader.bytes(500, 1000).iter().all(|&byte| byte == 2));
}

#[test]
fn a_forked_child_writes_into_no_object_of_its_parent() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let writer = node.open(1000);
    std::thread::scope(|scope| {
        let creating =
            scope.spawn(|| client.create(id(), 1000, Header::default(), None, &mut never).unwrap().unwrap());
        session.answer_next(created());
        let mut created = creating.join().unwrap();
        created.writable().fill(1);
        // SAFETY: the child does nothing but the call that is to fail, and ends without what else this process does
        // at its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = created.append(&[2; 500]).is_err_and(|error| error.kind == ErrorKind::BadArgument);
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = -1;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the call did not fail");
        created.advance(1000).unwrap();
        assert!(writer.reader().bytes(0, 1000).iter().all(|&byte| byte == 1), "the child's bytes are there");
    });
}

#[test]
fn a_dropped_object_is_withdrawn() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    node.open(1000);
    std::thread::scope(|scope| {
        let client = &client;
        let writing = scope
            .spawn(move || client.create(id(), 1000, Header::default(), None, &mut never).unwrap().unwrap());
        session.answer_next(created());
        drop(writing.join().unwrap());
        session.expect(Request::Abort { copy: COPY });
    });
}

#[test]
fn the_memory_of_a_created_object_is_kept_until_its_hold_is_dropped() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    for seals in [true, false] {
        node.open(1000);
        let header = Header::default();
        let create = Request::Create { id: id(), size: 1000, header, timeout_ms: None, keep: true };
        let mut ticket = client.submit(create).unwrap();
        session.answer_next(Reply::Created { copy: COPY, offset: OFFSET, kept: true });
        let reply = ticket.wait(None, &mut never).unwrap();
        let mut created = Created::adopt(&client, id(), 1000, reply).unwrap().unwrap();
        let hold = created.take_hold().unwrap();
        assert!(created.take_hold().is_none());
        if seals {
            let mut ticket = created.submit_seal(None).unwrap();
            session.answer_next(Reply::Done);
            ticket.wait(None, &mut never).unwrap();
        } else {
            created.abort();
            session.expect(Request::Abort { copy: COPY });
        }
        drop(client.submit(Request::Status).unwrap());
        // Nothing comes before it: the memory is kept.
        session.expect(Request::Status);
        drop(hold);
        assert!(matches!(session.next().request, Request::Cancel { .. }));
        session.expect(Request::Release { copy: COPY });
    }
}

#[test]
fn a_dropped_seal_is_cancelled() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    node.open(1000);
    std::thread::scope(|scope| {
        let client = &client;
        let writing = scope.spawn(move || {
            let created = client.create(id(), 1000, Header::default(), None, &mut never).unwrap().unwrap();
            created.seal(Some(LONG), &mut || Err(Error::new(ErrorKind::Aborted, "Ctrl-C")))
        });
        session.answer_next(created());
        let seal = session.next();
        let timeout_ms = Some(LONG.as_millis() as u64);
        assert_eq!(seal.request, Request::Seal { copy: COPY, timeout_ms });
        assert_eq!(writing.join().unwrap().unwrap_err().kind, ErrorKind::Aborted);
        session.expect(Request::Cancel { call: seal.call });
    });
}

#[test]
fn a_view_keeps_the_object_until_its_drop() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    for contents in [bytes(100_000), Vec::new()] {
        node.open_sealed(&contents);
        std::thread::scope(|scope| {
            let getter = scope.spawn(|| client.get(id(), None, true, &mut never).unwrap());
            let get = session.answer_next(view(contents.len(), true));
            assert_eq!(get, Request::Get { id: id(), timeout_ms: None, partial: false, fail_if_lost: true });
            let view = getter.join().unwrap();
            assert_eq!((view.bytes(), view.header()), (&contents[..], &Header::default()));
        });
        session.expect(Request::Release { copy: COPY });
    }
}

#[test]
fn an_impossible_view_is_refused_and_released() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    node.open(1000);
    for impossible in [view(1 << 30, true), view(1000, true)] {
        std::thread::scope(|scope| {
            let getter = scope.spawn(|| client.get(id(), None, false, &mut never).unwrap_err());
            session.answer_next(impossible);
            assert_eq!(getter.join().unwrap().kind, ErrorKind::Internal);
        });
        session.expect(Request::Release { copy: COPY });
    }
}

#[test]
fn a_copying_get_follows_the_arrival() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let contents = bytes(5_000_000);
    let mut writer = node.open(contents.len());
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| {
            let mut copy = Vec::new();
            let header = client.get_into(id(), None, false, &mut copy, &mut never).unwrap();
            (copy, header)
        });
        session.answer_next(view(contents.len(), false));
        for piece in contents.chunks(300_000) {
            append(&mut writer, piece);
        }
        writer.seal();
        let (copy, header) = getter.join().unwrap();
        assert!(copy == contents);
        assert_eq!(header, Header::default());
    });
    session.expect(Request::Release { copy: COPY });
}

#[test]
fn a_copying_get_takes_the_bytes_of_the_answer() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| {
            let mut copy = Vec::new();
            client.get_into(id(), None, false, &mut copy, &mut never).unwrap();
            copy
        });
        session.answer_next(small(b"some bytes"));
        assert_eq!(getter.join().unwrap(), b"some bytes");
    });
    let arriving = Arriving::adopt(&client, id(), false, small(b"some bytes")).unwrap();
    assert_eq!(arriving.size(), 10);
    assert_eq!(arriving.copy_into(&mut [0; 9], None, &mut never).unwrap_err().kind, ErrorKind::BadArgument);
    let mut room = [0; 10];
    assert!(arriving.copy_into(&mut room, None, &mut never).unwrap());
    assert_eq!(&room, b"some bytes");
}

#[test]
fn a_copying_get_starts_over_when_the_writing_is_abandoned() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let mut abandoned = node.open(2000);
    append(&mut abandoned, &[0xee; 1500]);
    let contents = bytes(3000);
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| {
            let mut copy = Vec::new();
            client.get_into(id(), None, false, &mut copy, &mut never).map(|_| copy).unwrap()
        });
        session.answer_next(view(2000, false));
        abandoned.abort();
        session.expect(Request::Release { copy: COPY });
        node.open_sealed(&contents);
        session.answer_next(view(contents.len(), true));
        assert!(getter.join().unwrap() == contents);
    });
    session.expect(Request::Release { copy: COPY });
}

#[test]
fn a_timed_out_copying_get_names_the_copied_bytes() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    append(&mut node.open(2000), &[1; 1500]);
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| {
            let timeout = Some(Duration::from_millis(20));
            client.get_into(id(), timeout, false, &mut Vec::new(), &mut never).unwrap_err()
        });
        session.answer_next(view(2000, false));
        // The node is asked why.
        let late = Error::new(ErrorKind::TimedOut, "its sender stands still");
        let Request::Get { timeout_ms: Some(0), partial: false, .. } =
            session.answer_next(Reply::Failed(late))
        else {
            panic!()
        };
        let error = getter.join().unwrap();
        assert_eq!(error.kind, ErrorKind::TimedOut);
        assert!(error.message.contains("1500 of 2000 bytes"), "{error}");
        assert!(error.message.contains("its sender stands still"), "{error}");
    });
    session.expect(Request::Release { copy: COPY });
}

#[test]
fn a_stalled_copying_get_learns_of_a_loss() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let mut writer = node.open(2000);
    append(&mut writer, &[1; 1500]);
    std::thread::scope(|scope| {
        let getter =
            scope.spawn(|| client.get_into(id(), None, true, &mut Vec::new(), &mut never).unwrap_err());
        session.answer_next(view(2000, false));
        let lost = Error::new(ErrorKind::Lost, "its holder died").about(id());
        let whole = Request::Get { id: id(), timeout_ms: None, partial: false, fail_if_lost: true };
        assert_eq!(session.answer_next(Reply::Failed(lost.clone())), whole);
        assert_eq!(getter.join().unwrap(), lost);
    });
    session.expect(Request::Release { copy: COPY });
}

#[test]
fn a_copying_get_takes_late_bytes() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    let contents = bytes(2000);
    let mut writer = node.open(2000);
    append(&mut writer, &contents[..1500]);
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| {
            let mut copy = Vec::new();
            client.get_into(id(), None, true, &mut copy, &mut never).map(|_| copy).unwrap()
        });
        session.answer_next(view(2000, false));
        let call = session.next().call;
        append(&mut writer, &contents[1500..]);
        writer.seal();
        session.answer(call, view(2000, true));
        assert!(getter.join().unwrap() == contents);
    });
    // Two views are released: the copied one, and the one of the enquiry.
    session.expect(Request::Release { copy: COPY });
    session.expect(Request::Release { copy: COPY });
}

#[test]
fn a_buffer_of_another_size_is_a_mismatch() {
    let node = Node::start();
    let (client, mut session) = node.connect();
    node.open_sealed(&bytes(100));
    std::thread::scope(|scope| {
        let getter = scope.spawn(|| {
            let mut buffer = [0; 99];
            client.get_into(id(), None, false, &mut &mut buffer[..], &mut never).unwrap_err()
        });
        session.answer_next(view(100, true));
        assert_eq!(getter.join().unwrap().kind, ErrorKind::Mismatch);
    });
    session.expect(Request::Release { copy: COPY });
}

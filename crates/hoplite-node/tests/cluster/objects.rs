//! Objects put on one node and read on others.

use hoplite_store::Followed;
use hoplite_types::client::{Reply, Request};
use hoplite_types::limits::ANSWER_BYTES_MAX;
use hoplite_types::{Blob, ErrorKind, Header, ObjectId};

use crate::client::NEVER;
use crate::node::{cluster, members, status};
use crate::pattern;

const SIZE: usize = 20_000_003;

#[test]
fn a_small_object_is_read_on_another_node() {
    let nodes = cluster(2);
    let (mut here, mut there) = (nodes[0].client(), nodes[1].client());
    let id = ObjectId::from_name("small");
    let payload = Blob(pattern(1, 1000));
    let request = Request::PutSmall { id, header: Header::default(), payload, timeout_ms: None };
    assert_eq!(here.call(request), Reply::Done);
    assert_eq!(there.get(id), pattern(1, 1000));
    assert_eq!(here.get(id), pattern(1, 1000));
}

#[test]
fn a_large_object_reaches_all_nodes_that_asked_before_and_after() {
    let nodes = cluster(4);
    let id = ObjectId::from_name("large");
    let bytes = pattern(2, SIZE);
    let mut early: Vec<_> = nodes[1..3].iter().map(|node| node.client()).collect();
    let calls: Vec<_> = early.iter_mut().map(|client| client.start_get(id)).collect();
    nodes[0].client().put(id, Header::default(), &bytes);
    for (client, call) in early.iter_mut().zip(calls) {
        assert!(client.finish_get(call) == bytes);
    }
    let mut late = nodes[3].client();
    assert!(late.get(id) == bytes);
    let received = status(&mut late).received_bytes;
    assert!(received >= SIZE as u64, "{received} bytes were received");
    let sent: u64 = nodes.iter().map(|node| status(&mut node.client()).sent_bytes).sum();
    assert!(sent >= 3 * SIZE as u64, "{sent} bytes were sent");
}

#[test]
fn a_small_object_is_answered_with_its_bytes_and_nothing_is_kept_for_the_client() {
    let nodes = cluster(1);
    let mut client = nodes[0].client();
    for (size, small) in [(0, true), (ANSWER_BYTES_MAX, true), (ANSWER_BYTES_MAX + 1, false)] {
        let (id, bytes) = (ObjectId::from_name(&format!("{size} bytes")), pattern(4, size as usize));
        client.put(id, Header::default(), &bytes);
        for partial in [false, true] {
            let get = Request::Get { id, timeout_ms: None, partial, fail_if_lost: false };
            match client.call(get) {
                Reply::Small { payload, .. } if small => assert!(payload.0 == bytes),
                Reply::View { copy, size: told, sealed: true, .. } if !small => {
                    assert_eq!(told, size);
                    client.release(copy);
                }
                other => panic!("{size} bytes: {other:?}"),
            }
        }
        assert_eq!(client.call(Request::Delete { ids: vec![id], timeout_ms: None }), Reply::Done);
    }
    // A copy that a client holds would still take its space.
    assert_eq!(status(&mut client).used_bytes, 0);
}

#[test]
fn a_follower_of_a_received_copy_is_woken() {
    let nodes = cluster(2);
    let (id, bytes) = (ObjectId::from_name("followed"), pattern(5, SIZE));
    let (mut writer, mut getter) = (nodes[0].client(), nodes[1].client());
    let created = writer.create(id, SIZE as u64, Header::default());
    writer.write(&created, 0, &bytes[..SIZE / 2]);
    let reply = getter.call(Request::Get { id, timeout_ms: None, partial: true, fail_if_lost: false });
    let Reply::View { offset, size, sealed: false, .. } = reply else { panic!("{reply:?}") };
    let reader = getter.reader(offset, size);
    std::thread::scope(|scope| {
        let follower = scope.spawn(|| {
            let mut present = 0;
            loop {
                match reader.follow(present, NEVER) {
                    Followed::Advanced(more) => present = more,
                    end => return (present, end),
                }
            }
        });
        writer.write(&created, SIZE / 2, &bytes[SIZE / 2..]);
        assert_eq!(writer.seal(&created), Reply::Done);
        assert_eq!(follower.join().unwrap(), (SIZE as u64, Followed::Sealed));
    });
}

#[test]
fn readers_stream_behind_a_slow_writer() {
    let nodes = cluster(3);
    let id = ObjectId::from_name("slow");
    let bytes = pattern(3, SIZE);
    let mut writer = nodes[0].client();
    let created = writer.create(id, SIZE as u64, Header::default());
    let mut reader = nodes[1].client();
    let call = reader.start_get(id);
    let mut other = nodes[1].client();
    for from in (0..SIZE).step_by(5_000_000) {
        let to = (from + 5_000_000).min(SIZE);
        writer.write(&created, from, &bytes[from..to]);
        // The next piece is not written before this one is there (but for less than two grains,
        // one held back by the sender and one in the writer's last piece).
        while status(&mut other).received_bytes + (512 << 10) < to as u64 {
            // A writer is asked for its progress at its next piece, which a slow one may not have.
            writer.write(&created, to, &[]);
            std::thread::yield_now();
        }
    }
    assert_eq!(writer.seal(&created), Reply::Done);
    assert!(reader.finish_get(call) == bytes);
}

#[test]
fn a_put_that_its_writer_left_is_withdrawn_and_can_be_put_again() {
    let nodes = cluster(2);
    let id = ObjectId::from_name("abandoned");
    let mut reader = nodes[1].client();
    let call = reader.start_get(id);
    let mut first = nodes[0].client();
    let created = first.create(id, SIZE as u64, Header::default());
    first.write(&created, 0, &pattern(4, 3_000_000));
    drop(first);
    let bytes = pattern(5, SIZE);
    let mut second = nodes[0].client();
    second.put(id, Header::default(), &bytes);
    assert!(reader.finish_get(call) == bytes, "bytes of an abandoned put were seen");
}

#[test]
fn an_unwritten_copy_cannot_be_sealed() {
    let nodes = cluster(1);
    let mut client = nodes[0].client();
    let created = client.create(ObjectId::from_name("unwritten"), 1 << 20, Header::default());
    match client.seal(&created) {
        Reply::Failed(error) => assert_eq!(error.kind, ErrorKind::BadArgument, "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.call(Request::Abort { copy: created.copy }), Reply::Done);
}

#[test]
fn a_get_outlives_the_node_it_was_receiving_from() {
    let mut nodes = cluster(3);
    let id = ObjectId::from_name("survivor");
    let bytes = pattern(6, SIZE);
    nodes[0].client().put(id, Header::default(), &bytes);
    assert!(nodes[1].client().get(id) == bytes);
    // Both have it. Now the node that put it dies while another one asks.
    let mut reader = nodes[2].client();
    let call = reader.start_get(id);
    nodes[0].stop();
    assert!(reader.finish_get(call) == bytes);
    let mut other = nodes[1].client();
    while members(&mut other) > 2 {
        std::thread::yield_now();
    }
}

#[test]
fn deleted_objects_are_gone_everywhere() {
    let nodes = cluster(2);
    let id = ObjectId::from_name("deleted");
    nodes[0].client().put(id, Header::default(), &pattern(7, SIZE));
    let mut reader = nodes[1].client();
    reader.get(id);
    assert_eq!(reader.call(Request::Delete { ids: vec![id], timeout_ms: None }), Reply::Done);
    let get = Request::Get { id, timeout_ms: None, partial: false, fail_if_lost: false };
    match reader.call(get) {
        Reply::Failed(error) => assert_eq!(error.kind, ErrorKind::Deleted, "{error}"),
        other => panic!("{other:?}"),
    }
    for node in &nodes {
        let mut client = node.client();
        while status(&mut client).copies > 0 {
            std::thread::yield_now();
        }
    }
}

/// An event loop asks for all of its objects before it looks at the first answer.
#[test]
fn a_client_may_ask_for_many_small_objects_before_it_reads_an_answer() {
    const MANY: u64 = 4000;
    let nodes = cluster(1);
    let mut client = nodes[0].client();
    let ids: Vec<_> = (0..MANY).map(|n| ObjectId::from_name(&n.to_string())).collect();
    for (n, &id) in ids.iter().enumerate() {
        let payload = Blob(pattern(n as u64, ANSWER_BYTES_MAX as usize));
        let request = Request::PutSmall { id, header: Header::default(), payload, timeout_ms: None };
        assert_eq!(client.call(request), Reply::Done);
    }
    let calls: Vec<_> = ids.iter().map(|&id| client.start_get(id)).collect();
    // Longer than the node takes to answer.
    std::thread::sleep(std::time::Duration::from_secs(2));
    for (n, call) in calls.into_iter().enumerate() {
        assert!(client.finish_get(call) == pattern(n as u64, ANSWER_BYTES_MAX as usize));
    }
}

//! Streams whose sender stalls although its connections do not break.

use hoplite_types::client::{Reply, Request};
use hoplite_types::{Header, ObjectId};
use rustix::process::Signal;

use crate::client::Client;
use crate::node::status;
use crate::pattern;
use crate::process::{wait_until, Process, NEVER_SUSPECT};

/// Takes some ten milliseconds to transfer: long enough to be caught in the middle.
const SIZE: usize = 50_000_000;

/// Transfers to try to catch one.
const TRIES_MAX: usize = 50;

/// Whether the node owns the directory entry of an object that `holder` puts.
fn put_owned_by(owner: &mut Client, holder: &mut Client, id: ObjectId, bytes: &[u8]) -> bool {
    let before = status(owner).entries;
    holder.put(id, Header::default(), bytes);
    status(owner).entries > before
}

fn delete(client: &mut Client, id: ObjectId) {
    assert_eq!(client.call(Request::Delete { ids: vec![id], timeout_ms: None }), Reply::Done);
}

#[test]
fn a_stream_that_stands_still_is_finished_from_another_sender() {
    // No node is declared dead here. Only the stream itself shows the trouble.
    let all = Process::cluster(3, &[NEVER_SUSPECT, "--stall-after-ms=100"]);
    let mut senders: Vec<_> = all[..2].iter().map(Process::client).collect();
    let (mut receiver, mut watcher) = (all[2].client(), all[2].client());
    let bytes = pattern(1, SIZE);
    for n in 0..TRIES_MAX {
        let id = ObjectId::from_name(&format!("try {n}"));
        // A paused node owns nothing here: its silence as an owner is not tested.
        if !put_owned_by(&mut watcher, &mut senders[0], id, &bytes) {
            delete(&mut watcher, id);
            continue;
        }
        assert!(senders[1].get(id) == bytes);
        let sent: Vec<_> = senders.iter_mut().map(|sender| status(sender).sent_bytes).collect();
        let received = status(&mut watcher).received_bytes;
        let call = receiver.start_get(id);
        wait_until("bytes have come", || status(&mut watcher).received_bytes > received);
        // A sender counts bytes after the kernel took them: the receiver may have counted them before.
        let sends = |(sender, sent): (&mut Client, &u64)| status(sender).sent_bytes > *sent;
        let mut sender = None;
        wait_until("one of them sends", || {
            sender = senders.iter_mut().zip(&sent).position(sends);
            sender.is_some()
        });
        let sender = sender.expect("it was waited for");
        all[sender].signal(Signal::STOP);
        let caught = status(&mut watcher).received_bytes < received + SIZE as u64;
        assert!(receiver.finish_get(call) == bytes, "it came changed");
        let fetched = status(&mut watcher).received_bytes - received;
        all[sender].signal(Signal::CONT);
        assert_eq!(fetched, SIZE as u64, "nothing is fetched twice");
        if caught && all[2].log().contains("transfer broken") {
            println!("caught at try {n}");
            return;
        }
        delete(&mut watcher, id);
    }
    panic!("no transfer was caught in the middle");
}

//! This host has no descriptor left for a while. One test in a process of its own, since all threads share the limit.

use std::fs::File;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use hoplite_net::{
    dial, dial_bundle_with, Arrival, ControlEvent, ControlLinks, ControlReaders, Listener, Shortage,
};
use hoplite_types::peer::{PeerMessage, Purpose};
use hoplite_types::{Connections, NodeId, ObjectId};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use tokio::sync::mpsc;

fn message(n: u8) -> PeerMessage {
    PeerMessage::Prefetch { id: ObjectId([n; 16]) }
}

fn met(shortage: &Shortage) -> u64 {
    shortage.gauges()[0].met
}

fn idle(shortage: &Shortage) -> u64 {
    shortage.gauges()[1].value
}

/// Opens files until none can be opened.
fn take_all_descriptors() -> Vec<File> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[tokio::test]
async fn messages_for_a_peer_wait_until_there_are_descriptors_again() {
    let (listener, _udp) = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let node = NodeId { addr: listener.addr(), incarnation: 7 };
    let (tx, mut arrivals) = mpsc::unbounded_channel();
    tokio::spawn(listener.run(node, move |arrival| drop(tx.send(arrival))));
    let caller = NodeId { addr: "127.0.0.1:1".parse().unwrap(), incarnation: 5 };
    let (tx, mut broken) = mpsc::channel(16);
    let shortage = std::sync::Arc::new(Shortage::default());
    let mut links = ControlLinks::new(caller, tx).sharing(shortage.clone());

    let taken = take_all_descriptors();
    let error = dial(caller, node, Purpose::Bulk).await.unwrap_err();
    assert!(hoplite_net::is_shortage(&error), "{error}");
    for n in 0..3 {
        links.send(node, &message(n)).unwrap();
    }
    // Tried, and tried again.
    while met(&shortage) < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(shortage.gauges()[0].value, 1, "one connection waits");
    assert!(broken.try_recv().is_err(), "the link was given up");

    // A transfer does not wait: it takes what is idle, or fails.
    let numbers = AtomicU64::new(1);
    let two = Connections::new(2).unwrap();
    let dialled = dial_bundle_with(&shortage, &numbers, (caller, node), two).await;
    assert!(hoplite_net::is_shortage(&dialled.unwrap_err()));
    drop(taken);
    let bundle = dial_bundle_with(&shortage, &numbers, (caller, node), two).await.unwrap();
    shortage.pool(0).put(node, bundle);
    assert_eq!(idle(&shortage), 2);

    let stream = loop {
        if let Arrival::Control { stream, .. } = arrivals.recv().await.unwrap() {
            break stream;
        }
    };
    let (tx, mut said) = mpsc::channel(16);
    ControlReaders::new(tx).admit(caller, stream);
    for n in 0..3 {
        let Some(ControlEvent::Message { message: got, .. }) = said.recv().await else {
            panic!("no message")
        };
        assert_eq!(got, message(n));
    }
    assert!(broken.try_recv().is_err(), "the link was given up");

    let _taken = take_all_descriptors();
    let alone = dial_bundle_with(&shortage, &numbers, (caller, node), Connections::ONE).await;
    assert_eq!(alone.unwrap().connections(), Connections::ONE);
    assert_eq!(idle(&shortage), 0);
}

//! How soon nodes notice that another has crashed, is paused, or is back.

use std::time::{Duration, Instant};

use hoplite_types::{Header, ObjectId};
use rustix::process::Signal;

use crate::node::status;
use crate::pattern;
use crate::process::{wait_for_members, wait_until, Process, NEVER_SUSPECT};

/// 50 ms is promised (lab/bench_detection.py measures it); tests share the machine with others.
const CRASH_NOTICED_MAX: Duration = Duration::from_millis(500);

/// The promised time.
const PAUSE_NOTICED_MAX: Duration = Duration::from_secs(2);

#[test]
fn a_killed_process_is_found_gone_without_being_suspected() {
    let mut all = Process::cluster(3, &[NEVER_SUSPECT]);
    let mut clients: Vec<_> = all[..2].iter().map(Process::client).collect();
    let mut killed = all.pop().unwrap();
    let began = Instant::now();
    killed.child.kill().unwrap();
    for client in &mut clients {
        wait_for_members(client, 2);
    }
    let noticed = began.elapsed();
    println!("a killed process was noticed after {noticed:?}");
    assert!(noticed < CRASH_NOTICED_MAX, "{noticed:?}");
}

#[test]
fn a_process_that_is_back_at_once_is_another_node() {
    let mut all = Process::cluster(3, &[NEVER_SUSPECT]);
    let mut clients: Vec<_> = all[..2].iter().map(Process::client).collect();
    let mut killed = all.pop().unwrap();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    let listen = killed.addr.to_string();
    let back = Process::start_at(&listen, Some(all[0].addr), &[NEVER_SUSPECT]);
    let node = back.client().node;
    assert_eq!(node.addr, killed.addr);
    for client in &mut clients {
        wait_until("it knows the new one", || status(client).members.contains(&node));
        wait_for_members(client, 3);
        let former = status(client).members.into_iter().filter(|m| m.addr == node.addr && *m != node);
        assert_eq!(former.count(), 0, "its former self lives on");
    }
}

#[test]
fn a_paused_process_is_noticed_and_comes_back_with_its_objects() {
    let all = Process::cluster(3, &[]);
    let mut clients: Vec<_> = all[..2].iter().map(Process::client).collect();
    let (paused, mut held) = (&all[2], all[2].client());
    // Several ids, so that each node owns some of their directory entries.
    let ids: Vec<_> = (0..12).map(|n| ObjectId::from_name(&format!("held {n}"))).collect();
    for (n, id) in ids.iter().enumerate() {
        held.put(*id, Header::default(), &pattern(n as u64, 200_000));
    }
    // Bulk connections both ways, idle when it is paused.
    assert!(clients[0].get(ids[0]) == pattern(0, 200_000));
    let other = ObjectId::from_name("held elsewhere");
    clients[0].put(other, Header::default(), &pattern(99, 200_000));
    assert!(held.get(other) == pattern(99, 200_000));
    let began = Instant::now();
    paused.signal(Signal::STOP);
    assert!(paused.open_connections() >= 6, "control and bulk, in and out");
    for client in &mut clients {
        wait_for_members(client, 2);
    }
    let noticed = began.elapsed();
    println!("a paused process was noticed after {noticed:?}");
    assert!(noticed < PAUSE_NOTICED_MAX, "{noticed:?}");
    // Nothing stays open that would have to be found out about when it is back.
    wait_until("its connections are closed", || paused.open_connections() == 0);
    paused.signal(Signal::CONT);
    for client in clients.iter_mut().chain([&mut held]) {
        wait_for_members(client, 3);
    }
    for (n, id) in ids.iter().enumerate() {
        for client in &mut clients {
            assert!(client.get(*id) == pattern(n as u64, 200_000), "object {n} came back changed");
        }
    }
    // Messages that it missed while it was paused do not count against the others.
    assert!(!paused.log().contains("member is down"), "{}", paused.log());
}

//! How a daemon shuts down.

use std::time::{Duration, Instant};

use hoplite_types::{Header, ObjectId};
use rustix::process::Signal;

use crate::node::members;
use crate::pattern;
use crate::process::{wait_for_members, wait_until, Process, NEVER_SUSPECT};

/// 100 ms is promised; tests share the machine with others.
const LEAVING_NOTICED_MAX: Duration = Duration::from_millis(500);

#[test]
fn a_daemon_says_when_it_is_ready_and_cleans_up_on_sigterm() {
    let mut daemon = Process::start(None, &[]);
    let client = daemon.client();
    let (addr, socket) = (client.node.addr, daemon.socket.display());
    assert_eq!(daemon.ready, format!("hoplited listening on {addr} socket {socket} store {}", 64 << 20));
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().0.success());
    assert!(daemon.lines.next().is_none(), "one line, and no more");
    assert!(!daemon.socket.exists());
}

#[test]
fn peers_notice_at_once_that_a_daemon_leaves() {
    let mut all = Process::cluster(3, &[NEVER_SUSPECT]);
    let mut clients: Vec<_> = all[..2].iter().map(Process::client).collect();
    let mut leaver = all.pop().unwrap();
    let began = Instant::now();
    leaver.signal(Signal::TERM);
    for client in &mut clients {
        wait_for_members(client, 2);
    }
    let noticed = began.elapsed();
    let (status, ended) = leaver.wait();
    println!("noticed after {noticed:?}, ended {ended:?} later");
    assert!(status.success());
    assert!(noticed < LEAVING_NOTICED_MAX, "{noticed:?}");
}

#[test]
fn a_peer_that_does_not_answer_delays_no_shutdown() {
    let mut all = Process::cluster(3, &[NEVER_SUSPECT]);
    let mut clients: Vec<_> = all[..1].iter().map(Process::client).collect();
    let mut leaver = all.pop().unwrap();
    all[1].signal(Signal::STOP);
    leaver.signal(Signal::INT);
    let (status, ended) = leaver.wait();
    println!("ended after {ended:?}");
    assert!(status.success());
    for client in &mut clients {
        wait_for_members(client, 2);
    }
}

#[test]
fn a_daemon_that_drains_hands_over_its_only_copies() {
    let mut all = Process::cluster(3, &["--drain-ms=30000"]);
    let mut leaver = all.pop().unwrap();
    let mut holder = leaver.client();
    // So many that every node owns the directory entries of some; small ones live in the directory.
    let ids: Vec<_> = (0..12).map(|n| ObjectId::from_name(&format!("only copy {n}"))).collect();
    let bytes = |n: usize| pattern(n as u64, if n.is_multiple_of(2) { 3_000_000 } else { 1_000 });
    for (n, id) in ids.iter().enumerate() {
        holder.put(*id, Header::default(), &bytes(n));
    }
    leaver.signal(Signal::TERM);
    let (status, ended) = leaver.wait();
    println!("drained and ended after {ended:?}");
    assert!(status.success());
    assert!(leaver.log().contains("leaving"), "{}", leaver.log());
    for process in &all {
        let mut client = process.client();
        wait_for_members(&mut client, 2);
        for (n, id) in ids.iter().enumerate() {
            assert!(client.get(*id) == bytes(n), "object {n} came back changed");
        }
    }
}

/// A cluster of two, the second draining, whose only object cannot be handed over: the other's store is
/// full of pinned bytes.
fn stuck_drain(drain: &str) -> (Process, Process) {
    let mut all = Process::cluster(2, &[drain]);
    let leaver = all.pop().unwrap();
    let other = all.pop().unwrap();
    let size = 40_000_000;
    for (process, name) in [(&other, "in the way"), (&leaver, "only copy")] {
        process.client().put(ObjectId::from_name(name), Header::default(), &pattern(1, size));
    }
    leaver.signal(Signal::TERM);
    wait_until("it is leaving", || leaver.log().contains("leaving"));
    (other, leaver)
}

#[test]
fn a_second_signal_does_not_wait_for_the_drain() {
    let (other, mut leaver) = stuck_drain("--drain-ms=3600000");
    // It still serves: a call is answered by a loop that has not ended.
    assert_eq!(members(&mut leaver.client()), 2);
    leaver.signal(Signal::TERM);
    let (status, ended) = leaver.wait();
    println!("ended after {ended:?}");
    assert!(status.success());
    wait_for_members(&mut other.client(), 1);
}

#[test]
fn two_signals_in_one_moment_are_both_heard() {
    // The kernel chooses the thread for each signal, so this runs several times.
    for _ in 0..10 {
        let mut daemon = Process::start(None, &["--drain-ms=3600000"]);
        daemon.signal(Signal::TERM);
        daemon.signal(Signal::INT);
        assert!(daemon.wait().0.success());
    }
}

#[test]
fn a_drain_that_does_not_succeed_ends_in_its_time() {
    let began = Instant::now();
    let (other, mut leaver) = stuck_drain("--drain-ms=500");
    let (status, _) = leaver.wait();
    println!("ended after {:?}", began.elapsed());
    assert!(status.success());
    assert!(!leaver.log().contains("could not leave"), "{}", leaver.log());
    wait_for_members(&mut other.client(), 1);
}

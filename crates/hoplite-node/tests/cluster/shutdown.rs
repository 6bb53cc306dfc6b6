//! How a daemon ends when it is asked to.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::process::{wait_for_members, Process, NEVER_SUSPECT};

/// 100 ms is promised; tests share the machine with others.
const LEAVING_NOTICED_MAX: Duration = Duration::from_millis(500);

#[test]
fn it_says_when_it_is_ready_and_cleans_up_on_sigterm() {
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
fn one_that_leaves_is_missed_at_once() {
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
fn a_peer_that_does_not_answer_holds_nobody_up() {
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

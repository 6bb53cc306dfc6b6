//! The daemon as a process of its own.

use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use hoplite_words::{Header, ObjectId};
use rustix::process::{kill_process, Pid, Signal};

use crate::client::Client;
use crate::node::{fresh_socket, members};
use crate::pattern;

/// A running `hoplited`; killed when dropped.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    ready: String,
    socket: PathBuf,
    addr: SocketAddr,
}

impl Process {
    fn start(seed: Option<SocketAddr>) -> Process {
        let socket = fresh_socket();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hoplited"));
        command.args(["--listen", "127.0.0.1:0", "--store-size", "64MiB", "--die-with-parent"]);
        command.args(seed.map(|seed| format!("--seed={seed}")));
        command.env("HOPLITE_SOCKET", &socket).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().unwrap().unwrap();
        let addr = ready.split(' ').nth(3).unwrap().parse().unwrap();
        Process { child, lines, ready, socket, addr }
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn wait_for_members(client: &mut Client, count: usize) {
    while members(client) != count {
        std::thread::yield_now();
    }
}

#[test]
fn it_says_when_it_is_ready_and_cleans_up_on_sigterm() {
    let mut daemon = Process::start(None);
    let client = daemon.client();
    let (addr, socket) = (client.node.addr, daemon.socket.display());
    assert_eq!(daemon.ready, format!("hoplited listening on {addr} socket {socket} store {}", 64 << 20));
    daemon.signal(Signal::TERM);
    assert!(daemon.child.wait().unwrap().success());
    assert!(daemon.lines.next().is_none(), "one line, and no more");
    assert!(!daemon.socket.exists());
}

#[test]
fn a_paused_process_is_noticed_and_comes_back_with_what_it_holds() {
    let first = Process::start(None);
    let second = Process::start(Some(first.addr));
    let paused = Process::start(Some(first.addr));
    let (mut here, mut there, mut held) = (first.client(), second.client(), paused.client());
    for client in [&mut here, &mut there, &mut held] {
        wait_for_members(client, 3);
    }
    // Several ids, so that each node owns some of their directory entries.
    let ids: Vec<_> = (0..12).map(|n| ObjectId::from_name(&format!("held {n}"))).collect();
    for (n, id) in ids.iter().enumerate() {
        held.put(*id, Header::default(), &pattern(n as u64, 200_000));
    }
    paused.signal(Signal::STOP);
    wait_for_members(&mut here, 2);
    wait_for_members(&mut there, 2);
    paused.signal(Signal::CONT);
    for client in [&mut here, &mut there, &mut held] {
        wait_for_members(client, 3);
    }
    for (n, id) in ids.iter().enumerate() {
        for client in [&mut here, &mut there] {
            assert!(client.get(*id) == pattern(n as u64, 200_000), "object {n} came back changed");
        }
    }
}

//! The daemon as a process of its own: what only signals and exit codes can show.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};

use crate::client::Client;
use crate::node::{fresh_socket, members};

/// So long that nobody is ever declared dead for silence: what is noticed then is noticed otherwise.
pub const NEVER_SUSPECT: &str = "--suspicion-ms=3600000";

/// Long enough to mean "never".
const NEVER: Duration = Duration::from_secs(60);

/// A running `hoplited`; killed when dropped.
pub struct Process {
    pub child: Child,
    pub lines: Lines<BufReader<ChildStdout>>,
    pub ready: String,
    pub socket: PathBuf,
    pub addr: SocketAddr,
    log: PathBuf,
}

impl Process {
    pub fn start(seed: Option<SocketAddr>, extra: &[&str]) -> Process {
        Self::start_at("127.0.0.1:0", seed, extra)
    }

    pub fn start_at(listen: &str, seed: Option<SocketAddr>, extra: &[&str]) -> Process {
        let socket = fresh_socket();
        let log = socket.with_extension("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_hoplited"));
        command.args(["--listen", listen, "--store-size", "64MiB", "--die-with-parent"]);
        command.args(seed.map(|seed| format!("--seed={seed}"))).args(extra);
        command.env("HOPLITE_SOCKET", &socket).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().expect("it ended at once").unwrap();
        let addr = ready.split(' ').nth(3).unwrap().parse().unwrap();
        Process { child, lines, ready, socket, addr, log }
    }

    /// So many of them, all knowing each other.
    pub fn cluster(count: usize, extra: &[&str]) -> Vec<Process> {
        let mut all = vec![Process::start(None, extra)];
        for _ in 1..count {
            all.push(Process::start(Some(all[0].addr), extra));
        }
        for process in &all {
            wait_for_members(&mut process.client(), count);
        }
        all
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// What it has written to stderr so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for its end; gives the time that took, too.
    pub fn wait(&mut self) -> (ExitStatus, Duration) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, began.elapsed());
            }
            assert!(began.elapsed() < NEVER, "it does not end: {}", self.log());
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.addr, self.log());
        }
        let _ = std::fs::remove_file(&self.socket);
        let _ = std::fs::remove_file(&self.log);
    }
}

/// Waits until the node sees so many members; gives the time that took.
pub fn wait_for_members(client: &mut Client, count: usize) -> Duration {
    let began = Instant::now();
    while members(client) != count {
        assert!(began.elapsed() < NEVER, "{} members after {NEVER:?}, not {count}", members(client));
        std::thread::yield_now();
    }
    began.elapsed()
}

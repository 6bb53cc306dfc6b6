//! The daemon as a process of its own: behaviour that only signals and exit codes can show.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{kill_process, Pid, Signal};

use crate::client::Client;
use crate::node::{fresh_socket, members};

/// So long that no silent node is declared dead. A death is then noticed by other means.
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

    /// So many daemons, which all know each other.
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

    /// How many of its TCP connections its kernel takes for open in both directions.
    pub fn open_connections(&self) -> usize {
        const ESTABLISHED: &str = "01";
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let links = descriptors.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        let sockets: Vec<_> = links.map(|link| link.to_string_lossy().into_owned()).collect();
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let open = table.lines().filter(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields[3] == ESTABLISHED && sockets.contains(&format!("socket:[{}]", fields[9]))
        });
        open.count()
    }

    /// Its output to stderr so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for its end. Returns the time that took, too.
    pub fn wait(&mut self) -> (ExitStatus, Duration) {
        let took = wait_until("it has ended", || self.child.try_wait().unwrap().is_some());
        (self.child.wait().unwrap(), took)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.addr, self.log());
        }
        for left in [&self.socket, &self.log, &self.socket.with_extension("incarnation")] {
            let _ = std::fs::remove_file(left);
        }
    }
}

/// Waits until `is_so`, which `what` describes in words. Returns the time that took.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < NEVER, "after {NEVER:?} still not so: {what}");
        std::thread::yield_now();
    }
    began.elapsed()
}

/// Waits until the node sees so many members.
pub fn wait_for_members(client: &mut Client, count: usize) -> Duration {
    wait_until(&format!("it knows {count} members"), || members(client) == count)
}

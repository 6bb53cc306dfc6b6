//! Daemons inside the test process, each on a thread of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use clap::Parser;
use hoplite_node::{Daemon, Options};
use hoplite_types::client::{Reply, Request};
use tokio::sync::mpsc as tokio_mpsc;

use crate::client::Client;

static NEXT: AtomicU64 = AtomicU64::new(0);

pub struct Node {
    pub addr: SocketAddr,
    pub socket: PathBuf,
    stop: Option<tokio_mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A path that no other test uses.
pub fn fresh_socket() -> PathBuf {
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("hoplite-cluster-{}-{n}.sock", std::process::id()))
}

impl Node {
    /// With more flags, `extra`.
    pub fn start(seed: Option<SocketAddr>, extra: &[&str]) -> Node {
        // Shown for failed tests: HOPLITE_LOG=debug cargo test.
        let filter = tracing_subscriber::EnvFilter::try_from_env("HOPLITE_LOG").unwrap_or_default();
        let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
        let socket = fresh_socket();
        let mut args = vec!["hoplited".to_owned(), "--listen=127.0.0.1:0".into()];
        args.push(format!("--socket={}", socket.display()));
        // Many daemons share few cores here; one that starves for a second is not to be declared dead.
        args.push("--suspicion-ms=5000".into());
        args.extend(extra.iter().map(|&arg| arg.to_owned()));
        args.extend(seed.map(|seed| format!("--seed={seed}")));
        let options = Options::parse_from(args);
        let (stop, stopping) = tokio_mpsc::channel(1);
        let (ready, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let daemon = Daemon::start(&options).await.unwrap();
                ready.send(daemon.id().addr).unwrap();
                daemon.run(stopping).await;
            });
        });
        let addr = started.recv().unwrap();
        Node { addr, socket, stop: Some(stop), thread: Some(thread) }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends the daemon; its sockets are closed when this returns.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
        // The file with the time of its start, for a node that is started again.
        let _ = std::fs::remove_file(self.socket.with_extension("incarnation"));
    }
}

/// `count` nodes that know each other.
pub fn cluster(count: usize) -> Vec<Node> {
    cluster_with(count, &["--store-size=256MiB"])
}

/// The same, all with these flags.
pub fn cluster_with(count: usize, extra: &[&str]) -> Vec<Node> {
    let mut nodes = vec![Node::start(None, extra)];
    for _ in 1..count {
        nodes.push(Node::start(Some(nodes[0].addr), extra));
    }
    for node in &nodes {
        let mut client = node.client();
        while members(&mut client) < count {
            std::thread::yield_now();
        }
    }
    nodes
}

pub fn members(client: &mut Client) -> usize {
    status(client).members.len()
}

pub fn status(client: &mut Client) -> hoplite_types::client::Status {
    match client.call(Request::Status) {
        Reply::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

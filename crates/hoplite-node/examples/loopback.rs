//! How fast two nodes on one host move a large object, beside a bare TCP copy of as many bytes.
//!
//! `cargo run --release -p hoplite-node --example loopback [MiB] [rounds]`

#[path = "../tests/cluster/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "../tests/cluster/node.rs"]
#[allow(dead_code)]
mod node;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use hoplite_types::client::{Reply, Request};
use hoplite_types::limits::GRAIN_BYTES_MAX;
use hoplite_types::{Header, ObjectId};

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>().expect("a number"));
    let size = args.next().unwrap_or(1024) << 20;
    let rounds = args.next().unwrap_or(5);
    let store = format!("--store-size={}", size + (64 << 20));
    let nodes = node::cluster_with(2, &[&store]);
    let (mut here, mut there) = (nodes[0].client(), nodes[1].client());
    let source = vec![7u8; size];
    let mut sink = vec![1u8; size];
    println!("round  bare GB/s  hoplite GB/s  ratio");
    for round in 0..rounds {
        let bare = bare_copy(&source, &mut sink);
        let id = ObjectId::from_name(&format!("round {round}"));
        here.put(id, Header::default(), &source);
        let began = Instant::now();
        let call = there.start_get(id);
        let reply = there.finish(call);
        let Reply::View { copy, .. } = reply else { panic!("{reply:?}") };
        let hoplite = began.elapsed().as_secs_f64();
        there.release(copy);
        assert_eq!(here.call(Request::Delete { ids: vec![id], timeout_ms: None }), Reply::Done);
        for client in [&mut here, &mut there] {
            while node::status(client).copies > 0 {
                std::thread::yield_now();
            }
        }
        let rate = |seconds: f64| size as f64 / seconds / 1e9;
        println!("{round:5}  {:9.2}  {:12.2}  {:5.2}", rate(bare), rate(hoplite), bare / hoplite);
    }
}

/// Seconds from the first write to the last read, in writes and reads of one grain.
fn bare_copy(source: &[u8], sink: &mut [u8]) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("bound");
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect(addr).expect("connected");
            for piece in source.chunks(GRAIN_BYTES_MAX) {
                stream.write_all(piece).expect("written");
            }
        });
        let (mut stream, _) = listener.accept().expect("accepted");
        for piece in sink.chunks_mut(GRAIN_BYTES_MAX) {
            stream.read_exact(piece).expect("read");
        }
    });
    began.elapsed().as_secs_f64()
}

//! `hoplite-scale`: what one collective takes over simulated clusters of several sizes.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hoplite_sim::scale::{measure, Cluster, Collective};

/// Prints a line `nodes broadcast_seconds reduce_seconds` for each number of nodes.
#[derive(Parser)]
struct Args {
    /// Numbers of nodes, with commas between them; 2 to 64.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16,32,64")]
    nodes: Vec<usize>,
    /// Bytes of the object, a multiple of 4.
    #[arg(long, default_value_t = 8 << 20)]
    bytes: u64,
    /// One way, between any two nodes.
    #[arg(long, default_value_t = 100)]
    latency_us: u64,
    /// What a node can send, and receive, per second.
    #[arg(long, default_value_t = 62_500_000)]
    bytes_per_s: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    for &nodes in &args.nodes {
        let cluster = Cluster {
            nodes,
            object_bytes: args.bytes,
            latency: Duration::from_micros(args.latency_us),
            bytes_per_s: args.bytes_per_s,
        };
        let seconds = |collective| measure(collective, cluster).map(|took| took.as_secs_f64());
        match (seconds(Collective::Broadcast), seconds(Collective::Reduce)) {
            (Ok(broadcast), Ok(reduce)) => println!("{nodes} {broadcast:.6} {reduce:.6}"),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("{nodes} nodes: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

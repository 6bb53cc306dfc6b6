//! `hoplite-scale`: measures one collective, or each operation, on simulated clusters of several sizes.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use hoplite_sim::operations::{self, Links, Setting};
use hoplite_sim::scale::{measure, Cluster, Collective};

/// Prints a line `nodes broadcast_seconds reduce_seconds` for each number of nodes.
#[derive(Parser)]
struct Args {
    /// Numbers of nodes, with commas between them; 2 to 64, with `--operations` 3 to 4096.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16,32,64")]
    nodes: Vec<usize>,
    /// Bytes of the object, a multiple of 4.
    #[arg(long, default_value_t = 8 << 20)]
    bytes: u64,
    /// Latency one way between any two nodes, in microseconds.
    #[arg(long, default_value_t = 100)]
    latency_us: u64,
    /// Bytes per second that a node can send, and receive.
    #[arg(long, default_value_t = 62_500_000)]
    bytes_per_s: u64,
    /// Print instead a line of `key=value` for each operation: join, death, put and so on. No bytes are moved.
    #[arg(long)]
    operations: bool,
    /// With `--operations`: numbers of small objects in the cluster.
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    objects: Vec<usize>,
    /// With `--operations`: the number of repeats. The shortest time of each turn counts.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = if args.operations { operations(&args) } else { collectives(&args) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn collectives(args: &Args) -> Result<(), String> {
    for &nodes in &args.nodes {
        let cluster = Cluster {
            nodes,
            object_bytes: args.bytes,
            latency: Duration::from_micros(args.latency_us),
            bytes_per_s: args.bytes_per_s,
        };
        let seconds = |collective| match measure(collective, cluster) {
            Ok(took) => Ok(took.as_secs_f64()),
            Err(error) => Err(format!("{nodes} nodes: {error}")),
        };
        println!("{nodes} {:.6} {:.6}", seconds(Collective::Broadcast)?, seconds(Collective::Reduce)?);
    }
    Ok(())
}

fn operations(args: &Args) -> Result<(), String> {
    let links = Links { latency: Duration::from_micros(args.latency_us), bytes_per_s: args.bytes_per_s };
    for &nodes in &args.nodes {
        for &objects in &args.objects {
            let setting =
                Setting { nodes, objects, collective_bytes: args.bytes, links, repeats: args.repeats };
            let all = operations::measure(setting);
            for took in all.map_err(|error| format!("{nodes} nodes, {objects} objects: {error}"))? {
                println!("nodes={nodes} objects={objects} {took}");
            }
        }
    }
    Ok(())
}

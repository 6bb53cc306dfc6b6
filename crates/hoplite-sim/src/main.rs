//! `hoplite-sim`: runs drawn worlds until one breaks a rule.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use hoplite_sim::fault::FaultSwitches;
use hoplite_sim::run::{run, Keep, Report};

/// Runs simulated clusters of the real core, one per seed, and stops at the first broken rule.
#[derive(Parser)]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds to run, one after the other.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Let faults strike: all of them, or `=` some classes, with commas between them.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "all")]
    faults: FaultSwitches,
    /// Only these of the numbered tasks and faults that the seed draws, with commas between them.
    #[arg(long, value_delimiter = ',')]
    keep: Option<Vec<usize>>,
    /// Go on after failures, and list them at the end.
    #[arg(long)]
    keep_going: bool,
    /// Print the summary of every seed.
    #[arg(long)]
    verbose: bool,
    /// Lines of the event log to print for a failure.
    #[arg(long, default_value_t = 60)]
    tail: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // The seed and the log follow below; here only where it was.
    std::panic::set_hook(Box::new(|panic| {
        println!("panic at {:?}", panic.location());
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            println!("{}", std::backtrace::Backtrace::force_capture());
        }
    }));
    let keep: Keep = args.keep.map(|keep| keep.into_iter().collect());
    let mut failed = Vec::new();
    let mut judged = 0;
    for seed in args.seed..args.seed + args.seeds {
        let report = run(seed, args.faults, &keep, args.tail);
        judged += report.judged;
        if args.verbose || args.seeds == 1 {
            println!("{report}");
        }
        if report.failure.is_some() {
            print_failure(&report);
            failed.push(seed);
            if !args.keep_going {
                break;
            }
        }
    }
    if failed.is_empty() {
        println!("{} seeds from {}: all fine, {judged} contents judged", args.seeds, args.seed);
        return ExitCode::SUCCESS;
    }
    println!("{} seeds failed: {failed:?}", failed.len());
    ExitCode::FAILURE
}

fn print_failure(report: &Report) {
    let Some(failure) = &report.failure else { return };
    println!("FAILED {report}");
    for item in &report.items {
        println!("  {item}");
    }
    println!("  ---");
    for line in &failure.log_tail {
        println!("  {line}");
    }
    println!("  => seed {}: {}", report.seed, failure.violation);
}

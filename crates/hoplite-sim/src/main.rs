//! `hoplite-sim`: runs drawn worlds until one breaks a rule.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use clap::Parser;
use hoplite_sim::coverage::Table;
use hoplite_sim::excuse::Excuses;
use hoplite_sim::fault::FaultSwitches;
use hoplite_sim::minimise::minimise;
use hoplite_sim::run::{run, run_and_tell, Keep, Report, Switches};

/// Runs simulated clusters of the real core, one per seed, and stops at the first broken rule.
#[derive(Parser)]
struct Args {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds to run.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Let faults strike: all classes, or after `=` some classes, with commas between them.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "none", default_missing_value = "all")]
    faults: FaultSwitches,
    /// Draw only worlds with ten thousand small objects or more.
    #[arg(long)]
    masses: bool,
    /// Run only these of the numbered tasks and faults that the seed draws, with commas between them.
    #[arg(long, value_delimiter = ',')]
    keep: Option<Vec<usize>>,
    /// Most reruns to minimise the tasks and faults of a failure.
    #[arg(long, default_value_t = 400)]
    reruns: u32,
    /// Go on after failures, and list them at the end.
    #[arg(long)]
    keep_going: bool,
    /// Print the summary of every seed.
    #[arg(long)]
    verbose: bool,
    /// Lines of the event log to print for a failure.
    #[arg(long, default_value_t = 60)]
    tail: usize,
    /// Worlds to run at a time. The default is the number of processor cores.
    #[arg(long)]
    threads: Option<usize>,
}

impl Args {
    fn switches(&self) -> Switches {
        Switches { faults: self.faults, masses: self.masses }
    }
}

/// The sums over all reports.
#[derive(Default)]
struct Totals {
    failed: Vec<u64>,
    judged: u64,
    excuses: Excuses,
    coverage: Table,
}

impl Totals {
    fn add(&mut self, report: &Report) {
        self.judged += report.judged;
        self.excuses.add(&report.excuses);
        self.coverage.add(&report.coverage);
        if report.failure.is_some() {
            self.failed.push(report.seed);
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let keep: Keep = args.keep.clone().map(|keep| keep.into_iter().collect());
    let Totals { failed, judged, excuses, coverage } = run_all(&args, &keep);
    if args.seeds > 1 {
        print!("{excuses}{coverage}");
        // Without all faults, empty cells are expected.
        if args.faults == FaultSwitches::all() {
            print!("{}", coverage.empty_cells());
        }
    }
    if failed.is_empty() {
        println!("{} seeds from {}: all fine, {judged} contents judged", args.seeds, args.seed);
        return ExitCode::SUCCESS;
    }
    println!("{} seeds failed: {failed:?}", failed.len());
    ExitCode::FAILURE
}

/// Runs all seeds, or until one fails, and prints what is to be printed of each.
fn run_all(args: &Args, keep: &Keep) -> Totals {
    let (switches, tail) = (args.switches(), args.tail);
    let with_log = args.verbose || args.seeds == 1;
    let threads = args.threads.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let mut totals = Totals::default();
    let next = AtomicU64::new(args.seed);
    let end = args.seed + args.seeds;
    let (sender, reports) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads.min(args.seeds as usize) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return;
                }
                let report = match with_log {
                    true => run(seed, switches, keep, Some(tail)),
                    false => run_and_tell(seed, switches, keep, tail),
                };
                if sender.send(report).is_err() {
                    return;
                }
            });
        }
        drop(sender);
        // Reports are handled in the order of their seeds, not in the order in which they finish.
        let mut early: BTreeMap<u64, Report> = BTreeMap::new();
        let mut due = args.seed;
        for report in &reports {
            early.insert(report.seed, report);
            while let Some(report) = early.remove(&due) {
                due += 1;
                totals.add(&report);
                if with_log {
                    println!("{report}");
                }
                if report.failure.is_some() {
                    print_failure(args, keep, &report);
                    if !args.keep_going {
                        next.store(end, Ordering::Relaxed);
                        return;
                    }
                }
            }
        }
    });
    totals
}

fn print_failure(args: &Args, keep: &Keep, report: &Report) {
    let Some(failure) = &report.failure else { return };
    println!("FAILED {report}");
    println!("  => seed {}: {}", report.seed, failure.violation);
    let mut shown = None;
    let mut keep = keep.clone();
    if args.reruns > 0 {
        let small =
            minimise(report.seed, args.switches(), report.kept.clone(), &failure.violation, args.reruns);
        println!(
            "  {} of {} tasks and faults do, found in {} runs",
            small.keep.len(),
            small.of,
            small.reruns
        );
        keep = Some(small.keep);
        shown = Some(run(report.seed, args.switches(), &keep, Some(args.tail)));
    }
    let shown = shown.as_ref().unwrap_or(report);
    for item in &shown.items {
        println!("  {item}");
    }
    println!("  ----");
    if let Some(failure) = &shown.failure {
        for line in &failure.log_tail {
            println!("  {line}");
        }
        println!("  => seed {}: {}", report.seed, failure.violation);
    }
    let masses = if args.masses { " --masses" } else { "" };
    print!("  again: hoplite-sim --seed {} --faults={}{masses}", report.seed, args.faults);
    match keep {
        Some(keep) => {
            let keep: Vec<_> = keep.iter().map(usize::to_string).collect();
            println!(" --keep {}", keep.join(","));
        }
        None => println!(),
    }
}

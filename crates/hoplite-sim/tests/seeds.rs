//! Drawn worlds: a few hundred seeds, and the check that a seed gives the same run twice.

use hoplite_sim::coverage::{Kind, Table, Trouble};
use hoplite_sim::fault::{Class, FaultSwitches};
use hoplite_sim::run::{run as run_items, run_and_tell, Report};

const SEEDS: u64 = 300;

const FAULTY_SEEDS: u64 = 200;

/// Effects of splits are rare where splits are one class of faults among many.
const SPLIT_SEEDS: u64 = 200;

/// So many kinds of control messages are sent in these worlds at least, and so many meet each trouble.
const KINDS_SAID: usize = 45;
const KINDS_MET: [usize; 6] = [36, 34, 34, 16, 14, 16];

/// Lines of the log a failure shows.
const TAIL_LINES: usize = 80;

fn run(seed: u64, faults: FaultSwitches) -> Report {
    run_and_tell(seed, faults, &None, TAIL_LINES)
}

fn run_with_log(seed: u64, faults: FaultSwitches) -> Report {
    run_items(seed, faults, &None, Some(TAIL_LINES))
}

fn demand_fine(report: &Report) {
    if let Some(failure) = &report.failure {
        panic!("{report}\n{}\n{}", failure.log_tail.join("\n"), failure.violation);
    }
}

#[test]
fn drawn_worlds_break_no_rule() {
    let judged: u64 = (0..SEEDS)
        .map(|seed| {
            let report = run(seed, FaultSwitches::default());
            demand_fine(&report);
            report.judged
        })
        .sum();
    assert!(judged > SEEDS, "only {judged} contents were looked at");
}

#[test]
fn drawn_worlds_with_faults_break_no_rule() {
    let (mut table, mut members) = (Table::default(), 0);
    for seed in 0..FAULTY_SEEDS {
        let report = run(seed, FaultSwitches::all());
        demand_fine(&report);
        table.add(&report.coverage);
        members += report.members;
    }
    demand_coverage(&table);
    assert!(members > 1000, "only {members} small objects besides");
}

/// Faults that no message meets, and messages that are never sent, prove nothing.
fn demand_coverage(table: &Table) {
    let said = Kind::ALL.iter().filter(|kind| table.said(**kind) > 0).count();
    assert!(said >= KINDS_SAID, "only {said} of {} kinds were said:\n{table}", Kind::ALL.len());
    for (&trouble, least) in Trouble::ALL.iter().zip(KINDS_MET) {
        let met = Kind::ALL.iter().filter(|kind| table.met(**kind, trouble) > 0).count();
        assert!(met >= least, "only {met} kinds met {trouble:?}:\n{table}");
    }
    assert!(table.mistaken().is_empty(), "{:?} were met:\n{table}", table.mistaken());
}

#[test]
fn drawn_worlds_that_split_break_no_rule() {
    for seed in 0..SPLIT_SEEDS {
        demand_fine(&run(seed, FaultSwitches::default().with(Class::Partition)));
    }
}

#[test]
fn a_seed_gives_the_same_log_twice() {
    for faults in [FaultSwitches::default(), FaultSwitches::all()] {
        for seed in [1, 7, 23] {
            let (first, second) = (run_with_log(seed, faults), run_with_log(seed, faults));
            assert!(first.log_lines > 100);
            assert_eq!((first.log_hash, first.log_lines), (second.log_hash, second.log_lines), "seed {seed}");
        }
        assert_ne!(run_with_log(2, faults).log_hash, run_with_log(1, faults).log_hash);
    }
}

//! Drawn worlds: a few hundred seeds, and the promise that a seed tells the same story twice.

use hoplite_sim::fault::FaultSwitches;
use hoplite_sim::run::{run, Report};

const SEEDS: u64 = 300;

fn demand_fine(report: &Report) {
    if let Some(failure) = &report.failure {
        let tail = failure.log_tail.len().saturating_sub(80);
        panic!("{report}\n{}\n{}", failure.log_tail[tail..].join("\n"), failure.violation);
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
fn a_seed_tells_the_same_story_twice() {
    for seed in [1, 7, 23] {
        let (first, second) = (run(seed, FaultSwitches::default()), run(seed, FaultSwitches::default()));
        assert!(first.log_lines > 100);
        assert_eq!((first.log_hash, first.log_lines), (second.log_hash, second.log_lines), "seed {seed}");
    }
    let other = run(2, FaultSwitches::default());
    assert_ne!(other.log_hash, run(1, FaultSwitches::default()).log_hash);
}

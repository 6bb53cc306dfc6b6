//! Reruns a failing seed with fewer tasks and faults [delta debugging, Zeller 2002].

use std::collections::BTreeSet;

use crate::run::{run, Switches};

/// The fewest items found in `reruns` runs that still fail in the same way.
#[derive(Debug)]
pub struct Minimised {
    pub keep: BTreeSet<usize>,
    pub of: usize,
    pub reruns: u32,
}

/// Leaves out halves of the items that `seed` draws, then quarters, down to single items. An item stays out if the run
/// still fails in the same way.
pub fn minimise(seed: u64, switches: Switches, items: Vec<usize>, violation: &str, reruns: u32) -> Minimised {
    let wanted = kind(violation);
    let of = items.len();
    let mut kept = items;
    let mut runs = 0;
    let mut chunk = kept.len().div_ceil(2);
    while chunk > 0 && runs < reruns {
        let before = kept.len();
        let mut at = 0;
        while at < kept.len() && runs < reruns {
            let end = (at + chunk).min(kept.len());
            let fewer: BTreeSet<usize> = kept[..at].iter().chain(&kept[end..]).copied().collect();
            runs += 1;
            let report = run(seed, switches, &Some(fewer.clone()), None);
            if report.failure.is_some_and(|failure| kind(&failure.violation) == wanted) {
                kept = fewer.into_iter().collect();
            } else {
                at = end;
            }
        }
        // Repeat the pass over single items as long as it removes some.
        if chunk > 1 || kept.len() == before {
            chunk /= 2;
        }
    }
    Minimised { keep: kept.into_iter().collect(), of, reruns: runs }
}

/// The kind of a violation: its text without names and numbers.
fn kind(violation: &str) -> String {
    if let Some((_, how)) = violation.split_once(" failed: ") {
        return format!("failed: {}", how.split(':').next().unwrap_or_default());
    }
    let about = violation.split([':', '{', '[']).next().unwrap_or_default();
    let plain = |word: &&str| word.chars().all(|c| c.is_alphabetic() || c == '\'' || c == ',');
    about.split_whitespace().filter(plain).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::kind;

    #[test]
    fn kinds_leave_names_and_numbers_out() {
        assert_eq!(kind("not finished: task 5 unanswered: Get"), "not finished");
        assert_eq!(kind("n3 seals c17: it is not open"), kind("n1' seals c2: Copy { .. }"));
        assert_ne!(kind("n3 seals c17: it is not open"), kind("n3 closes c17: it is not open"));
        assert_eq!(kind("TaskId(4) Get { id: x } failed: Lost: gone"), "failed: Lost");
    }
}

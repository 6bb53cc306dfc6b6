//! Every scenario must produce its recorded output. `HOPLITE_RERECORD=1` records it again instead.

use std::fs;
use std::path::PathBuf;

/// Most words of a sentence in a comment.
const WORDS_MAX: usize = 25;

fn scenarios() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

#[test]
fn scenarios_produce_their_recorded_output() {
    let rerecord = std::env::var_os("HOPLITE_RERECORD").is_some();
    let mut failures = Vec::new();
    for file in scenarios() {
        let recorded = fs::read_to_string(&file).unwrap();
        match hoplite_sim::scenario::replay(&recorded) {
            Ok(now) if now == recorded => {}
            Ok(now) if rerecord => fs::write(&file, now).unwrap(),
            Ok(now) => failures.push(format!("{} differs:\n{}", file.display(), diff(&recorded, &now))),
            Err(why) => failures.push(format!("{}: {why}", file.display())),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

#[test]
fn every_recorded_step_has_an_expectation() {
    for file in scenarios() {
        let text = fs::read_to_string(&file).unwrap();
        for block in text.split("\n\n") {
            let (comments, rest): (Vec<_>, Vec<_>) = block.lines().partition(|line| line.starts_with('#'));
            let comment = comments.join(" ").replace("# ", "");
            for sentence in comment.split_inclusive(". ") {
                let words = sentence.split_whitespace().count();
                assert!(words <= WORDS_MAX, "{}: {words} words: {sentence}", file.display());
            }
            let is_silent = rest.first().is_none_or(|line| line.starts_with("world") || *line == "quiet");
            assert!(is_silent || comment.starts_with("Expect that "), "{}: {block}", file.display());
        }
    }
}

/// The lines from the first difference on, a few of each.
fn diff(recorded: &str, now: &str) -> String {
    let same = recorded.lines().zip(now.lines()).take_while(|(a, b)| a == b).count();
    let some = |text: &str, mark: &str| {
        text.lines().skip(same).take(12).map(|line| format!("{mark} {line}\n")).collect::<String>()
    };
    format!("from line {}:\n{}{}", same + 1, some(recorded, "-"), some(now, "+"))
}

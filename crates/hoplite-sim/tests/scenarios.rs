//! Every scenario must produce its recorded output. `HOPLITE_RERECORD=1` records it again instead.

use std::fs;
use std::path::PathBuf;

#[test]
fn scenarios_go_as_recorded() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    let rerecord = std::env::var_os("HOPLITE_RERECORD").is_some();
    let mut failures = Vec::new();
    for file in files {
        let recorded = fs::read_to_string(&file).unwrap();
        match hoplite_sim::scenario::replay(&recorded) {
            Ok(now) if now == recorded => {}
            Ok(now) if rerecord => fs::write(&file, now).unwrap(),
            Ok(now) => {
                failures.push(format!("{} goes differently:\n{}", file.display(), diff(&recorded, &now)))
            }
            Err(why) => failures.push(format!("{}: {why}", file.display())),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The lines from the first difference on, a few of each.
fn diff(recorded: &str, now: &str) -> String {
    let same = recorded.lines().zip(now.lines()).take_while(|(a, b)| a == b).count();
    let some = |text: &str, mark: &str| {
        text.lines().skip(same).take(12).map(|line| format!("{mark} {line}\n")).collect::<String>()
    };
    format!("from line {}:\n{}{}", same + 1, some(recorded, "-"), some(now, "+"))
}

//! Every planted bug must still apply to the sources; `make planted-bugs` builds them and finds them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The head lines of a patch, before its diff.
const HEADERS: [&str; 6] = ["Mistake: ", "Breaks: ", "Rule: ", "Says: ", "Faults: ", "Seeds: "];

/// Fewer would not show much.
const BUGS_MIN: usize = 12;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().canonicalize().unwrap()
}

fn patches() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bugs");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut patches: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|extension| extension == "patch")).collect();
    patches.sort();
    patches
}

#[test]
fn planted_bugs_have_all_head_lines() {
    let patches = patches();
    assert!(patches.len() >= BUGS_MIN, "only {} planted bugs", patches.len());
    for patch in patches {
        let text = fs::read_to_string(&patch).unwrap();
        let (said, _) = text.split_once("\ndiff --git ").expect("a diff");
        for header in HEADERS {
            assert!(said.lines().any(|line| line.starts_with(header)), "{}: {header}", patch.display());
        }
    }
}

#[test]
fn planted_bugs_apply_to_the_sources() {
    if Command::new("git").arg("--version").output().is_err() {
        println!("git is not installed: whether the patches apply is not checked");
        return;
    }
    let root = root();
    let stale: Vec<_> = patches()
        .into_iter()
        .filter_map(|patch| {
            let mut git = Command::new("git");
            git.args(["apply", "--check", "--recount", "-C1"]).arg(&patch).current_dir(&root);
            // A repository around an exported tree is none of ours.
            git.env("GIT_CEILING_DIRECTORIES", root.parent().unwrap());
            let checked = git.output().unwrap();
            let why = String::from_utf8_lossy(&checked.stderr).into_owned();
            (!checked.status.success()).then(|| format!("{}: {why}", patch.display()))
        })
        .collect();
    assert!(stale.is_empty(), "{}", stale.join("\n"));
}

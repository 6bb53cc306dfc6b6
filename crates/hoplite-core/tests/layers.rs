//! The modules of the core form layers: each uses only those below it, and only the top has methods of `Core`.

use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom up.
const LAYERS: [&str; 25] = [
    "io",
    "clock",
    "cost",
    "config",
    "shard_table",
    "shards",
    "repeats",
    "keys",
    "notices",
    "timers",
    "ctx",
    "members",
    "copies",
    "directory",
    "sends",
    "subscriptions",
    "leave",
    "fetch",
    "writes",
    "lent",
    "slots",
    "reductions",
    "calls",
    "joining",
    "resync",
];

/// Methods of `Core`: they hand on what comes in, and what one component has to say to another.
const TOP: [&str; 2] = ["lib", "dispatch"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    files.filter(|file| file.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// The module of a file: the first folder, or the file itself.
fn module(root: &Path, file: &Path) -> String {
    let first = file.strip_prefix(root).unwrap().components().next().unwrap();
    first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The names that follow `crate::`.
fn used(text: &str) -> impl Iterator<Item = &str> {
    let names = text.split("crate::").skip(1);
    names.map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
}

#[test]
fn each_module_uses_only_those_below_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&root) {
        let (name, text) = (module(&root, &file), fs::read_to_string(&file).unwrap());
        if TOP.contains(&name.as_str()) {
            continue;
        }
        let layer = LAYERS.iter().position(|layer| *layer == name);
        let layer = layer.unwrap_or_else(|| panic!("{} stands in no layer", file.display()));
        let above = LAYERS[layer + 1..].iter().chain(&TOP);
        for above in above {
            assert!(!used(&text).any(|used| used == *above), "{} uses {above}", file.display());
        }
        let is_top = text.contains("use crate::Core;") || text.contains("impl Core ");
        assert!(!is_top, "{} has methods of Core", file.display());
    }
}

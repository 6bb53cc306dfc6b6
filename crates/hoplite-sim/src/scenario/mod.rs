//! Scenario files: commands, and the recorded messages and replies that followed.
//!
//! A file is a sequence of blocks: command lines, `----`, and the recording up to an empty line. Lines with `#` are
//! comments.
//!
//! - The first block makes the world: `world nodes=3 store=4MiB latency=1ms rate=100MB`.
//! - All commands of a block start at the same time. Then the world runs until only gossip and timers are left, or for
//!   the time of a `run` command.
//! - A block whose first line is `quiet` records `ok` instead of its output. It must not contain an error.
//! - A block of `status` lines shows the state of nodes and of directory entries, and changes nothing.

mod command;
mod stage;
mod state;

use std::fmt::Write;

use stage::Stage;

/// The line between the commands of a block and the recording.
const DIVIDER: &str = "----";

/// One block: the comments before it, its commands and its recording.
#[derive(Default, Debug, PartialEq, Eq)]
struct Block {
    comments: Vec<String>,
    commands: Vec<String>,
}

/// Runs a scenario. Returns its text with a new recording.
///
/// An error if a command is invalid or the world broke a rule.
pub fn replay(text: &str) -> Result<String, String> {
    let mut stage: Option<Stage> = None;
    let mut out = String::new();
    for block in parse(text)? {
        block.comments.iter().for_each(|line| writeln!(out, "{line}").expect("a string takes it"));
        if block.commands.is_empty() {
            out.push('\n');
            continue;
        }
        block.commands.iter().for_each(|line| writeln!(out, "{line}").expect("a string takes it"));
        writeln!(out, "{DIVIDER}").expect("a string takes it");
        let lines = match &mut stage {
            Some(stage) => stage.play(&block.commands)?,
            None => {
                stage = Some(Stage::new(&block.commands)?);
                vec!["ok".to_owned()]
            }
        };
        lines.iter().for_each(|line| writeln!(out, "{line}").expect("a string takes it"));
        out.push('\n');
    }
    if let Some(stage) = stage {
        stage.close()?;
    }
    Ok(out.trim_end().to_owned() + "\n")
}

fn parse(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = vec![Block::default()];
    let mut recorded = false;
    for (number, line) in text.lines().enumerate() {
        let block = blocks.last_mut().expect("never empty");
        match line.trim() {
            "" if recorded || !block.comments.is_empty() && block.commands.is_empty() => {
                blocks.push(Block::default());
                recorded = false;
            }
            "" if block.commands.is_empty() => {}
            "" => return Err(format!("line {}: commands without {DIVIDER}", number + 1)),
            DIVIDER => recorded = true,
            _ if recorded => {}
            comment if comment.starts_with('#') => block.comments.push(comment.to_owned()),
            command => block.commands.push(command.to_owned()),
        }
    }
    blocks.retain(|block| *block != Block::default());
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_at_empty_lines_and_recordings_are_dropped() {
        let blocks = parse("# about\n\nworld\n----\nok\n\n# then\nn1 get x\nrun 1ms\n----\na\nb\n").unwrap();
        assert_eq!(blocks.len(), 3);
        assert_eq!(blocks[2].commands, ["n1 get x", "run 1ms"]);
        assert_eq!(blocks[2].comments, ["# then"]);
        assert!(parse("n1 get x\n\nn1 get y\n----\n").is_err());
    }

    #[test]
    fn quiet_blocks_hide_output_but_no_error() {
        let quiet = |size| replay(&format!("world store=1MiB\n----\n\nquiet\nn1 put x {size}\n----\n"));
        assert!(quiet("10KiB").unwrap().ends_with("n1 put x 10KiB\n----\nok\n"));
        assert!(quiet("4MiB").unwrap_err().contains("StoreFull"));
    }

    #[test]
    fn status_changes_nothing() {
        let world = "world nodes=3\n----\n\nn1 put x 200KiB\nn2 get x\nrun 3ms\n----\n\n";
        let rest = "n3 get x\n----\n";
        let recording = |status: &str| {
            let recording = replay(&format!("{world}{status}{rest}")).unwrap();
            recording.split_once("n3 get x").unwrap().1.to_owned()
        };
        assert_eq!(recording(""), recording("status\nstatus x\n----\n\n"));
    }
}

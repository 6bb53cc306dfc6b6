//! The optional log of a run: a hash over all lines, and the last lines.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The topic of a line. Scenarios show only what is visible between nodes and clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topic {
    /// Calls and replies, control messages, streams.
    Talk,
    /// Internal steps of a node.
    Inside,
    /// Gossip, pings, ticks.
    Noise,
}

/// The log; it grows by one line per event.
pub struct Log {
    hash: u64,
    lines: u64,
    tail: VecDeque<String>,
    /// The number of last lines to keep; `None`: no log is written.
    tail_lines: Option<usize>,
    /// Lines on `Topic::Talk` since the last [`Log::take_talk`], for scenarios.
    talk: Option<Vec<String>>,
}

impl Log {
    /// Keeps the last `tail_lines` for the report of a failure. Without `tail_lines` and `keep_talk`, no log is
    /// written.
    pub fn new(tail_lines: Option<usize>, keep_talk: bool) -> Self {
        Log { hash: FNV_OFFSET, lines: 0, tail: VecDeque::new(), tail_lines, talk: keep_talk.then(Vec::new) }
    }

    /// Whether lines are wanted. Writing them takes a fifth of a run's time.
    pub fn is_wanted(&self) -> bool {
        self.tail_lines.is_some() || self.talk.is_some()
    }

    pub fn write(&mut self, now: Duration, topic: Topic, text: fmt::Arguments<'_>) {
        let line = format!("{:>12.6} {text}", now.as_secs_f64() * 1e3);
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        self.lines += 1;
        if let (Topic::Talk, Some(talk)) = (topic, &mut self.talk) {
            talk.push(text.to_string());
        }
        if topic != Topic::Noise {
            self.tail.push_back(line);
        }
        if self.tail.len() > self.tail_lines.unwrap_or(0) {
            self.tail.pop_front();
        }
    }

    /// A hash over all lines. It is equal for two runs only if they are equal line by line.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn lines(&self) -> u64 {
        self.lines
    }

    pub fn tail(&self) -> impl Iterator<Item = &str> {
        self.tail.iter().map(String::as_str)
    }

    pub fn take_talk(&mut self) -> Vec<String> {
        self.talk.as_mut().map(std::mem::take).unwrap_or_default()
    }
}

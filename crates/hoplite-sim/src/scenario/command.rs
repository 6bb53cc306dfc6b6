//! One command line of a scenario.

use std::str::{FromStr, SplitWhitespace};
use std::time::Duration;

use hoplite_types::{Dtype, Op};

/// The command of a line. Nodes are given by index, objects by name.
#[derive(Clone, PartialEq, Debug)]
pub enum Command {
    Put {
        node: usize,
        name: String,
        size: u64,
        dtype: Option<Dtype>,
        small: bool,
        options: Options,
    },
    /// Resumes a put that holds.
    Resume {
        name: String,
    },
    Get {
        node: usize,
        name: String,
        options: Options,
    },
    Delete {
        node: usize,
        names: Vec<String>,
        options: Options,
    },
    Reduce {
        node: usize,
        target: String,
        op: Op,
        num_objects: u32,
        names: Vec<String>,
        options: Options,
    },
    Wait {
        node: usize,
        count: u32,
        names: Vec<String>,
        options: Options,
    },
    Prefetch {
        node: usize,
        names: Vec<String>,
    },
    Locate {
        node: usize,
        name: String,
    },
    /// A client asks its node for its status.
    Status {
        node: usize,
    },
    /// Cancels the last task of that node's client on that object.
    Cancel {
        name: String,
    },
    KillClient {
        node: usize,
    },
    Kill {
        node: usize,
    },
    Restart {
        node: usize,
    },
    Run {
        time: Duration,
    },
    /// Shows the state of these nodes, and the directory entries of these objects. Without any: of all living nodes.
    Show {
        subjects: Vec<Subject>,
    },
}

/// A node by index, or an object by name.
#[derive(Clone, PartialEq, Debug)]
pub enum Subject {
    Node(usize),
    Object(String),
}

/// The options of a command, each `key=value` or a word.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Options {
    pub piece: Option<u64>,
    pub pause: Duration,
    pub hold_at: Option<u64>,
    pub abort_at: Option<u64>,
    /// How long a put keeps the memory that it wrote.
    pub keep: Option<Duration>,
    pub within: Option<Duration>,
    pub held: Duration,
    /// The dtype of a reduction whose sources do not exist yet.
    pub dtype: Option<Dtype>,
    pub size: u64,
    pub partial: bool,
    pub unless_lost: bool,
    pub fixed: bool,
    pub to_sources: bool,
}

impl FromStr for Command {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        parse(line).map_err(|why| format!("{line:?}: {why}"))
    }
}

fn parse(line: &str) -> Result<Command, String> {
    let mut words = line.split_whitespace();
    let first = word(&mut words)?;
    match first {
        "kill" => return Ok(Command::Kill { node: node(word(&mut words)?)? }),
        "restart" => return Ok(Command::Restart { node: node(word(&mut words)?)? }),
        "run" => return Ok(Command::Run { time: time(word(&mut words)?)? }),
        "resume" => return Ok(Command::Resume { name: name(&mut words)? }),
        "cancel" => return Ok(Command::Cancel { name: name(&mut words)? }),
        "status" => return Ok(Command::Show { subjects: words.map(subject).collect() }),
        _ => {}
    }
    let node = node(first)?;
    Ok(match word(&mut words)? {
        verb @ ("put" | "put-small") => {
            let name = name(&mut words)?;
            let size = size(word(&mut words)?)?;
            let dtype = words.clone().next().and_then(|word| word.parse().ok());
            if dtype.is_some() {
                words.next();
            }
            Command::Put { node, name, size, dtype, small: verb == "put-small", options: options(words)? }
        }
        "get" => Command::Get { node, name: name(&mut words)?, options: options(words)? },
        "delete" => {
            let (names, options) = names_and_options(words)?;
            Command::Delete { node, names, options }
        }
        "reduce" => {
            let target = name(&mut words)?;
            let op = word(&mut words)?.parse()?;
            let num_objects = number(word(&mut words)?)? as u32;
            let (names, options) = names_and_options(words)?;
            Command::Reduce { node, target, op, num_objects, names, options }
        }
        "wait" => {
            let count = number(word(&mut words)?)? as u32;
            let (names, options) = names_and_options(words)?;
            Command::Wait { node, count, names, options }
        }
        "prefetch" => Command::Prefetch { node, names: names_and_options(words)?.0 },
        "locate" => Command::Locate { node, name: name(&mut words)? },
        "status" => Command::Status { node },
        "die" => Command::KillClient { node },
        other => return Err(format!("unknown command {other:?}")),
    })
}

fn word<'a>(words: &mut SplitWhitespace<'a>) -> Result<&'a str, String> {
    words.next().ok_or_else(|| "a word is missing".to_owned())
}

fn name(words: &mut SplitWhitespace<'_>) -> Result<String, String> {
    word(words).map(str::to_owned)
}

fn node(word: &str) -> Result<usize, String> {
    let number = word.strip_prefix('n').and_then(|digits| digits.parse::<usize>().ok());
    number
        .and_then(|number| number.checked_sub(1))
        .ok_or_else(|| format!("{word:?} is not a node (n1, n2, ...)"))
}

fn subject(word: &str) -> Subject {
    node(word).map_or_else(|_| Subject::Object(word.to_owned()), Subject::Node)
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("{word:?} is not a number"))
}

/// Parses a size, such as `500`, `64KiB` or `4MiB`.
pub fn size(word: &str) -> Result<u64, String> {
    let (digits, unit) = match (word.strip_suffix("KiB"), word.strip_suffix("MiB")) {
        (Some(digits), _) => (digits, 1 << 10),
        (_, Some(digits)) => (digits, 1 << 20),
        _ => (word, 1),
    };
    Ok(number(digits)? * unit)
}

/// Parses a time, such as `30us`, `5ms` or `2s`.
pub fn time(word: &str) -> Result<Duration, String> {
    if let Some(digits) = word.strip_suffix("us") {
        return Ok(Duration::from_micros(number(digits)?));
    }
    if let Some(digits) = word.strip_suffix("ms") {
        return Ok(Duration::from_millis(number(digits)?));
    }
    let digits = word.strip_suffix('s').ok_or_else(|| format!("{word:?} is not a time"))?;
    Ok(Duration::from_secs(number(digits)?))
}

fn options<'a>(words: impl Iterator<Item = &'a str>) -> Result<Options, String> {
    let mut options = Options::default();
    for word in words {
        if !options.take(word)? {
            return Err(format!("unknown option {word:?}"));
        }
    }
    Ok(options)
}

fn names_and_options(words: SplitWhitespace<'_>) -> Result<(Vec<String>, Options), String> {
    let mut options = Options::default();
    let mut names = Vec::new();
    for word in words {
        if !options.take(word)? {
            names.push(word.to_owned());
        }
    }
    Ok((names, options))
}

impl Options {
    fn take(&mut self, word: &str) -> Result<bool, String> {
        match word.split_once('=') {
            Some(("piece", value)) => self.piece = Some(size(value)?),
            Some(("pause", value)) => self.pause = time(value)?,
            Some(("hold", value)) => self.hold_at = Some(size(value)?),
            Some(("abort", value)) => self.abort_at = Some(size(value)?),
            Some(("keep", value)) => self.keep = Some(time(value)?),
            Some(("within", value)) => self.within = Some(time(value)?),
            Some(("held", value)) => self.held = time(value)?,
            Some(("dtype", value)) => self.dtype = Some(value.parse()?),
            Some(("size", value)) => self.size = size(value)?,
            Some(_) => return Ok(false),
            None => match word {
                "partial" => self.partial = true,
                "unless-lost" => self.unless_lost = true,
                "fixed" => self.fixed = true,
                "to-sources" => self.to_sources = true,
                _ => return Ok(false),
            },
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_commands() {
        let put: Command = "n2 put x 64KiB float32 piece=8KiB hold=16KiB".parse().unwrap();
        let Command::Put { node: 1, size: 65536, dtype: Some(Dtype::F32), small: false, options, .. } = put
        else {
            panic!("{put:?}")
        };
        assert_eq!((options.piece, options.hold_at), (Some(8192), Some(16384)));
        let reduce: Command = "n1 reduce t sum 2 a b c fixed".parse().unwrap();
        let Command::Reduce { num_objects: 2, names, options, .. } = reduce else { panic!("{reduce:?}") };
        assert_eq!((names.len(), options.fixed), (3, true));
        let show: Command = "status n2 x".parse().unwrap();
        let Command::Show { subjects } = show else { panic!("{show:?}") };
        assert_eq!(subjects, [Subject::Node(1), Subject::Object("x".to_owned())]);
        assert!("n0 get x".parse::<Command>().is_err());
        assert!("n1 get x soon".parse::<Command>().is_err());
        assert!("n1 dance".parse::<Command>().is_err());
    }
}

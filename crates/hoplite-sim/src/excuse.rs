//! Named reasons why a rule does not apply to a world, and how often each was used. There should be few.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use hoplite_types::ErrorKind;

/// A reason for which something goes that a rule forbids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Excuse {
    /// A living node was held for dead meanwhile, and not all who were asked are on one side of a split.
    HeldForDead,
    /// All nodes that knew of it died before others could have heard.
    KnewDied,
    /// The last copy may have died with its node.
    NodeDied,
    /// The node stood still or was slow: it answers late.
    Slow,
    /// There is no space for what has to come in place of something else.
    NoSpace,
    /// More than one fault struck a node that was about to leave.
    SeveralFaults,
    /// An owner tells what it has heard; a copy of it was made a moment ago.
    OnItsWay,
    /// A put was given up after its owner had taken it in.
    TakenBack,
    /// A call of this world may end so.
    Ended(&'static str),
}

impl Excuse {
    /// For a call that failed as its world allows.
    pub fn of_error(kind: ErrorKind) -> Self {
        Excuse::Ended(match kind {
            ErrorKind::TimedOut => "TimedOut",
            ErrorKind::StoreFull => "StoreFull",
            ErrorKind::Lost => "Lost",
            ErrorKind::Deleted => "Deleted",
            ErrorKind::AlreadyExists => "AlreadyExists",
            ErrorKind::NodeUnreachable => "NodeUnreachable",
            _ => "another error",
        })
    }
}

impl fmt::Display for Excuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Excuse::HeldForDead => "a living node was held for dead",
            Excuse::KnewDied => "all who knew of it died",
            Excuse::NodeDied => "a node with the last copy may have died",
            Excuse::Slow => "the node stood still or was slow",
            Excuse::NoSpace => "there was no space",
            Excuse::SeveralFaults => "several faults struck",
            Excuse::OnItsWay => "the owner had not heard yet",
            Excuse::TakenBack => "a put was taken back",
            Excuse::Ended(error) => return write!(f, "a call may end so here: {error}"),
        })
    }
}

/// How often each was needed.
#[derive(Clone, Default, Debug)]
pub struct Excuses(RefCell<BTreeMap<Excuse, u64>>);

impl Excuses {
    /// The rule would have been broken but for this.
    pub fn count(&self, excuse: Excuse) {
        *self.0.borrow_mut().entry(excuse).or_default() += 1;
    }

    pub fn add(&mut self, other: &Excuses) {
        for (&excuse, count) in other.0.borrow().iter() {
            *self.0.borrow_mut().entry(excuse).or_default() += count;
        }
    }
}

impl fmt::Display for Excuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "excuses:")?;
        for (excuse, count) in self.0.borrow().iter() {
            writeln!(f, "  {count:>10}  {excuse}")?;
        }
        Ok(())
    }
}

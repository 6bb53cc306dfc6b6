//! Named reasons why a rule does not apply to a world, and how often each was used. There should be few.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use hoplite_types::ErrorKind;

/// A reason to accept an event that a rule forbids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Excuse {
    /// A living node was believed dead in the meantime, and the nodes concerned are not on one side of a split.
    HeldForDead,
    /// All nodes that knew of it died before they could tell others.
    KnewDied,
    /// The last copy may have died with its node.
    NodeDied,
    /// The node was paused or slow, so it answers late.
    Slow,
    /// The store has no space for the content that replaces another one.
    NoSpace,
    /// More than one fault struck in a world where a node left.
    SeveralFaults,
    /// A copy was made a moment ago, and the owner has not heard of it yet.
    OnItsWay,
    /// A put was abandoned after its owner had accepted it.
    TakenBack,
    /// A call may end with this error in this world.
    Ended(&'static str),
}

impl Excuse {
    /// The excuse for a call that failed with an error that its world allows.
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

/// How often each excuse was needed.
#[derive(Clone, Default, Debug)]
pub struct Excuses(RefCell<BTreeMap<Excuse, u64>>);

impl Excuses {
    /// Counts a rule that would be broken without this excuse.
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

//! The faults of a world, and when they strike.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};

/// A class of faults that a run may draw from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Client processes die.
    Client,
    /// Daemons die; their hosts live and refuse connections.
    Kill,
    /// Hosts die, and nothing answers there any more.
    Host,
    /// Daemons are told to end, and hand over the objects that only they hold.
    Leave,
    /// A node that died comes back, as a new node at the same address.
    Restart,
    /// Gossip datagrams get lost.
    Datagram,
    /// Processes are paused and resumed.
    Pause,
    /// Sets of nodes are cut off from each other.
    Partition,
    /// Control connections break.
    Control,
    /// Bulk connections break.
    Bulk,
    /// Bulk connections deliver nothing for a while.
    Stall,
    /// Some links are slow for a while, so connections overtake each other.
    Delay,
    /// Nodes handle every input late, on a slow link.
    Slow,
    /// Links are cut in one direction only.
    OneWay,
    /// Bulk connections cannot be made.
    Dial,
    /// Processes run out of descriptors.
    Shortage,
}

impl Class {
    pub const ALL: [Class; 16] = [
        Class::Client,
        Class::Kill,
        Class::Host,
        Class::Leave,
        Class::Restart,
        Class::Datagram,
        Class::Pause,
        Class::Partition,
        Class::Control,
        Class::Bulk,
        Class::Stall,
        Class::Delay,
        Class::Slow,
        Class::OneWay,
        Class::Dial,
        Class::Shortage,
    ];

    fn name(self) -> &'static str {
        match self {
            Class::Client => "client",
            Class::Kill => "kill",
            Class::Host => "host",
            Class::Leave => "leave",
            Class::Restart => "restart",
            Class::Datagram => "datagram",
            Class::Pause => "pause",
            Class::Partition => "partition",
            Class::Control => "control",
            Class::Bulk => "bulk",
            Class::Stall => "stall",
            Class::Delay => "delay",
            Class::Slow => "slow",
            Class::OneWay => "oneway",
            Class::Dial => "dial",
            Class::Shortage => "shortage",
        }
    }
}

/// The classes of faults that a run may draw. The default is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultSwitches(u32);

impl FaultSwitches {
    /// All classes.
    pub fn all() -> Self {
        Class::ALL.into_iter().fold(FaultSwitches::default(), FaultSwitches::with)
    }

    pub fn with(self, class: Class) -> Self {
        FaultSwitches(self.0 | 1 << class as u16)
    }

    pub fn has(self, class: Class) -> bool {
        self.0 & 1 << class as u16 != 0
    }

    pub fn any(self) -> bool {
        self != FaultSwitches::default()
    }

    fn classes(self) -> impl Iterator<Item = Class> {
        Class::ALL.into_iter().filter(move |class| self.has(*class))
    }
}

impl fmt::Display for FaultSwitches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            switches if switches == FaultSwitches::all() => f.write_str("all"),
            switches if !switches.any() => f.write_str("none"),
            switches => f.write_str(&switches.classes().map(Class::name).collect::<Vec<_>>().join(",")),
        }
    }
}

impl FromStr for FaultSwitches {
    type Err = String;

    /// Parses `all`, `none`, or classes with commas between them.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(FaultSwitches::all()),
            "none" => return Ok(FaultSwitches::default()),
            _ => {}
        }
        text.split(',').try_fold(FaultSwitches::default(), |switches, word| {
            let class = Class::ALL.into_iter().find(|class| class.name() == word);
            let known = || Class::ALL.map(Class::name).join(", ");
            class
                .map(|class| switches.with(class))
                .ok_or_else(|| format!("{word:?} is no class of faults; there are all, none, {}", known()))
        })
    }
}

/// The node that a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    /// The node with this index.
    Node(usize),
    /// The sender or the receiver of the message or stream that triggered the fault.
    Sender,
    Receiver,
}

/// One fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A client process dies. If it has `forked`, a child keeps its connection open.
    KillClient { client: usize, forked: bool },
    /// The daemon dies, and its clients' connections with it. With `host`, the whole host dies.
    KillNode { whom: Whom, host: bool, back_after: Option<Duration> },
    /// The daemon is told to end within this time.
    Leave { whom: Whom, within: Duration, back_after: Option<Duration> },
    /// The daemon starts again, as a new node at the same address.
    RestartNode { node: usize },
    /// The daemon's process is paused.
    Pause { whom: Whom, time: Duration },
    /// The nodes on the marked side and the others cannot reach each other. With `one_way`, only the messages of the
    /// others are held up.
    Partition { side: Vec<bool>, one_way: bool, time: Duration },
    /// Only this node is cut off from all others.
    Isolate { whom: Whom, time: Duration },
    /// The control connection from one node to the other breaks. Its messages under way are lost.
    BreakControl { from: Whom, to: Whom },
    /// One of the running streams breaks; `pick` selects it.
    BreakBulk { pick: u64 },
    /// One of the running streams delivers nothing for a while.
    StallBulk { pick: u64, time: Duration },
    /// Messages of this lane take longer on this link.
    Delay { from: usize, to: usize, lane: Lane, extra: Duration, time: Duration },
    /// The node handles every input late by `lag`, and its link is slower by `factor`.
    Slow { node: usize, lag: Duration, factor: u64, time: Duration },
}

impl Fault {
    /// How long the fault itself lasts. Its consequences may last longer.
    pub fn lasts(&self) -> Duration {
        match self {
            Fault::KillNode { back_after, .. } => back_after.unwrap_or_default(),
            Fault::Leave { within, back_after, .. } => *within + back_after.unwrap_or_default(),
            Fault::Pause { time, .. }
            | Fault::Partition { time, .. }
            | Fault::Isolate { time, .. }
            | Fault::StallBulk { time, .. }
            | Fault::Delay { time, .. }
            | Fault::Slow { time, .. } => *time,
            Fault::KillClient { .. }
            | Fault::RestartNode { .. }
            | Fault::BreakControl { .. }
            | Fault::BreakBulk { .. } => Duration::ZERO,
        }
    }
}

/// Kinds of connections between two nodes. Each keeps its order, but they overtake each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    Control,
    Bulk,
    Datagrams,
}

/// When a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// At this time, counted from the first task's earliest start.
    At(Duration),
    /// At `lag` after the `nth` message of this kind was sent, counted from `after`.
    Said { after: Duration, kind: Kind, nth: u32, lag: Duration },
    /// When the `nth` stream that starts after `after` has transferred `percent` of its bytes.
    Streamed { after: Duration, nth: u32, percent: u64 },
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            When::At(at) => write!(f, "at {at:?}"),
            When::Said { after, kind, nth, lag } => {
                write!(f, "{lag:?} after {kind:?} no. {nth} from {after:?} on is said")
            }
            When::Streamed { after, nth, percent } => {
                write!(f, "when stream no. {nth} from {after:?} on has brought {percent} %")
            }
        }
    }
}

/// Kinds of messages that trigger faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Announce,
    Complete,
    Withdraw,
    Ask,
    Subscribe,
    Delete,
    Verdict,
    Lend,
    Copy,
    Pull,
    CancelPull,
    PullRefused,
    AssignSlot,
    SlotFailed,
    RootDone,
    Commit,
    ReleaseSlots,
    Inline,
    InventoryRequest,
    Inventory,
    ResyncRequest,
    Other,
}

impl Kind {
    /// The kinds that may trigger a fault.
    pub const ALL: [Kind; 21] = [
        Kind::Announce,
        Kind::Complete,
        Kind::Withdraw,
        Kind::Ask,
        Kind::Subscribe,
        Kind::Delete,
        Kind::Verdict,
        Kind::Lend,
        Kind::Copy,
        Kind::Pull,
        Kind::CancelPull,
        Kind::PullRefused,
        Kind::AssignSlot,
        Kind::SlotFailed,
        Kind::RootDone,
        Kind::Commit,
        Kind::ReleaseSlots,
        Kind::Inline,
        Kind::InventoryRequest,
        Kind::Inventory,
        Kind::ResyncRequest,
    ];

    pub fn of(message: &PeerMessage) -> Self {
        match message {
            PeerMessage::Directory { request, .. } => match request {
                DirectoryRequest::Announce { report, .. } if report.complete => Kind::Complete,
                DirectoryRequest::Announce { .. } => Kind::Announce,
                DirectoryRequest::Withdraw { .. } => Kind::Withdraw,
                DirectoryRequest::Ask { .. } => Kind::Ask,
                DirectoryRequest::Subscribe { .. } => Kind::Subscribe,
                DirectoryRequest::Delete { .. } => Kind::Delete,
                _ => Kind::Other,
            },
            PeerMessage::Answer { answer, .. } => match answer {
                DirectoryAnswer::Verdict { .. } => Kind::Verdict,
                DirectoryAnswer::Lend { .. } => Kind::Lend,
                DirectoryAnswer::Copy { .. } => Kind::Copy,
                DirectoryAnswer::Inline { .. } => Kind::Inline,
                _ => Kind::Other,
            },
            PeerMessage::Pull { .. } => Kind::Pull,
            PeerMessage::CancelPull { .. } => Kind::CancelPull,
            PeerMessage::PullRefused { .. } => Kind::PullRefused,
            PeerMessage::AssignSlot { .. } => Kind::AssignSlot,
            PeerMessage::SlotFailed { .. } => Kind::SlotFailed,
            PeerMessage::RootDone { .. } => Kind::RootDone,
            PeerMessage::Commit { .. } => Kind::Commit,
            PeerMessage::ReleaseSlots { .. } => Kind::ReleaseSlots,
            PeerMessage::InventoryRequest { .. } => Kind::InventoryRequest,
            PeerMessage::Inventory { .. } => Kind::Inventory,
            PeerMessage::ResyncRequest { .. } => Kind::ResyncRequest,
            _ => Kind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_read_and_printed() {
        let some: FaultSwitches = "pause,kill".parse().unwrap();
        assert!(some.has(Class::Pause) && some.has(Class::Kill) && !some.has(Class::Slow));
        assert_eq!(some.to_string(), "kill,pause");
        for text in ["all", "none", "host,stall"] {
            assert_eq!(text.parse::<FaultSwitches>().unwrap().to_string(), text);
        }
        assert!("boredom".parse::<FaultSwitches>().is_err());
    }
}

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
    /// Hosts die: nothing answers there any more.
    Host,
    /// Daemons are told to end, and hand over what only they hold.
    Leave,
    /// What died comes back, as a new node at the same address.
    Restart,
    /// Gossip datagrams get lost.
    Datagram,
    /// Processes stand still and go on.
    Pause,
    /// Sets of nodes are cut off from each other.
    Partition,
    /// Control connections break.
    Control,
    /// Bulk connections break.
    Bulk,
    /// Bulk connections bring nothing for a while.
    Stall,
    /// Some ways are slow for a while; connections overtake each other.
    Delay,
    /// Nodes handle everything late, on a slow line.
    Slow,
    /// Ways are cut in one direction only.
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

/// Which classes of faults a run may draw; none by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultSwitches(u32);

impl FaultSwitches {
    /// Every class there is.
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

    /// `all`, `none`, or classes with commas between them.
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

/// Whom a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom {
    /// The node with this index.
    Node(usize),
    /// The two ends of what set the fault off.
    Sender,
    Receiver,
}

/// One fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A client process dies; or, if it has `forked`, its child lives on with its connection.
    KillClient { client: usize, forked: bool },
    /// The daemon dies, its clients' connections with it; with `host`, nothing answers there any more.
    KillNode { whom: Whom, host: bool, back_after: Option<Duration> },
    /// The daemon is asked to end.
    Leave { whom: Whom, within: Duration, back_after: Option<Duration> },
    /// It starts again, as a new node at the same address.
    RestartNode { node: usize },
    /// The daemon's process stands still.
    Pause { whom: Whom, time: Duration },
    /// Nodes on the marked side and the others do not reach each other; or (`one_way`) only the others do not reach
    /// them.
    Partition { side: Vec<bool>, one_way: bool, time: Duration },
    /// Only this node is cut off from all others.
    Isolate { whom: Whom, time: Duration },
    /// The control connection from one to the other breaks; what is under way on it is lost.
    BreakControl { from: Whom, to: Whom },
    /// One of the streams that run then (which one, by this number) breaks.
    BreakBulk { pick: u64 },
    /// One of the streams that run then brings nothing for a while.
    StallBulk { pick: u64, time: Duration },
    /// Everything on this way takes longer.
    Delay { from: usize, to: usize, lane: Lane, extra: Duration, time: Duration },
    /// The node handles everything this much late, and its line is this many times slower.
    Slow { node: usize, lag: Duration, factor: u64, time: Duration },
}

impl Fault {
    /// How long after it struck the last of it has passed, but for what it left behind.
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

/// Kinds of connections between two nodes: each in order, none in step with the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    Control,
    Bulk,
    Datagrams,
}

/// When a fault strikes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// At a moment, counted from the first task's earliest start.
    At(Duration),
    /// When the `nth` message of this kind after a moment has been on its way for `lag`.
    Said { after: Duration, kind: Kind, nth: u32, lag: Duration },
    /// When the `nth` stream that starts after a moment has brought `percent` of its bytes.
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

/// Kinds of messages that faults wait for.
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
    /// Those worth waiting for.
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

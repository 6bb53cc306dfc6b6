//! Counts which kinds of control messages met which troubles of their connections. If a kind never met a trouble, the
//! trouble is not tested for that kind.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, Scope};
use hoplite_types::{NodeId, ObjectId, ReductionId};
use rustc_hash::{FxHashMap, FxHasher};

/// A cell with a smaller expected count may be empty by chance.
const SELDOM: u64 = 5;

/// A message that is read so long after it was sent is late. The longest latencies of these worlds are a fifth of it.
pub const LATE: Duration = Duration::from_millis(100);

macro_rules! list {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident),* $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum $name { $($(#[$doc])* $variant),* }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
        }
    };
}

list! {
    /// A kind of message: a variant of [`PeerMessage`], or of the directory's requests and answers.
    Kind {
        Announce, Withdraw, Ask, CancelAsk, Subscribe, Unsubscribe, Delete, Locate, Claim, ReleaseClaim, MarkLost,
        Bring, PinRefused, Verdict, Lend, Inline, Deleted, Lost, Copy, CopyGone, DeleteDone, Located, Pin, AskAgain,
        NotYet, Holders, ClaimVerdict, Pull, CancelPull, PullRefused, Check, Checked, AssignSlot, SlotFailed,
        SlotHeld, SlotNeedsSpace, Preempt, ReleaseSlot, RootDone, Commit, Committed, ReleaseSlots, Prefetch, Ping,
        Pong, ResyncRequest, DeletionAck, BackupIds, InventoryRequest, Inventory, MembersRequest, Members, Goodbye,
    }
}

list! {
    /// A trouble that a message may meet.
    Trouble {
        /// It was under way when its connection broke or its receiver died.
        Lost,
        /// It was sent on a connection that had broken before, or that was never made.
        Unsent,
        /// It was read more than [`LATE`] after it was sent.
        Late,
        /// It was sent again, to the same node and about the same thing, after an equal message was lost or unsent.
        Repeated,
        /// It was read by a node that had read it before on an earlier connection.
        Twice,
        /// It was read after a message about the same thing that another node had sent later.
        Overtaken,
    }
}

impl Trouble {
    fn name(self) -> &'static str {
        match self {
            Trouble::Lost => "lost",
            Trouble::Unsent => "unsent",
            Trouble::Late => "late",
            Trouble::Repeated => "repeated",
            Trouble::Twice => "twice",
            Trouble::Overtaken => "overtaken",
        }
    }
}

impl Kind {
    pub fn of(message: &PeerMessage) -> Self {
        match message {
            PeerMessage::Directory { request, .. } => Kind::of_request(request),
            PeerMessage::Answer { answer, .. } => Kind::of_answer(answer),
            PeerMessage::Pull { .. } => Kind::Pull,
            PeerMessage::CancelPull { .. } => Kind::CancelPull,
            PeerMessage::PullRefused { .. } => Kind::PullRefused,
            PeerMessage::Check { .. } => Kind::Check,
            PeerMessage::Checked { .. } => Kind::Checked,
            PeerMessage::AssignSlot { .. } => Kind::AssignSlot,
            PeerMessage::SlotFailed { .. } => Kind::SlotFailed,
            PeerMessage::SlotHeld { .. } => Kind::SlotHeld,
            PeerMessage::SlotNeedsSpace { .. } => Kind::SlotNeedsSpace,
            PeerMessage::Preempt { .. } => Kind::Preempt,
            PeerMessage::ReleaseSlot { .. } => Kind::ReleaseSlot,
            PeerMessage::RootDone { .. } => Kind::RootDone,
            PeerMessage::Commit { .. } => Kind::Commit,
            PeerMessage::Committed { .. } => Kind::Committed,
            PeerMessage::ReleaseSlots { .. } => Kind::ReleaseSlots,
            PeerMessage::Prefetch { .. } => Kind::Prefetch,
            PeerMessage::Ping { .. } => Kind::Ping,
            PeerMessage::Pong { .. } => Kind::Pong,
            PeerMessage::ResyncRequest { .. } => Kind::ResyncRequest,
            PeerMessage::DeletionAck { .. } => Kind::DeletionAck,
            PeerMessage::BackupIds { .. } => Kind::BackupIds,
            PeerMessage::InventoryRequest { .. } => Kind::InventoryRequest,
            PeerMessage::Inventory { .. } => Kind::Inventory,
            PeerMessage::MembersRequest => Kind::MembersRequest,
            PeerMessage::Members { .. } => Kind::Members,
            PeerMessage::Goodbye => Kind::Goodbye,
        }
    }

    fn of_request(request: &DirectoryRequest) -> Self {
        match request {
            DirectoryRequest::Announce { .. } => Kind::Announce,
            DirectoryRequest::Withdraw { .. } => Kind::Withdraw,
            DirectoryRequest::Ask { .. } => Kind::Ask,
            DirectoryRequest::CancelAsk { .. } => Kind::CancelAsk,
            DirectoryRequest::Subscribe { .. } => Kind::Subscribe,
            DirectoryRequest::Unsubscribe => Kind::Unsubscribe,
            DirectoryRequest::Delete { .. } => Kind::Delete,
            DirectoryRequest::Locate { .. } => Kind::Locate,
            DirectoryRequest::Claim { .. } => Kind::Claim,
            DirectoryRequest::ReleaseClaim { .. } => Kind::ReleaseClaim,
            DirectoryRequest::MarkLost { .. } => Kind::MarkLost,
            DirectoryRequest::Bring { .. } => Kind::Bring,
            DirectoryRequest::PinRefused => Kind::PinRefused,
        }
    }

    fn of_answer(answer: &DirectoryAnswer) -> Self {
        match answer {
            DirectoryAnswer::Verdict { .. } => Kind::Verdict,
            DirectoryAnswer::Lend { .. } => Kind::Lend,
            DirectoryAnswer::Inline { .. } => Kind::Inline,
            DirectoryAnswer::Deleted { .. } => Kind::Deleted,
            DirectoryAnswer::Lost => Kind::Lost,
            DirectoryAnswer::Copy { .. } => Kind::Copy,
            DirectoryAnswer::CopyGone { .. } => Kind::CopyGone,
            DirectoryAnswer::DeleteDone { .. } => Kind::DeleteDone,
            DirectoryAnswer::Located { .. } => Kind::Located,
            DirectoryAnswer::Pin => Kind::Pin,
            DirectoryAnswer::AskAgain { .. } => Kind::AskAgain,
            DirectoryAnswer::NotYet { .. } => Kind::NotYet,
            DirectoryAnswer::Holders { .. } => Kind::Holders,
            DirectoryAnswer::ClaimVerdict { .. } => Kind::ClaimVerdict,
        }
    }
}

/// The subject of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Thing {
    Object(ObjectId),
    Reduction(ReductionId),
    /// Something that only sender and receiver know by this number, or nothing in particular.
    Between(u64),
}

/// The subject of a message, and a number for all else that makes two messages of its kind equal.
fn subject(message: &PeerMessage) -> (Thing, u64) {
    let assignment = |slot: u32, attempt: u32| u64::from(slot) << 32 | u64::from(attempt);
    match message {
        PeerMessage::Directory { id, request, .. } => (Thing::Object(*id), request_number(request)),
        PeerMessage::Answer { id, answer } => (Thing::Object(*id), answer_number(answer)),
        PeerMessage::Pull { transfer, id, .. } => (Thing::Object(*id), transfer.0),
        PeerMessage::Prefetch { id } | PeerMessage::DeletionAck { id } => (Thing::Object(*id), 0),
        PeerMessage::CancelPull { transfer }
        | PeerMessage::PullRefused { transfer }
        | PeerMessage::Check { transfer }
        | PeerMessage::Checked { transfer, .. } => (Thing::Between(transfer.0), 0),
        PeerMessage::AssignSlot { reduction, assignment: given } => {
            (Thing::Reduction(*reduction), assignment(given.slot, given.attempt))
        }
        PeerMessage::SlotFailed { reduction, slot, attempt, .. }
        | PeerMessage::SlotHeld { reduction, slot, attempt }
        | PeerMessage::SlotNeedsSpace { reduction, slot, attempt }
        | PeerMessage::Preempt { reduction, slot, attempt }
        | PeerMessage::ReleaseSlot { reduction, slot, attempt }
        | PeerMessage::RootDone { reduction, slot, attempt } => {
            (Thing::Reduction(*reduction), assignment(*slot, *attempt))
        }
        PeerMessage::Commit { reduction, attempt, .. } => {
            (Thing::Reduction(*reduction), assignment(0, *attempt))
        }
        PeerMessage::Committed { reduction, .. } | PeerMessage::ReleaseSlots { reduction } => {
            (Thing::Reduction(*reduction), 0)
        }
        PeerMessage::Ping { sent_ns } | PeerMessage::Pong { sent_ns } => (Thing::Between(*sent_ns), 0),
        PeerMessage::BackupIds { ids } => (Thing::Between(hash(ids)), 0),
        PeerMessage::InventoryRequest { scope, shards, from, .. } => {
            let past = u64::from(*scope == Scope::Past);
            let from = from.as_ref().map(|from| (from.shard, from.section, from.after));
            (Thing::Between(hash(&(shards.first().map(|query| query.shard), from))), past)
        }
        PeerMessage::Inventory { round, page, next, .. } => {
            let next = next.as_ref().map(|next| (next.shard, next.section, next.after));
            (Thing::Between(*round), hash(&(page.copies.first().map(|copy| copy.0), next)))
        }
        PeerMessage::ResyncRequest { .. }
        | PeerMessage::MembersRequest
        | PeerMessage::Members { .. }
        | PeerMessage::Goodbye => (Thing::Between(0), 0),
    }
}

fn request_number(request: &DirectoryRequest) -> u64 {
    match request {
        DirectoryRequest::Announce { report, .. } => hash(&(
            report.edition,
            report.complete,
            report.pinned,
            report.upstream,
            report.leaving,
            report.stamp,
        )),
        DirectoryRequest::Withdraw { edition, .. } => hash(edition),
        DirectoryRequest::Ask { ask, .. } | DirectoryRequest::CancelAsk { ask } => *ask,
        DirectoryRequest::Delete { token } | DirectoryRequest::Locate { token } => *token,
        DirectoryRequest::Claim { claim, .. }
        | DirectoryRequest::ReleaseClaim { claim, .. }
        | DirectoryRequest::MarkLost { claim } => hash(claim),
        DirectoryRequest::Bring { nodes } => hash(nodes),
        DirectoryRequest::Subscribe { .. } | DirectoryRequest::Unsubscribe | DirectoryRequest::PinRefused => {
            0
        }
    }
}

fn answer_number(answer: &DirectoryAnswer) -> u64 {
    match answer {
        DirectoryAnswer::Verdict { edition, .. } => hash(edition),
        DirectoryAnswer::Lend { ask, sender, .. } => hash(&(ask, sender)),
        DirectoryAnswer::Inline { ask, .. } | DirectoryAnswer::NotYet { ask, .. } => *ask,
        DirectoryAnswer::Copy { node, report, .. } => hash(&(node, report.edition, report.complete)),
        DirectoryAnswer::CopyGone { node } => hash(node),
        DirectoryAnswer::DeleteDone { token, .. } | DirectoryAnswer::Located { token, .. } => *token,
        DirectoryAnswer::AskAgain { sender, .. } => hash(sender),
        DirectoryAnswer::Holders { nodes } => hash(nodes),
        DirectoryAnswer::ClaimVerdict { claim, .. } => hash(claim),
        DirectoryAnswer::Deleted { .. } | DirectoryAnswer::Lost | DirectoryAnswer::Pin => 0,
    }
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    what.hash(&mut hasher);
    hasher.finish()
}

/// How a message came to its reader.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub from: NodeId,
    pub to: NodeId,
    /// The time at which it was sent.
    pub said: Duration,
    pub now: Duration,
    /// The connection on which it came.
    pub line: u64,
}

/// Follows the messages of one world.
#[derive(Default, Debug)]
pub struct Follower {
    pub table: Table,
    /// Messages that were lost or unsent and not sent again since, with the count of each.
    missed: FxHashMap<u64, u32>,
    /// The connection on which each message was read last.
    read: FxHashMap<u64, u64>,
    /// By reader and subject: the send time and sender of the latest message read.
    latest: FxHashMap<(NodeId, Thing), (Duration, NodeId)>,
}

impl Follower {
    pub fn on_sent(&mut self, from: NodeId, to: NodeId, message: &PeerMessage) {
        let kind = Kind::of(message);
        self.table.said[kind as usize] += 1;
        if !self.missed.is_empty() && self.missed.remove(&key(from, to, message)).is_some() {
            self.table.count(kind, Trouble::Repeated);
        }
    }

    /// The message does not arrive. `sent`: it was under way.
    pub fn on_missed(&mut self, from: NodeId, to: NodeId, message: &PeerMessage, sent: bool) {
        self.table.count(Kind::of(message), if sent { Trouble::Lost } else { Trouble::Unsent });
        *self.missed.entry(key(from, to, message)).or_default() += 1;
    }

    pub fn on_read(&mut self, message: &PeerMessage, reading: Reading) {
        let Reading { from, to, said, now, line } = reading;
        let kind = Kind::of(message);
        if now > said + LATE {
            self.table.count(kind, Trouble::Late);
        }
        if self.read.insert(key(from, to, message), line).is_some_and(|before| before != line) {
            self.table.count(kind, Trouble::Twice);
        }
        let thing = subject(message).0;
        if matches!(thing, Thing::Between(_)) {
            return;
        }
        let latest = self.latest.entry((to, thing)).or_insert((said, from));
        if latest.0 > said && latest.1 != from {
            self.table.count(kind, Trouble::Overtaken);
        } else if latest.0 <= said {
            *latest = (said, from);
        }
    }
}

fn key(from: NodeId, to: NodeId, message: &PeerMessage) -> u64 {
    hash(&(from, to, Kind::of(message) as u8, subject(message)))
}

/// How often each kind of message met each trouble.
#[derive(Clone, Debug)]
pub struct Table {
    said: [u64; Kind::ALL.len()],
    met: [[u64; Trouble::ALL.len()]; Kind::ALL.len()],
}

impl Default for Table {
    fn default() -> Self {
        Table { said: [0; Kind::ALL.len()], met: [[0; Trouble::ALL.len()]; Kind::ALL.len()] }
    }
}

impl Table {
    fn count(&mut self, kind: Kind, trouble: Trouble) {
        self.met[kind as usize][trouble as usize] += 1;
    }

    pub fn said(&self, kind: Kind) -> u64 {
        self.said[kind as usize]
    }

    pub fn met(&self, kind: Kind, trouble: Trouble) -> u64 {
        self.met[kind as usize][trouble as usize]
    }

    pub fn add(&mut self, other: &Table) {
        let sum = |mine: &mut [u64], others: &[u64]| mine.iter_mut().zip(others).for_each(|(a, b)| *a += b);
        sum(&mut self.said, &other.said);
        self.met.iter_mut().zip(&other.met).for_each(|(mine, others)| sum(mine, others));
    }

    /// Cells that are not empty although [`why_empty`] says that they must be.
    pub fn mistaken(&self) -> Vec<(Kind, Trouble)> {
        let cells =
            Kind::ALL.iter().flat_map(|&kind| Trouble::ALL.iter().map(move |&trouble| (kind, trouble)));
        let met = cells.filter(|&(kind, trouble)| self.met(kind, trouble) > 0);
        met.filter(|&(kind, trouble)| why_empty(kind, trouble).is_some()).collect()
    }

    /// Whether the kind is so rare that its cell may be empty by chance. The estimate uses how often all kinds together
    /// met the trouble.
    fn is_too_seldom(&self, kind: Kind, trouble: Trouble) -> bool {
        let said: u64 = self.said.iter().sum();
        let met: u64 = self.met.iter().map(|of_kind| of_kind[trouble as usize]).sum();
        self.said(kind) * met < SELDOM * said
    }

    /// The empty cells, with one line for each reason and kind.
    pub fn empty_cells(&self) -> String {
        let mut reasons: Vec<(&'static str, Vec<String>)> = Vec::new();
        for &kind in Kind::ALL {
            let mut of_kind: Vec<(&'static str, Vec<&str>)> = Vec::new();
            for &trouble in Trouble::ALL.iter().filter(|trouble| self.met(kind, **trouble) == 0) {
                let never = match self.said(kind) {
                    0 => "NEVER SAID",
                    _ if self.is_too_seldom(kind, trouble) => "said too seldom in these seeds to meet it",
                    _ => "NEVER MET",
                };
                let why = why_empty(kind, trouble).unwrap_or(never);
                gather(&mut of_kind, why, trouble.name());
            }
            for (why, troubles) in of_kind {
                let all = troubles.len() == Trouble::ALL.len();
                let troubles = if all { String::new() } else { format!(" {}", troubles.join("+")) };
                gather(&mut reasons, why, format!("{kind:?}{troubles}"));
            }
        }
        let lines = reasons.iter().map(|(why, cells)| format!("  {why}: {}\n", cells.join(", ")));
        let mut text = format!("empty cells:\n{}", lines.collect::<String>());
        for (kind, trouble) in self.mistaken() {
            text += &format!("  MISTAKEN: {kind:?} {} is not to be met\n", trouble.name());
        }
        text
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<18}{:>10}", "control messages", "said")?;
        for trouble in Trouble::ALL {
            write!(f, "{:>10}", trouble.name())?;
        }
        writeln!(f)?;
        for &kind in Kind::ALL {
            write!(f, "  {:<16}{:>10}", format!("{kind:?}"), self.said(kind))?;
            for &trouble in Trouble::ALL {
                match self.met(kind, trouble) {
                    0 => write!(f, "{:>10}", "-")?,
                    met => write!(f, "{met:>10}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

fn gather<T>(groups: &mut Vec<(&'static str, Vec<T>)>, why: &'static str, what: T) {
    match groups.iter_mut().find(|(reason, _)| *reason == why) {
        Some((_, all)) => all.push(what),
        None => groups.push((why, vec![what])),
    }
}

/// The reason why no message of this kind can meet this trouble, if there is one.
pub fn why_empty(kind: Kind, trouble: Trouble) -> Option<&'static str> {
    Some(match (kind, trouble) {
        (Kind::Goodbye, _) => "no connection of these worlds is closed because it is idle",
        (Kind::Pull | Kind::CancelPull, Trouble::Repeated | Trouble::Twice) => {
            "a transfer is asked for, and stopped, once; the next one has another number"
        }
        (Kind::Bring, Trouble::Repeated | Trouble::Twice) => "a hint, said once: who is not brought it asks by itself",
        (Kind::Committed, Trouble::Twice) => {
            "who has read it says no further commit: both ways would have to break in turn within a round trip"
        }
        (Kind::Ping | Kind::Pong, Trouble::Twice) | (Kind::Pong, Trouble::Repeated) => {
            "every ping is of a moment of its own"
        }
        (Kind::AssignSlot | Kind::Preempt | Kind::ReleaseSlot | Kind::Commit | Kind::ReleaseSlots, Trouble::Overtaken) => {
            "only its coordinator speaks of a reduction to a slot, in order"
        }
        (
            Kind::CancelPull
            | Kind::PullRefused
            | Kind::Check
            | Kind::Checked
            | Kind::Ping
            | Kind::Pong
            | Kind::ResyncRequest
            | Kind::BackupIds
            | Kind::InventoryRequest
            | Kind::Inventory
            | Kind::MembersRequest
            | Kind::Members,
            Trouble::Overtaken,
        ) => "only two nodes speak of it, each in order",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use hoplite_types::TransferId;

    use super::*;
    use crate::names::{address, incarnation};

    fn node(index: usize) -> NodeId {
        NodeId { addr: address(index), incarnation: incarnation(1, 0, 0) }
    }

    #[test]
    fn a_message_meets_the_troubles_of_its_connection() {
        let (a, b, c) = (node(0), node(1), node(2));
        let ms = Duration::from_millis;
        let id = ObjectId::from_name("x");
        let prefetch = PeerMessage::Prefetch { id };
        let check = |transfer| PeerMessage::Check { transfer: TransferId(transfer) };
        let mut follower = Follower::default();
        follower.on_sent(a, b, &check(1));
        follower.on_missed(a, b, &check(1), true);
        follower.on_sent(a, b, &check(2));
        follower.on_sent(a, c, &check(1));
        assert_eq!(follower.table.met(Kind::Check, Trouble::Repeated), 0);
        follower.on_sent(a, b, &check(1));
        follower.on_sent(a, b, &check(1));
        follower.on_missed(a, b, &check(3), false);
        let reading = |from, said, now, line| Reading { from, to: b, said: ms(said), now: ms(now), line };
        follower.on_read(&check(1), reading(a, 0, 150, 1));
        follower.on_read(&check(1), reading(a, 100, 160, 1));
        follower.on_read(&check(1), reading(a, 100, 170, 2));
        let met =
            |follower: &Follower, kind| Trouble::ALL.iter().map(|&of| follower.table.met(kind, of)).collect();
        let check: Vec<u64> = met(&follower, Kind::Check);
        assert_eq!(check, [1, 1, 1, 1, 1, 0]);
        follower.on_read(&prefetch, reading(c, 5, 6, 3));
        follower.on_read(&PeerMessage::DeletionAck { id }, reading(a, 4, 7, 1));
        assert_eq!(met(&follower, Kind::DeletionAck), [0u64, 0, 0, 0, 0, 1]);
        let mut sum = Table::default();
        sum.add(&follower.table);
        sum.add(&follower.table);
        assert_eq!(sum.met(Kind::Check, Trouble::Late), 2);
        assert_eq!(sum.said(Kind::Check), 10);
    }
}

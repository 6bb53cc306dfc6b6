//! Everything the core must wake up for, in one ordered set.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::{NodeId, ObjectId, ReductionId};

use crate::io::ClientId;
use crate::sends::PullKey;

/// What is due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Timer {
    /// A client's call has run out of time.
    Call(ClientId, u64),
    /// Asks that could not be served by a distrusted sender may be now.
    Asks(ObjectId),
    /// A parked pull has waited long enough.
    Parked(PullKey),
    /// A prefetch nobody else waits for has waited long enough.
    Prefetch(ObjectId),
    /// A prefetch has kept others waiting long enough.
    PrefetchStalled(ObjectId),
    /// Say again what has not been answered.
    Refresh,
    /// Ask owners the next few questions.
    Questions,
    /// Go on with long work for clients.
    LongWork,
    /// Subscribe again to the next few objects.
    RefreshWatched,
    /// Tell a peer whose connection broke what it may have missed.
    Resync(NodeId),
    /// New owners have not asked for what is here.
    NotPulled,
    /// Nobody let us in, or told us of all members.
    Join,
    /// Take in the next few members that we heard of.
    TakeIn,
    /// Assign a reduction's slots anew that failed before.
    AdvanceReduction(u64),
    /// A slot here has waited long enough for space.
    SlotNeedsSpace(ReductionId, u32),
    /// The root of a committed reduction has been dead for a while.
    RootLost(u64),
    /// A reduction has waited long enough to hear what exists already.
    Barrier(u64),
    /// Measure the round trip to a peer.
    Ping(NodeId),
    /// An inventory was asked for and did not come; or a node that did not answer is asked again.
    InventoryPull(NodeId),
    /// Take in what is here of our own shards.
    OwnInventory,
    /// A fetch whose senders have brought nothing has rested.
    AskAgain(ObjectId),
    /// Long work goes on.
    Work,
    /// Forget those who are involved in objects here and never became members.
    Strangers,
    /// Nodes that had no space to keep an object may have some.
    Pin(ObjectId),
    /// Forget the oldest tombstones.
    Tombstones,
    /// Forget the oldest of what was lost.
    LostIds,
    /// Tell backups of what only their owner knows.
    Backups,
    /// Tell them again.
    BackupRenewal,
    /// Forget the oldest of what owners told us of.
    ForgetBackups,
    /// Hand over the next few of what only this node has.
    HandOver,
    /// The time to hand over what only this node has is up, or it is done.
    Leave,
}

/// The set; at most one due time per timer.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Duration, Timer)>,
    when: BTreeMap<Timer, Duration>,
}

impl Timers {
    /// Sets or moves a timer.
    pub fn set(&mut self, due: Duration, timer: Timer) {
        self.clear(timer);
        self.due.insert((due, timer));
        self.when.insert(timer, due);
    }

    pub fn is_set(&self, timer: Timer) -> bool {
        self.when.contains_key(&timer)
    }

    pub fn due(&self, timer: Timer) -> Option<Duration> {
        self.when.get(&timer).copied()
    }

    pub fn clear(&mut self, timer: Timer) {
        if let Some(due) = self.when.remove(&timer) {
            self.due.remove(&(due, timer));
        }
    }

    pub fn next(&self) -> Option<Duration> {
        self.due.first().map(|&(due, _)| due)
    }

    /// Takes one timer that is due at `now`.
    pub fn pop(&mut self, now: Duration) -> Option<Timer> {
        let &(due, timer) = self.due.first()?;
        if due > now {
            return None;
        }
        self.clear(timer);
        Some(timer)
    }
}

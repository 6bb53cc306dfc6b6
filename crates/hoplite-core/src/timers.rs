//! All timers of the core, in one ordered set.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::{NodeId, ObjectId, ReductionId};

use crate::io::ClientId;
use crate::keys::PullKey;

/// The kinds of timer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Timer {
    /// A client's call has run out of time.
    Call(ClientId, u64),
    /// Asks that had to avoid a distrusted sender may be served now.
    Asks(ObjectId),
    /// A parked pull has waited long enough.
    Parked(PullKey),
    /// A prefetch that no call waits for has waited long enough.
    Prefetch(ObjectId),
    /// A prefetch has delayed others long enough.
    PrefetchStalled(ObjectId),
    /// Repeat questions that are not answered.
    Refresh,
    /// Ask owners the next few questions.
    Questions,
    /// Continue long work for clients.
    LongWork,
    /// Repeat the next few subscriptions.
    RefreshWatched,
    /// Resync a peer whose connection broke.
    Resync(NodeId),
    /// New owners have not pulled our inventory.
    NotPulled,
    /// No member has answered with all members.
    Join,
    /// Add the next few members that others reported.
    TakeIn,
    /// Assign slots of a reduction that failed before.
    AdvanceReduction(u64),
    /// A slot here has waited long enough for space.
    SlotNeedsSpace(ReductionId, u32),
    /// The root of a committed reduction has been dead for a while.
    RootLost(u64),
    /// A reduction has waited long enough for the owners' reports.
    Barrier(u64),
    /// Measure the round trip to a peer.
    Ping(NodeId),
    /// An inventory was requested and did not come; or a node that did not answer is asked again.
    InventoryPull(NodeId),
    /// Apply our own inventory of our own shards.
    OwnInventory,
    /// A fetch whose senders brought nothing ends its pause.
    AskAgain(ObjectId),
    /// Continue the directory's long work.
    Work,
    /// Forget nodes that are involved in objects here and never became members.
    Strangers,
    /// Nodes that had no space to pin an object may have some.
    Pin(ObjectId),
    /// Forget the oldest tombstones.
    Tombstones,
    /// Forget the oldest losses.
    LostIds,
    /// Send backup owners the ids that only the owner could report.
    Backups,
    /// Send them again.
    BackupRenewal,
    /// Forget the oldest ids that owners sent us as their backup.
    ForgetBackups,
    /// Hand over the next few copies that only this node has.
    HandOver,
    /// The time for handing over is up, or all is handed over.
    Leave,
}

/// The set of timers; at most one due time for each.
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

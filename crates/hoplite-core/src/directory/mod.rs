//! The slice of the directory this node owns [design §4]: who has how much of which object, who
//! waits for it, and whom to send to whom.
//!
//! - here: requests find their owner; entries come, are handed over and go; members that died
//! - `entry`: what is known of one object; `reports`: its copies come and go
//! - `questions`: asks, subscriptions, locations; `lend`: who sends to whom
//! - `loss`: the last complete copy is gone, or is about to be; `witnesses`: it was the owner's, which died
//! - `tombstones`: deleted, here at the owner; `graves`: the same, remembered by those who heard of it
//! - `fading`: what graves and witnesses remember for a while
//! - `passed_on`: requests that went on to an owner who may be dead

mod entry;
mod fading;
mod graves;
mod lend;
mod loss;
mod passed_on;
mod questions;
mod reports;
mod tombstones;
mod witnesses;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_words::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage};
use hoplite_words::{limits, CopyId, NodeId, ObjectId};

use crate::again::REANNOUNCE_AFTER;
use crate::timers::Timer;
use crate::Core;
use entry::Entry;
pub(crate) use graves::Graves;
pub(crate) use passed_on::PassedOn;
pub(crate) use witnesses::{Remembered, Unsaid};

/// The owned slice.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    entries: BTreeMap<ObjectId, Entry>,
}

impl Directory {
    pub fn is_buried(&self, id: ObjectId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.buried_until.is_some())
    }

    /// Entries of objects that exist or are waited for, and tombstones.
    pub fn counts(&self) -> (u64, u64) {
        let tombstones = self.entries.values().filter(|entry| entry.is_memory()).count() as u64;
        (self.entries.len() as u64 - tombstones, tombstones)
    }
}

impl Core {
    /// Sends a request to the shard owner of `id` as we see it.
    pub(crate) fn ask_owner(&mut self, id: ObjectId, request: DirectoryRequest, attach: Option<CopyId>) {
        let message = PeerMessage::Directory { origin: self.me, hops: 0, id, request };
        self.send(self.shards.owner(id), message, attach);
    }

    /// A directory request arrived: serve it if we own the id, pass it on if another does.
    pub(crate) fn on_directory(&mut self, origin: NodeId, hops: u8, id: ObjectId, request: DirectoryRequest) {
        if self.departed.contains(&origin) || self.shards.is_replaced(origin) {
            // It came by way of others, and news of the death was faster.
            return;
        }
        let owner = self.shards.owner(id);
        if owner != self.me && hops < limits::FORWARD_HOPS_MAX {
            self.remember_passed_on(owner, origin, hops, id, &request);
            self.send(owner, PeerMessage::Directory { origin, hops: hops + 1, id, request }, None);
            return;
        }
        if owner != self.me {
            // It went round among nodes that do not agree. Once they do, what it leaves here goes to its owner.
            self.reannounce_later();
        }
        match request {
            DirectoryRequest::Announce { report, payload, wants_verdict } => {
                self.on_announce(origin, id, report, payload, wants_verdict);
            }
            DirectoryRequest::Withdraw { seq, edition } => self.on_withdraw(origin, id, seq, edition),
            DirectoryRequest::Ask { ask, have, failed } => self.on_ask(origin, id, ask, have, failed),
            DirectoryRequest::Unask { ask } => {
                self.on_not_taken(origin, id, ask);
                self.change_entry(id, |entry| {
                    entry.asks.retain(|waiting| (waiting.node, waiting.ask) != (origin, ask));
                });
            }
            DirectoryRequest::Subscribe { bytes_max } => self.on_subscribe(origin, id, bytes_max),
            DirectoryRequest::Unsubscribe => {
                self.end_subscription(id, origin);
            }
            DirectoryRequest::Delete { token } => self.delete_everywhere(origin, id, token),
            DirectoryRequest::Locate { token } => self.on_locate(origin, id, token),
            DirectoryRequest::Bury { ttl_ms } => {
                self.bury(id, Duration::from_millis(ttl_ms).min(limits::TOMBSTONE_TTL));
            }
            DirectoryRequest::Mourn { ttl_ms } => self.on_mourn(id, ttl_ms),
            DirectoryRequest::Bring { nodes } => self.on_bring(id, nodes),
        }
    }

    /// Who would own `id` without us.
    fn next_in_line(&self, id: ObjectId) -> Option<NodeId> {
        let me = self.me;
        self.shards.owner_among(id, |node| node != me)
    }

    fn answer(&mut self, to: NodeId, id: ObjectId, answer: DirectoryAnswer) {
        self.send(to, PeerMessage::Answer { id, answer }, None);
    }

    /// The entry of `id`, new if need be. While members come and go a new one does not know all yet; but it
    /// may know from a dead owner that the object existed.
    fn entry_mut(&mut self, id: ObjectId) -> &mut Entry {
        let unsettled = self.now < self.reannounce_until;
        let trusted_from = unsettled.then_some(self.now + REANNOUNCE_AFTER);
        if !self.directory.entries.contains_key(&id) {
            let mut entry = Entry::new(trusted_from);
            if let Some(until) = self.inherited_grief(id) {
                entry.mourn(until);
                self.timers.set(until, Timer::Tombstone(id));
            }
            self.directory.entries.insert(id, entry);
        }
        self.directory.entries.get_mut(&id).expect("there or made")
    }

    /// Changes an entry if there is one, and drops it when nothing is left in it.
    fn change_entry<T>(&mut self, id: ObjectId, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let entry = self.directory.entries.get_mut(&id)?;
        let result = change(entry);
        if entry.is_empty() {
            self.directory.entries.remove(&id);
        }
        Some(result)
    }

    /// A member came up: it may hold what nobody here has heard of.
    pub(crate) fn directory_member_up(&mut self) {
        let from = Some(self.now + REANNOUNCE_AFTER);
        self.directory.entries.values_mut().for_each(|entry| entry.trusted_from = from);
    }

    /// A member died: what it held, lent, asked and watched goes.
    pub(crate) fn directory_member_down(&mut self, node: NodeId) {
        self.remember_for(node);
        let ids: Vec<_> = self.directory.entries.keys().copied().collect();
        for id in ids {
            self.forget_holder(id, node);
        }
    }

    /// Who reported or asked, and is no member by the time that members have settled, died before we knew
    /// it. If it lives, it is asked to say everything again when it comes up.
    pub(crate) fn forget_strangers(&mut self) {
        let known = self.directory.entries.values().flat_map(Entry::nodes);
        let strangers: BTreeSet<_> = known.filter(|&node| !self.shards.contains(node)).collect();
        strangers.into_iter().for_each(|node| self.on_member_down(node));
    }

    /// A node that is gone holds, asks and watches nothing.
    pub(super) fn forget_holder(&mut self, id: ObjectId, node: NodeId) {
        let Some(entry) = self.directory.entries.get_mut(&id) else { return };
        if entry.forget(node) {
            self.copy_gone(id, node);
        } else {
            self.change_entry(id, |_| ());
            self.serve_asks(id);
            self.finish_deletes(id);
        }
    }

    /// Membership changed: entries that are no longer ours go to their new owners, with all that is
    /// known and waiting in them.
    pub(crate) fn hand_over_entries(&mut self) {
        let (me, now) = (self.me, self.now);
        let shards = &self.shards;
        let leaving = |id: &ObjectId| shards.owner(*id) != me;
        let ids: Vec<_> = self.directory.entries.keys().copied().filter(leaving).collect();
        for id in ids {
            let entry = self.directory.entries.remove(&id).expect("listed a moment ago");
            self.timers.clear(Timer::Tombstone(id));
            self.timers.clear(Timer::Asks(id));
            self.timers.clear(Timer::Loss(id));
            let owner = self.shards.owner(id);
            for (origin, request) in entry.into_requests(now, me) {
                self.send(owner, PeerMessage::Directory { origin, hops: 1, id, request }, None);
            }
        }
    }
}

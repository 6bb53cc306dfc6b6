//! Asks the owner for a sender: repeats the ask, handles "not yet", and waits where there is no space.

use std::time::Duration;

use hoplite_types::client::Location;
use hoplite_types::peer::DirectoryRequest;
use hoplite_types::ObjectId;

use super::{Fetch, Fetcher, Fetches, State};
use crate::copies::SpaceWaiter;
use crate::keys::Watcher;
use crate::notices::Notice;
use crate::shards::ShardSet;
use crate::timers::Timer;

/// Senders in a row that may bring no bytes before the fetch waits; each further wait is twice as long. Where no
/// connection can be made, as for want of descriptors, each sender is tried and refused within a round trip.
const IN_VAIN_MAX: u32 = 2;
const REST_MIN: Duration = Duration::from_millis(5);
const REST_MAX: Duration = Duration::from_millis(640);

impl Fetches {
    pub fn has_open_asks(&self) -> bool {
        self.running.values().any(|fetch| fetch.state == State::Asking)
    }

    /// Schedules the open asks for objects in these shards to be repeated, a few at a time.
    pub fn repeat_asks(&mut self, shards: &ShardSet) {
        self.repeats.begin(shards);
    }

    pub fn has_asks_to_repeat(&self) -> bool {
        self.repeats.are_under_way()
    }
}

impl Fetcher<'_> {
    /// The sender broke off: asks for another one, at once or after a pause.
    pub(super) fn ask_after_break(&mut self, object: ObjectId) {
        let Some(fetch) = self.fetches.running.get_mut(&object) else {
            // It was given up.
            return;
        };
        match fetch.in_vain.checked_sub(IN_VAIN_MAX) {
            None | Some(0) => self.ask_for_sender(object),
            Some(excess) => {
                fetch.state = State::Resting;
                let rest = (REST_MIN * (1 << excess.min(10))).min(REST_MAX);
                self.ctx.timers.set(self.ctx.now + rest, Timer::AskAgain(object));
            }
        }
    }

    pub fn on_ask_timer(&mut self, object: ObjectId) {
        if self.fetches.running.get(&object).is_some_and(|fetch| fetch.state == State::Resting) {
            self.ask_for_sender(object);
        }
    }

    pub(super) fn ask_for_sender(&mut self, object: ObjectId) {
        let ask = self.ctx.next_number();
        if let Some(fetch) = self.fetches.running.get_mut(&object) {
            fetch.ask = ask;
            let before = std::mem::replace(&mut fetch.state, State::Asking);
            fetch.asked = self.ctx.now;
            fetch.known = None;
            self.repeat_ask(object);
            if before == State::NoSpace {
                self.subscriptions.unwatch(self.ctx, object, Watcher::Fetch);
            }
        }
    }

    /// Sends the open ask to the current owner of the id.
    pub fn repeat_ask(&mut self, object: ObjectId) {
        let Some(fetch) = self.fetches.running.get(&object) else {
            // It was given up.
            return;
        };
        if fetch.state != State::Asking {
            return;
        }
        let (ask, failed) = (fetch.ask, fetch.failed);
        let have = self.copies.live_copy(object).map(|copy| copy.edition);
        self.ctx.ask_owner(object, DirectoryRequest::Ask { ask, have, failed }, None);
        self.ctx.arm_refresh();
    }

    pub fn repeat_some_asks(&mut self, most: usize) {
        let is_open = |fetch: &Fetch| fetch.state == State::Asking;
        for object in self.fetches.repeats.next(&self.fetches.running, most, is_open) {
            self.repeat_ask(object);
        }
    }

    /// The object is known, but there is no space for it. The owner's answer ended our ask, so from here on the object
    /// is watched.
    pub(super) fn wait_for_space_to_fetch(&mut self, object: ObjectId, size: u64) {
        if let Some(fetch) = self.fetches.running.get_mut(&object) {
            fetch.state = State::NoSpace;
            self.subscriptions.watch(self.ctx, object, Watcher::Fetch);
        }
        self.copies.wait_for_space(self.ctx, SpaceWaiter::Fetch { object }, size);
    }

    /// There is space for a fetch that had none: it asks anew, because the object's copies may have changed since.
    pub fn on_space_for_fetch(&mut self, object: ObjectId) {
        if self.fetches.running.get(&object).is_some_and(|fetch| fetch.state == State::NoSpace) {
            self.ask_for_sender(object);
        }
    }

    /// The owner has no free sender for us yet.
    pub fn on_not_yet(&mut self, object: ObjectId, ask: u64, copies: Vec<Location>) {
        let Some(fetch) = self.fetches.running.get_mut(&object).filter(|fetch| fetch.ask == ask) else {
            if self.copies.live(object).is_none() {
                // Our cancellation of the ask was lost.
                self.ctx.ask_owner(object, DirectoryRequest::CancelAsk { ask }, None);
            }
            return;
        };
        let nowhere = copies.is_empty();
        fetch.known = Some(copies);
        if nowhere {
            self.ctx.notices.push_back(Notice::Nowhere(object));
        }
    }
}

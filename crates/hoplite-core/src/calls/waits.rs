//! `wait`: answers with the first few of many objects that are complete anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use hoplite_types::client::Reply;
use hoplite_types::peer::DirectoryRequest;
use hoplite_types::{ErrorKind, NodeId, ObjectId};

use super::{CallHandler, Pending};
use crate::io::ClientId;
use crate::keys::Watcher;
use crate::timers::Timer;

/// How long a poll waits for the owners' answers. A round trip takes far less, and a caller without time should not
/// wait for an owner that takes longer.
const POLL_TIME: Duration = Duration::from_millis(50);

/// A wait whose time-out is so short that it may pass before any owner has answered. `timeout=0` asks for the objects
/// that are ready now, and those ready elsewhere count too.
#[derive(Debug)]
pub(crate) struct Poll {
    /// The time of its time-out.
    due: Duration,
    /// One question to each owner, sent after the last subscription. Its answer marks that the owner has reported all
    /// that it knew.
    pub unanswered: BTreeSet<u64>,
}

/// The objects of a wait that are complete somewhere, by their places in its list.
#[derive(Debug)]
pub(crate) struct Ready {
    is_ready: Vec<bool>,
    count: usize,
}

impl Ready {
    fn new(is_ready: Vec<bool>) -> Self {
        let count = is_ready.iter().filter(|&&is_ready| is_ready).count();
        Ready { is_ready, count }
    }

    fn set(&mut self, place: usize, is_ready: bool) {
        let before = std::mem::replace(&mut self.is_ready[place], is_ready);
        self.count = self.count + usize::from(is_ready) - usize::from(before);
    }

    /// The objects among `ids` that are ready, in order.
    pub fn among(&self, ids: &[ObjectId]) -> Vec<ObjectId> {
        let ready = ids.iter().zip(&self.is_ready).filter(|(_, &is_ready)| is_ready);
        ready.map(|(&id, _)| id).collect()
    }
}

impl CallHandler<'_> {
    pub fn on_wait(
        &mut self,
        client: ClientId,
        call: u64,
        ids: Vec<ObjectId>,
        count: u32,
        known_lost: Option<BTreeSet<ObjectId>>,
        timeout_ms: Option<u64>,
    ) {
        let count = count as usize;
        let ready = Ready::new(ids.iter().map(|&id| self.copies.sealed(id).is_some()).collect());
        // A call that is answered at once watches nothing.
        if ready.count < count && !self.may_watch(client, call, ids.len()) {
            return;
        }
        let len = ids.len();
        let pending = Pending::Wait { ids, count, ready, known_lost, poll: None };
        self.open_call(client, call, timeout_ms, pending);
        if self.answer_wait_if_enough(client, call) {
            return;
        }
        if let Some(timeout) = timeout_ms.map(Duration::from_millis).filter(|&time| time < POLL_TIME) {
            let due = self.ctx.now + timeout;
            if let Some(Pending::Wait { poll, .. }) = self.calls.pending_mut(client, call) {
                *poll = Some(Poll { due, unanswered: BTreeSet::new() });
            }
            // It does not time out before all of its objects are watched.
            self.ctx.timers.clear(Timer::Call(client, call));
        }
        let places = self.subscriptions.begin_watching(self.ctx, Watcher::Call(client, call, 0), len);
        self.watch_for_wait(client, call, places);
    }

    /// Watches the objects at these places in the list of a wait.
    pub fn watch_for_wait(&mut self, client: ClientId, call: u64, places: Range<usize>) {
        for place in places.clone() {
            let Some(Pending::Wait { ids, .. }) = self.calls.pending(client, call) else {
                // Already answered, from reports to other watchers here.
                return;
            };
            let id = ids[place];
            if self.subscriptions.watch(self.ctx, id, Watcher::Call(client, call, place)) {
                self.on_waited_lost(client, call, place, id);
            }
            if self.subscriptions.is_complete(id) {
                self.on_waited_complete(client, call, place, id);
            }
        }
        let pending = self.calls.pending(client, call);
        if let Some(Pending::Wait { ids, poll: Some(_), .. }) = pending {
            if places.end == ids.len() {
                let ids = ids.clone();
                self.poll_owners(client, call, &ids);
            }
        }
    }

    /// The call is answered when its time is up, but not before the owners have reported which objects are ready.
    fn poll_owners(&mut self, client: ClientId, call: u64, ids: &[ObjectId]) {
        let last: BTreeMap<NodeId, ObjectId> =
            ids.iter().map(|&id| (self.ctx.shards.owner(id), id)).collect();
        let questions: Vec<_> = last.into_values().map(|id| (self.ctx.next_number(), id)).collect();
        let unanswered = questions.iter().map(|&(token, _)| token).collect();
        let pending = self.calls.pending_mut(client, call);
        let Some(Pending::Wait { poll: Some(poll), .. }) = pending else {
            unreachable!("its caller has looked")
        };
        poll.unanswered = unanswered;
        self.ctx.timers.set(self.ctx.now + POLL_TIME, Timer::Call(client, call));
        for (token, id) in questions {
            self.calls.tokens.insert(token, (client, call));
            self.ctx.ask_owner(id, DirectoryRequest::Locate { token }, None);
        }
    }

    pub fn on_poll_answered(&mut self, client: ClientId, call: u64, token: u64) {
        let Some(Pending::Wait { poll: Some(poll), .. }) = self.calls.pending_mut(client, call) else {
            // It is no poll: then it has asked nothing.
            return;
        };
        poll.unanswered.remove(&token);
        if poll.unanswered.is_empty() {
            self.ctx.timers.set(poll.due.max(self.ctx.now), Timer::Call(client, call));
        }
    }

    fn answer_wait_if_enough(&mut self, client: ClientId, call: u64) -> bool {
        let Some(Pending::Wait { ids, count, ready, .. }) = self.calls.pending(client, call) else {
            return true;
        };
        if ready.count < *count {
            return false;
        }
        let ids = ready.among(ids);
        self.finish_call(client, call, Reply::Ready { ids });
        true
    }

    /// The state of the object at this place in the list of a wait. `None` if this is another call by now.
    fn waited(
        &mut self,
        client: ClientId,
        call: u64,
        place: usize,
        object: ObjectId,
    ) -> Option<(&mut Ready, &mut Option<BTreeSet<ObjectId>>)> {
        match self.calls.pending_mut(client, call)? {
            Pending::Wait { ids, ready, known_lost, .. } if ids.get(place) == Some(&object) => {
                Some((ready, known_lost))
            }
            _ => None,
        }
    }

    /// A waited-for object is complete somewhere.
    pub fn on_waited_complete(&mut self, client: ClientId, call: u64, place: usize, object: ObjectId) {
        let Some((ready, known_lost)) = self.waited(client, call, place, object) else {
            // The call was answered meanwhile.
            return;
        };
        ready.set(place, true);
        // If it is lost once more, that loss is new to the caller.
        if let Some(known) = known_lost {
            known.remove(&object);
        }
        self.answer_wait_if_enough(client, call);
    }

    /// The last complete copy of a waited-for object is gone, whether or not it was ready before.
    pub fn on_waited_lost(&mut self, client: ClientId, call: u64, place: usize, object: ObjectId) {
        let Some((ready, known_lost)) = self.waited(client, call, place, object) else {
            // The call was answered meanwhile.
            return;
        };
        ready.set(place, false);
        if known_lost.as_ref().is_some_and(|known| !known.contains(&object)) {
            self.fail_lost(client, call, object);
        }
    }

    pub fn on_waited_deleted(&mut self, client: ClientId, call: u64, place: usize, object: ObjectId) {
        if self.waited(client, call, place, object).is_some() {
            let message = format!("{}: {object} was deleted while waited for", self.ctx.me);
            self.fail_call(client, call, ErrorKind::Deleted, &message);
        }
    }
}

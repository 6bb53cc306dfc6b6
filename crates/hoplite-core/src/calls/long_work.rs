//! Long work for clients, split into short turns so that no other call waits for it:
//!
//! - watching many objects, and ending that
//! - notifying watchers: of a node that has gone with many objects, or many watchers of one object
//! - prefetching many objects
//! - giving one object to many waiting calls, or failing them all
//! - making space by evicting many copies
//! - cleaning up after a client that leaves much behind

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use hoplite_types::client::Gauge;
use hoplite_types::peer::PeerMessage;
use hoplite_types::{ErrorKind, NodeId, ObjectId};

use super::Pending;
use crate::fetch::Want;
use crate::io::ClientId;
use crate::reduce::Reduction;
use crate::subscriptions::Watcher;
use crate::timers::Timer;
use crate::Core;

/// Steps of one turn: a millisecond's work or two.
pub(crate) const STEPS_PER_TURN: usize = 1024;

/// Limit of watched objects, each counted once per watcher here: half a kilobyte each, with the owner's reports.
const WATCHED_MAX: usize = 1 << 21;

/// Limit of objects that wait to be prefetched; more are dropped.
const PREFETCHES_MAX: usize = 1 << 17;

/// The work that is left.
#[derive(Debug, Default)]
pub(crate) struct LongWork {
    unwatch: VecDeque<(Watcher, Vec<ObjectId>)>,
    /// Waits and reductions, and the place of the next object in the list of each.
    watch: VecDeque<(Watcher, usize)>,
    prefetch: VecDeque<(Vec<ObjectId>, Vec<NodeId>)>,
    gone: VecDeque<ClientId>,
    /// Objects that are or were here, and for which more calls wait than could be answered at once.
    give: BTreeSet<ObjectId>,
    /// Objects of which a copy was opened here, or went, and for which more puts and gets wait than could continue at
    /// once.
    go_on: BTreeSet<ObjectId>,
    /// Lost objects, each with the last of its waiting calls that was notified, of more than could be at once.
    lost: BTreeMap<ObjectId, Want>,
    /// The number of ids in `watch`, and in `prefetch`.
    to_watch: usize,
    to_prefetch: usize,
    /// Counts of calls that were refused because too much is watched, and of ids that were not prefetched.
    refused: u64,
    left_out: u64,
}

impl LongWork {
    pub fn is_empty(&self) -> bool {
        let watches = self.unwatch.is_empty() && self.watch.is_empty();
        let news = self.give.is_empty() && self.lost.is_empty() && self.go_on.is_empty();
        watches && news && self.prefetch.is_empty() && self.gone.is_empty()
    }

    /// Whether the calls that wait for an object get it in turns.
    pub fn gives(&self, object: ObjectId) -> bool {
        self.give.contains(&object)
    }
}

/// Takes up to `most` ids off the end of the list.
fn take_some(ids: &mut Vec<ObjectId>, most: usize) -> Vec<ObjectId> {
    ids.split_off(ids.len().saturating_sub(most))
}

impl Core {
    pub(crate) fn long_work_gauges(&self) -> [Gauge; 2] {
        let gauge = |name: &str, value: usize, limit: usize, met| Gauge {
            name: name.to_owned(),
            value: value as u64,
            limit: limit as u64,
            met,
        };
        let (work, watched) = (&self.long_work, self.subscriptions.pairs());
        [
            gauge("objects watched", watched + work.to_watch, WATCHED_MAX, work.refused),
            gauge("objects to prefetch", work.to_prefetch, PREFETCHES_MAX, work.left_out),
        ]
    }

    /// Whether so many more objects may be watched; if not, the call is refused.
    pub(crate) fn may_watch(&mut self, client: ClientId, call: u64, count: usize) -> bool {
        let watched = self.subscriptions.pairs() + self.long_work.to_watch;
        let may = watched + count <= WATCHED_MAX;
        if !may {
            self.long_work.refused += 1;
            let message = format!(
                "{}: {watched} objects are waited for or reduced here, {count} more would be over {WATCHED_MAX}",
                self.ctx.me
            );
            self.reply_error(client, call, ErrorKind::LimitReached, message);
        }
        may
    }

    /// Starts watching the objects of a wait or a reduction, the first of many now.
    pub(crate) fn watch_all(&mut self, watcher: Watcher, count: usize) {
        let some = count.min(STEPS_PER_TURN);
        if some < count {
            self.long_work.to_watch += count - some;
            self.long_work.watch.push_back((watcher, some));
            self.ctx.work_on_calls_soon();
        }
        self.watch_places(watcher, 0..some);
    }

    /// The number of objects that it will watch in all.
    fn watched_in_all(&self, watcher: Watcher) -> Option<usize> {
        match watcher {
            Watcher::Call(client, call, _) => match self.pending(client, call)? {
                Pending::Wait { ids, .. } => Some(ids.len()),
                _ => None,
            },
            Watcher::Reduction(number) => self.reductions.get(&number).map(Reduction::sources_count),
            Watcher::Leave | Watcher::Fetch => None,
        }
    }

    fn watch_places(&mut self, watcher: Watcher, places: Range<usize>) {
        match watcher {
            Watcher::Call(client, call, _) => self.watch_for_wait(client, call, places),
            Watcher::Reduction(number) => self.watch_sources(number, places),
            Watcher::Leave | Watcher::Fetch => {}
        }
    }

    /// Ends watching these objects. The last of them may not be watched yet.
    pub(crate) fn end_watching(&mut self, watcher: Watcher, mut ids: Vec<ObjectId>) {
        let work = &mut self.long_work;
        work.watch.retain(|&(other, next)| {
            let is_it = other == watcher;
            if is_it {
                work.to_watch -= ids.len() - next;
                ids.truncate(next);
            }
            !is_it
        });
        self.unwatch_last(watcher, &mut ids);
        if !ids.is_empty() {
            self.long_work.unwatch.push_back((watcher, ids));
            self.ctx.work_on_calls_soon();
        }
    }

    fn unwatch_last(&mut self, watcher: Watcher, ids: &mut Vec<ObjectId>) {
        let some = take_some(ids, STEPS_PER_TURN);
        for (object, place) in some.into_iter().zip(ids.len()..) {
            let watcher = match watcher {
                Watcher::Call(client, call, _) => Watcher::Call(client, call, place),
                other => other,
            };
            self.unwatch(object, watcher);
        }
    }

    /// A prefetch is a hint: ids beyond the limit are dropped.
    pub(super) fn prefetch_in_turns(&mut self, mut ids: Vec<ObjectId>, nodes: Vec<NodeId>) {
        let left = PREFETCHES_MAX - self.long_work.to_prefetch;
        self.long_work.left_out += ids.len().saturating_sub(left) as u64;
        ids.truncate(left);
        // Ids are taken off the end.
        ids.reverse();
        self.long_work.to_prefetch += ids.len();
        self.long_work.prefetch.push_back((ids, nodes));
        self.work_on_calls();
    }

    /// The connection is gone: all state of the client is removed.
    pub(crate) fn on_client_gone(&mut self, client: ClientId) {
        self.long_work.gone.push_back(client);
        self.work_on_calls();
    }

    /// A node is gone: the first watchers of its copies are notified now, unless other work waits for its turn.
    pub(crate) fn work_on_the_gone(&mut self) {
        if !self.ctx.timers.is_set(Timer::LongWork) {
            self.forget_gone_copies(STEPS_PER_TURN);
        }
        if self.subscriptions.has_gone() {
            self.ctx.work_on_calls_soon();
        }
    }

    /// A turn of each kind of work, each for the next client in line.
    pub(crate) fn work_on_calls(&mut self) {
        let turns: [fn(&mut Core); 11] = [
            Core::forget_some,
            |core| core.forget_gone_copies(STEPS_PER_TURN),
            Core::tell_next_watchers,
            Core::give_some,
            Core::go_on_some,
            Core::continue_space_waiters,
            Core::fail_next,
            Core::tell_next_lost,
            Core::unwatch_some,
            Core::watch_some,
            Core::prefetch_some,
        ];
        for turn in turns {
            turn(self);
            self.hand_on_notices();
        }
        let wants = self.fetches.next_failing().is_some() || self.copies.has_more_waiters();
        let watched = self.subscriptions.has_gone() || self.subscriptions.is_telling();
        if !self.long_work.is_empty() || wants || watched {
            self.ctx.work_on_calls_soon();
        }
    }

    /// More calls wait for this object than can get it at once.
    pub(crate) fn satisfy_later(&mut self, object: ObjectId) {
        self.long_work.give.insert(object);
        self.ctx.work_on_calls_soon();
    }

    fn give_some(&mut self) {
        if let Some(object) = self.long_work.give.pop_first() {
            // If it is gone again, it is being fetched, or the calls have failed.
            if self.copies.sealed(object).is_some() {
                self.satisfy_wants(object);
            }
        }
    }

    /// More puts and gets wait for the change of the copy here than can continue at once.
    pub(crate) fn go_on_soon(&mut self, object: ObjectId) {
        self.long_work.go_on.insert(object);
        self.ctx.work_on_calls_soon();
    }

    fn go_on_some(&mut self) {
        if let Some(object) = self.long_work.go_on.pop_first() {
            self.retry_puts(object);
            self.serve_partial_gets(object);
            if self.copies.live(object).is_some() {
                self.end_puts_wait_for_space(object);
            }
        }
    }

    fn fail_next(&mut self) {
        if let Some(object) = self.fetches.next_failing() {
            self.fail_some(object);
        }
    }

    /// More calls wait for this object than can be notified of its loss at once.
    pub(crate) fn tell_lost_later(&mut self, object: ObjectId, last: Want) {
        self.long_work.lost.insert(object, last);
        self.ctx.work_on_calls_soon();
    }

    fn tell_next_lost(&mut self) {
        if let Some((object, last)) = self.long_work.lost.pop_first() {
            self.tell_some_lost(object, Some(last));
        }
    }

    fn unwatch_some(&mut self) {
        if let Some((watcher, mut ids)) = self.long_work.unwatch.pop_front() {
            self.unwatch_last(watcher, &mut ids);
            if !ids.is_empty() {
                self.long_work.unwatch.push_back((watcher, ids));
            }
        }
    }

    fn watch_some(&mut self) {
        let Some((watcher, place)) = self.long_work.watch.pop_front() else { return };
        let Some(end) = self.watched_in_all(watcher) else { return };
        let next = (place + STEPS_PER_TURN).min(end);
        self.long_work.to_watch -= next - place;
        if next < end {
            self.long_work.watch.push_back((watcher, next));
        }
        self.watch_places(watcher, place..next);
    }

    fn prefetch_some(&mut self) {
        let Some((mut ids, nodes)) = self.long_work.prefetch.pop_front() else { return };
        let some = take_some(&mut ids, STEPS_PER_TURN.div_ceil(nodes.len().max(1)));
        self.long_work.to_prefetch -= some.len();
        if !ids.is_empty() {
            self.long_work.prefetch.push_back((ids, nodes.clone()));
        }
        for id in some.into_iter().rev() {
            // To ourselves too: messages to ourselves are handled like any other.
            nodes.iter().for_each(|&node| self.ctx.send(node, PeerMessage::Prefetch { id }, None));
        }
    }

    /// Removes the state of a client that is gone: its calls, then its reductions, unsealed copies, and views.
    fn forget_some(&mut self) {
        let Some(client) = self.long_work.gone.pop_front() else { return };
        let mut left = STEPS_PER_TURN;
        for call in self.calls.of_client(client, left) {
            left -= 1;
            self.forget_call(client, call);
        }
        left = left.saturating_sub(self.abandon_reductions_of(client, left));
        for copy in self.writes.of_client(client, left) {
            left -= 1;
            self.abandon_write(copy);
        }
        while left > 0 {
            if !self.copies.release_next_views(&mut self.ctx, client) {
                break;
            }
            left -= 1;
        }
        match left > 0 {
            true => drop(self.clients.remove(&client)),
            false => self.long_work.gone.push_back(client),
        }
    }
}

//! Long work for clients, split into short turns so that no other call waits for it:
//!
//! - watching many objects, ending that, and notifying many watchers (see `subscriptions`)
//! - prefetching many objects
//! - giving one object to many waiting calls, or failing them all
//! - making space by evicting many copies
//! - cleaning up after a client that leaves much behind

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use hoplite_types::client::Gauge;
use hoplite_types::peer::PeerMessage;
use hoplite_types::{ErrorKind, NodeId, ObjectId};

use crate::ctx::STEPS_PER_TURN;
use crate::io::ClientId;
use crate::keys::Watcher;
use crate::Core;

/// Limit of objects that wait to be prefetched; more are dropped.
const PREFETCHES_MAX: usize = 1 << 17;

/// The work that is left.
#[derive(Debug, Default)]
pub(crate) struct LongWork {
    prefetch: VecDeque<(Vec<ObjectId>, Vec<NodeId>)>,
    gone: VecDeque<ClientId>,
    /// Objects of which a copy was opened here, or went, and for which more puts and gets wait than could continue at
    /// once.
    go_on: BTreeSet<ObjectId>,
    /// The number of ids in `prefetch`.
    to_prefetch: usize,
    /// Count of ids that were not prefetched.
    left_out: u64,
}

impl LongWork {
    pub fn is_empty(&self) -> bool {
        self.go_on.is_empty() && self.prefetch.is_empty() && self.gone.is_empty()
    }

    pub fn gauge(&self) -> Gauge {
        Gauge {
            name: "objects to prefetch".to_owned(),
            value: self.to_prefetch as u64,
            limit: PREFETCHES_MAX as u64,
            met: self.left_out,
        }
    }
}

/// Takes up to `most` ids off the end of the list.
fn take_some(ids: &mut Vec<ObjectId>, most: usize) -> Vec<ObjectId> {
    ids.split_off(ids.len().saturating_sub(most))
}

impl Core {
    /// Whether so many more objects may be watched; if not, the call is refused.
    pub(crate) fn may_watch(&mut self, client: ClientId, call: u64, count: usize) -> bool {
        match self.subscriptions.may_watch(&self.ctx, count) {
            Ok(()) => true,
            Err(message) => {
                self.reply_error(client, call, ErrorKind::LimitReached, message);
                false
            }
        }
    }

    /// Starts watching the objects of a wait or a reduction, the first of many now.
    pub(crate) fn watch_all(&mut self, watcher: Watcher, count: usize) {
        let places = self.subscriptions.begin_watching(&mut self.ctx, watcher, count);
        self.watch_places(watcher, places);
    }

    fn watch_places(&mut self, watcher: Watcher, places: Range<usize>) {
        match watcher {
            Watcher::Call(client, call, _) => self.watch_for_wait(client, call, places),
            Watcher::Reduction(number) => self.watch_sources(number, places),
            Watcher::Leave | Watcher::Fetch => {}
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

    /// A turn of each kind of work, each for the next client in line.
    pub(crate) fn work_on_calls(&mut self) {
        let turns: [fn(&mut Core); 11] = [
            Core::forget_some,
            |core| core.subscriptions.forget_gone_copies(&mut core.ctx, STEPS_PER_TURN),
            |core| core.subscriptions.tell_next(&mut core.ctx),
            Core::give_some,
            Core::go_on_some,
            Core::continue_space_waiters,
            Core::fail_next,
            Core::tell_next_lost,
            |core| core.subscriptions.unwatch_some(&mut core.ctx),
            Core::watch_some,
            Core::prefetch_some,
        ];
        for turn in turns {
            turn(self);
            self.hand_on_notices();
        }
        let below =
            self.fetches.has_work() || self.copies.has_more_waiters() || self.subscriptions.has_work();
        if !self.long_work.is_empty() || below {
            self.ctx.work_on_calls_soon();
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

    fn watch_some(&mut self) {
        if let Some((watcher, places)) = self.subscriptions.next_to_watch() {
            self.watch_places(watcher, places);
        }
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

//! Long work for clients, split into short turns so that no other call waits for it:
//!
//! - watching many objects, ending that, and notifying many watchers (see `subscriptions`)
//! - prefetching many objects
//! - giving one object to many waiting calls, or failing them all
//! - making space by evicting many copies
//! - cleaning up after a client that leaves much behind

use std::collections::{BTreeSet, VecDeque};

use hoplite_types::client::Gauge;
use hoplite_types::peer::PeerMessage;
use hoplite_types::{ErrorKind, NodeId, ObjectId};

use super::{CallHandler, Calls};
use crate::ctx::STEPS_PER_TURN;
use crate::io::ClientId;

/// Limit of objects that wait to be prefetched; more are dropped.
const PREFETCHES_MAX: usize = 1 << 17;

/// The work that is left.
#[derive(Debug, Default)]
pub(super) struct LongWork {
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

impl CallHandler<'_> {
    /// Whether so many more objects may be watched; if not, the call is refused.
    pub fn may_watch(&mut self, client: ClientId, call: u64, count: usize) -> bool {
        match self.subscriptions.may_watch(self.ctx, count) {
            Ok(()) => true,
            Err(message) => {
                self.reply_error(client, call, ErrorKind::LimitReached, message);
                false
            }
        }
    }

    /// Has these objects prefetched by these nodes, or by this one. A prefetch is a hint: ids beyond the limit are
    /// dropped.
    pub fn prefetch_in_turns(&mut self, mut ids: Vec<ObjectId>, mut nodes: Vec<NodeId>) {
        if nodes.is_empty() {
            nodes.push(self.ctx.me);
        }
        // Departed nodes have no use for it, and no stranger is dialled for it.
        nodes.retain(|&node| self.ctx.shards.contains(node));
        let left = PREFETCHES_MAX - self.calls.work.to_prefetch;
        self.calls.work.left_out += ids.len().saturating_sub(left) as u64;
        ids.truncate(left);
        // Ids are taken off the end.
        ids.reverse();
        self.calls.work.to_prefetch += ids.len();
        self.calls.work.prefetch.push_back((ids, nodes));
    }

    /// The connection is gone: all state of the client is removed.
    pub fn on_client_gone(&mut self, client: ClientId) {
        self.calls.work.gone.push_back(client);
    }

    /// More puts and gets wait for the change of the copy here than can continue at once.
    pub fn go_on_soon(&mut self, object: ObjectId) {
        self.calls.work.go_on.insert(object);
        self.ctx.work_on_calls_soon();
    }

    pub fn go_on_some(&mut self) {
        if let Some(object) = self.calls.work.go_on.pop_first() {
            self.retry_puts(object);
            self.serve_partial_gets(object);
            if self.copies.live(object).is_some() {
                self.end_puts_wait_for_space(object);
            }
        }
    }

    pub fn prefetch_some(&mut self) {
        let Some((mut ids, nodes)) = self.calls.work.prefetch.pop_front() else {
            // All are on their way.
            return;
        };
        let some = take_some(&mut ids, STEPS_PER_TURN.div_ceil(nodes.len().max(1)));
        self.calls.work.to_prefetch -= some.len();
        if !ids.is_empty() {
            self.calls.work.prefetch.push_back((ids, nodes.clone()));
        }
        for id in some.into_iter().rev() {
            // To ourselves too: messages to ourselves are handled like any other.
            nodes.iter().for_each(|&node| self.ctx.send(node, PeerMessage::Prefetch { id }, None));
        }
    }

    /// Removes the first few calls of a client that is gone. Returns how many more may be removed in this turn.
    pub fn forget_calls_of(&mut self, client: ClientId, most: usize) -> usize {
        let calls = self.calls.of_client(client, most);
        for &call in &calls {
            self.forget_call(client, call);
        }
        most - calls.len()
    }

    /// Removes the unsealed copies and views of a client that is gone, in so many steps. What is left then has its turn
    /// later.
    pub fn forget_rest_of(&mut self, client: ClientId, most: usize) {
        let mut left = most;
        for copy in self.writes.of_client(client, left) {
            left -= 1;
            self.abandon_write(copy);
        }
        while left > 0 {
            if !self.copies.release_next_views(self.ctx, client) {
                break;
            }
            left -= 1;
        }
        match left > 0 {
            true => drop(self.calls.clients.remove(&client)),
            false => self.calls.work.gone.push_back(client),
        }
    }
}

impl Calls {
    /// Takes the next client that is gone, and has left something behind.
    pub fn next_gone(&mut self) -> Option<ClientId> {
        self.work.gone.pop_front()
    }
}

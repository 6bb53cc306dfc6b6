//! Requests of clients, and long work for them: in short turns, so that no other call waits for it.

use std::ops::Range;

use hoplite_types::client::{Reply, Request};
use hoplite_types::ErrorKind;

use crate::calls::{CallHandler, Creation, Get, Pending};
use crate::ctx::STEPS_PER_TURN;
use crate::io::ClientId;
use crate::keys::Watcher;
use crate::Core;

impl Core {
    /// The calls of clients, and what is lent to them.
    pub(crate) fn call_handler(&mut self) -> CallHandler<'_> {
        CallHandler {
            calls: &mut self.calls,
            writes: &mut self.writes,
            fetches: &mut self.fetches,
            subscriptions: &mut self.subscriptions,
            copies: &mut self.copies,
            ctx: &mut self.ctx,
        }
    }

    pub(crate) fn on_request(&mut self, client: ClientId, call: u64, request: Request) {
        if !self.call_handler().admit(client, call, &request) {
            return;
        }
        match request {
            Request::Hello { .. } => {
                let message = "a second Hello".to_owned();
                self.call_handler().reply_error(client, call, ErrorKind::BadArgument, message);
            }
            Request::Create { id, size, header, timeout_ms, keep } => {
                let creation = Creation { id, size, header, keep, payload: None };
                self.call_handler().on_create(client, call, creation, timeout_ms);
            }
            Request::PutSmall { id, header, payload, timeout_ms } => {
                let size = payload.0.len() as u64;
                let creation = Creation { id, size, header, keep: false, payload: Some(payload) };
                self.call_handler().on_create(client, call, creation, timeout_ms);
            }
            Request::Progress { copy, watermark } => self.call_handler().on_progress(client, copy, watermark),
            Request::Seal { copy, timeout_ms } => self.call_handler().on_seal(client, call, copy, timeout_ms),
            Request::Abort { copy } => self.call_handler().on_abort(client, call, copy),
            Request::Get { id, timeout_ms, partial, fail_if_lost } => {
                self.call_handler().on_get(client, call, id, Get { partial, fail_if_lost, timeout_ms });
            }
            Request::Release { copy } => self.copies.release_view(&mut self.ctx, client, copy),
            Request::Delete { ids, timeout_ms } => {
                self.call_handler().on_delete(client, call, ids, timeout_ms)
            }
            Request::Reduce { target, sources, num_objects, op, order, timeout_ms, to_sources } => {
                let ask =
                    crate::reductions::Request { target, sources, k: num_objects, op, order, to_sources };
                self.on_reduce(client, call, ask, timeout_ms);
            }
            Request::Wait { ids, count, timeout_ms, fail_if_lost, known_lost } => {
                let known_lost = fail_if_lost.then(|| known_lost.into_iter().collect());
                self.call_handler().on_wait(client, call, ids, count, known_lost, timeout_ms);
            }
            Request::Prefetch { ids, nodes } => {
                self.call_handler().prefetch_in_turns(ids, nodes);
                self.work_on_calls();
                self.call_handler().reply(client, call, Reply::Done);
            }
            Request::Locate { id, timeout_ms } => self.call_handler().on_locate(client, call, id, timeout_ms),
            Request::Status => {
                let status = self.status();
                self.call_handler().reply(client, call, Reply::Status(status));
            }
            Request::Cancel { call } => self.cancel_call(client, call),
        }
    }

    fn on_reduce(
        &mut self,
        client: ClientId,
        call: u64,
        request: crate::reductions::Request,
        timeout_ms: Option<u64>,
    ) {
        let count = request.sources.len();
        if !self.call_handler().may_watch(client, call, count) {
            // The call is refused.
            return;
        }
        let number = self.with_reductions(|reductions, lent| reductions.begin(lent, (client, call), request));
        self.call_handler().open_call(client, call, timeout_ms, Pending::Reduce { number });
        let places = self.subscriptions.begin_watching(&mut self.ctx, Watcher::Reduction(number), count);
        self.with_reductions(|reductions, lent| reductions.watch_sources(lent, number, places));
    }

    fn cancel_call(&mut self, client: ClientId, call: u64) {
        if let Some(&Pending::Reduce { number }) = self.calls.pending(client, call) {
            // Only its reply is not wanted any more; the target is.
            self.reductions.detach(number);
        }
        self.call_handler().forget_call(client, call);
    }

    /// The connection is gone: all state of the client is removed.
    pub(crate) fn on_client_gone(&mut self, client: ClientId) {
        self.call_handler().on_client_gone(client);
        self.work_on_calls();
    }

    /// A turn of each kind of work, each for the next client in line.
    pub(crate) fn work_on_calls(&mut self) {
        let turns: [fn(&mut Core); 11] = [
            Core::forget_some,
            |core| core.subscriptions.forget_gone_copies(&mut core.ctx, STEPS_PER_TURN),
            |core| core.subscriptions.tell_next(&mut core.ctx),
            Core::give_some,
            |core| core.call_handler().go_on_some(),
            Core::continue_space_waiters,
            Core::fail_next,
            Core::tell_next_lost,
            |core| core.subscriptions.unwatch_some(&mut core.ctx),
            Core::watch_some,
            |core| core.call_handler().prefetch_some(),
        ];
        for turn in turns {
            turn(self);
            self.hand_on_notices();
        }
        let below =
            self.fetches.has_work() || self.copies.has_more_waiters() || self.subscriptions.has_work();
        if self.calls.has_work() || below {
            self.ctx.work_on_calls_soon();
        }
    }

    fn watch_some(&mut self) {
        if let Some((watcher, places)) = self.subscriptions.next_to_watch() {
            self.watch_places(watcher, places);
        }
    }

    fn watch_places(&mut self, watcher: Watcher, places: Range<usize>) {
        match watcher {
            Watcher::Call(client, call, _) => self.call_handler().watch_for_wait(client, call, places),
            Watcher::Reduction(number) => {
                self.with_reductions(|reductions, lent| reductions.watch_sources(lent, number, places));
            }
            Watcher::Leave | Watcher::Fetch => unreachable!("they watch one object at a time"),
        }
    }

    /// Removes the state of a client that is gone: its calls, then its reductions, unsealed copies, and views.
    fn forget_some(&mut self) {
        if let Some(client) = self.calls.next_gone() {
            let left = self.call_handler().forget_calls_of(client, STEPS_PER_TURN);
            let taken = self.with_reductions(|reductions, lent| reductions.abandon(lent, client, left));
            let left = left.saturating_sub(taken);
            self.call_handler().forget_rest_of(client, left);
        }
    }
}

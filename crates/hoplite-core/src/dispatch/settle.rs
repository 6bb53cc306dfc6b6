//! Hands on what one component lets those above it know, until nothing is left: notices first, then objects whose puts
//! and fetches are to be retried, then messages to ourselves, then space and those who wait for it.

use hoplite_types::peer::Verdict;
use hoplite_types::{CopyId, ObjectId};

use crate::copies::{Phase, Retry, SpaceWaiter};
use crate::ctx::STEPS_PER_TURN;
use crate::fetch::Fetcher;
use crate::io::Output;
use crate::keys::Watcher;
use crate::lent::Lent;
use crate::notices::{News, Notice};
use crate::reductions::Reductions;
use crate::slots::Slots;
use crate::timers::Timer;
use crate::Core;

/// Limit on how often the waiters for space are retried after one input. Space that changes once more waits for the
/// next input.
const SPACE_LOOKS_MAX: u32 = 10_000;

/// More notices than any turn has. Components that answer each other without end would exceed it.
const NOTICES_MAX: u32 = 1_000_000;

impl Core {
    /// Handles notices and messages to ourselves, and gives free space and ids to those who wait for them, until none
    /// are left.
    pub(crate) fn settle(&mut self) {
        let mut looked = 0;
        loop {
            self.hand_on_notices();
            if let Some(object) = self.copies.pop_vacated() {
                self.fetcher().ensure_fetch(object);
                self.call_handler().retry_puts(object);
            } else if let Some(message) = self.ctx.loopback.pop_front() {
                self.on_message(self.ctx.me, message);
            } else if self.copies.take_space_changed() {
                debug_assert!(looked < SPACE_LOOKS_MAX, "looking for space changes what space there is");
                if looked == SPACE_LOOKS_MAX {
                    self.copies.note_space();
                    return;
                }
                looked += 1;
                if self.copies.begin_pass(&mut self.ctx) {
                    self.retry_space_waiters();
                }
            } else {
                return;
            }
        }
    }

    /// Hands on all notices, and those that follow from them. Only then does a node that leaves look whether it may:
    /// a notice may give it more to do.
    pub(crate) fn hand_on_notices(&mut self) {
        let mut handed_on = 0;
        loop {
            while let Some(notice) = self.ctx.notices.pop_front() {
                debug_assert!(handed_on < NOTICES_MAX, "notices without end: {notice:?}");
                handed_on += 1;
                self.on_notice(notice);
            }
            if !std::mem::take(&mut self.ctx.work_ended) {
                return;
            }
            self.leave_if_nothing_is_left();
        }
    }

    fn on_notice(&mut self, notice: Notice) {
        match notice {
            // Those who wait for the sealed copy come first: that is the next notice.
            Notice::Opened(object)
                if self.copies.live_copy(object).is_some_and(|copy| copy.public && copy.is_sealed()) => {}
            Notice::Opened(object) => self.on_opened(object),
            Notice::Sealed { copy, object } => {
                self.hand_over(copy);
                // Answered first, while the copy is surely here: a slot that starts now may evict it again.
                self.satisfy_wants(object);
                self.on_opened(object);
                self.fetcher().drop_fetch(object);
            }
            Notice::Doomed { copy, object, public } => {
                self.slots.on_copy_doomed(copy);
                self.sends.stop(&mut self.ctx, copy);
                if public {
                    self.leave.on_handed_over(&mut self.ctx, &self.copies, &self.subscriptions, object);
                }
            }
            Notice::Released(object) => self.fetcher().drop_unwanted_fetch(object),
            Notice::Withdrawn { object, seq } => self.fetches.note_withdrawn(object, seq),
            Notice::Shown { object, edition } => self.directory.note_shown(object, edition),
            Notice::Watched { watcher, object, news } => self.on_news(watcher, object, news),
            Notice::SourceCame { number, object, report, payload } => {
                self.with_reductions(|reductions, lent| {
                    reductions.on_source_came(lent, number, (object, &report), payload);
                });
            }
            Notice::SourcesGone(number) => {
                self.with_reductions(|reductions, lent| reductions.on_sources_gone(lent, number));
            }
            Notice::Wanted { object, want } => self.on_wanted(object, want),
            Notice::LostTo { object, want } => self.tell_lost_to(object, want),
            Notice::Lost(object) => self.tell_some_lost(object, None),
            Notice::Failing(object) => self.fail_some(object),
            Notice::Nowhere(object) => self.call_handler().offer_spares(object),
            Notice::NotComing(object) => self.sends.refuse_parked(&mut self.ctx, &self.copies, object),
            Notice::BrokenOff(object) => self.call_handler().retry_puts(object),
            Notice::Pinned(copy) => self.hand_over(copy),
            Notice::ReportAgain(copy) => self.announce_again(copy),
            Notice::PartEnded(copy) => self.with_slots(|slots, lent| slots.on_part_ended(lent, copy)),
            Notice::FoldStreamBroken { fold, transfer } => {
                self.slots.on_stream_broken(&mut self.ctx, fold, transfer);
            }
            Notice::GaveWay { copy, stamp } => {
                self.call_handler().on_write_verdict(copy, Verdict::Exists(stamp))
            }
            Notice::BadMessage { from, error } => self.on_bad_message(from, error),
            Notice::ReductionTimedOut { number, waited } => {
                self.with_reductions(|reductions, lent| reductions.on_timed_out(lent, number, &waited));
            }
            Notice::Answer { client, call, reply } => self.call_handler().finish_call(client, call, reply),
            Notice::MembersKnown => self.directory.start(&mut self.ctx),
        }
    }

    fn on_news(&mut self, watcher: Watcher, object: ObjectId, news: News) {
        match (watcher, news) {
            (Watcher::Call(client, call, place), News::Change) => {
                self.call_handler().on_waited_complete(client, call, place, object);
            }
            (Watcher::Call(client, call, place), News::Lost) => {
                self.call_handler().on_waited_lost(client, call, place, object);
            }
            (Watcher::Call(client, call, place), News::Deleted) => {
                self.call_handler().on_waited_deleted(client, call, place, object);
            }
            (Watcher::Reduction(number), News::Change) => {
                self.with_reductions(|reductions, lent| reductions.on_change(lent, number, object));
            }
            (Watcher::Reduction(number), News::Deleted) => {
                self.with_reductions(|reductions, lent| reductions.on_source_deleted(lent, number, object));
            }
            // A source may be put again, or appear elsewhere; the reduction's time-out reports its state.
            (Watcher::Reduction(_), News::Lost) => {}
            (Watcher::Leave, News::Change) => {
                self.leave.on_handed_over(&mut self.ctx, &self.copies, &self.subscriptions, object)
            }
            // If it is deleted, our copy is removed in a moment, which is noticed.
            (Watcher::Leave, News::Lost | News::Deleted) => {}
            // Calls that want the object are notified through `fail_wants`.
            (Watcher::Fetch, _) => {}
        }
    }

    /// The fetches, and what is lent to them.
    pub(crate) fn fetcher(&mut self) -> Fetcher<'_> {
        Fetcher {
            fetches: &mut self.fetches,
            ctx: &mut self.ctx,
            copies: &mut self.copies,
            subscriptions: &mut self.subscriptions,
        }
    }

    /// The slots, and what is lent to them.
    pub(crate) fn with_slots<T>(&mut self, call: impl FnOnce(&mut Slots, &mut Lent<'_>) -> T) -> T {
        let (slots, _, mut lent) = self.split();
        call(slots, &mut lent)
    }

    /// The reductions that were called here, and what is lent to them.
    pub(crate) fn with_reductions<T>(&mut self, call: impl FnOnce(&mut Reductions, &mut Lent<'_>) -> T) -> T {
        let (_, reductions, mut lent) = self.split();
        call(reductions, &mut lent)
    }

    fn split(&mut self) -> (&mut Slots, &mut Reductions, Lent<'_>) {
        let lent = Lent {
            ctx: &mut self.ctx,
            copies: &mut self.copies,
            fetches: &mut self.fetches,
            subscriptions: &mut self.subscriptions,
            writes: &self.writes,
        };
        (&mut self.slots, &mut self.reductions, lent)
    }

    /// A copy of `object` was opened: early pulls, partial gets, other puts and slots may go on.
    fn on_opened(&mut self, object: ObjectId) {
        // A copy that is gone already serves nobody. One that is gathered is not read before it is whole.
        if self.copies.live_copy(object).is_none_or(|copy| copy.phase == Phase::Gathered) {
            return;
        }
        self.sends.serve_parked(&mut self.ctx, &mut self.copies, object);
        self.call_handler().serve_partial_gets(object);
        self.call_handler().end_puts_wait_for_space(object);
        self.with_slots(|slots, lent| slots.on_opened(lent, object));
    }

    /// Tries the waiters for space that may fit, as many as one turn may take.
    pub(crate) fn retry_space_waiters(&mut self) {
        let mut steps = STEPS_PER_TURN;
        while let Some(retry) = self.copies.next_waiter(&mut self.ctx, &mut steps) {
            self.retry_space_waiter(retry);
            self.hand_on_notices();
            self.copies.end_retry(retry);
        }
    }

    fn retry_space_waiter(&mut self, retry: Retry) {
        match retry.what {
            SpaceWaiter::Create { client, call, .. } => self.call_handler().try_create(client, call),
            SpaceWaiter::Fetch { object } => {
                if self.copies.clear_space_for(&mut self.ctx, retry) {
                    self.fetcher().on_space_for_fetch(object);
                }
            }
            SpaceWaiter::Slot { reduction, slot } => {
                self.with_slots(|slots, lent| slots.try_start(lent, (reduction, slot)));
            }
            SpaceWaiter::SmallTarget { number } => {
                self.with_reductions(|reductions, lent| reductions.on_space(lent, number));
            }
        }
    }

    /// Continues a pass over many waiters for space.
    pub(crate) fn continue_space_waiters(&mut self) {
        self.copies.continue_pass();
        self.retry_space_waiters();
        self.copies.end_pass();
    }

    /// If we are leaving: a copy that is pinned here must be pinned elsewhere.
    fn hand_over(&mut self, copy: CopyId) {
        if self.copies.get(copy).is_some_and(|copy| copy.pinned && !copy.doomed) {
            self.leave.hand_over(&mut self.ctx, &mut self.copies, &mut self.subscriptions, copy);
        }
    }

    /// Leaves, if nothing more is to be handed over.
    fn leave_if_nothing_is_left(&mut self) {
        if !self.leave.is_handing_over(&self.ctx) {
            // We stay; or the time for that is up, and a timer is set.
            return;
        }
        // Members that were lost may be found again in time, unless there never were any.
        let alone = self.ctx.shards.len() == 1 && self.members.expects_nobody();
        let busy = !self.writes.is_empty() || !self.reductions.is_empty() || self.slots.await_commits();
        if alone || (!busy && self.leave.has_handed_over()) {
            self.ctx.timers.set(self.ctx.now, Timer::Leave);
        }
    }

    pub(crate) fn on_leave_timer(&mut self) {
        self.leave.note_left();
        // Owners remove the subscriptions of a departed node by themselves: no unsubscriptions are sent.
        let changes = self.members.leave(self.ctx.now);
        self.on_member_changes(changes);
        self.ctx.out.push_back(Output::Left);
    }
}

//! Begins and ends to watch many objects, in turns.

use std::collections::VecDeque;
use std::ops::Range;

use hoplite_types::client::Gauge;
use hoplite_types::ObjectId;

use super::Subscriptions;
use crate::ctx::{Ctx, STEPS_PER_TURN};
use crate::keys::Watcher;

/// Limit of watched objects, each counted once per watcher here: half a kilobyte each, with the owner's reports.
const WATCHED_MAX: usize = 1 << 21;

/// A wait or reduction that does not watch all of its objects yet.
#[derive(Debug)]
struct Beginning {
    watcher: Watcher,
    /// The place of the next object in its list, and the number of all.
    next: usize,
    end: usize,
}

#[derive(Debug, Default)]
pub(super) struct Turns {
    watch: VecDeque<Beginning>,
    unwatch: VecDeque<(Watcher, Vec<ObjectId>)>,
    /// The number of objects in `watch`.
    to_watch: usize,
    /// Count of calls that were refused because too much is watched.
    refused: u64,
}

impl Turns {
    pub fn is_empty(&self) -> bool {
        self.watch.is_empty() && self.unwatch.is_empty()
    }
}

impl Subscriptions {
    /// Whether so many more objects may be watched. If not, the call is refused, with this reason.
    pub fn may_watch(&mut self, ctx: &Ctx, count: usize) -> Result<(), String> {
        let watched = self.pairs + self.turns.to_watch;
        if watched + count <= WATCHED_MAX {
            return Ok(());
        }
        self.turns.refused += 1;
        Err(format!(
            "{}: {watched} objects are waited for or reduced here, {count} more would be over {WATCHED_MAX}",
            ctx.me
        ))
    }

    pub fn gauge(&self) -> Gauge {
        Gauge {
            name: "objects watched".to_owned(),
            value: (self.pairs + self.turns.to_watch) as u64,
            limit: WATCHED_MAX as u64,
            met: self.turns.refused,
        }
    }

    /// A wait or a reduction is to watch `count` objects. Returns the places of those that it may watch at once.
    pub fn begin_watching(&mut self, ctx: &mut Ctx, watcher: Watcher, count: usize) -> Range<usize> {
        let some = count.min(STEPS_PER_TURN);
        if some < count {
            self.turns.to_watch += count - some;
            self.turns.watch.push_back(Beginning { watcher, next: some, end: count });
            ctx.work_on_calls_soon();
        }
        0..some
    }

    /// The next watcher that may go on, and the places of the objects that it may watch now.
    pub fn next_to_watch(&mut self) -> Option<(Watcher, Range<usize>)> {
        let Beginning { watcher, next: place, end } = self.turns.watch.pop_front()?;
        let next = (place + STEPS_PER_TURN).min(end);
        self.turns.to_watch -= next - place;
        if next < end {
            self.turns.watch.push_back(Beginning { watcher, next, end });
        }
        Some((watcher, place..next))
    }

    /// Ends watching these objects, the last of many at once. The last of them may not be watched yet.
    pub fn end_watching(&mut self, ctx: &mut Ctx, watcher: Watcher, mut ids: Vec<ObjectId>) {
        let turns = &mut self.turns;
        turns.watch.retain(|beginning| {
            let is_it = beginning.watcher == watcher;
            if is_it {
                turns.to_watch -= beginning.end - beginning.next;
                ids.truncate(beginning.next);
            }
            !is_it
        });
        self.unwatch_last(ctx, watcher, &mut ids);
        if !ids.is_empty() {
            self.turns.unwatch.push_back((watcher, ids));
            ctx.work_on_calls_soon();
        }
    }

    /// Continues to end what is watched.
    pub fn unwatch_some(&mut self, ctx: &mut Ctx) {
        if let Some((watcher, mut ids)) = self.turns.unwatch.pop_front() {
            self.unwatch_last(ctx, watcher, &mut ids);
            if !ids.is_empty() {
                self.turns.unwatch.push_back((watcher, ids));
            }
        }
    }

    fn unwatch_last(&mut self, ctx: &mut Ctx, watcher: Watcher, ids: &mut Vec<ObjectId>) {
        let some = ids.split_off(ids.len().saturating_sub(STEPS_PER_TURN));
        for (object, place) in some.into_iter().zip(ids.len()..) {
            let watcher = match watcher {
                Watcher::Call(client, call, _) => Watcher::Call(client, call, place),
                other => other,
            };
            self.unwatch(ctx, object, watcher);
        }
    }
}

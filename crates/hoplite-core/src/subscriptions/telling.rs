//! News of a watched object, for all of its watchers: the first of many at once, the others in turns.

use std::collections::BTreeMap;
use std::ops::Bound;

use hoplite_types::ObjectId;

use super::{Subscription, Subscriptions};
use crate::ctx::Ctx;
use crate::keys::Watcher;
use crate::notices::{News, Notice};

/// Limit of watchers of one object that are notified in one turn: a millisecond's work or two.
pub(super) const WATCHERS_PER_TURN: usize = 1024;

type Key = (ObjectId, News);

/// A notification of more watchers than could be notified at once: the last one notified, and the number left. They
/// are notified of the state at that time.
#[derive(Clone, Copy, Debug)]
struct Telling {
    last: Watcher,
    left: usize,
}

/// Notifications that some watchers have yet to get.
#[derive(Debug, Default)]
pub(super) struct Tellings {
    table: BTreeMap<Key, Telling>,
    /// The notification that was continued last.
    told: Option<Key>,
}

impl Tellings {
    /// Takes the next notification. Objects take turns, even if one changes all the time.
    fn take(&mut self) -> Option<(Key, Telling)> {
        let behind = (self.told.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let next = self.table.range(behind).next().or_else(|| self.table.first_key_value());
        self.told = next.map(|(&key, _)| key);
        let key = self.told?;
        let telling = self.table.remove(&key)?;
        if self.table.is_empty() {
            self.told = None;
        }
        Some((key, telling))
    }

    /// A watcher was added while others have yet to be notified: it may stand among those. It must be notified of a
    /// deletion with them, because the owner is not asked again.
    pub fn add_one(&mut self, object: ObjectId) {
        for news in [News::Change, News::Lost, News::Deleted] {
            if let Some(telling) = self.table.get_mut(&(object, news)) {
                telling.left += 1;
            }
        }
    }

    pub fn forget(&mut self, object: ObjectId) {
        for news in [News::Change, News::Lost, News::Deleted] {
            self.table.remove(&(object, news));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

impl Subscriptions {
    /// Notifies all watchers of the object, the first of many at once. If an earlier notification is still under way,
    /// watchers that had it are notified again after the others.
    pub(super) fn tell(&mut self, ctx: &mut Ctx, object: ObjectId, news: News) {
        let left = self.watchers_count(object);
        match self.tellings.table.get_mut(&(object, news)) {
            Some(telling) => telling.left = left,
            None => self.tell_some(ctx, object, news, None, left),
        }
    }

    /// Continues with the next of many watchers.
    pub fn tell_next(&mut self, ctx: &mut Ctx) {
        if let Some(((object, news), Telling { last, left })) = self.tellings.take() {
            self.tell_some(ctx, object, news, Some(last), left);
        }
    }

    fn tell_some(&mut self, ctx: &mut Ctx, object: ObjectId, news: News, last: Option<Watcher>, left: usize) {
        let some = self.watchers_behind(object, last, left.min(WATCHERS_PER_TURN));
        let Some(&last) = some.last() else {
            // Nobody watches it.
            return;
        };
        let left = left - some.len();
        if left > 0 {
            self.tellings.table.insert((object, news), Telling { last, left });
            ctx.work_on_calls_soon();
        }
        match news {
            News::Change => {
                let complete = self.is_complete(object);
                some.into_iter().for_each(|watcher| tell_change(ctx, watcher, object, complete));
            }
            // It may exist again by now.
            News::Lost if !self.table.get(&object).is_some_and(|known| known.lost) => {}
            News::Lost | News::Deleted => {
                let notices = some.into_iter().map(|watcher| Notice::Watched { watcher, object, news });
                ctx.notices.extend(notices);
            }
        }
    }

    pub(super) fn watchers_count(&self, object: ObjectId) -> usize {
        self.table.get(&object).map_or(0, |known| known.watchers.len())
    }

    /// The next few watchers of an object after `last`, wrapping around at the end.
    fn watchers_behind(&self, object: ObjectId, last: Option<Watcher>, most: usize) -> Vec<Watcher> {
        let Some(Subscription { watchers, .. }) = self.table.get(&object) else { return Vec::new() };
        let behind = watchers.range((last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let first = last.into_iter().flat_map(|last| watchers.range(..=last));
        behind.chain(first).take(most.min(watchers.len())).copied().collect()
    }
}

/// Calls wait for complete copies, and need not know of any other.
pub(super) fn tell_change(ctx: &mut Ctx, watcher: Watcher, object: ObjectId, complete: bool) {
    if complete || !matches!(watcher, Watcher::Call(..)) {
        ctx.notices.push_back(Notice::Watched { watcher, object, news: News::Change });
    }
}

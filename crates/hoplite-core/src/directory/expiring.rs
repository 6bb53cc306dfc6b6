//! A compact map of ids that expire. The ids that expire first are also dropped first when the map is full.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_types::{ObjectId, Shard};

use crate::shard_table::ShardCounts;

/// Limit of ids that are forgotten in one turn: less than a millisecond's work.
const FORGOTTEN_PER_TURN: usize = 4096;

/// Pause before the next turn, if there are more.
const NEXT_TURN: Duration = Duration::from_millis(1);

/// A value that knows when it expires.
pub(super) trait Ends {
    fn second(&self) -> u64;
}

/// The second itself.
impl Ends for u32 {
    fn second(&self) -> u64 {
        u64::from(*self)
    }
}

/// A map of at most `MAX` ids. Each takes its shard, its id and `V`, once in the table and, without `V`, once in the
/// list of the second in which it expires.
#[derive(Debug)]
pub(super) struct Expiring<V, const MAX: usize> {
    table: BTreeMap<(Shard, ObjectId), V>,
    /// By the second in which they expire. An id may be in several lists, if it was inserted again.
    due: BTreeMap<u64, Vec<ObjectId>>,
    /// The number of entries in all lists: at most two for each id that there may be.
    listed: usize,
    counts: ShardCounts,
    dropped: u64,
}

impl<V, const MAX: usize> Default for Expiring<V, MAX> {
    fn default() -> Self {
        Expiring {
            table: BTreeMap::new(),
            due: BTreeMap::new(),
            listed: 0,
            counts: ShardCounts::default(),
            dropped: 0,
        }
    }
}

impl<V: Ends, const MAX: usize> Expiring<V, MAX> {
    /// Inserts an id, or replaces its value.
    pub fn insert(&mut self, id: ObjectId, value: V) {
        let second = value.second() + 1;
        if !self.due.contains_key(&second) {
            // Lists of earlier seconds hardly grow any more.
            if let Some((_, list)) = self.due.range_mut(..second).next_back() {
                list.shrink_to_fit();
            }
        }
        self.due.entry(second).or_default().push(id);
        self.listed += 1;
        if self.table.insert((id.shard(), id), value).is_none() {
            self.counts.add(id.shard());
        }
        while self.table.len() > MAX || self.listed > 2 * MAX {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some(mut first) = self.due.first_entry() else { return };
        let second = *first.key();
        let id = first.get_mut().pop();
        if first.get().is_empty() {
            first.remove();
        }
        if let Some(id) = id {
            self.listed -= 1;
            // Otherwise it was inserted again, and is in a later list, too.
            if self.get(id).is_some_and(|value| value.second() + 1 == second) {
                self.remove(id);
                self.dropped += 1;
            }
        }
    }

    pub fn remove(&mut self, id: ObjectId) -> Option<V> {
        let removed = self.table.remove(&(id.shard(), id))?;
        self.counts.remove(id.shard());
        Some(removed)
    }

    pub fn get(&self, id: ObjectId) -> Option<&V> {
        self.table.get(&(id.shard(), id))
    }

    pub fn contains(&self, id: ObjectId) -> bool {
        self.get(id).is_some()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// How many were dropped because the map was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether there are any ids of a shard.
    pub fn has_of(&self, shard: Shard) -> bool {
        self.counts.of(shard) > 0
    }

    /// The ids of a shard after `after`, in order.
    pub fn of_shard(&self, shard: Shard, after: Option<ObjectId>) -> impl Iterator<Item = (ObjectId, &V)> {
        let first = after.unwrap_or(ObjectId([0; ObjectId::LEN]));
        let end = (shard, ObjectId([u8::MAX; ObjectId::LEN]));
        let range = self.table.range((shard, first)..=end);
        range.map(|(&(_, id), value)| (id, value)).filter(move |&(id, _)| Some(id) != after)
    }

    /// Removes ids that have expired and for which `is_over` still holds; returns when to call it again.
    pub fn expire(&mut self, now: Duration, is_over: impl Fn(&V) -> bool) -> Option<Duration> {
        for _ in 0..FORGOTTEN_PER_TURN {
            let mut first = self.due.first_entry()?;
            let end = Duration::from_secs(*first.key());
            if end > now {
                return Some(end);
            }
            match first.get_mut().pop() {
                Some(id) => {
                    self.listed -= 1;
                    if self.get(id).is_some_and(&is_over) {
                        self.remove(id);
                    }
                }
                None => drop(first.remove()),
            }
        }
        Some(now + NEXT_TURN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u32) -> ObjectId {
        ObjectId::from_name(&number.to_string())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn they_end_in_their_time_and_not_if_they_were_remembered_again() {
        let mut table: Expiring<u32, 100> = Expiring::default();
        table.insert(id(1), 5);
        table.insert(id(2), 5);
        table.insert(id(2), 9);
        let is_over = |now: u32| move |until: &u32| *until <= now;
        assert_eq!(table.expire(5 * SECOND, is_over(5)), Some(6 * SECOND));
        assert_eq!(table.len(), 2);
        assert_eq!(table.expire(6 * SECOND, is_over(6)), Some(10 * SECOND));
        assert!(!table.contains(id(1)) && table.contains(id(2)));
        assert_eq!(table.expire(10 * SECOND, is_over(10)), None);
        assert_eq!((table.len(), table.dropped()), (0, 0));
    }

    #[test]
    fn of_too_many_those_that_end_first_go() {
        let mut table: Expiring<u32, 10> = Expiring::default();
        for number in 0..15 {
            table.insert(id(number), number);
        }
        assert_eq!((table.len(), table.dropped()), (10, 5));
        assert!((0..5).all(|number| !table.contains(id(number))));
    }

    #[test]
    fn one_that_comes_and_goes_takes_no_more_than_its_share() {
        let mut table: Expiring<u32, 10> = Expiring::default();
        for number in 0..1000 {
            table.insert(id(1), number);
            table.remove(id(1));
        }
        assert!(table.due.values().map(Vec::len).sum::<usize>() <= 20);
        assert_eq!((table.len(), table.dropped()), (0, 0));
    }

    #[test]
    fn many_are_forgotten_a_few_at_a_time() {
        let mut table: Expiring<u32, 10_000> = Expiring::default();
        (0..10_000).for_each(|number| table.insert(id(number), 1));
        let next = table.expire(2 * SECOND, |_| true);
        assert_eq!((next, table.len()), (Some(2 * SECOND + NEXT_TURN), 10_000 - FORGOTTEN_PER_TURN));
    }

    #[test]
    fn those_of_a_shard_are_found_page_by_page() {
        let mut table: Expiring<u32, 100_000> = Expiring::default();
        (0..50_000).for_each(|number| table.insert(id(number), 1));
        let shard = id(7).shard();
        let all: Vec<_> = table.of_shard(shard, None).map(|(id, _)| id).collect();
        assert!(all.contains(&id(7)) && all.iter().all(|id| id.shard() == shard));
        let rest: Vec<_> = table.of_shard(shard, Some(all[2])).map(|(id, _)| id).collect();
        assert_eq!(rest, all[3..]);
    }
}

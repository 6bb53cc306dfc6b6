//! Tables by shard. All shards are visited whenever a member comes or goes, so each lookup takes one step.

use hoplite_types::limits::SHARDS;
use hoplite_types::Shard;

/// A value for some of the shards.
#[derive(Debug)]
pub(crate) struct ShardTable<T> {
    slots: Vec<Option<Box<T>>>,
}

impl<T> Default for ShardTable<T> {
    fn default() -> Self {
        ShardTable { slots: (0..SHARDS).map(|_| None).collect() }
    }
}

impl<T> FromIterator<(Shard, T)> for ShardTable<T> {
    fn from_iter<I: IntoIterator<Item = (Shard, T)>>(items: I) -> Self {
        let mut table = ShardTable::default();
        items.into_iter().for_each(|(shard, item)| table.insert(shard, item));
        table
    }
}

impl<T> ShardTable<T> {
    pub fn get(&self, shard: Shard) -> Option<&T> {
        self.slots[shard.index()].as_deref()
    }

    pub fn get_mut(&mut self, shard: Shard) -> Option<&mut T> {
        self.slots[shard.index()].as_deref_mut()
    }

    pub fn contains(&self, shard: Shard) -> bool {
        self.slots[shard.index()].is_some()
    }

    pub fn insert(&mut self, shard: Shard, item: T) {
        self.slots[shard.index()] = Some(Box::new(item));
    }

    pub fn remove(&mut self, shard: Shard) -> Option<T> {
        self.slots[shard.index()].take().map(|item| *item)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Shard, &T)> {
        self.from(0)
    }

    /// The entries from that shard on.
    pub fn from(&self, first: usize) -> impl Iterator<Item = (Shard, &T)> {
        let slots = self.slots.iter().enumerate().skip(first);
        slots.filter_map(|(index, item)| Some((Shard(index as u16), item.as_deref()?)))
    }

    pub fn keys(&self) -> impl Iterator<Item = Shard> + '_ {
        self.iter().map(|(shard, _)| shard)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, item)| item)
    }
}

/// A count for each shard.
#[derive(Debug)]
pub(crate) struct ShardCounts(Vec<u32>);

impl Default for ShardCounts {
    fn default() -> Self {
        ShardCounts(vec![0; SHARDS])
    }
}

impl ShardCounts {
    pub fn add(&mut self, shard: Shard) {
        self.0[shard.index()] += 1;
    }

    pub fn remove(&mut self, shard: Shard) {
        self.0[shard.index()] -= 1;
    }

    pub fn of(&self, shard: Shard) -> usize {
        self.0[shard.index()] as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_its_shards_in_order() {
        let mut table: ShardTable<char> = [(Shard(9), 'b'), (Shard(3), 'a')].into_iter().collect();
        table.insert(Shard(4095), 'c');
        assert_eq!(table.keys().collect::<Vec<_>>(), [Shard(3), Shard(9), Shard(4095)]);
        assert_eq!(table.from(9).map(|(_, item)| *item).collect::<String>(), "bc");
        assert_eq!(table.remove(Shard(9)), Some('b'));
        assert!(!table.contains(Shard(9)) && table.get(Shard(3)) == Some(&'a'));
        *table.get_mut(Shard(3)).expect("it is in") = 'A';
        assert_eq!(table.values().collect::<String>(), "Ac");
    }

    #[test]
    fn counts_are_by_shard() {
        let mut counts = ShardCounts::default();
        counts.add(Shard(7));
        counts.add(Shard(7));
        counts.remove(Shard(7));
        assert_eq!((counts.of(Shard(7)), counts.of(Shard(8))), (1, 0));
    }
}

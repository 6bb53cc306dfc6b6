//! Space for copies: evicts what is not used, within a limit for each turn.

use std::collections::BTreeSet;

use hoplite_types::CopyId;

use super::arena::footprint;
use super::Copies;
use crate::ctx::Ctx;
use crate::io::{Event, Extent, Output};

/// Limit of evictions in one turn: some milliseconds' work.
pub(super) const EVICTIONS_PER_TURN: usize = 512;

impl Copies {
    /// Size of the whole store.
    pub fn store_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    pub fn used_bytes(&self) -> u64 {
        self.arena.used()
    }

    /// Count of copies evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Whether an object of `size` bytes fits into the empty store.
    pub fn could_hold(&self, size: u64) -> bool {
        self.arena.could_hold(size)
    }

    /// Begins a turn. Space that is made in turns goes first to those who already wait for it.
    pub fn begin_turn(&mut self) {
        self.evictions_left = if self.waiters.has_more() { 0 } else { EVICTIONS_PER_TURN };
    }

    /// Begins the turn of those who wait for space.
    pub(super) fn begin_waiters_turn(&mut self) {
        self.evictions_left = EVICTIONS_PER_TURN;
    }

    /// Whether no more copies may be evicted in this turn.
    pub(super) fn has_evicted_enough(&self) -> bool {
        self.evictions_left == 0
    }

    /// Whether space for `size` bytes could be made by evicting (fragmentation aside).
    fn could_make_space(&self, size: u64) -> bool {
        let free = self.arena.bytes() - self.arena.used() + self.evictable_bytes;
        self.arena.could_hold(size) && free >= footprint(size)
    }

    pub(super) fn may_fit(&self, size: u64) -> bool {
        self.could_make_space(size) || self.droppable_spare().is_some()
    }

    pub(super) fn make_space(&mut self, ctx: &mut Ctx, size: u64) -> Option<Extent> {
        if !self.clear_space(ctx, size) {
            return None;
        }
        self.arena.allocate(size)
    }

    /// Makes space for `size` bytes, if it can. If many copies must be evicted for that, some go now, and the waiters
    /// for space are retried in the next turn.
    pub(super) fn clear_space(&mut self, ctx: &mut Ctx, size: u64) -> bool {
        while !self.arena.has_space(size) {
            let victim = self.lru.first().filter(|_| self.could_make_space(size));
            let victim = victim.map(|&(_, victim)| victim);
            if victim.is_none() && self.droppable_spare().is_none() {
                return false;
            }
            if self.has_evicted_enough() {
                self.waiters.continue_in_next_turn();
                ctx.work_on_calls_soon();
                return false;
            }
            self.evictions_left -= 1;
            match victim {
                Some(victim) => self.evict(ctx, victim),
                None => self.drop_a_spare(ctx),
            }
        }
        true
    }

    fn evict(&mut self, ctx: &mut Ctx, victim: CopyId) {
        self.evicted += 1;
        let bytes = self.table[&victim].extent.size;
        ctx.out.push_back(Output::Event(Event::Evicted { copy: victim, bytes }));
        self.withdraw(ctx, victim);
        self.doom(ctx, victim);
    }

    /// There may be more space than before, or more of it to be given away.
    pub fn note_space(&mut self) {
        self.space_changed = true;
    }

    /// Whether the waiters for space are to be retried.
    pub fn has_space_changed(&self) -> bool {
        self.space_changed
    }

    pub fn set_space_changed(&mut self, changed: bool) {
        self.space_changed = changed;
    }

    /// How many of these copies, counted from the last, must be given up so that `size` bytes fit, if the `kept` ones
    /// are not evicted. `None` if that would not be enough.
    pub fn count_to_give_up(
        &mut self,
        copies: &[CopyId],
        size: u64,
        kept: &BTreeSet<CopyId>,
    ) -> Option<usize> {
        kept.iter().for_each(|&copy| self.with(copy, |copy| copy.users += 1));
        let mut left = copies.len();
        while left > 0 && !self.arena.has_space_within_reach(size) {
            left -= 1;
            self.arena.loosen(self.table[&copies[left]].extent);
        }
        let fits = self.arena.has_space_within_reach(size);
        copies[left..].iter().rev().for_each(|copy| self.arena.tighten(self.table[copy].extent));
        kept.iter().for_each(|&copy| self.with(copy, |copy| copy.users -= 1));
        fits.then_some(copies.len() - left)
    }
}

//! All random choices of a world, from one seed.

use std::time::Duration;

use rand_pcg::rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A stream of choices; equal seeds give equal streams on every machine.
#[derive(Clone, Debug)]
pub struct SimRng(Pcg64Mcg);

impl SimRng {
    pub fn new(seed: u64) -> Self {
        SimRng(Pcg64Mcg::seed_from_u64(seed))
    }

    /// A separate stream for one purpose. More choices from it do not change the choices of this stream.
    pub fn split(&mut self) -> Self {
        SimRng::new(self.0.next_u64())
    }

    pub fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        match (high - low).checked_add(1) {
            // The bias of the remainder is far below what a simulation could notice.
            Some(span) => low + self.0.next_u64() % span,
            None => self.0.next_u64(),
        }
    }

    pub fn index(&mut self, len: usize) -> usize {
        self.between(0, len as u64 - 1) as usize
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.between(1, 100) <= chance
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    pub fn time(&mut self, low: Duration, high: Duration) -> Duration {
        Duration::from_nanos(self.between(low.as_nanos() as u64, high.as_nanos() as u64))
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

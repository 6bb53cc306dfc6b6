//! The fill level of something bounded: counted where it fills, read where gauges are reported.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use hoplite_types::client::Gauge;

/// One bounded table, queue or number of connections, shared between tasks and threads.
#[derive(Debug)]
pub struct Meter {
    name: &'static str,
    limit: u64,
    value: AtomicU64,
    met: AtomicU64,
}

impl Meter {
    /// Starts at 0. A `limit` of 0 means that only `met` counts: events that should never happen.
    pub fn new(name: &'static str, limit: usize) -> Arc<Meter> {
        let (value, met) = Default::default();
        Arc::new(Meter { name, limit: limit as u64, value, met })
    }

    /// Takes a place if one is left; otherwise counts that the limit was met.
    pub fn hold(self: &Arc<Self>) -> Option<Held> {
        let more = |value: u64| (value < self.limit).then_some(value + 1);
        if self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            self.on_met();
            return None;
        }
        Some(Held(self.clone()))
    }

    /// Counts one more, whatever the limit, until the result is dropped.
    pub fn count(self: &Arc<Self>) -> Held {
        self.value.fetch_add(1, Ordering::Relaxed);
        Held(self.clone())
    }

    /// Counts that something was refused, dropped or ended early.
    pub fn on_met(&self) {
        self.met.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the fill level, where it is not counted by [`Held`]s.
    pub fn set(&self, value: usize) {
        self.value.store(value as u64, Ordering::Relaxed);
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn gauge(&self) -> Gauge {
        Gauge {
            name: self.name.to_owned(),
            value: self.value.load(Ordering::Relaxed),
            limit: self.limit,
            met: self.met.load(Ordering::Relaxed),
        }
    }
}

/// One unit that a [`Meter`] counts. Dropping it ends the counting.
#[derive(Debug)]
pub struct Held(Arc<Meter>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.value.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_place_counts_until_it_is_dropped_and_the_limit_holds() {
        let meter = Meter::new("places", 2);
        let (first, _second) = (meter.hold().unwrap(), meter.hold().unwrap());
        assert!(meter.hold().is_none());
        let Gauge { value, limit, met, .. } = meter.gauge();
        assert_eq!((value, limit, met), (2, 2, 1));
        drop(first);
        assert!(meter.hold().is_some());
        assert_eq!(meter.gauge().value, 1);
    }
}

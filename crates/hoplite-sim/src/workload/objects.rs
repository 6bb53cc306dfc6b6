//! Draws plain objects with their puts, gets and deletes. Some are put several times, some puts are aborted half-way.

use std::time::Duration;

use hoplite_types::limits::INLINE_BYTES_MAX;
use hoplite_types::ErrorKind;

use super::{Generator, Thing};
use crate::model::Origin;
use crate::task::{Ending, Spec};

impl Generator<'_> {
    pub(super) fn put(&mut self, thing: Thing, excuses: &[ErrorKind], ending: Ending) {
        self.put_variant(thing, 0, excuses, ending);
    }

    fn put_variant(&mut self, thing: Thing, variant: u8, excuses: &[ErrorKind], ending: Ending) {
        let Thing { id, size, dtype, .. } = thing;
        let at = self.moment();
        let small = size <= INLINE_BYTES_MAX && ending == Ending::Seal && self.rng.percent(60);
        let spec = if small {
            Spec::PutSmall { id, size, dtype, variant }
        } else {
            let piece = self.rng.between(1 + size / 12, 1 + size);
            let pause = *self.rng.pick(&[0, 0, 30, 1000].map(Duration::from_micros));
            let keep = *self.rng.pick(&[None, None, Some(0), Some(100), Some(20_000), Some(2_000_000)]);
            let keep = keep.map(Duration::from_micros);
            Spec::Put { id, size, dtype, piece, pause, ending, variant, keep }
        };
        match ending {
            Ending::DieAt(_) => {
                let client = self.new_client();
                self.add_for(client, at, spec, excuses);
            }
            Ending::Seal => {
                self.script.makers.push(spec.clone());
                self.add(at, spec, excuses);
            }
            _ => self.add(at, spec, excuses),
        }
    }

    pub(super) fn gets(&mut self, thing: Thing, excuses: &[ErrorKind]) {
        for _ in 0..self.rng.between(0, 2 * self.shape.nodes as u64) {
            let at = self.moment();
            let hold = *self.rng.pick(&[0, 0, 100, 20_000].map(Duration::from_micros));
            let partial = self.rng.percent(40);
            let fail_if_lost = self.rng.percent(20);
            let get = Spec::Get { id: thing.id, partial, fail_if_lost, hold };
            self.add(at, get.clone(), excuses);
            if thing.size <= INLINE_BYTES_MAX && self.rng.percent(30) {
                // The same client gets it again, and may have kept it.
                let at = self.moment();
                self.add_again(at, get, excuses);
            }
        }
    }

    pub(super) fn draw_object(&mut self, name: &str) {
        let id = self.new_id(name);
        let size = self.size(None);
        let volatile = self.rng.percent(15);
        // Different sizes under one id only if all nodes know each other. Otherwise two owners may each accept one.
        let contested = !self.shape.faults.any() && !self.shape.early && self.rng.percent(5);
        self.script.model.add(id, Origin::Put { dtype: None });
        let thing = Thing { id, size, dtype: None, volatile, summed: false, exact: true };
        let mut excuses = Vec::new();
        if volatile {
            excuses.extend([ErrorKind::Deleted, ErrorKind::TimedOut]);
        }
        if contested {
            excuses.push(ErrorKind::AlreadyExists);
            self.put(Thing { size: size + 8, ..thing }, &excuses, Ending::Seal);
        }
        if self.rng.percent(15) {
            let stop = self.rng.between(0, size);
            self.put(thing, &excuses, Ending::AbortAt(stop));
        }
        if self.rng.percent(10) {
            let stop = self.rng.between(0, size);
            self.put(thing, &excuses, Ending::DieAt(stop));
        }
        let rivals = *self.rng.pick(&[1, 1, 1, 1, 2, 3]);
        let differ = self.rng.percent(40) && size >= 8;
        for rival in 0..rivals {
            self.put_variant(thing, if differ { rival } else { 0 }, &excuses, Ending::Seal);
        }
        self.script.model.expect_variants(id, if differ { rivals } else { 1 });
        self.gets(thing, &excuses);
        self.finish(thing, contested);
    }

    pub(super) fn finish(&mut self, thing: Thing, contested: bool) {
        if thing.volatile {
            let at = self.moment();
            self.add(at, Spec::Delete { ids: vec![thing.id] }, &[]);
        } else if !contested {
            self.script.lasting.push(thing.id);
        }
    }
}

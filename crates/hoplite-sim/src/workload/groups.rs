//! Draws groups of arrays and reductions over them. A group may have several reductions, also over each other's
//! targets.

use hoplite_types::{ErrorKind, ObjectId, Op};

use super::StoreSpace;
use super::{Generator, Thing};
use crate::model::{Origin, DTYPES};
use crate::task::{Ending, Spec};

/// Most sources of a drawn reduction in a small world. In a large world it is the number of nodes.
const SOURCES_MAX: usize = 8;

/// The id of a pattern for other objects, which is no object itself.
const NOBODY: ObjectId = ObjectId([0; ObjectId::LEN]);

impl Generator<'_> {
    /// Draws arrays and reductions over them. `chained` is an earlier target, which may be a source too.
    pub(super) fn draw_group(&mut self, number: usize, chained: Option<Thing>) -> Thing {
        let dtype = *self.rng.pick(&DTYPES);
        let size = self.size(Some(dtype));
        // Floats whose sums depend on the order. Their sums go into no further sums.
        let exact = !(dtype.is_float() && self.rng.percent(40));
        let fresh = Thing { id: NOBODY, size, dtype: Some(dtype), volatile: false, summed: false, exact };
        let volatile = self.rng.percent(10);
        let chained = chained.filter(|thing| thing.exact && exact && self.rng.percent(60));
        let like = chained.unwrap_or(fresh);
        let mut things: Vec<Thing> = Vec::new();
        let most = SOURCES_MAX.max(self.shape.nodes);
        let few = self.rng.between(1, most as u64).min(self.rng.between(1, most as u64));
        // So many arrays would fill a tight store for good.
        let many = self.rng.percent(25) && self.shape.space == StoreSpace::Plenty;
        let count = if many { most as u64 } else { few };
        for i in 0..count {
            let id = self.new_id(&format!("g{number}.{i}"));
            self.script.model.add(id, Origin::Put { dtype: like.dtype });
            self.script.model.expect_exact(id, like.exact);
            things.push(Thing { id, volatile: false, ..like });
        }
        if like.id != NOBODY {
            things.push(like);
        }
        self.rng.shuffle(&mut things);
        let count = things.len();
        let missing = if self.rng.percent(25) { self.rng.index(count) } else { 0 };
        let present: Vec<Thing> = things[missing..].to_vec();
        for thing in present.iter().filter(|thing| thing.id != like.id) {
            let excuses: &[ErrorKind] = if volatile { &[ErrorKind::Deleted] } else { &[] };
            self.put(*thing, excuses, Ending::Seal);
            if self.rng.percent(15) {
                self.put(*thing, excuses, Ending::Seal);
            }
            if self.rng.percent(20) {
                self.gets(*thing, excuses);
            }
        }
        if volatile {
            // The chained target is not deleted, as its readers do not expect that.
            let own: Vec<_> = present.iter().filter(|thing| thing.id != like.id).copied().collect();
            if !own.is_empty() {
                let thing = *self.rng.pick(&own);
                self.finish(Thing { volatile: true, ..thing }, false);
            }
        }
        self.rng.shuffle(&mut things);
        let like = Thing { volatile: volatile || like.volatile, ..like };
        let mut last = like;
        for i in 0..self.rng.between(1, 2) {
            last = self.draw_reduction(&format!("t{number}.{i}"), like, &things, present.len());
        }
        last
    }

    fn draw_reduction(&mut self, name: &str, like: Thing, things: &[Thing], present: usize) -> Thing {
        let target = self.new_id(name);
        let dtype = like.dtype.expect("groups have one");
        // For floats, sums of sums are exact in any order. Products and means of sums are not.
        let ops = match (dtype.is_float(), like.summed) {
            (true, true) => &[Op::Min, Op::Max][..],
            (true, false) => &Op::ALL[..],
            (false, _) => &Op::ALL[..4],
        };
        let op = if self.rng.percent(50) { Op::Sum } else { *self.rng.pick(ops) };
        // Often an allreduce over all sources, as only these can be striped.
        let to_sources = self.rng.percent(50);
        let all = to_sources && self.rng.percent(70);
        let num_objects = if all { present as u64 } else { self.rng.between(1, present as u64) } as u32;
        let sources: Vec<ObjectId> = things.iter().map(|thing| thing.id).collect();
        let fixed = self.rng.percent(if all { 10 } else { 25 });
        self.script.model.add(
            target,
            Origin::Reduction {
                sources: sources.clone(),
                num_objects: num_objects as usize,
                op,
                dtype,
                size: like.size,
                fixed,
            },
        );
        self.script.model.expect_exact(target, like.exact);
        let deleted = self.rng.percent(8);
        let like = Thing { volatile: like.volatile || deleted, ..like };
        let mut excuses: Vec<ErrorKind> = Vec::new();
        if like.volatile {
            excuses.extend([ErrorKind::Deleted, ErrorKind::TimedOut]);
        }
        let spec = Spec::Reduce { target, sources, num_objects, op, fixed, to_sources };
        if !like.volatile && like.exact {
            self.script.makers.push(spec.clone());
        }
        let rivals = *self.rng.pick(&[0, 0, 0, 0, 0, 0, 1, 2]);
        let makes: Vec<_> =
            excuses.iter().copied().chain((rivals > 0).then_some(ErrorKind::AlreadyExists)).collect();
        for _ in 0..=rivals {
            let at = self.moment();
            self.add(at, spec.clone(), &makes);
        }
        if deleted {
            self.finish(Thing { id: target, ..like }, false);
        }
        let excuses = &excuses[..];
        let exact = !dtype.is_float() || like.exact && !matches!(op, Op::Mean | Op::Prod);
        let thing = Thing { id: target, summed: true, exact, ..like };
        self.gets(thing, excuses);
        if !deleted {
            self.finish(thing, like.volatile);
        }
        thing
    }

    /// Draws several levels of reductions, each over the results of the level below. All start at about the same time,
    /// so every level streams while the level below it still runs.
    pub(super) fn draw_levels(&mut self) {
        let dtype = *self.rng.pick(&DTYPES);
        let size = self.size(Some(dtype));
        let like =
            Thing { id: NOBODY, size, dtype: Some(dtype), volatile: false, summed: false, exact: true };
        let mut below: Vec<Thing> =
            (0..self.rng.between(2, 4)).map(|i| self.leaf(&format!("l0.{i}"), like)).collect();
        for level in 1..=self.shape.levels {
            let mut targets = Vec::new();
            for i in 0..self.rng.between(1, 2) {
                let mut things: Vec<Thing> = below.iter().filter(|_| self.rng.percent(80)).copied().collect();
                if things.is_empty() || self.rng.percent(50) {
                    things.push(self.leaf(&format!("l{level}.{i}"), like));
                }
                self.rng.shuffle(&mut things);
                let volatile = things.iter().any(|thing| thing.volatile);
                let like = Thing { summed: true, volatile, ..like };
                let count = things.len();
                targets.push(self.draw_reduction(&format!("s{level}.{i}"), like, &things, count));
            }
            below = targets.into_iter().filter(|thing| thing.exact).collect();
        }
    }

    fn leaf(&mut self, name: &str, like: Thing) -> Thing {
        let id = self.new_id(name);
        self.script.model.add(id, Origin::Put { dtype: like.dtype });
        let thing = Thing { id, ..like };
        self.put(thing, &[], Ending::Seal);
        self.script.lasting.push(id);
        thing
    }
}

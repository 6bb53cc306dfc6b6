//! The clients of a drawn world: who puts, gets, reduces and deletes what, and when.

use std::time::Duration;

use hoplite_words::limits::INLINE_BYTES_MAX;
use hoplite_words::{Dtype, ErrorKind, NodeId, ObjectId, Op};

use crate::dice::Dice;
use crate::mischief::{Mischief, OVER_AFTER};
use crate::model::{Origin, DTYPES};
use crate::names::address;
use crate::script::{Item, Script};
use crate::task::{Ending, Spec, Task};
use crate::workload::{Room, Shape, OBJECT_BYTES_MAX};

/// Most sources of a drawn reduction.
const SOURCES_MAX: u64 = 8;

/// The id of a thing that is only a pattern for others.
const NOBODY: ObjectId = ObjectId([0; ObjectId::LEN]);

/// Draws tasks, and then faults, into a script.
pub struct Drawing<'a> {
    pub dice: &'a mut Dice,
    pub shape: &'a Shape,
    pub script: Script,
}

/// One object as its tasks need to know it.
#[derive(Clone, Copy)]
struct Thing {
    id: ObjectId,
    size: u64,
    dtype: Option<Dtype>,
    /// Deleted while others still use it.
    volatile: bool,
    /// It is a reduction's target, or goes in with one.
    summed: bool,
    /// Further reductions of it are the same in any order.
    exact: bool,
}

impl Drawing<'_> {
    pub fn draw(mut self) -> Script {
        for i in 0..self.shape.clients {
            let index = if i < self.shape.nodes { i } else { self.dice.index(self.shape.nodes) };
            self.script.clients.push(index);
        }
        for i in 0..self.shape.objects {
            self.draw_object(&format!("x{i}"));
        }
        let mut chained = None;
        for i in 0..self.shape.groups {
            chained = Some(self.draw_group(i, chained));
        }
        self.draw_onlookers();
        let faults = Mischief { dice: self.dice, shape: self.shape }.draw();
        if !faults.is_empty() {
            self.script.quiet_after = self.shape.span + OVER_AFTER;
        }
        self.script.items.extend(faults.into_iter().map(|(when, fault)| Item::Fault { when, fault }));
        self.script
    }

    fn moment(&mut self) -> Duration {
        self.dice.time(Duration::ZERO, self.shape.span)
    }

    fn new_id(&mut self, name: &str) -> ObjectId {
        let id = self.script.names.id(name);
        self.script.ids.push(id);
        id
    }

    fn size(&mut self, dtype: Option<Dtype>) -> u64 {
        let size = match self.dice.between(0, 9) {
            0 => 0,
            1 | 2 => self.dice.between(1, 1024),
            3 => self.dice.between(1025, INLINE_BYTES_MAX - 8),
            4 => INLINE_BYTES_MAX,
            5 => INLINE_BYTES_MAX + 8,
            _ => self.dice.between(INLINE_BYTES_MAX, OBJECT_BYTES_MAX),
        };
        let element = dtype.map_or(1, |dtype| dtype.size() as u64);
        size / element * element
    }

    /// Adds a task with the time-out and the excuses its world calls for.
    fn add(&mut self, at: Duration, spec: Spec, excuses: &[ErrorKind]) {
        let client = Script::client_id(self.dice.index(self.shape.clients));
        let mut task = Task::new(client, spec).may_fail(excuses);
        if self.shape.room == Room::Tight {
            task = task.may_fail(&[ErrorKind::StoreFull]);
        }
        let hampered = self.shape.faults.any();
        if hampered && matches!(task.spec, Spec::Reduce { .. }) {
            // Its root died with the only copy.
            task = task.may_fail(&[ErrorKind::Lost]);
        }
        if hampered && matches!(task.spec, Spec::Get { fail_if_lost: true, .. }) {
            task = task.may_fail(&[ErrorKind::Lost]);
        }
        // What makes objects must not give up where others count on them.
        let makes = matches!(task.spec, Spec::Put { .. } | Spec::PutSmall { .. } | Spec::Reduce { .. });
        let hurried = match (hampered, makes) {
            (true, _) => 40,
            (false, true) => 0,
            (false, false) => 10,
        };
        if self.shape.room == Room::Tight || !excuses.is_empty() || self.dice.percent(hurried) {
            let longest = if hampered && self.dice.percent(50) { 8000 } else { 1500 };
            let timeout = Duration::from_millis(self.dice.between(0, longest));
            task = task.within(timeout).may_fail(&[ErrorKind::TimedOut]);
        }
        let gives_up = matches!(task.spec, Spec::Get { .. }) && self.dice.percent(10);
        let give_up = gives_up.then(|| at + self.dice.time(Duration::ZERO, self.shape.span));
        self.script.items.push(Item::Task { at, task, give_up });
    }

    fn put(&mut self, thing: Thing, excuses: &[ErrorKind], ending: Ending) {
        let Thing { id, size, dtype, .. } = thing;
        let at = self.moment();
        let small = size <= INLINE_BYTES_MAX && ending == Ending::Seal && self.dice.percent(60);
        let spec = if small {
            Spec::PutSmall { id, size, dtype }
        } else {
            let piece = self.dice.between(1 + size / 12, 1 + size);
            let pause = *self.dice.pick(&[0, 0, 30, 1000].map(Duration::from_micros));
            Spec::Put { id, size, dtype, piece, pause, ending }
        };
        self.add(at, spec, excuses);
    }

    fn gets(&mut self, thing: Thing, excuses: &[ErrorKind]) {
        for _ in 0..self.dice.between(0, 2 * self.shape.nodes as u64) {
            let at = self.moment();
            let hold = *self.dice.pick(&[0, 0, 100, 20_000].map(Duration::from_micros));
            let partial = self.dice.percent(40);
            let fail_if_lost = self.dice.percent(20);
            self.add(at, Spec::Get { id: thing.id, partial, fail_if_lost, hold }, excuses);
        }
    }

    fn draw_object(&mut self, name: &str) {
        let id = self.new_id(name);
        let size = self.size(None);
        let volatile = self.dice.percent(15);
        // Two halves of a split cluster may accept what one would not.
        let contested = !self.shape.faults.any() && self.dice.percent(5);
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
        if self.dice.percent(15) {
            let stop = self.dice.between(0, size);
            self.put(thing, &excuses, Ending::AbortAt(stop));
        }
        for _ in 0..if self.dice.percent(20) { 2 } else { 1 } {
            self.put(thing, &excuses, Ending::Seal);
        }
        self.gets(thing, &excuses);
        self.finish(thing, contested);
    }

    fn finish(&mut self, thing: Thing, contested: bool) {
        if thing.volatile {
            let at = self.moment();
            self.add(at, Spec::Delete { ids: vec![thing.id] }, &[]);
        } else if !contested {
            self.script.lasting.push(thing.id);
        }
    }

    /// Arrays and reductions over them; `chained` is an earlier target that may go in too.
    fn draw_group(&mut self, number: usize, chained: Option<Thing>) -> Thing {
        let dtype = *self.dice.pick(&DTYPES);
        let size = self.size(Some(dtype));
        let fresh =
            Thing { id: NOBODY, size, dtype: Some(dtype), volatile: false, summed: false, exact: true };
        let volatile = self.dice.percent(10);
        let chainable = |thing: &Thing| thing.exact || !thing.dtype.is_some_and(Dtype::is_float);
        let like = chained.filter(chainable).filter(|_| self.dice.percent(60)).unwrap_or(fresh);
        let mut things: Vec<Thing> = Vec::new();
        for i in 0..self.dice.between(1, SOURCES_MAX) {
            let id = self.new_id(&format!("g{number}.{i}"));
            self.script.model.add(id, Origin::Put { dtype: like.dtype });
            things.push(Thing { id, volatile: false, ..like });
        }
        if like.id != NOBODY {
            things.push(like);
        }
        self.dice.shuffle(&mut things);
        let count = things.len();
        let missing = if self.dice.percent(25) { self.dice.index(count) } else { 0 };
        let present: Vec<Thing> = things[missing..].to_vec();
        for thing in present.iter().filter(|thing| thing.id != like.id) {
            let excuses: &[ErrorKind] = if volatile { &[ErrorKind::Deleted] } else { &[] };
            self.put(*thing, excuses, Ending::Seal);
            if self.dice.percent(15) {
                self.put(*thing, excuses, Ending::Seal);
            }
            if self.dice.percent(20) {
                self.gets(*thing, excuses);
            }
        }
        if volatile {
            // Not the chained target: its readers know nothing of this group.
            let own: Vec<_> = present.iter().filter(|thing| thing.id != like.id).copied().collect();
            if !own.is_empty() {
                let thing = *self.dice.pick(&own);
                self.finish(Thing { volatile: true, ..thing }, false);
            }
        }
        self.dice.shuffle(&mut things);
        let like = Thing { volatile: volatile || like.volatile, ..like };
        let mut last = like;
        for i in 0..self.dice.between(1, 2) {
            last = self.draw_reduction(&format!("t{number}.{i}"), like, &things, present.len());
        }
        last
    }

    fn draw_reduction(&mut self, name: &str, like: Thing, things: &[Thing], present: usize) -> Thing {
        let target = self.new_id(name);
        let dtype = like.dtype.expect("groups have one");
        // Of floats, sums of sums are exact in any order, products and means of sums are not.
        let ops = match (dtype.is_float(), like.summed) {
            (true, true) => &[Op::Min, Op::Max][..],
            (true, false) => &Op::ALL[..],
            (false, _) => &Op::ALL[..4],
        };
        let op = if self.dice.percent(50) { Op::Sum } else { *self.dice.pick(ops) };
        let num_objects = self.dice.between(1, present as u64) as u32;
        let sources: Vec<ObjectId> = things.iter().map(|thing| thing.id).collect();
        let fixed = self.dice.percent(25);
        let to_sources = self.dice.percent(30);
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
        let excuses: &[ErrorKind] =
            if like.volatile { &[ErrorKind::Deleted, ErrorKind::TimedOut] } else { &[] };
        let at = self.moment();
        self.add(at, Spec::Reduce { target, sources, num_objects, op, fixed, to_sources }, excuses);
        let thing = Thing { id: target, summed: true, exact: op != Op::Mean && op != Op::Prod, ..like };
        self.gets(thing, excuses);
        self.finish(thing, like.volatile);
        thing
    }

    /// Calls that change nothing: waits, prefetches, locations, status.
    fn draw_onlookers(&mut self) {
        for _ in 0..self.dice.between(0, 6) {
            if self.script.lasting.is_empty() {
                return;
            }
            let at = self.moment();
            let mut ids = self.script.lasting.clone();
            self.dice.shuffle(&mut ids);
            ids.truncate(self.dice.between(1, 4) as usize);
            let spec = match self.dice.between(0, 3) {
                0 => Spec::Wait { count: self.dice.between(1, ids.len() as u64) as u32, ids },
                1 => {
                    let nodes = (0..self.dice.between(0, 2)).map(|_| self.dice.index(self.shape.nodes));
                    Spec::Prefetch { ids, nodes: nodes.map(first_node).collect() }
                }
                2 => Spec::Locate { id: ids[0] },
                _ => Spec::Status,
            };
            self.add(at, spec, &[]);
        }
    }
}

/// The node with this index, as it is called before it dies the first time.
fn first_node(index: usize) -> NodeId {
    NodeId { addr: address(index), incarnation: 1 }
}

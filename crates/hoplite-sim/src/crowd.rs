//! The clients of a drawn world: who puts, gets, reduces and deletes what, and when.

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_words::limits::INLINE_BYTES_MAX;
use hoplite_words::{Dtype, ErrorKind, ObjectId, Op};

use crate::dice::Dice;
use crate::fault::Fault;
use crate::model::{Origin, DTYPES};
use crate::task::{Ending, Spec, Task, TaskId};
use crate::workload::{Room, Shape, OBJECT_BYTES_MAX};
use crate::world::World;

/// Most sources of a drawn reduction.
const SOURCES_MAX: u64 = 8;

/// The id of a thing that is only a pattern for others.
const NOBODY: ObjectId = ObjectId([0; ObjectId::LEN]);

/// What went into a world, for the end of the run.
#[derive(Default)]
pub struct Crowd {
    pub clients: Vec<ClientId>,
    /// Everything to be deleted at the end.
    pub ids: Vec<ObjectId>,
    /// What must be there for everybody when all tasks are over.
    pub lasting: Vec<ObjectId>,
    pub puts: Vec<(ObjectId, TaskId)>,
    /// When the last fault happens.
    pub quiet_from: Duration,
}

/// Draws tasks into a world.
pub struct Drawing<'a> {
    pub world: &'a mut World,
    pub dice: &'a mut Dice,
    pub shape: &'a Shape,
    pub crowd: Crowd,
}

/// One object as its tasks need to know it.
#[derive(Clone, Copy)]
struct Thing {
    id: ObjectId,
    size: u64,
    dtype: Option<Dtype>,
    /// Deleted while others still use it.
    volatile: bool,
}

impl Drawing<'_> {
    pub fn draw(mut self) -> Crowd {
        for i in 0..self.shape.clients {
            let index = if i < self.shape.nodes { i } else { self.dice.index(self.shape.nodes) };
            let client = self.world.connect(index);
            self.crowd.clients.push(client);
        }
        for i in 0..self.shape.objects {
            self.draw_object(&format!("x{i}"));
        }
        let mut chained = None;
        for i in 0..self.shape.groups {
            chained = Some(self.draw_group(i, chained));
        }
        self.draw_onlookers();
        self.draw_faults();
        self.crowd
    }

    fn client(&mut self) -> ClientId {
        *self.dice.pick(&self.crowd.clients)
    }

    fn moment(&mut self) -> Duration {
        self.world.now() + self.dice.time(Duration::ZERO, self.shape.span)
    }

    fn new_id(&mut self, name: &str) -> ObjectId {
        let id = self.world.names.id(name);
        self.crowd.ids.push(id);
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
    fn add(&mut self, at: Duration, spec: Spec, excuses: &[ErrorKind]) -> TaskId {
        let client = self.client();
        let mut task = Task::new(client, spec).may_fail(excuses);
        if self.shape.room == Room::Tight {
            task = task.may_fail(&[ErrorKind::StoreFull]);
        }
        if self.shape.faults.any() {
            task = task.may_fail(&[
                ErrorKind::Lost,
                ErrorKind::Aborted,
                ErrorKind::NodeUnreachable,
                ErrorKind::Deleted,
            ]);
        }
        let pressed = self.shape.room == Room::Tight || self.shape.faults.any() || !excuses.is_empty();
        // What makes objects must not give up where others count on them.
        let makes = matches!(task.spec, Spec::Put { .. } | Spec::PutSmall { .. } | Spec::Reduce { .. });
        if pressed || (!makes && self.dice.percent(10)) {
            let timeout = Duration::from_millis(self.dice.between(0, 1500));
            task = task.within(timeout).may_fail(&[ErrorKind::TimedOut]);
        }
        self.world.plan_task(at, task)
    }

    fn put(&mut self, thing: Thing, excuses: &[ErrorKind], ending: Ending) -> TaskId {
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
        let task = self.add(at, spec, excuses);
        self.crowd.puts.push((id, task));
        task
    }

    fn gets(&mut self, thing: Thing, excuses: &[ErrorKind]) {
        for _ in 0..self.dice.between(0, 2 * self.shape.nodes as u64) {
            let at = self.moment();
            let hold = *self.dice.pick(&[0, 0, 100, 20_000].map(Duration::from_micros));
            let partial = self.dice.percent(40);
            let spec = Spec::Get { id: thing.id, partial, fail_if_lost: false, hold };
            let get = self.add(at, spec, excuses);
            if self.dice.percent(10) {
                let give_up = at + self.dice.time(Duration::ZERO, self.shape.span);
                self.world.plan_cancel(give_up, get);
            }
        }
    }

    fn draw_object(&mut self, name: &str) {
        let id = self.new_id(name);
        let size = self.size(None);
        let volatile = self.dice.percent(15);
        let contested = self.dice.percent(5);
        self.world.model.add(id, Origin::Put { dtype: None });
        let thing = Thing { id, size, dtype: None, volatile };
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
            self.crowd.lasting.push(thing.id);
        }
    }

    /// Arrays and reductions over them; `chained` is an earlier target that may go in too.
    fn draw_group(&mut self, number: usize, chained: Option<Thing>) -> Thing {
        let dtype = *self.dice.pick(&DTYPES);
        let fresh = Thing { id: NOBODY, size: self.size(Some(dtype)), dtype: Some(dtype), volatile: false };
        let volatile = self.dice.percent(10);
        let like = chained.filter(|_| self.dice.percent(60)).unwrap_or(fresh);
        let mut things: Vec<Thing> = Vec::new();
        for i in 0..self.dice.between(1, SOURCES_MAX) {
            let id = self.new_id(&format!("g{number}.{i}"));
            self.world.model.add(id, Origin::Put { dtype: like.dtype });
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
        let ops = if dtype.is_float() { &Op::ALL[..] } else { &Op::ALL[..4] };
        // Sums of sums stay exact, other chains of floats need not.
        let op = if self.dice.percent(50) { Op::Sum } else { *self.dice.pick(ops) };
        let num_objects = self.dice.between(1, present as u64) as u32;
        let sources: Vec<ObjectId> = things.iter().map(|thing| thing.id).collect();
        let fixed = self.dice.percent(25);
        let to_sources = self.dice.percent(30);
        self.world.model.add(
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
        let thing = Thing { id: target, ..like };
        self.gets(thing, excuses);
        self.finish(thing, like.volatile);
        thing
    }

    /// Calls that change nothing: waits, prefetches, locations, status.
    fn draw_onlookers(&mut self) {
        for _ in 0..self.dice.between(0, 6) {
            if self.crowd.lasting.is_empty() {
                return;
            }
            let at = self.moment();
            let mut ids = self.crowd.lasting.clone();
            self.dice.shuffle(&mut ids);
            ids.truncate(self.dice.between(1, 4) as usize);
            let spec = match self.dice.between(0, 3) {
                0 => Spec::Wait { count: self.dice.between(1, ids.len() as u64) as u32, ids },
                1 => {
                    let nodes = (0..self.dice.between(0, 2)).map(|_| self.dice.index(self.shape.nodes));
                    Spec::Prefetch { ids, nodes: nodes.map(|index| self.world.node_id(index)).collect() }
                }
                2 => Spec::Locate { id: ids[0] },
                _ => Spec::Status,
            };
            self.add(at, spec, &[]);
        }
    }

    fn draw_faults(&mut self) {
        let faults = self.shape.faults;
        if faults.kill_clients && self.dice.percent(60) {
            let at = self.moment();
            let client = self.client();
            self.world.plan_fault(at, Fault::KillClient(client));
        }
        // The first node stays: it is the one that others join through.
        if faults.kill_nodes && self.shape.nodes > 1 {
            for _ in 0..self.dice.between(0, 2) {
                let index = self.dice.between(1, self.shape.nodes as u64 - 1) as usize;
                let at = self.moment();
                self.world.plan_fault(at, Fault::KillNode(index));
                self.crowd.quiet_from = self.crowd.quiet_from.max(at);
                if faults.restart_nodes && self.dice.percent(60) {
                    let back = at + self.dice.time(Duration::from_millis(1), Duration::from_secs(3));
                    self.world.plan_fault(back, Fault::RestartNode(index));
                    self.crowd.quiet_from = self.crowd.quiet_from.max(back);
                }
            }
        }
    }
}

//! Draws the clients of a world, the calls of each, and their times.

mod groups;
mod masses;
mod objects;
mod read_only;
mod shape;

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_types::limits::INLINE_BYTES_MAX;
use hoplite_types::{Dtype, ErrorKind, ObjectId};

use crate::fault::{Class, Fault, When};
use crate::fault_plan::{FaultPlanner, LAST_STRIKE};
use crate::rng::SimRng;
use crate::script::{Item, Script};
use crate::task::{Spec, Task};

pub use shape::{Shape, StoreSpace};

/// Some tasks start late, by up to this much.
const LATECOMERS: Duration = Duration::from_secs(2);

/// Some tasks start within this time after a split heals, when some nodes still believe each other dead.
const HEALING: Duration = Duration::from_millis(500);

/// Draws tasks, and then faults, into a script.
pub struct Generator<'a> {
    pub rng: &'a mut SimRng,
    pub shape: &'a Shape,
    pub script: Script,
}

/// The properties of an object that its tasks depend on.
#[derive(Clone, Copy)]
struct Thing {
    id: ObjectId,
    size: u64,
    dtype: Option<Dtype>,
    /// It is deleted while other tasks still use it.
    volatile: bool,
    /// It is the target of a reduction, or a source together with one.
    summed: bool,
    /// Further reductions over it give the same result in any order.
    exact: bool,
}

impl Generator<'_> {
    pub fn draw(mut self) -> Script {
        for i in 0..self.shape.clients {
            let index = if i < self.shape.nodes { i } else { self.rng.index(self.shape.nodes) };
            self.script.clients.push(index);
        }
        for i in 0..self.shape.objects {
            self.draw_object(&format!("x{i}"));
        }
        let mut chained = None;
        for i in 0..self.shape.groups {
            chained = Some(self.draw_group(i, chained));
        }
        if self.shape.levels > 0 {
            self.draw_levels();
        }
        self.draw_read_only();
        if let Some(mass) = self.shape.mass {
            self.draw_mass(mass);
        }
        let faults = FaultPlanner { rng: self.rng, shape: self.shape }.draw();
        self.put_some_off_to_heals(&faults);
        if let Some(longest) = faults.iter().map(|(_, fault)| fault.lasts()).max() {
            self.script.last_strike = self.shape.span + LAST_STRIKE;
            self.script.quiet_after = self.script.last_strike + longest;
        }
        self.script.items.extend(faults.into_iter().map(|(when, fault)| Item::Fault { when, fault }));
        self.script
    }

    fn put_some_off_to_heals(&mut self, faults: &[(When, Fault)]) {
        let heal = |(when, fault): &(When, Fault)| match (when, fault) {
            (When::At(at), Fault::Partition { time, .. } | Fault::Isolate { time, .. }) => Some(*at + *time),
            _ => None,
        };
        let heals: Vec<_> = faults.iter().filter_map(heal).collect();
        if heals.is_empty() {
            return;
        }
        for item in &mut self.script.items {
            if let Item::Task { at, give_up, .. } = item {
                if self.rng.percent(20) {
                    let later = *self.rng.pick(&heals) + self.rng.time(Duration::ZERO, HEALING);
                    give_up.iter_mut().for_each(|moment| *moment = *moment + later - *at);
                    *at = later;
                }
            }
        }
    }

    fn moment(&mut self) -> Duration {
        // Some start while the cluster recovers from the faults.
        let late = self.shape.faults.any() && self.rng.percent(10);
        let span = if late { self.shape.span + LATECOMERS } else { self.shape.span };
        self.rng.time(Duration::ZERO, span)
    }

    /// A new client that has no other task.
    fn new_client(&mut self) -> ClientId {
        let node = self.rng.index(self.shape.nodes);
        self.script.clients.push(node);
        Script::client_id(self.script.clients.len() - 1)
    }

    fn new_id(&mut self, name: &str) -> ObjectId {
        let id = self.script.names.id(name);
        self.script.ids.push(id);
        id
    }

    fn size(&mut self, dtype: Option<Dtype>) -> u64 {
        let size = match self.rng.between(0, 9) {
            0 => 0,
            1 | 2 => self.rng.between(1, 1024),
            3 => self.rng.between(1025, INLINE_BYTES_MAX - 8),
            4 => INLINE_BYTES_MAX,
            5 => INLINE_BYTES_MAX + 8,
            _ => self.rng.between(INLINE_BYTES_MAX, self.shape.object_bytes_max()),
        };
        let element = dtype.map_or(1, |dtype| dtype.size() as u64);
        size / element * element
    }

    /// Adds a task with the time-out and the accepted errors that fit its world.
    fn add(&mut self, at: Duration, spec: Spec, excuses: &[ErrorKind]) {
        let client = Script::client_id(self.rng.index(self.shape.clients));
        self.add_for(client, at, spec, excuses);
    }

    /// Adds a task for the client of the last task.
    fn add_again(&mut self, at: Duration, spec: Spec, excuses: &[ErrorKind]) {
        let Some(Item::Task { task, .. }) = self.script.items.last() else { return };
        self.add_for(task.client, at, spec, excuses);
    }

    fn add_for(&mut self, client: ClientId, at: Duration, spec: Spec, excuses: &[ErrorKind]) {
        let mut task = Task::new(client, spec).may_fail(excuses);
        if self.shape.space == StoreSpace::Tight {
            task = task.may_fail(&[ErrorKind::StoreFull]);
        }
        let hampered = self.shape.faults.any();
        // The root of a reduction may have died with the only copy.
        let says_lost = matches!(
            task.spec,
            Spec::Reduce { .. }
                | Spec::Get { fail_if_lost: true, .. }
                | Spec::Wait { fail_if_lost: true, .. }
        );
        let nodes_end = [
            Class::Kill,
            Class::Host,
            Class::Leave,
            Class::Pause,
            Class::Partition,
            Class::OneWay,
            Class::Slow,
        ];
        if nodes_end.into_iter().any(|class| self.shape.faults.has(class)) && says_lost {
            task = task.may_fail(&[ErrorKind::Lost]);
        }
        if let Spec::Get { id, fail_if_lost: true, .. } = &task.spec {
            // Reductions are repeated only at the end. Two at a time would conflict.
            let is_put = |maker: &&Spec| !matches!(maker, Spec::Reduce { .. });
            let make = self.script.makers.iter().filter(is_put).find(|maker| maker.made() == Some(*id));
            task.remake = make.cloned().filter(|_| hampered && self.rng.percent(70));
        }
        if self.shape.faults.has(Class::Leave) {
            // A node that is about to leave accepts no new objects.
            task = task.may_fail(&[ErrorKind::NodeUnreachable]);
        }
        // Tasks that make objects must not give up if other tasks rely on them.
        let makes = matches!(task.spec, Spec::Put { .. } | Spec::PutSmall { .. } | Spec::Reduce { .. });
        let hurried = match (hampered, makes) {
            (true, _) => 40,
            (false, true) => 0,
            (false, false) => 10,
        };
        if self.shape.space == StoreSpace::Tight || !excuses.is_empty() || self.rng.percent(hurried) {
            let longest = match hampered {
                // So short that the verdict may be under way at the time-out.
                true if makes && self.rng.percent(20) => 12,
                true if self.rng.percent(50) => 8000,
                _ => 1500,
            };
            let timeout = Duration::from_millis(self.rng.between(0, longest));
            task = task.within(timeout).may_fail(&[ErrorKind::TimedOut]);
        }
        let gives_up = matches!(task.spec, Spec::Get { .. }) && self.rng.percent(10);
        let give_up = gives_up.then(|| at + self.rng.time(Duration::ZERO, self.shape.span));
        self.script.items.push(Item::Task { at, task: Box::new(task), give_up });
    }
}

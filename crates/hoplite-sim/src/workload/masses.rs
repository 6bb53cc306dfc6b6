//! Draws masses of small objects. A few clients put them, some objects are read in the meantime, some are deleted.

use std::time::Duration;

use hoplite_types::ErrorKind;

use super::Generator;
use crate::fault::Class;
use crate::masses::{id, Mass, Stretch};
use crate::script::{Item, Script};
use crate::task::{Spec, Task};

/// Gets and deletes start up to this much later than other tasks, when many or all members are put.
const BEHIND: Duration = Duration::from_secs(1);

impl Generator<'_> {
    pub(super) fn draw_mass(&mut self, mass: Mass) {
        self.script.masses.push(mass);
        self.script.model.add_mass(mass);
        let is_deleted = self.rng.percent(60);
        let mut excuses = Vec::new();
        if is_deleted {
            excuses.push(ErrorKind::Deleted);
        }
        if self.shape.faults.has(Class::Leave) {
            excuses.push(ErrorKind::NodeUnreachable);
        }
        let parts = self.rng.between(1, 3) as u32;
        let mut stretches: Vec<_> = mass.all().split(mass.count.div_ceil(parts)).collect();
        if self.rng.percent(25) {
            // Another client puts the same members.
            let first = stretches[0];
            stretches.push(Stretch { count: first.count.min(1 + mass.count / 10), ..first });
        }
        // Each put takes a round trip, so a small window would take too long for very many members.
        let window = *self.rng.pick(&[16, 64, 64, 512]).max(&(mass.count as usize / 400));
        for stretch in stretches {
            let at = self.moment();
            let client = Script::client_id(self.rng.index(self.shape.clients));
            let put = Spec::PutMany { stretch, size: mass.size, window };
            let task = Box::new(Task::new(client, put).may_fail(&excuses));
            self.script.items.push(Item::Task { at, task, give_up: None });
        }
        for _ in 0..self.rng.between(0, 40) {
            let at = self.moment() + self.rng.time(Duration::ZERO, BEHIND);
            let id = id(mass.number, self.rng.index(mass.count as usize) as u32);
            let partial = self.rng.percent(20);
            let get = Spec::Get { id, partial, fail_if_lost: false, hold: Duration::ZERO };
            self.add(at, get, if is_deleted { &[ErrorKind::Deleted, ErrorKind::TimedOut] } else { &[] });
        }
        if is_deleted {
            let count = self.rng.between(1, u64::from(mass.count) / 2) as u32;
            let first = self.rng.between(0, u64::from(mass.count - count)) as u32;
            let at = self.moment() + self.rng.time(Duration::ZERO, BEHIND);
            let delete = Spec::DeleteMany { stretch: Stretch { mass: mass.number, first, count } };
            self.add(at, delete, &[]);
        }
    }
}

//! The drawn tasks and faults of a run, as a list of independent items. So a failing run can be repeated with fewer.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_types::ObjectId;

use crate::fault::{Fault, When};
use crate::masses::Mass;
use crate::model::Model;
use crate::names::Names;
use crate::task::{Spec, Task, TaskId};
use crate::world::World;

/// Something that is to happen; times count from the start of the run's tasks.
#[derive(Debug)]
pub enum Item {
    /// A client starts on a task, and perhaps gives up on it later.
    Task {
        at: Duration,
        task: Box<Task>,
        give_up: Option<Duration>,
    },
    Fault {
        when: When,
        fault: Fault,
    },
}

/// Everything a run is about.
#[derive(Default)]
pub struct Script {
    pub names: Names,
    pub model: Model,
    /// The node of each client.
    pub clients: Vec<usize>,
    pub items: Vec<Item>,
    /// Everything to be deleted at the end.
    pub ids: Vec<ObjectId>,
    /// ... and many small ones.
    pub masses: Vec<Mass>,
    /// Objects that nobody deletes before.
    pub lasting: Vec<ObjectId>,
    /// What makes the objects of this run, in an order in which it can be done again.
    pub makers: Vec<Spec>,
    /// When the last fault strikes.
    pub last_strike: Duration,
    /// When the last fault is over.
    pub quiet_after: Duration,
}

/// Which items of a script take part.
pub type Keep = Option<BTreeSet<usize>>;

impl Script {
    /// The task with this item's number.
    pub fn task_id(item: usize) -> TaskId {
        TaskId(item as u64)
    }

    pub fn client_id(client: usize) -> ClientId {
        ClientId(client as u64 + 1)
    }

    /// Drops the items that do not take part; their numbers stay free.
    pub fn kept(&self, keep: &Keep) -> Vec<usize> {
        let kept = |item: &usize| keep.as_ref().is_none_or(|keep| keep.contains(item));
        (0..self.items.len()).filter(kept).collect()
    }

    /// Lets everything that takes part happen in `world`, from now on.
    pub fn play(&mut self, world: &mut World, keep: &Keep) {
        let start = world.now();
        for index in &self.clients {
            world.connect(*index);
        }
        for number in self.kept(keep) {
            match &self.items[number] {
                Item::Task { at, task, give_up } => {
                    let id = Script::task_id(number);
                    world.plan_task_as(id, start + *at, Task::clone(task));
                    if let Some(give_up) = give_up {
                        world.plan_cancel(start + *give_up, id);
                    }
                }
                Item::Fault { when, fault } => world.plan_fault(start, *when, fault.clone()),
            }
        }
        world.plan_end_of_faults(start + self.last_strike, start + self.quiet_after);
    }

    /// One line per item that takes part, to be read beside the log.
    pub fn describe(&self, keep: &Keep) -> Vec<String> {
        self.kept(keep).into_iter().map(|number| format!("{number:>4}: {}", self.items[number])).collect()
    }
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Task { at, task, give_up } => {
                write!(f, "at {at:?} client {} {:?}", task.client.0, task.spec)?;
                if let Some(timeout) = task.timeout {
                    write!(f, " within {timeout:?}")?;
                }
                if let Some(give_up) = give_up {
                    write!(f, ", gives up at {give_up:?}")?;
                }
                Ok(())
            }
            Item::Fault { when, fault } => write!(f, "{when}: {fault:?}"),
        }
    }
}

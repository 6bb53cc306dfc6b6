//! The drawn tasks and faults of a run, as a list of independent items. A failing run can be repeated with fewer items.

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

/// A planned task or fault. Times count from the start of the run's tasks.
#[derive(Debug)]
pub enum Item {
    /// A client starts a task, and may cancel it later.
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

/// The plan of a run.
#[derive(Default)]
pub struct Script {
    pub names: Names,
    pub model: Model,
    /// The node of each client.
    pub clients: Vec<usize>,
    pub items: Vec<Item>,
    /// Objects to delete at the end.
    pub ids: Vec<ObjectId>,
    /// Masses of small objects to delete at the end.
    pub masses: Vec<Mass>,
    /// Objects that no task deletes before the end.
    pub lasting: Vec<ObjectId>,
    /// Calls that make the objects of this run, in an order in which they can be repeated.
    pub makers: Vec<Spec>,
    /// The time of the last fault.
    pub last_strike: Duration,
    /// The time by which the last fault has ended.
    pub quiet_after: Duration,
}

/// The items of a script that take part; `None`: all.
pub type Keep = Option<BTreeSet<usize>>;

impl Script {
    /// The task with this item's number.
    pub fn task_id(item: usize) -> TaskId {
        TaskId(item as u64)
    }

    pub fn client_id(client: usize) -> ClientId {
        ClientId(client as u64 + 1)
    }

    /// The numbers of the items that take part.
    pub fn kept(&self, keep: &Keep) -> Vec<usize> {
        let kept = |item: &usize| keep.as_ref().is_none_or(|keep| keep.contains(item));
        (0..self.items.len()).filter(kept).collect()
    }

    /// Plans all items that take part in `world`, from now on.
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

    /// One line for each item that takes part, to be read together with the log.
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

//! What can still be expected of a world whose faults are over.

use hoplite_words::ObjectId;

use super::World;
use crate::task::{Ending, Outcome, Phase, Spec, Task, TaskId};

impl World {
    /// Whether the node of this task's client still runs as it did then.
    fn is_place_alive(&self, task: &Task) -> bool {
        let place = self.sessions[&task.client].place;
        let node = &self.nodes[place.index];
        node.alive && node.boot == place.boot
    }

    /// Whether a copy of this object must be there: its put, or the reduction that makes it, was
    /// answered, the node where it was put lives on, and nobody has deleted it.
    pub fn stands(&self, object: ObjectId) -> bool {
        let made = self.tasks.values().any(|task| match (&task.spec, &task.outcome) {
            (Spec::Put { id, ending: Ending::Seal, .. }, Some(Outcome::Done))
            | (Spec::PutSmall { id, .. }, Some(Outcome::Done)) => *id == object && self.is_place_alive(task),
            // Its root may have been anywhere.
            (Spec::Reduce { target, .. }, Some(Outcome::Reduced)) => {
                *target == object && self.nodes.iter().all(|node| node.alive && node.boot == 1)
            }
            _ => false,
        });
        made && !self.tasks.values().any(|task| {
            task.phase != Phase::Waiting
                && matches!(&task.spec, Spec::Delete { ids } if ids.contains(&object))
        })
    }

    /// Whether this task may rightly wait for ever: what it needs need not be anywhere.
    fn may_wait(&self, task: &Task) -> bool {
        let standing = |ids: &[ObjectId]| ids.iter().filter(|id| self.stands(**id)).count() as u32;
        match &task.spec {
            Spec::Get { id, .. } => !self.stands(*id),
            Spec::Wait { ids, count } => standing(ids) < *count,
            Spec::Reduce { sources, num_objects, .. } => standing(sources) < *num_objects,
            _ => false,
        }
    }

    fn open_tasks(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.tasks.iter().filter(|(_, task)| !task.is_over()).map(|(id, task)| (*id, task))
    }

    /// Whether everything is over that can be.
    pub fn all_settled(&self) -> bool {
        self.open_tasks().all(|(_, task)| self.may_wait(task))
    }

    /// Tasks that are not over although nothing stands in their way, in words.
    pub fn overdue(&self) -> Vec<String> {
        let overdue = self.open_tasks().filter(|(_, task)| !self.may_wait(task));
        overdue.map(|(id, task)| format!("task {} {}: {:?}", id.0, task.phase.name(), task.spec)).collect()
    }

    /// Whoever waits for what need not come stops waiting.
    pub fn give_up_waiting(&mut self) {
        let open: Vec<_> = self.open_tasks().map(|(id, _)| id).collect();
        open.into_iter().for_each(|task| self.give_up(task));
    }
}

//! The liveness oracle: checks what a world must reach after its faults are over.

use std::collections::BTreeSet;
use std::time::Duration;

use hoplite_types::{ErrorKind, ObjectId};

use super::{Place, World};
use crate::data_plane::Stage;
use crate::excuse::Excuse;
use crate::task::{Outcome, Phase, Spec, Task, TaskId};

/// A node that is told to leave must have begun to hand over after this time.
const HAND_OVER_BEGUN: Duration = Duration::from_secs(2);

/// The objects of a world at one moment.
pub struct Standing {
    /// Objects with a sealed copy on a living node.
    sealed: BTreeSet<ObjectId>,
    /// Lost objects whose loss a living node knows of.
    lost: BTreeSet<ObjectId>,
    /// Objects whose deletion was answered. `doomed` are those whose deletion was at least requested.
    deleted: BTreeSet<ObjectId>,
    doomed: BTreeSet<ObjectId>,
}

impl Standing {
    /// Whether every node can get this object.
    pub fn has(&self, object: ObjectId) -> bool {
        self.sealed.contains(&object) && !self.doomed.contains(&object)
    }

    /// Objects whose deletion was answered.
    pub fn deleted(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.deleted.iter().copied()
    }

    pub fn is_doomed(&self, object: ObjectId) -> bool {
        self.doomed.contains(&object)
    }

    /// Whether tasks of this kind may ever wait for ever.
    fn ever_lets_wait(task: &Task) -> bool {
        matches!(task.spec, Spec::Get { .. } | Spec::Wait { .. } | Spec::Reduce { .. })
    }

    /// Whether this task may wait for ever, because the objects that it needs may not exist.
    fn may_wait(&self, task: &Task) -> bool {
        let ready = |ids: &[ObjectId]| ids.iter().filter(|id| self.sealed.contains(id)).count() as u32;
        let deleted = |ids: &[ObjectId]| ids.iter().filter(|id| self.deleted.contains(id)).count() as u32;
        match &task.spec {
            Spec::Get { id, fail_if_lost: true, .. } if self.lost.contains(id) => false,
            Spec::Wait { ids, fail_if_lost: true, .. } if ids.iter().any(|id| self.lost.contains(id)) => {
                false
            }
            Spec::Get { id, .. } => !self.sealed.contains(id) && !self.deleted.contains(id),
            Spec::Wait { ids, count, .. } => ready(ids) < *count && deleted(ids) == 0,
            Spec::Reduce { sources, num_objects, .. } => {
                let possible = sources.len() as u32 - deleted(sources);
                ready(sources) < *num_objects && possible >= *num_objects
            }
            _ => false,
        }
    }
}

impl World {
    pub fn standing(&self) -> Standing {
        let living = self.nodes.iter().filter(|node| node.alive);
        let copies = living.flat_map(|node| node.data_plane.copies.values());
        let sealed = copies.filter(|held| matches!(held.stage, Stage::Sealed(_)));
        let sealed = sealed.filter_map(|held| held.identity).map(|(object, _)| object).collect();
        let mut standing = Standing {
            lost: self.known_lost(&sealed),
            sealed,
            deleted: BTreeSet::new(),
            doomed: BTreeSet::new(),
        };
        for task in self.tasks.values().filter(|task| task.phase != Phase::Waiting) {
            if let Spec::Delete { .. } | Spec::DeleteMany { .. } = &task.spec {
                let ids = task.spec.objects();
                if matches!(task.outcome, Some(Outcome::Done)) {
                    let made_since = |id: &&ObjectId| self.may_be_made_since_deleted(**id);
                    standing.deleted.extend(ids.iter().filter(|id| !made_since(id)));
                }
                standing.doomed.extend(ids);
            }
        }
        standing
    }

    fn open_tasks(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.tasks.iter().filter(|(_, task)| !task.is_over()).map(|(id, task)| (*id, task))
    }

    /// Whether all tasks are over that can end.
    pub fn all_settled(&self) -> bool {
        let mut open = self.open_tasks().peekable();
        if open.peek().is_none() {
            return true;
        }
        // `standing` takes time, so it is computed only if it can change the result.
        if !self.open_tasks().all(|(_, task)| Standing::ever_lets_wait(task)) {
            return false;
        }
        let standing = self.standing();
        open.all(|(_, task)| standing.may_wait(task))
    }

    /// Descriptions of the tasks that are not over although they can end.
    pub fn overdue(&self) -> Vec<String> {
        let standing = self.standing();
        let overdue = self.open_tasks().filter(|(_, task)| !standing.may_wait(task));
        overdue.map(|(id, task)| format!("task {} {}: {:?}", id.0, task.phase.name(), task.spec)).collect()
    }

    /// Whether a task is still making this object.
    pub fn is_being_made(&self, object: ObjectId) -> bool {
        self.open_tasks().any(|(_, task)| task.spec.made() == Some(object))
    }

    /// Whether a call that makes this object has timed out.
    pub fn ran_out_of_time(&self, object: ObjectId) -> bool {
        let is_late = |task: &Task| match &task.outcome {
            Some(Outcome::Failed(error)) => error.kind == ErrorKind::TimedOut,
            _ => false,
        };
        self.tasks.values().any(|task| task.spec.made() == Some(object) && is_late(task))
    }

    /// Ends all tasks that may wait for ever.
    pub fn give_up_waiting(&mut self) {
        let open: Vec<_> = self.open_tasks().map(|(id, _)| id).collect();
        open.into_iter().for_each(|task| self.give_up(task));
    }

    /// An object that was put on a living node, and not deleted, is still there.
    pub fn judge_promises(&self) -> Result<(), String> {
        let standing = self.standing();
        for task in self.tasks.values() {
            let (Spec::Put { id, .. } | Spec::PutSmall { id, .. }) = &task.spec else { continue };
            let place = self.sessions[&task.client].place;
            let done = matches!(task.outcome, Some(Outcome::Done)) && task.spec.made().is_some();
            let lives = self.nodes[place.index].alive && self.nodes[place.index].boot == place.boot;
            if done && lives && !standing.is_doomed(*id) && !self.has_sealed(place, *id) {
                if !self.plan.has_space && self.stats.false_deaths > 0 {
                    // Another content has replaced this one since, and this store has no space for it.
                    self.excuses.count(Excuse::NoSpace);
                    continue;
                }
                return Err(format!("{} no longer has {id:?}, which was put there", self.name(place)));
            }
        }
        self.judge_members()
    }

    /// Each object with a complete copy on a living node is pinned on one, even if the node that it was put on has
    /// died. Copies that are only cached could be evicted at any time.
    pub fn judge_pins(&self) -> Result<(), String> {
        let standing = self.standing();
        let living = self.nodes.iter().filter(|node| node.alive);
        let pinned: BTreeSet<ObjectId> = living
            .flat_map(|node| node.data_plane.copies.iter().map(move |(id, held)| (node, *id, held)))
            .filter(|(node, id, held)| matches!(held.stage, Stage::Sealed(_)) && node.core.is_pinned(*id))
            .filter_map(|(_, _, held)| held.identity.map(|(object, _)| object))
            .collect();
        let unpinned = standing
            .sealed
            .iter()
            .find(|id| self.model.knows(**id) && standing.has(**id) && !pinned.contains(id));
        match unpinned {
            Some(id) => Err(format!("{id:?} is cached on living nodes, and pinned on none")),
            None => Ok(()),
        }
    }

    /// If several tasks made the same object at the same time, one of them succeeded.
    pub fn judge_makers(&mut self) {
        let targets: BTreeSet<_> = self.tasks.values().filter_map(|task| task.spec.made()).collect();
        targets.into_iter().for_each(|object| self.judge_rivals(object));
    }

    /// No living node has a deleted object.
    pub fn judge_deletions(&self) -> Result<(), String> {
        let mut deleted = self.standing().deleted;
        deleted.retain(|id| !self.is_unheard_of(*id));
        for index in (0..self.nodes.len()).filter(|index| self.nodes[*index].alive) {
            let held = self.held_at(index);
            if let Some(id) = held.intersection(&deleted).next() {
                let (id, holder) = (self.names.object(*id), self.name(self.place(index)));
                return Err(format!("{holder} has {id}, which was deleted"));
            }
        }
        Ok(())
    }

    fn has_sealed(&self, place: Place, object: ObjectId) -> bool {
        let mut copies = self.nodes[place.index].data_plane.copies_of(object);
        copies.any(|held| matches!(held.stage, Stage::Sealed(_)))
    }

    /// If a node leaves before its time is up, other nodes must have complete copies of the objects put on it. If its
    /// time is up, and no other fault struck, they must have at least parts.
    pub(super) fn judge_legacy(&mut self, place: Place) {
        let now = self.queue.now();
        let Some(leaving) = self.nodes[place.index].leaving else { return };
        let early = leaving.until > now;
        let had_time = leaving.until - leaving.since >= HAND_OVER_BEGUN && self.plan.has_space;
        if !early && !had_time {
            return;
        }
        if !early && !self.only_one_struck() {
            return self.excuses.count(Excuse::SeveralFaults);
        }
        if early {
            self.judge_legacy_of_members(place);
        }
        let standing = self.standing();
        let put_here = self.tasks.values().filter(|task| {
            matches!(task.outcome, Some(Outcome::Done)) && self.sessions[&task.client].place == place
        });
        let own = put_here.filter(|task| !matches!(task.spec, Spec::Reduce { .. }));
        let own: Vec<_> = own.filter_map(|task| task.spec.made()).collect();
        for id in own.into_iter().filter(|id| standing.has(*id)) {
            let others = (0..self.nodes.len()).filter(|index| *index != place.index);
            let mut kept = others.map(|index| self.place(index)).filter(|other| self.may_seem_alive(*other));
            if !kept.any(|other| if early { self.has_sealed(other, id) } else { self.has_some(other, id) }) {
                return self.violate(format!("{} leaves with the only copy of {id:?}", self.name(place)));
            }
        }
    }

    /// Whether the node has a copy of the object, complete or partial.
    fn has_some(&self, place: Place, object: ObjectId) -> bool {
        let mut copies = self.nodes[place.index].data_plane.copies_of(object);
        copies.any(|held| held.stage != Stage::Aborted)
    }
}

//! A client that puts a mass of small objects, a limited number at a time.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::client::{Reply, Request};
use hoplite_types::{Blob, ErrorKind, ObjectId};

use super::{Place, World};
use crate::data_plane::Stage;
use crate::excuse::Excuse;
use crate::masses::Stretch;
use crate::model::header;
use crate::task::{Outcome, Phase, Spec, Task, TaskId};

/// The puts of members that are under way, by call.
#[derive(Default, Debug)]
pub(crate) struct Putting {
    calls: BTreeMap<u64, u32>,
    next: u32,
}

impl World {
    /// Puts the next members, up to the task's limit of puts at a time.
    pub(super) fn put_members(&mut self, task: TaskId) {
        let Task { client, spec: Spec::PutMany { stretch, size, window }, .. } = self.tasks[&task] else {
            unreachable!("only these put many")
        };
        self.set_phase(task, Phase::PuttingMany);
        loop {
            let putting = self.putting.entry(task).or_default();
            let number = putting.next;
            if number == stretch.count || putting.calls.len() >= window {
                break;
            }
            putting.next += 1;
            let id = stretch.id(number);
            let payload = Blob(self.model.put_content(id, size, 0).to_vec());
            let put = Request::PutSmall { id, header: header(None, size), payload, timeout_ms: None };
            let call = self.call(client, put, task);
            self.putting.get_mut(&task).expect("just seen").calls.insert(call, number);
            self.note_put_begun(task, id);
        }
        if self.putting[&task].calls.is_empty() {
            self.putting.remove(&task);
            self.end_task(task, Outcome::Done);
        }
    }

    /// Handles the answer to a call if the call puts a member. Returns whether it does.
    pub(super) fn on_member_answer(&mut self, task: TaskId, call: u64, reply: &Reply) -> bool {
        let Some(number) = self.putting.get_mut(&task).and_then(|putting| putting.calls.remove(&call)) else {
            return false;
        };
        let Task { spec: Spec::PutMany { stretch, .. }, may_fail, .. } = &self.tasks[&task] else {
            unreachable!("only these put many")
        };
        let id = stretch.id(number);
        match reply {
            Reply::Done => {
                self.judge_existence(task, id);
                self.note_put_ended(task, id, true);
            }
            Reply::Failed(error) if may_fail.contains(&error.kind) => {
                self.excuses.count(Excuse::of_error(error.kind));
                self.note_put_ended(task, id, false);
                if error.kind == ErrorKind::Deleted {
                    self.judge_deletion(task, &[id]);
                }
            }
            other => {
                let what = format!("putting {} was answered by {other:?}", self.names.object(id));
                self.violate(what);
            }
        }
        self.put_members(task);
        true
    }

    /// The tasks that put members, and the members of each.
    fn putters(&self) -> impl Iterator<Item = (TaskId, Stretch)> + '_ {
        self.tasks.iter().filter_map(|(id, task)| match task.spec {
            Spec::PutMany { stretch, .. } => Some((*id, stretch)),
            _ => None,
        })
    }

    /// The members that were put with success, each with the nodes that it was put on.
    pub fn put_members_by_place(&self) -> BTreeMap<ObjectId, Vec<Place>> {
        let mut put: BTreeMap<ObjectId, Vec<Place>> = BTreeMap::new();
        for (task, stretch) in self.putters() {
            for id in stretch.ids() {
                put.entry(id).or_default().extend(self.put_where(task, id));
            }
        }
        put.retain(|_, places| !places.is_empty());
        put
    }

    /// All objects of which this node has a sealed copy.
    pub(super) fn held_at(&self, index: usize) -> BTreeSet<ObjectId> {
        let copies = self.nodes[index].data_plane.copies.values();
        let sealed = copies.filter(|held| matches!(held.stage, Stage::Sealed(_)));
        sealed.filter_map(|held| held.identity.map(|(id, _)| id)).collect()
    }

    /// Members that were put on a living node are still there.
    pub(super) fn judge_members(&self) -> Result<(), String> {
        let standing = self.standing();
        let held: Vec<_> = (0..self.nodes.len()).map(|index| self.held_at(index)).collect();
        for (id, places) in self.put_members_by_place() {
            for place in places {
                let lives = self.nodes[place.index].alive && self.place(place.index) == place;
                if lives && !standing.is_doomed(id) && !held[place.index].contains(&id) {
                    let name = self.names.object(id);
                    return Err(format!("{} no longer has {name}, which was put there", self.name(place)));
                }
            }
        }
        Ok(())
    }

    /// Members that were put on this node, which leaves before its time is up, are on other nodes.
    pub(super) fn judge_legacy_of_members(&mut self, place: Place) {
        let standing = self.standing();
        let others = (0..self.nodes.len()).filter(|index| *index != place.index);
        let others = others.filter(|index| self.may_seem_alive(self.place(*index)));
        let kept: BTreeSet<_> = others.flat_map(|index| self.held_at(index)).collect();
        let mut own = self.put_members_by_place().into_iter().filter(|(_, places)| places.contains(&place));
        let left = own.find(|(id, _)| standing.has(*id) && !kept.contains(id));
        if let Some((id, _)) = left {
            let id = self.names.object(id);
            self.violate(format!("{} leaves with the only copy of {id}", self.name(place)));
        }
    }
}

//! Begin and end of each call, per object. A call that begins after another was answered must see its effect:
//!
//! - after a delete, no call gets, makes or hears of the object while the tombstone stands
//! - after a put or a reduce, no call hears that no node has the object, or makes it with another content
//! - after the end of a tombstone, no call hears that the object is deleted
//!
//! This holds while no living node is taken for dead, and inside a side of a split whose members agreed on it before
//! the earlier call began. All else is excused (`excuse`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::{limits, ErrorKind, NodeId, ObjectId};

use super::{Place, World};
use crate::data_plane::Stage;
use crate::excuse::Excuse;
use crate::task::{Ending, Outcome, Spec, Task, TaskId};

/// How long after all views are right again owners may still hear of what the other side did.
const HEARD_WITHIN: Duration = Duration::from_secs(8);

/// How long the news of a copy may be on its way to the owner, who tells what it has heard.
const NEWS_WITHIN: Duration = Duration::from_secs(1);

/// How much longer than they must tombstones may stand: they are forgotten by the second, a few at a time.
const TOMBSTONE_MARGIN: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    /// Of one of several contents.
    Put(u8),
    Reduce,
    Delete,
    Other,
}

#[derive(Debug)]
struct Call {
    task: TaskId,
    deed: Deed,
    place: Place,
    begin: Duration,
    /// When it was answered with success.
    done: Option<Duration>,
    /// When it was answered with an error.
    failed: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    calls: BTreeMap<ObjectId, Vec<Call>>,
    /// From when to when some living node was held for dead, and what came of that need not be mended.
    doubts: Vec<(Duration, Option<Duration>)>,
    /// All nodes were up and knew each other, once.
    has_formed: bool,
    /// When each node's view of the members last changed.
    changed: BTreeMap<usize, Duration>,
}

impl History {
    fn of(&self, object: ObjectId) -> impl Iterator<Item = &Call> {
        self.calls.get(&object).into_iter().flatten()
    }

    fn is_in_doubt(&self, from: Duration, to: Duration) -> bool {
        self.doubts.iter().any(|&(begin, end)| begin <= to && end.is_none_or(|end| end >= from))
    }
}

fn deed_of(spec: &Spec, object: ObjectId) -> Deed {
    match spec {
        Spec::Put { ending, .. } if *ending != Ending::Seal => Deed::Other,
        Spec::Put { variant, .. } | Spec::PutSmall { variant, .. } => Deed::Put(*variant),
        Spec::PutMany { .. } => Deed::Put(0),
        Spec::Reduce { target, .. } if *target == object => Deed::Reduce,
        Spec::Delete { .. } | Spec::DeleteMany { .. } => Deed::Delete,
        _ => Deed::Other,
    }
}

impl World {
    /// The object is another one from now on, under the same name.
    pub fn begin_anew(&mut self, object: ObjectId) {
        self.history.calls.remove(&object);
        self.model.begin_anew(object);
    }

    pub(super) fn note_begun(&mut self, task: TaskId) {
        let now = self.queue.now();
        let Task { spec, client, .. } = &self.tasks[&task];
        let place = self.sessions[client].place;
        for object in spec.objects() {
            let deed = deed_of(spec, object);
            let call = Call { task, deed, place, begin: now, done: None, failed: None };
            self.history.calls.entry(object).or_default().push(call);
        }
    }

    /// A task puts one of many.
    pub(super) fn note_put_begun(&mut self, task: TaskId, object: ObjectId) {
        let place = self.sessions[&self.tasks[&task].client].place;
        let begin = self.queue.now();
        let call = Call { task, deed: Deed::Put(0), place, begin, done: None, failed: None };
        self.history.calls.entry(object).or_default().push(call);
    }

    pub(super) fn note_put_ended(&mut self, task: TaskId, object: ObjectId, done: bool) {
        let now = self.queue.now();
        let calls = self.history.calls.get_mut(&object).into_iter().flatten();
        for call in calls.filter(|call| call.task == task) {
            call.done = done.then_some(now);
            call.failed = (!done).then_some(now);
        }
    }

    /// Where this task has put the object, if it has.
    pub(super) fn put_where(&self, task: TaskId, object: ObjectId) -> Option<Place> {
        let mut calls = self.history.of(object);
        calls.find(|call| call.task == task && call.done.is_some()).map(|call| call.place)
    }

    /// The call was answered; `done` if that was no error.
    pub(super) fn note_ended(&mut self, task: TaskId, done: bool) {
        let now = self.queue.now();
        for object in self.tasks[&task].spec.objects() {
            let calls = self.history.calls.get_mut(&object).into_iter().flatten();
            for call in calls.filter(|call| call.task == task) {
                call.done = done.then_some(now);
                call.failed = (!done).then_some(now);
            }
        }
    }

    /// A node took another one for dead, or in again.
    pub(super) fn note_view(&mut self, place: Place, held_for_dead: Option<NodeId>) {
        let now = self.queue.now();
        self.history.changed.insert(place.index, now);
        if !self.history.has_formed {
            self.history.has_formed = self.nodes.iter().all(|node| node.alive) && self.all_joined();
        }
        let is_false = held_for_dead.is_some_and(|node| self.place_of(node).is_some());
        if is_false {
            self.note_doubt();
        } else if matches!(self.history.doubts.last(), Some((_, None))) && self.all_joined() {
            self.history.doubts.last_mut().expect("just seen").1 = Some(now + HEARD_WITHIN);
        }
    }

    /// Nodes are cut off from each other: those that have not met may form clusters of their own.
    pub(super) fn note_cut(&mut self) {
        if !self.history.has_formed {
            self.note_doubt();
        }
    }

    /// From now on not everything is heard by everybody who must know.
    pub(super) fn note_doubt(&mut self) {
        let now = self.queue.now();
        match self.history.doubts.last_mut() {
            Some((_, end @ Some(_))) if end.is_some_and(|end| end >= now) => *end = None,
            Some((_, None)) => {}
            _ => self.history.doubts.push((now, None)),
        }
    }

    /// Whether both nodes have been on one side of a split, with the same others, since before that moment.
    fn on_one_side(&self, one: Place, other: Place, since: Duration) -> bool {
        let view = |place: Place| -> BTreeSet<NodeId> {
            let node = &self.nodes[place.index];
            node.members.iter().copied().chain([node.id]).collect()
        };
        if self.place(one.index) != one || self.place(other.index) != other {
            return false;
        }
        let side = view(one);
        let agrees = |node: &NodeId| {
            self.place_of(*node).is_some_and(|place| {
                let changed = self.history.changed.get(&place.index).copied().unwrap_or_default();
                view(place) == side && changed + HEARD_WITHIN < since
            })
        };
        side.contains(&self.nodes[other.index].id) && side.iter().all(agrees)
    }

    /// What stands in the way of a rule between these two calls, the later of which ends now; `None` if nothing does.
    fn excuse_between(&self, earlier: &Call, later: Place, object: ObjectId) -> Option<Excuse> {
        let now = self.queue.now();
        if self.history.is_in_doubt(earlier.begin, now)
            && !self.on_one_side(earlier.place, later, earlier.begin)
        {
            return Some(Excuse::HeldForDead);
        }
        (earlier.deed == Deed::Delete && self.is_unheard_of(object)).then_some(Excuse::KnewDied)
    }

    fn begin_of(&self, task: TaskId, object: ObjectId) -> Option<(Duration, Place)> {
        let call = self.history.of(object).find(|call| call.task == task)?;
        Some((call.begin, call.place))
    }

    /// A call is being answered as if the object existed.
    pub(super) fn judge_existence(&mut self, task: TaskId, object: ObjectId) {
        let Some((begin, place)) = self.begin_of(task, object) else { return };
        let stands = |call: &&Call| {
            call.deed == Deed::Delete
                && call.done.is_some_and(|done| done < begin)
                && begin < call.begin + limits::TOMBSTONE_TTL
        };
        let Some(deletion) = self.history.of(object).find(stands) else { return };
        match self.excuse_between(deletion, place, object) {
            Some(excuse) => self.excuses.count(excuse),
            None => {
                let (id, spec) = (self.names.object(object), &self.tasks[&task].spec);
                let what = format!("{id} was deleted before {spec:?} began, which had it all the same");
                self.violate(what);
            }
        }
    }

    /// A call is told that nobody has the object complete.
    pub(super) fn judge_absence(&mut self, task: TaskId, object: ObjectId) {
        let Some((begin, place)) = self.begin_of(task, object) else { return };
        if self.history.of(object).any(|call| call.deed == Deed::Delete) {
            return;
        }
        let makes = |call: &&Call| {
            matches!(call.deed, Deed::Put(_) | Deed::Reduce) && call.done.is_some_and(|done| done < begin)
        };
        let Some(maker) = self.history.of(object).find(makes) else { return };
        let on_its_way = maker.done.is_some_and(|done| begin < done + NEWS_WITHIN);
        match self.excuse_between(maker, place, object) {
            Some(excuse) => self.excuses.count(excuse),
            None if on_its_way => self.excuses.count(Excuse::OnItsWay),
            None if !self.has_lost_nobody() => self.excuses.count(Excuse::NodeDied),
            None => {
                let (id, spec) = (self.names.object(object), &self.tasks[&task].spec);
                let what = format!("{id} was made before {spec:?} began, which is told that nobody has it");
                self.violate(what);
            }
        }
    }

    /// A call failed because the object is deleted.
    pub(super) fn judge_deletion(&mut self, task: TaskId, objects: &[ObjectId]) {
        let now = self.queue.now();
        let stands = |object: &ObjectId| {
            let mut deletions = self.history.of(*object).filter(|call| call.deed == Deed::Delete);
            deletions.any(|call| call.done.unwrap_or(now) + limits::TOMBSTONE_TTL + TOMBSTONE_MARGIN > now)
        };
        if !objects.iter().any(stands) {
            let spec = &self.tasks[&task].spec;
            let what = format!("{spec:?} is told of a deletion that never was, or was long ago");
            self.violate(what);
        }
    }

    /// A target was made: by nobody else before.
    pub(super) fn judge_making(&mut self, task: TaskId, target: ObjectId) {
        let is_made = |call: &&Call| call.deed == Deed::Reduce && call.task != task && call.done.is_some();
        let Some(maker) = self.history.of(target).find(is_made) else { return };
        let Some((_, place)) = self.begin_of(task, target) else { return };
        match self.excuse_between(maker, place, target) {
            Some(excuse) => self.excuses.count(excuse),
            None if !self.has_lost_nobody() => self.excuses.count(Excuse::NodeDied),
            None => {
                let id = self.names.object(target);
                self.violate(format!("two reductions were told that they made {id}"));
            }
        }
    }

    /// A client there sees this one of several contents of what was put: no other one may have been the first.
    pub(super) fn judge_first(&mut self, place: Place, object: ObjectId, variant: u8) {
        let is_it = |call: &&Call| call.deed == Deed::Put(variant);
        let Some(begin) = self.history.of(object).filter(is_it).map(|call| call.begin).min() else { return };
        let earlier = |call: &&Call| {
            matches!(call.deed, Deed::Put(other) if other != variant)
                && call.done.is_some_and(|done| done < begin)
        };
        let Some(first) = self.history.of(object).find(earlier) else { return };
        match self.excuse_between(first, place, object) {
            Some(excuse) => self.excuses.count(excuse),
            None if !self.has_lost_nobody() => self.excuses.count(Excuse::NodeDied),
            None => {
                let id = self.names.object(object);
                self.violate(format!("{id} was put before the put began whose content it has"));
            }
        }
    }

    /// Another content of the object was sealed than before, or over other sources: excused where both sides of a
    /// split made it.
    pub(super) fn is_split(&mut self, object: ObjectId) -> bool {
        let makers = self.history.of(object).filter(|call| matches!(call.deed, Deed::Put(_) | Deed::Reduce));
        let begun: Vec<_> = makers.map(|call| call.begin).collect();
        let first = begun.iter().min().copied().unwrap_or_default();
        let split = begun.len() > 1 && self.history.is_in_doubt(first, self.queue.now());
        if split {
            self.model.doubt(object);
            self.excuses.count(Excuse::HeldForDead);
        }
        split
    }

    /// Another content of the object was sealed than before: where the node with the last copy of the first one died,
    /// it is the object's from now on.
    pub(super) fn has_lost_content(&mut self, object: ObjectId, sources: &[ObjectId], bytes: &[u8]) -> bool {
        let Some(first) = self.model.content_of(object).filter(|_| !self.has_lost_nobody()) else {
            return false;
        };
        let living = self.nodes.iter().filter(|node| node.alive);
        let holds = |node: &super::Node| {
            let copies = node.data_plane.copies.values().filter(|held| {
                // One over the new sources is no copy of the first, though an empty one looks like it.
                let is_first = matches!(&held.stage, Stage::Sealed(seal) if seal.sources != sources);
                held.identity.is_some_and(|(id, _)| id == object) && is_first
            });
            copies.into_iter().any(|held| *node.bytes(held.extent, 0, held.extent.size) == *first)
        };
        if living.into_iter().any(holds) {
            return false;
        }
        self.excuses.count(Excuse::NodeDied);
        self.model.replace_content(object, sources, bytes);
        true
    }

    /// Of those who made the same thing, not all may have been told that somebody else did.
    pub(super) fn judge_rivals(&mut self, object: ObjectId) {
        let makers = self.history.of(object).filter(|call| matches!(call.deed, Deed::Put(_) | Deed::Reduce));
        let beaten = |call: &Call| {
            call.failed.is_some()
                && matches!(&self.tasks[&call.task].outcome, Some(Outcome::Failed(error))
                    if error.kind == ErrorKind::AlreadyExists)
        };
        let (mut count, mut all_beaten) = (0, true);
        for call in makers {
            count += 1;
            all_beaten &= beaten(call);
        }
        if count > 0 && all_beaten {
            let id = self.names.object(object);
            self.violate(format!("{count} made {id}, and each was told that somebody else did"));
        }
    }

    /// Whether the object may have been made, or a deletion of it answered, while some node was held for dead.
    ///
    /// A call that ran out of time may have made it as well: an owner may have accepted it that was held for dead,
    /// and hold its caller's node for dead before that takes it back. Which of two sides was later, their clocks say.
    pub(super) fn may_be_made_since_deleted(&self, object: ObjectId) -> bool {
        let ran_out = |call: &Call| {
            let outcome = &self.tasks[&call.task].outcome;
            matches!(outcome, Some(Outcome::Failed(error)) if error.kind == ErrorKind::TimedOut)
        };
        let made = |call: &Call| match call.deed {
            Deed::Put(_) | Deed::Reduce => call.done.or(call.failed.filter(|_| ran_out(call))),
            _ => None,
        };
        let clocks = self.plan.clocks.wall_ms.iter();
        let apart = clocks.clone().max().copied().unwrap_or(0) - clocks.min().copied().unwrap_or(0);
        let apart = Duration::from_millis(apart);
        let calls = || self.history.of(object);
        calls().filter(|call| call.deed == Deed::Delete && call.done.is_some()).any(|deletion| {
            let since = |made: Duration| {
                let (first, last) = (made.min(deletion.begin), made.max(deletion.begin));
                made + apart > deletion.begin && self.history.is_in_doubt(first, last)
            };
            calls().filter_map(made).any(since)
        })
    }
}

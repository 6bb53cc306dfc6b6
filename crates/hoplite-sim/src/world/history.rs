//! The begin and end of each call, per object. A call that begins after another was answered must see its effect:
//!
//! - after a delete, no call gets, makes or hears of the object while the tombstone stands
//! - after a put or a reduce, no call hears that no node has the object, or makes it with another content
//! - after the end of a tombstone, no call hears that the object is deleted
//!
//! The rules hold while no living node is believed dead. They also hold inside one side of a split, if its members
//! agreed on each other before the earlier call began. All other breaches are excused (`excuse`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::{limits, ErrorKind, NodeId, ObjectId};

use super::{Place, World};
use crate::data_plane::Stage;
use crate::excuse::Excuse;
use crate::task::{Ending, Outcome, Spec, Task, TaskId};

/// How long after all views are correct again owners may still hear of events on the other side.
const HEARD_WITHIN: Duration = Duration::from_secs(8);

/// How long the announcement of a copy may be under way to the owner.
const NEWS_WITHIN: Duration = Duration::from_secs(1);

/// How much longer than required tombstones may stand. Once a second, a few of them are forgotten.
const TOMBSTONE_MARGIN: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    /// A put, with the number of its content.
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
    /// The time of an answer with success.
    done: Option<Duration>,
    /// The time of an answer with an error.
    failed: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    calls: BTreeMap<ObjectId, Vec<Call>>,
    /// Begin and end of the times when a living node was believed dead, until the consequences must be repaired.
    doubts: Vec<(Duration, Option<Duration>)>,
    /// Whether all nodes were up and knew each other at some time.
    has_formed: bool,
    /// The time of the last change of each node's view of the members.
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
    /// Forgets the history of a name, which is used for a new object from now on.
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

    /// A task starts the put of a member of a mass.
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

    /// The place where this task has put the object, if it has.
    pub(super) fn put_where(&self, task: TaskId, object: ObjectId) -> Option<Place> {
        let mut calls = self.history.of(object);
        calls.find(|call| call.task == task && call.done.is_some()).map(|call| call.place)
    }

    /// The call was answered; `done`: with success.
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

    /// A node's view changed: it believes another node dead, or admits it again.
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

    /// Nodes are cut off from each other. Nodes that have not met yet may form separate clusters.
    pub(super) fn note_cut(&mut self) {
        if !self.history.has_formed {
            self.note_doubt();
        }
    }

    /// From now on news may not reach all nodes that need it.
    pub(super) fn note_doubt(&mut self) {
        let now = self.queue.now();
        match self.history.doubts.last_mut() {
            Some((_, end @ Some(_))) if end.is_some_and(|end| end >= now) => *end = None,
            Some((_, None)) => {}
            _ => self.history.doubts.push((now, None)),
        }
    }

    /// Whether both nodes have been on one side of a split, with the same other members, since before `since`.
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

    /// The excuse for a broken rule between two calls, of which the later ends now. `None`: there is none.
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

    /// A call gets an answer that means that the object exists.
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

    /// A call gets the answer that no node has the complete object.
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

    /// A target was made. No other call may have made it before.
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

    /// A client at `place` sees this one of several contents. No put of another one may have ended before its put
    /// began.
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

    /// The object was sealed with another content than before, or over other sources. This is excused if both sides of
    /// a split made it.
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

    /// The object was sealed with another content than before. If no living node has a copy of the first content, the
    /// new one is valid from now on.
    pub(super) fn has_lost_content(&mut self, object: ObjectId, sources: &[ObjectId], bytes: &[u8]) -> bool {
        let Some(first) = self.model.content_of(object).filter(|_| !self.has_lost_nobody()) else {
            return false;
        };
        let living = self.nodes.iter().filter(|node| node.alive);
        let holds = |node: &super::Node| {
            let copies = node.data_plane.copies.values().filter(|held| {
                // A copy over the new sources is not one of the first content, even if both are empty.
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

    /// Several tasks made the same object. It must not happen that each is told that another one did.
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

    /// Whether the object may have been made after its deletion, at a time when a living node was believed dead.
    ///
    /// A call that timed out may have made it too. An owner that is believed dead may accept the object, and then
    /// believe the caller's node dead before that node withdraws it. The clocks of the two sides decide which was
    /// later.
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

//! The phases of a run: the faults end, then all calls end that can, then everything is deleted.

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_types::client::Status;
use hoplite_types::{limits, ErrorKind};

use crate::excuse::Excuse;
use crate::fault::Class;
use crate::masses::member;
use crate::rng::SimRng;
use crate::run::Keep;
use crate::script::Script;
use crate::task::{Outcome, Spec, Task};
use crate::workload::{Shape, StoreSpace};
use crate::world::World;

/// Longest time until all nodes know each other.
const JOIN_WITHIN: Duration = Duration::from_secs(20);

/// A cluster of more nodes than this is large and gets more time. A node that was slow first handles the messages of
/// all others, one after the other.
const LARGE: usize = 24;
const JOIN_WITHIN_LARGE: Duration = Duration::from_secs(60);

/// Longest time, after the last planned start, until all tasks end that can.
const FINISH_WITHIN: Duration = Duration::from_secs(60);

/// Time for messages that are under way after the last answer: releases, trailers, withdrawals.
const SETTLE: Duration = Duration::from_secs(4);

/// How much later records may expire that were made or handed over late.
const MEMORY_MARGIN: Duration = Duration::from_secs(60);

/// Time after a long sleep for nodes to find each other again and to forget.
const AWAKE: Duration = Duration::from_secs(10);

/// Time-out of a call for an object that no node remembers.
const GRAVE_SILENCE: Duration = Duration::from_millis(100);

/// Most names that are used again for new contents, and the size of these.
const NAMED_ANEW: usize = 3;
const ANEW_BYTES: u64 = 11;

/// Number of members of masses that every node is asked for, and of deleted members.
const SAMPLE: usize = 200;
const SAMPLE_OF_DEAD: usize = 50;

/// Most members that one call deletes at the end.
const DELETED_AT_ONCE: u32 = 4_000;

/// Additional time to finish for each member of a mass.
const FINISH_PER_MEMBER: Duration = Duration::from_millis(2);

/// Interval of the checks whether all tasks are over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Interval of the checks whether nothing is under way.
const LOOK_CLOSELY_EVERY: Duration = Duration::from_micros(100);

/// A run with its world and its script.
pub struct Run<'a> {
    pub world: &'a mut World,
    pub shape: &'a Shape,
    pub script: &'a mut Script,
    pub rng: SimRng,
}

impl Run<'_> {
    pub fn live(mut self, keep: &Keep) -> Result<(), String> {
        if !self.shape.early {
            join(self.world)?;
        }
        let quiet_from = self.world.now() + self.shape.span.max(self.script.quiet_after);
        self.script.play(self.world, keep);
        self.world.run_until(quiet_from);
        check(self.world)?;
        join(self.world)?;
        self.remake()?;
        settle(self.world)?;
        self.world.judge_makers();
        check(self.world)?;
        self.keep_promises()?;
        self.world.judge_pins()?;
        self.world.judge_deletions()?;
        self.world.give_up_waiting();
        self.look_everywhere()?;
        self.ask_for_the_dead()?;
        self.clean_up()?;
        self.world.model.judge_postponed()?;
        self.outlive_memories()
    }

    /// Waits until every living node has the objects that were put on it. A copy may still be on its way back to the
    /// node: a lost pull is noticed only when its stream has stalled.
    fn keep_promises(&mut self) -> Result<(), String> {
        let until = self.world.now() + self.world.time_to_notice_stalls();
        while self.world.judge_promises().is_err() && self.world.now() < until {
            self.world.run_until(self.world.now() + LOOK_EVERY);
            check(self.world)?;
        }
        self.world.judge_promises()
    }

    /// Makes lost objects again, as a task framework does, and objects whose maker died. Then all calls that wait for
    /// them must end.
    fn remake(&mut self) -> Result<(), String> {
        self.finish()?;
        if self.shape.space == StoreSpace::Tight {
            return Ok(());
        }
        // An abandoned reduction keeps its target's id until nodes that were cut off have heard of its end.
        settle(self.world)?;
        for spec in std::mem::take(&mut self.script.makers) {
            let Some(object) = spec.made() else { continue };
            let standing = self.world.standing();
            if standing.has(object) || standing.is_doomed(object) || self.world.is_being_made(object) {
                continue;
            }
            // A reduction of k of n may take other sources now, which would be another object under the same name.
            let same_again = match &spec {
                Spec::Reduce { sources, num_objects, .. } => {
                    sources.len() == *num_objects as usize || !self.world.model.was_sealed(object)
                }
                _ => true,
            };
            if same_again {
                let clients = fresh_clients(self.world);
                let client = *self.rng.pick(&clients);
                // A reduction may complete a moment after its caller's time-out.
                let is_reduction = matches!(spec, Spec::Reduce { .. });
                let is_late = is_reduction && self.world.ran_out_of_time(object);
                let late = is_late.then_some(ErrorKind::AlreadyExists);
                let may_fail: Vec<_> = late.into_iter().chain([ErrorKind::Deleted]).collect();
                let again = Task::new(client, spec).may_fail(&may_fail);
                self.world.plan_task(self.world.now(), again);
                self.finish()?;
            }
        }
        self.finish()
    }

    /// Runs until every task is over that can end.
    fn finish(&mut self) -> Result<(), String> {
        let members = self.world.model.members() as u32;
        let until = self.world.now() + FINISH_WITHIN + FINISH_PER_MEMBER * members;
        loop {
            self.world.run_until(self.world.now() + LOOK_EVERY);
            check(self.world)?;
            if self.world.all_settled() {
                return Ok(());
            }
            if self.world.now() > until {
                return Err(format!("not finished: {}", self.world.overdue().join("; ")));
            }
        }
    }

    /// Every node can get each object that a living node has and that is not deleted.
    fn look_everywhere(&mut self) -> Result<(), String> {
        if self.shape.space == StoreSpace::Tight {
            return Ok(());
        }
        let standing = self.world.standing();
        let mut there: Vec<_> = self.script.lasting.iter().filter(|id| standing.has(**id)).copied().collect();
        let mut members: Vec<_> = self.world.put_members_by_place().into_keys().collect();
        self.rng.shuffle(&mut members);
        for id in members.into_iter().filter(|id| !standing.is_doomed(*id)).take(SAMPLE) {
            match standing.has(id) {
                true => there.push(id),
                // The nodes that it was put on are dead: see `judge_promises`.
                false => self.world.excuses.count(Excuse::NodeDied),
            }
        }
        for client in fresh_clients(self.world) {
            for id in &there {
                let spec = Spec::Get { id: *id, partial: false, fail_if_lost: false, hold: Duration::ZERO };
                self.world.plan_task(self.world.now(), Task::new(client, spec));
            }
        }
        self.finish()
    }

    /// No node can get or put a deleted object. If nodes have ended, all nodes that knew of the deletion may be among
    /// them. Calls may then time out, as for an object that never existed.
    fn ask_for_the_dead(&mut self) -> Result<(), String> {
        let standing = self.world.standing();
        let (mut members, mut deleted): (Vec<_>, Vec<_>) = standing
            .deleted()
            .filter(|id| !self.world.is_unheard_of(*id))
            .partition(|id| member(*id).is_some());
        self.rng.shuffle(&mut members);
        deleted.extend(members.into_iter().take(SAMPLE_OF_DEAD));
        let all_know = self.world.has_lost_nobody();
        let mut asked = Vec::new();
        for client in fresh_clients(self.world) {
            for &id in &deleted {
                let get = Spec::Get { id, partial: false, fail_if_lost: false, hold: Duration::ZERO };
                let size = self.world.model.member_size(id).unwrap_or(8);
                let put = Spec::PutSmall { id, size, dtype: None, variant: 0 };
                let is_put = all_know && self.world.model.size(id).is_none();
                for spec in [Some(get), Some(put).filter(|_| is_put)].into_iter().flatten() {
                    let mut task = Task::new(client, spec).may_fail(&[ErrorKind::Deleted]);
                    // A store that stays full has no space even for a put that will be refused.
                    if !all_know || self.shape.space == StoreSpace::Tight {
                        task = task.within(GRAVE_SILENCE);
                        task = task.may_fail(&[ErrorKind::TimedOut, ErrorKind::StoreFull]);
                    }
                    asked.push(self.world.plan_task(self.world.now(), task));
                }
            }
        }
        self.finish()?;
        for task in asked {
            let Task { spec, outcome, .. } = self.world.task(task);
            if !matches!(outcome, Some(Outcome::Failed(_))) {
                return Err(format!("although it was deleted, {spec:?} came to {outcome:?}"));
            }
        }
        Ok(())
    }

    /// When all tombstones and records have expired, no node remembers anything.
    fn outlive_memories(&mut self) -> Result<(), String> {
        // Messages that carry the age of a record must not be under way during the sleep.
        let until = self.world.now() + SETTLE;
        while self.world.is_busy() && self.world.now() < until {
            self.world.run_until(self.world.now() + LOOK_CLOSELY_EVERY);
        }
        self.world.sleep(limits::TOMBSTONE_TTL + MEMORY_MARGIN);
        self.world.run_until(self.world.now() + AWAKE);
        settle(self.world)?;
        self.world.judge_leftovers()?;
        self.name_anew()
    }

    /// A name whose deletion is forgotten can be used like any other. A new put under it stays, and every node can get
    /// it.
    fn name_anew(&mut self) -> Result<(), String> {
        if self.shape.space == StoreSpace::Tight {
            return Ok(());
        }
        let clients = fresh_clients(self.world);
        let again: Vec<_> = self.script.ids.iter().copied().take(NAMED_ANEW).collect();
        for &id in &again {
            self.world.begin_anew(id);
            let put = Spec::PutSmall { id, size: ANEW_BYTES, dtype: None, variant: 0 };
            let client = *self.rng.pick(&clients);
            self.world.plan_task(self.world.now(), Task::new(client, put));
        }
        self.finish()?;
        settle(self.world)?;
        let get = |id| Spec::Get { id, partial: false, fail_if_lost: true, hold: Duration::ZERO };
        for (&client, &id) in clients.iter().flat_map(|client| again.iter().map(move |id| (client, id))) {
            self.world.plan_task(self.world.now(), Task::new(client, get(id)));
        }
        self.finish()
    }

    /// Deletes everything. After that, nodes may hold and remember only tombstones.
    fn clean_up(&mut self) -> Result<(), String> {
        let clients = fresh_clients(self.world);
        if !self.script.ids.is_empty() {
            let delete = Spec::Delete { ids: self.script.ids.clone() };
            self.world.plan_task(self.world.now(), Task::new(clients[0], delete));
        }
        for client in self.world.clients() {
            if !clients.contains(&client) {
                self.world.kill_client(client, false);
            }
        }
        self.finish()?;
        for mass in std::mem::take(&mut self.script.masses) {
            for stretch in mass.all().split(DELETED_AT_ONCE) {
                let delete = Task::new(clients[0], Spec::DeleteMany { stretch });
                self.world.plan_task(self.world.now(), delete);
                self.finish()?;
            }
        }
        settle(self.world)?;
        let asked: Vec<_> = clients
            .iter()
            .map(|client| self.world.plan_task(self.world.now(), Task::new(*client, Spec::Status)))
            .collect();
        self.finish()?;
        let living = clients.len();
        for task in asked {
            if let Some(Outcome::Status(status)) = &self.world.task(task).outcome {
                judge_status(status)?;
                // If datagrams get lost, a living member may be suspected at any moment.
                if status.members.len() != living && !self.shape.faults.has(Class::Datagram) {
                    return Err(format!("{} members instead of {living}: {status:?}", status.members.len()));
                }
            }
        }
        self.world.judge_emptiness()
    }
}

fn check(world: &World) -> Result<(), String> {
    world.violation().map_or(Ok(()), |what| Err(what.to_owned()))
}

/// Runs until every node knows every other.
pub fn join(world: &mut World) -> Result<(), String> {
    let until = world.now() + if world.nodes.len() > LARGE { JOIN_WITHIN_LARGE } else { JOIN_WITHIN };
    while !world.all_joined() {
        if world.now() > until {
            return Err(format!("nodes did not find each other: {}", world.membership()));
        }
        world.run_until(world.now() + LOOK_EVERY);
        check(world)?;
    }
    Ok(())
}

/// Runs until nodes know each other again and nothing is under way.
fn settle(world: &mut World) -> Result<(), String> {
    join(world)?;
    world.run_until(world.now() + SETTLE);
    check(world)
}

/// Connects one client per living node, for the checks at the end.
fn fresh_clients(world: &mut World) -> Vec<ClientId> {
    let living: Vec<_> = (0..world.node_count()).filter(|index| world.is_alive(*index)).collect();
    living.into_iter().map(|index| world.connect(index)).collect()
}

fn judge_status(status: &Status) -> Result<(), String> {
    let left = [
        ("copies", status.copies),
        ("used bytes", status.used_bytes),
        ("entries", status.entries),
        ("transfers", status.transfers),
        ("reductions", status.reductions),
    ];
    for (what, count) in left {
        if count != 0 {
            return Err(format!("after everything was deleted: {count} {what} left: {status:?}"));
        }
    }
    if status.clients > 1 {
        return Err(format!("{} clients left of one: {status:?}", status.clients));
    }
    Ok(())
}

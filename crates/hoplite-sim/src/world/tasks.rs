//! The life of a task: start, calls, writing, following, holding, outcome.

use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_types::client::{Reply, Request};
use hoplite_types::{Blob, CopyId, Error, ErrorKind, Header, ObjectId};

use super::{note, World};
use crate::data_plane::Stage;
use crate::event::{SimEvent, TaskEvent};
use crate::excuse::Excuse;
use crate::model::header;
use crate::task::{plain_request, Ending, Outcome, Phase, Spec, Task, TaskId};

/// A call must be answered at most this much later than its time-out.
const OVERDUE_AFTER: Duration = Duration::from_millis(20);

/// A wait with a shorter time-out than this may take this long, as it asks the owners first.
const POLL_TIME: Duration = Duration::from_millis(50);

/// A call at a node that is or was slow or paused may be answered this much later.
const SLOW_PATIENCE: Duration = Duration::from_millis(500);

/// How often a client makes a lost object again, and its pause before it repeats the call.
const REMAKES_MAX: u32 = 20;
const REMAKE_REST: Duration = Duration::from_millis(5);

impl World {
    /// Schedules the start of `task` at `at`.
    pub fn plan_task(&mut self, at: Duration, task: Task) -> TaskId {
        let last = self.tasks.last_key_value().map_or(0, |(id, _)| id.0);
        let id = TaskId(last + 1);
        self.plan_task_as(id, at, task);
        id
    }

    pub fn plan_task_as(&mut self, id: TaskId, at: Duration, task: Task) {
        self.tasks.insert(id, task);
        self.queue.push(at, SimEvent::Task { task: id, event: TaskEvent::Start });
    }

    /// Schedules the cancellation of a task at `at`.
    pub fn plan_cancel(&mut self, at: Duration, task: TaskId) {
        self.queue.push(at, SimEvent::Task { task, event: TaskEvent::Cancel });
    }

    /// Resumes a put that holds.
    pub fn resume(&mut self, task: TaskId) {
        if let Some(Task { spec: Spec::Put { ending, .. }, .. }) = self.tasks.get_mut(&task) {
            *ending = Ending::Seal;
        }
        self.queue.push(self.queue.now(), SimEvent::Task { task, event: TaskEvent::Step });
    }

    pub fn task(&self, task: TaskId) -> &Task {
        &self.tasks[&task]
    }

    pub(super) fn on_task(&mut self, id: TaskId, event: TaskEvent) {
        let phase = self.tasks[&id].phase.clone();
        match (event, phase) {
            (TaskEvent::Start, Phase::Waiting) => self.start_task(id),
            (TaskEvent::Again, Phase::Waiting) => self.ask(id),
            (TaskEvent::Step, Phase::Writing { copy, at }) => self.write_piece(id, copy, at),
            (TaskEvent::Step, Phase::Following { copy, read }) => self.follow(id, copy, read),
            (TaskEvent::Step, Phase::Holding { copy }) => self.end_hold(id, copy),
            (TaskEvent::Cancel, Phase::Calling { call, .. }) => self.cancel(id, call),
            (TaskEvent::LetGo, _) => self.end_keep(id),
            (TaskEvent::Overdue, Phase::Following { copy, .. }) => self.stop_following(id, copy),
            (TaskEvent::Overdue, Phase::Calling { timed: true, .. }) => {
                if let Some(later) = self.patience_until(id) {
                    return self.queue.push(later, SimEvent::Task { task: id, event });
                }
                let task = &self.tasks[&id];
                let what = format!("{:?} is not answered long after its time-out: {:?}", id, task.spec);
                self.violate(what);
            }
            _ => {}
        }
    }

    fn start_task(&mut self, id: TaskId) {
        let now = self.queue.now();
        let client = self.reconnect(self.tasks[&id].client);
        self.tasks.get_mut(&id).expect("planned").client = client;
        let task = self.tasks.get_mut(&id).expect("planned");
        task.started = now;
        let (client, timeout) = (task.client, task.timeout);
        let is_wait = matches!(task.spec, Spec::Wait { .. });
        self.note_begun(id);
        if !self.sessions[&client].alive {
            return self.end_task(id, Outcome::Vanished);
        }
        if let Some(timeout) = timeout {
            let polls = is_wait && timeout < POLL_TIME;
            let at = now + if polls { POLL_TIME } else { timeout } + OVERDUE_AFTER;
            self.queue.push(at, SimEvent::Task { task: id, event: TaskEvent::Overdue });
        }
        self.ask(id);
    }

    /// Sends the task's call, or repeats it with the rest of its time-out.
    fn ask(&mut self, id: TaskId) {
        let task = &self.tasks[&id];
        let (client, timeout_ms) = (task.client, task.timeout_ms(self.queue.now()));
        if let Spec::Get { id: object, .. } = task.spec {
            if let Some((bytes, sources)) = self.kept_by(client, object) {
                return self.answer_from_memory(id, object, &bytes, &sources);
            }
        }
        let request = match task.spec.clone() {
            Spec::PutMany { .. } => return self.put_members(id),
            Spec::Put { id, size, dtype, keep, .. } => {
                let keep = keep.is_some();
                Request::Create { id, size, header: header(dtype, size), timeout_ms, keep }
            }
            Spec::PutSmall { id, size, dtype, variant } => {
                let payload = Blob(self.model.put_content(id, size, variant).to_vec());
                Request::PutSmall { id, header: header(dtype, size), payload, timeout_ms }
            }
            other => plain_request(&other, timeout_ms).expect("not a put"),
        };
        let call = self.call(client, request, id);
        self.set_phase(id, Phase::Calling { call, timed: true });
    }

    /// The client has kept the object and answers the get itself.
    fn answer_from_memory(&mut self, id: TaskId, object: ObjectId, bytes: &[u8], sources: &[ObjectId]) {
        self.stats.from_memory += 1;
        self.judge_existence(id, object);
        let place = self.sessions[&self.tasks[&id].client].place;
        let verdict = self.judge_bytes(object, None, sources, bytes);
        self.pronounce(place, &format!("getting {} from memory", self.names.object(object)), verdict);
        self.end_task(id, Outcome::Viewed);
    }

    pub(super) fn set_phase(&mut self, id: TaskId, phase: Phase) {
        self.tasks.get_mut(&id).expect("planned").phase = phase;
    }

    pub(super) fn end_task(&mut self, id: TaskId, outcome: Outcome) {
        if matches!(&outcome, Outcome::Failed(error) if error.kind == ErrorKind::Lost) && self.remake(id) {
            return;
        }
        let task = self.tasks.get_mut(&id).expect("planned");
        task.phase = Phase::Over;
        if let Outcome::Failed(error) = &outcome {
            let early = task.timeout.is_none_or(|timeout| self.queue.now() < task.started + timeout);
            let allowed = task.may_fail.contains(&error.kind);
            let what = format!("{id:?} {:?} failed: {:?}: {}", task.spec, error.kind, error.message);
            if !allowed || (error.kind == ErrorKind::TimedOut && early) {
                task.outcome = Some(outcome);
                return self.violate(what);
            }
            self.excuses.count(Excuse::of_error(error.kind));
            if error.kind == ErrorKind::Deleted {
                let objects = task.spec.objects();
                self.judge_deletion(id, &objects);
            }
        }
        note!(self, "task {} over", id.0);
        let is_answered = !matches!(outcome, Outcome::Cancelled | Outcome::Vanished);
        let done = is_answered && !matches!(outcome, Outcome::Failed(_));
        self.tasks.get_mut(&id).expect("planned").outcome = Some(outcome);
        if is_answered {
            self.note_ended(id, done);
        }
    }

    /// The object is lost. As a task framework would, the client makes the object again and repeats the call.
    fn remake(&mut self, id: TaskId) -> bool {
        let task = self.tasks.get_mut(&id).expect("planned");
        let Some(spec) = task.remake.clone().filter(|_| task.remakes < REMAKES_MAX) else { return false };
        task.remakes += 1;
        task.phase = Phase::Waiting;
        let (client, excuses) = (task.client, task.may_fail.clone());
        note!(self, "client {} makes {:?} again", client.0, spec.made());
        self.queue.push(self.after(REMAKE_REST), SimEvent::Task { task: id, event: TaskEvent::Again });
        let mut make = Task::new(client, spec).may_fail(&excuses);
        make.timeout = self.tasks[&id].timeout;
        self.plan_task(self.queue.now(), make);
        true
    }

    pub(super) fn on_task_answer(&mut self, id: TaskId, reply: Reply) {
        let Task { client, spec, .. } = &self.tasks[&id];
        let (client, spec) = (*client, spec.clone());
        match (reply, spec) {
            (Reply::Created { copy, kept, .. }, Spec::Put { keep, .. }) => {
                if kept != keep.is_some() {
                    self.violate(format!("{id:?} asked for a view: {}, and has one: {kept}", keep.is_some()));
                }
                self.set_phase(id, Phase::Writing { copy, at: 0 });
                self.step_after(id, Duration::ZERO);
            }
            (
                Reply::View { copy, sealed, size, header: found, .. },
                Spec::Get { id: object, hold, partial, .. },
            ) => {
                self.judge_header(object, &found, size);
                if sealed {
                    self.judge_existence(id, object);
                    self.judge_view(self.sessions[&client].place, client, object, copy);
                    self.set_phase(id, Phase::Holding { copy });
                    self.step_after(id, hold);
                } else if partial {
                    self.set_phase(id, Phase::Following { copy, read: Vec::new() });
                    self.with_follower(client, copy, |followers| followers.insert(id));
                    self.step_after(id, Duration::ZERO);
                } else {
                    self.violate(format!("{id:?} asked for a complete view and got an unsealed one"));
                }
            }
            (Reply::Reduced { sources }, Spec::Reduce { target, .. }) => {
                self.on_reduced(id, target, &sources)
            }
            (Reply::Done, spec) => {
                if let Spec::Delete { .. } | Spec::DeleteMany { .. } = &spec {
                    self.note_deleted(self.sessions[&client].place, &spec.objects());
                }
                spec.made().into_iter().for_each(|object| self.judge_existence(id, object));
                self.end_task(id, Outcome::Done);
            }
            (Reply::Ready { ids }, Spec::Wait { count, ids: asked, .. }) => {
                let unasked = ids.iter().any(|ready| !asked.contains(ready));
                let in_time = self.tasks[&id].timeout.is_none();
                if unasked || (in_time && (ids.len() as u32) < count) {
                    self.violate(format!("waited for {count} of {asked:?}, got {ids:?}"));
                }
                ids.into_iter().for_each(|object| self.judge_existence(id, object));
                self.end_task(id, Outcome::Ready);
            }
            (Reply::Located { copies, .. }, Spec::Locate { id: object }) => {
                match copies.iter().any(|copy| copy.complete) {
                    true => self.judge_existence(id, object),
                    false => self.judge_absence(id, object),
                }
                self.end_task(id, Outcome::Located);
            }
            (Reply::Status(status), Spec::Status) => self.end_task(id, Outcome::Status(Box::new(status))),
            (Reply::Failed(error), _) => self.end_task(id, Outcome::Failed(error)),
            (reply, spec) => self.violate(format!("{spec:?} answered by {reply:?}")),
        }
    }

    /// The header of a view must be the one with which the object was made.
    fn judge_header(&mut self, object: ObjectId, found: &Header, size: u64) {
        if self.model.knows(object) && *found != header(self.model.dtype(object), size) {
            let text = self.names.object(object);
            self.violate(format!("{text} came with the header {found:?} for {size} B"));
        }
    }

    fn on_reduced(&mut self, id: TaskId, target: ObjectId, sources: &[ObjectId]) {
        if !self.model.was_sealed_over(target, sources) {
            let what = format!("a reduction to {target} is told of sources that nobody sealed: {sources:?}");
            self.violate(what);
        }
        self.judge_existence(id, target);
        self.judge_making(id, target);
        self.end_task(id, Outcome::Reduced);
    }

    fn step_after(&mut self, id: TaskId, delay: Duration) {
        self.queue.push(self.after(delay), SimEvent::Task { task: id, event: TaskEvent::Step });
    }

    /// Writes the next piece of a put directly into the arena, as a real client does.
    fn write_piece(&mut self, id: TaskId, copy: CopyId, at: u64) {
        let Task {
            client,
            spec: Spec::Put { id: object, size, piece, pause, ending, variant, keep, .. },
            ..
        } = self.tasks[&id]
        else {
            unreachable!("only puts write")
        };
        let stop = match ending {
            Ending::Seal => size,
            Ending::AbortAt(stop) | Ending::HoldAt(stop) | Ending::DieAt(stop) => stop.min(size),
        };
        if at < stop {
            let to = (at + piece).min(stop);
            let content = self.model.put_content(object, size, variant);
            self.write_bytes(client, copy, at, &content[at as usize..to as usize]);
            self.set_phase(id, Phase::Writing { copy, at: to });
            return self.step_after(id, pause);
        }
        let request = match ending {
            Ending::Seal => {
                let timeout_ms = self.tasks[&id].timeout_ms(self.queue.now());
                Request::Seal { copy, timeout_ms }
            }
            Ending::AbortAt(_) => Request::Abort { copy },
            Ending::HoldAt(_) => return,
            Ending::DieAt(_) => return self.kill_client(client, at % 2 == 1),
        };
        self.finish_writing(client, copy);
        if let Some(keep) = keep {
            self.tasks.get_mut(&id).expect("planned").kept = Some((copy, at));
            self.queue.push(self.after(keep), SimEvent::Task { task: id, event: TaskEvent::LetGo });
        }
        let timed = ending == Ending::Seal;
        let call = self.call(client, request, id);
        self.set_phase(id, Phase::Calling { call, timed });
    }

    fn write_bytes(&mut self, client: ClientId, copy: CopyId, at: u64, piece: &[u8]) {
        let to = at + piece.len() as u64;
        let place = self.sessions[&client].place;
        let node = &mut self.nodes[place.index];
        let Some(held) = node.data_plane.copies.get_mut(&copy) else {
            return self.violate(format!("{client:?} writes into {copy:?}, which is closed"));
        };
        held.watermark = to;
        let (extent, wanted) = (held.extent, std::mem::take(&mut held.wanted));
        node.bytes_mut(extent, at, to).copy_from_slice(piece);
        self.wake_followers(place, copy);
        if wanted {
            self.send_call(client, 0, Request::Progress { copy, watermark: to });
        }
    }

    /// Reads the bytes that have arrived since. Ends with the copy, or starts over.
    fn follow(&mut self, id: TaskId, copy: CopyId, mut read: Vec<u8>) {
        let Task { client, spec: Spec::Get { id: object, .. }, .. } = self.tasks[&id] else {
            unreachable!("only gets follow")
        };
        let place = self.sessions[&client].place;
        let node = &self.nodes[place.index];
        let Some(held) = node.data_plane.copies.get(&copy) else {
            return self.violate(format!("{client:?} follows {copy:?}, which is closed"));
        };
        read.extend_from_slice(node.bytes(held.extent, read.len() as u64, held.watermark));
        match held.stage {
            Stage::Writing => self.set_phase(id, Phase::Following { copy, read }),
            Stage::Sealed(_) => {
                if read != node.bytes(held.extent, 0, held.extent.size) {
                    self.violate(format!("{client:?}: bytes behind the watermark of {copy:?} changed"));
                }
                self.judge_view(place, client, object, copy);
                self.let_go(id, client, copy);
                self.end_task(id, Outcome::Viewed);
            }
            Stage::Aborted if self.tasks[&id].is_out_of_time(self.queue.now()) => {
                self.stop_following(id, copy);
            }
            Stage::Aborted => {
                self.let_go(id, client, copy);
                self.ask(id);
            }
        }
    }

    /// The time-out has passed while the copy still grows, so the client itself gives up.
    fn stop_following(&mut self, id: TaskId, copy: CopyId) {
        self.let_go(id, self.tasks[&id].client, copy);
        let late = Error::new(ErrorKind::TimedOut, "stopped following the copy");
        self.end_task(id, Outcome::Failed(late));
    }

    fn let_go(&mut self, id: TaskId, client: ClientId, copy: CopyId) {
        self.with_follower(client, copy, |followers| followers.remove(&id));
        self.release(client, copy);
    }

    fn with_follower(
        &mut self,
        client: ClientId,
        copy: CopyId,
        change: impl FnOnce(&mut std::collections::BTreeSet<TaskId>) -> bool,
    ) {
        let place = self.sessions[&client].place;
        if let Some(held) = self.nodes[place.index].data_plane.copies.get_mut(&copy) {
            change(&mut held.followers);
        }
    }

    /// Ends the hold of a view. Its bytes must not have changed.
    fn end_hold(&mut self, id: TaskId, copy: CopyId) {
        let Task { client, spec: Spec::Get { id: object, .. }, .. } = self.tasks[&id] else {
            unreachable!("only gets hold")
        };
        self.judge_view(self.sessions[&client].place, client, object, copy);
        self.release(client, copy);
        self.end_task(id, Outcome::Viewed);
    }

    /// The client releases the memory that it wrote. Until now no other writer may have used it, even if the object is
    /// gone.
    fn end_keep(&mut self, id: TaskId) {
        let Task {
            client,
            spec: Spec::Put { id: object, size, variant, .. },
            kept: Some((copy, written)),
            ..
        } = self.tasks[&id]
        else {
            unreachable!("only puts keep")
        };
        let session = &self.sessions[&client];
        if !session.alive {
            return;
        }
        let content = self.model.put_content(object, size, variant);
        let node = &self.nodes[session.place.index];
        let as_written = |held: &crate::data_plane::Copy| {
            node.bytes(held.extent, 0, written) == &content[..written as usize]
        };
        if !node.data_plane.copies.get(&copy).is_some_and(as_written) {
            self.violate(format!("{client:?} keeps {copy:?}, whose bytes are not those that it wrote"));
        }
        self.release(client, copy);
    }

    /// The later time limit of a call at a node that is or was paused or slow, as the node may have got the call late.
    fn patience_until(&self, id: TaskId) -> Option<Duration> {
        let timeout = self.tasks[&id].timeout.unwrap_or_default();
        let place = self.sessions[&self.tasks[&id].client].place;
        let process = &self.nodes[place.index].process;
        let now = self.queue.now();
        let until = match process.paused.is_some() || process.slow.is_some() {
            true => Some(now + SLOW_PATIENCE),
            false => Some(process.hampered_at + timeout + SLOW_PATIENCE).filter(|later| *later > now),
        };
        if until.is_some() {
            self.excuses.count(Excuse::Slow);
        }
        until
    }

    /// The client gives up on a task.
    pub fn give_up(&mut self, id: TaskId) {
        match self.tasks[&id].phase {
            Phase::Calling { call, .. } => self.cancel(id, call),
            Phase::Following { copy, .. } => {
                self.let_go(id, self.tasks[&id].client, copy);
                self.end_task(id, Outcome::Cancelled);
            }
            _ => {}
        }
    }

    fn cancel(&mut self, id: TaskId, call: u64) {
        let client = self.tasks[&id].client;
        self.sessions.get_mut(&client).expect("connected").calls.remove(&call);
        self.send_call(client, 0, Request::Cancel { call });
        self.end_task(id, Outcome::Cancelled);
    }
}

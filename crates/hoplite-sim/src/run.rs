//! One seed from its draw to its verdict.

use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_words::client::Status;

use crate::crowd::{Crowd, Drawing};
use crate::dice::Dice;
use crate::fault::FaultSwitches;
use crate::task::{Outcome, Spec, Task, TaskId};
use crate::workload::{Room, Shape};
use crate::world::{Stats, World};

/// How long nodes may take to find each other.
const JOIN_WITHIN: Duration = Duration::from_secs(20);

/// After the last planned start, everything that can finish has finished by then.
const FINISH_WITHIN: Duration = Duration::from_secs(60);

/// What may still be under way when the last answer is there: releases, trailers, withdrawals.
const SETTLE: Duration = Duration::from_secs(4);

/// How often the run looks whether all tasks are over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a run came to.
pub struct Report {
    pub seed: u64,
    pub shape: String,
    pub stats: Stats,
    pub judged: u64,
    /// Equal for runs that were equal line by line.
    pub log_hash: u64,
    pub log_lines: u64,
    pub failure: Option<Failure>,
}

pub struct Failure {
    pub violation: String,
    pub log_tail: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { happenings, messages, flows, fanout_max, evictions, broken_transfers, .. } = self.stats;
        write!(
            f,
            "seed {}: {}; {happenings} events, {messages} messages, {flows} streams (up to {fanout_max} from one copy), \
             {evictions} evictions, {broken_transfers} broken, {} contents judged, log {:016x}",
            self.seed, self.shape, self.judged, self.log_hash
        )
    }
}

/// Runs the world this seed draws; a failure comes with the last `tail_lines` of the log.
pub fn run(seed: u64, faults: FaultSwitches, tail_lines: usize) -> Report {
    let mut dice = Dice::new(seed);
    let shape = Shape::draw(&mut dice, faults);
    let mut plan = shape.plan(&mut dice);
    plan.tail_lines = tail_lines;
    let mut world = World::new(plan, dice.seed());
    let outcome = catch_unwind(AssertUnwindSafe(|| live(&mut world, &shape, &mut dice)));
    let violation = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(what)) => Some(world.violation().map(str::to_owned).unwrap_or(what)),
        Err(panic) => Some(format!("panic: {}", panic_text(&*panic))),
    };
    Report {
        seed,
        shape: shape.to_string(),
        stats: world.stats,
        judged: world.model.judged,
        log_hash: world.log.hash(),
        log_lines: world.log.lines(),
        failure: violation
            .map(|violation| world.names.readable(&violation))
            .map(|violation| Failure { violation, log_tail: world.log.tail().map(str::to_owned).collect() }),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
}

fn live(world: &mut World, shape: &Shape, dice: &mut Dice) -> Result<(), String> {
    if !shape.early {
        join(world)?;
    }
    let crowd = Drawing { world, dice, shape, crowd: Crowd::default() }.draw();
    finish(world, world.now() + shape.span + FINISH_WITHIN)?;
    heal(world, &crowd)?;
    look_everywhere(world, shape, &crowd)?;
    clean_up(world, shape, &crowd)?;
    world.model.judge_postponed()
}

fn check(world: &World) -> Result<(), String> {
    world.violation().map_or(Ok(()), |what| Err(what.to_owned()))
}

/// Until every node knows every other.
pub(crate) fn join(world: &mut World) -> Result<(), String> {
    let until = world.now() + JOIN_WITHIN;
    while !world.all_joined() {
        if world.now() > until {
            return Err(format!("nodes did not find each other: {}", world.membership()));
        }
        world.run_until(world.now() + LOOK_EVERY);
        check(world)?;
    }
    Ok(())
}

/// Until every task is over.
fn finish(world: &mut World, until: Duration) -> Result<(), String> {
    while !world.all_over() {
        if world.now() > until {
            return Err(format!("not finished: {}", world.unanswered().join("; ")));
        }
        world.run_until(world.now() + LOOK_EVERY);
        check(world)?;
    }
    Ok(())
}

/// Faults are over: nodes find each other again, and everything comes to rest.
fn heal(world: &mut World, crowd: &Crowd) -> Result<(), String> {
    if crowd.quiet_from > world.now() {
        world.run_until(crowd.quiet_from);
    }
    check(world)?;
    join(world)?;
    world.run_until(world.now() + SETTLE);
    check(world)
}

/// One client per living node, for the questions at the end.
fn fresh_clients(world: &mut World) -> Vec<ClientId> {
    (0..world.node_count())
        .filter(|index| world.is_alive(*index))
        .collect::<Vec<_>>()
        .into_iter()
        .map(|index| world.connect(index))
        .collect()
}

/// What was put on a node that never died, and not deleted, can still be had everywhere.
fn look_everywhere(world: &mut World, shape: &Shape, crowd: &Crowd) -> Result<(), String> {
    if shape.room == Room::Tight {
        return Ok(());
    }
    let stands = |world: &World, task: TaskId| {
        let done = matches!(world.task(task).outcome, Some(Outcome::Done));
        done && !world.is_abort(task) && world.is_place_alive(task)
    };
    let there: Vec<_> = crowd
        .lasting
        .iter()
        .filter(|id| crowd.puts.iter().any(|(put, task)| put == *id && stands(world, *task)))
        .copied()
        .collect();
    for client in fresh_clients(world) {
        for id in &there {
            let spec = Spec::Get { id: *id, partial: false, fail_if_lost: false, hold: Duration::ZERO };
            world.plan_task(world.now(), Task::new(client, spec));
        }
    }
    finish(world, world.now() + FINISH_WITHIN)
}

/// Deletes everything; afterwards no node may hold or remember anything but tombstones.
fn clean_up(world: &mut World, shape: &Shape, crowd: &Crowd) -> Result<(), String> {
    let clients = fresh_clients(world);
    if !crowd.ids.is_empty() {
        world.plan_task(world.now(), Task::new(clients[0], Spec::Delete { ids: crowd.ids.clone() }));
    }
    for client in world.clients() {
        if !clients.contains(&client) {
            world.kill_client(client);
        }
    }
    finish(world, world.now() + FINISH_WITHIN)?;
    heal(world, crowd)?;
    let asked: Vec<_> =
        clients.iter().map(|client| world.plan_task(world.now(), Task::new(*client, Spec::Status))).collect();
    finish(world, world.now() + FINISH_WITHIN)?;
    let living = clients.len();
    for task in asked {
        if let Some(Outcome::Status(status)) = &world.task(task).outcome {
            judge_status(status)?;
            // Where datagrams get lost a living member may be suspected at any moment.
            if status.members.len() != living && !shape.faults.lose_datagrams {
                return Err(format!("{} members instead of {living}: {status:?}", status.members.len()));
            }
        }
    }
    world.judge_emptiness()
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

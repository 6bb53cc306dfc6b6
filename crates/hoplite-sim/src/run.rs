//! One seed from its draw to its verdict.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;
use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_words::client::Status;

use crate::crowd::Drawing;
use crate::dice::Dice;
use crate::fault::{Class, FaultSwitches};
use crate::script::Script;
use crate::task::{Outcome, Spec, Task};
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

pub use crate::script::Keep;

/// What a run came to.
pub struct Report {
    pub seed: u64,
    pub shape: String,
    /// The tasks and faults that took part.
    pub items: Vec<String>,
    /// Their numbers.
    pub kept: Vec<usize>,
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

/// Runs the world this seed draws, with all of its items or those that are kept; a failure comes
/// with the last `tail_lines` of the log.
pub fn run(seed: u64, faults: FaultSwitches, keep: &Keep, tail_lines: usize) -> Report {
    let mut dice = Dice::new(seed);
    let shape = Shape::draw(&mut dice, faults);
    let mut plan = shape.plan(&mut dice);
    plan.tail_lines = tail_lines;
    let world_seed = dice.seed();
    let mut script = Drawing { dice: &mut dice, shape: &shape, script: Script::default() }.draw();
    let items = script.describe(keep);
    let mut world = World::new(plan, world_seed);
    world.names = std::mem::take(&mut script.names);
    world.model = std::mem::take(&mut script.model);
    listen_for_panics();
    LISTENING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| live(&mut world, &shape, &mut script, keep)));
    LISTENING.set(false);
    let violation = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(what)) => Some(world.violation().map(str::to_owned).unwrap_or(what)),
        Err(panic) => Some(format!("panic at {}: {}", PANICKED_AT.take(), panic_text(&*panic))),
    };
    Report {
        seed,
        shape: shape.to_string(),
        kept: script.kept(keep),
        items: items.iter().map(|item| world.names.readable(item)).collect(),
        stats: world.stats,
        judged: world.model.judged,
        log_hash: world.log.hash(),
        log_lines: world.log.lines(),
        failure: violation
            .map(|violation| world.names.readable(&violation))
            .map(|violation| Failure { violation, log_tail: world.log.tail().map(str::to_owned).collect() }),
    }
}

thread_local! {
    /// Where this thread's run panicked.
    static PANICKED_AT: RefCell<String> = const { RefCell::new(String::new()) };
    static LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// Panics of a run are told with its report and nowhere else, unless a backtrace is asked for.
fn listen_for_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !LISTENING.get() || std::env::var_os("RUST_BACKTRACE").is_some() {
                usual(panic);
            }
            let at = panic.location().map(|at| format!("{}:{}", at.file(), at.line()));
            PANICKED_AT.set(at.unwrap_or_default());
        }));
    });
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
}

fn live(world: &mut World, shape: &Shape, script: &mut Script, keep: &Keep) -> Result<(), String> {
    if !shape.early {
        join(world)?;
    }
    let quiet_from = world.now() + shape.span.max(script.quiet_after);
    script.play(world, keep);
    world.run_until(quiet_from);
    check(world)?;
    join(world)?;
    finish(world)?;
    settle(world)?;
    world.give_up_waiting();
    look_everywhere(world, shape, script)?;
    clean_up(world, shape, script)?;
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

/// Until every task is over that can be.
fn finish(world: &mut World) -> Result<(), String> {
    let until = world.now() + FINISH_WITHIN;
    while !world.all_settled() {
        if world.now() > until {
            return Err(format!("not finished: {}", world.overdue().join("; ")));
        }
        world.run_until(world.now() + LOOK_EVERY);
        check(world)?;
    }
    Ok(())
}

/// Nodes find each other again, and everything comes to rest.
fn settle(world: &mut World) -> Result<(), String> {
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

/// What stands on a living node, and is not deleted, can be had everywhere.
fn look_everywhere(world: &mut World, shape: &Shape, script: &Script) -> Result<(), String> {
    if shape.room == Room::Tight {
        return Ok(());
    }
    let there: Vec<_> = script.lasting.iter().filter(|id| world.stands(**id)).copied().collect();
    for client in fresh_clients(world) {
        for id in &there {
            let spec = Spec::Get { id: *id, partial: false, fail_if_lost: false, hold: Duration::ZERO };
            world.plan_task(world.now(), Task::new(client, spec));
        }
    }
    finish(world)
}

/// Deletes everything; afterwards no node may hold or remember anything but tombstones.
fn clean_up(world: &mut World, shape: &Shape, script: &Script) -> Result<(), String> {
    let clients = fresh_clients(world);
    if !script.ids.is_empty() {
        world.plan_task(world.now(), Task::new(clients[0], Spec::Delete { ids: script.ids.clone() }));
    }
    for client in world.clients() {
        if !clients.contains(&client) {
            world.kill_client(client);
        }
    }
    finish(world)?;
    settle(world)?;
    let asked: Vec<_> =
        clients.iter().map(|client| world.plan_task(world.now(), Task::new(*client, Spec::Status))).collect();
    finish(world)?;
    let living = clients.len();
    for task in asked {
        if let Some(Outcome::Status(status)) = &world.task(task).outcome {
            judge_status(status)?;
            // Where datagrams get lost a living member may be suspected at any moment.
            if status.members.len() != living && !shape.faults.has(Class::Datagram) {
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

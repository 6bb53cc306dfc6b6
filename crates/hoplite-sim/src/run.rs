//! Runs one seed, from its draw to its verdict.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

use crate::coverage::Table;
use crate::excuse::Excuses;
use crate::fault::FaultSwitches;
use crate::phases::Run;
use crate::rng::SimRng;
use crate::script::Script;
use crate::workload::Generator;
use crate::workload::Shape;
use crate::world::{Stats, World};

pub use crate::script::Keep;

/// The result of a run.
pub struct Report {
    pub seed: u64,
    pub shape: String,
    /// Descriptions of the tasks and faults that took part.
    pub items: Vec<String>,
    /// The numbers of these tasks and faults.
    pub kept: Vec<usize>,
    pub stats: Stats,
    pub judged: u64,
    /// The number of members of masses.
    pub members: u64,
    pub excuses: Excuses,
    pub coverage: Table,
    /// A hash that is equal for runs that are equal line by line.
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
        let Stats {
            events,
            messages,
            flows,
            fanout_max,
            evictions,
            gathered,
            broken_transfers,
            from_memory,
            ..
        } = self.stats;
        write!(
            f,
            "seed {}: {}; {events} events, {messages} messages, {flows} streams (up to {fanout_max} from one copy), \
             {evictions} evictions, {gathered} gathered, {broken_transfers} broken, {from_memory} from memory, {} contents judged, log {:016x}",
            self.seed, self.shape, self.judged, self.log_hash
        )
    }
}

/// Switches that select the worlds to draw.
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    pub faults: FaultSwitches,
    /// Only worlds with ten thousand small objects or more.
    pub masses: bool,
}

impl From<FaultSwitches> for Switches {
    fn from(faults: FaultSwitches) -> Self {
        Switches { faults, masses: false }
    }
}

/// As [`run`], without a log. If the world fails, it is run again with a log.
pub fn run_and_tell(seed: u64, switches: impl Into<Switches>, keep: &Keep, tail_lines: usize) -> Report {
    let switches = switches.into();
    let report = run(seed, switches, keep, None);
    match report.failure {
        None => report,
        Some(_) => run(seed, switches, keep, Some(tail_lines)),
    }
}

/// Runs the world that this seed draws, with all items or those in `keep`. A failure has the last `tail_lines` of the
/// log. Without `tail_lines` no log is written.
pub fn run(seed: u64, switches: impl Into<Switches>, keep: &Keep, tail_lines: Option<usize>) -> Report {
    let switches = switches.into();
    let mut rng = SimRng::new(seed);
    let mut shape = Shape::draw(&mut rng, switches.faults);
    shape.draw_mass(seed, switches.masses);
    let shape = shape;
    let mut plan = shape.plan(&mut rng);
    plan.tail_lines = tail_lines;
    let world_seed = rng.seed();
    let mut script = Generator { rng: &mut rng, shape: &shape, script: Script::default() }.draw();
    let items = script.describe(keep);
    let mut world = World::new(plan, world_seed);
    world.names = std::mem::take(&mut script.names);
    world.model = std::mem::take(&mut script.model);
    listen_for_panics();
    LISTENING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        Run { world: &mut world, shape: &shape, script: &mut script, rng }.live(keep)
    }));
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
        members: world.model.members(),
        excuses: world.excuses.clone(),
        coverage: world.coverage.table.clone(),
        log_hash: world.log.hash(),
        log_lines: world.log.lines(),
        failure: violation
            .map(|violation| world.names.readable(&violation))
            .map(|violation| Failure { violation, log_tail: world.log.tail().map(str::to_owned).collect() }),
    }
}

thread_local! {
    /// The place where this thread's run panicked.
    static PANICKED_AT: RefCell<String> = const { RefCell::new(String::new()) };
    static LISTENING: Cell<bool> = const { Cell::new(false) };
}

/// Records panics for the report of the run. They are printed only if a backtrace is asked for.
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

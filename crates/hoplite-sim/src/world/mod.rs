//! A whole cluster of real cores in a simulated world.
//!
//! One queue of events drives everything. It is ordered by time, then by the order in which events were pushed. The
//! handler of an event may push more. All randomness comes from the world's `rng`. So a world with the same plan, seed
//! and tasks gives the same run again, line by line.

mod clients;
mod control_links;
mod deferral;
mod deletion_oracle;
mod faults;
mod flows;
mod folds;
mod history;
mod liveness_oracle;
mod loss_oracle;
mod masses;
mod nodes;
mod outputs;
mod rules;
mod stalls;
mod tasks;
mod verdicts;

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_core::io::{ClientId, Input};
use hoplite_core::Core;
use hoplite_types::{Edition, NodeId, ObjectId, TransferId};

use crate::coverage::Follower;
use crate::data_plane::{DataPlane, FlowId};
use crate::event::SimEvent;
use crate::excuse::Excuses;
use crate::log::{Log, Topic};
use crate::model::Model;
use crate::names::Names;
use crate::net::{Net, NetPlan};
use crate::queue::Queue;
use crate::rng::SimRng;
use crate::task::{Task, TaskId};
use clients::Session;
use control_links::{ControlLinks, QueuedMessage};
use deferral::Process;
use deletion_oracle::DeletionOracle;
use faults::{Faults, Leaving};
use flows::Flow;
use history::History;
use masses::Putting;
use rules::Rules;

pub(crate) use control_links::ControlLinkId;
pub(crate) use rules::Suspects;

/// Most events at one time. With more, the run is in a loop.
const MOMENT_MAX: u64 = 100_000;

/// Most events of a run. Runs take some ten thousand, and more with a mass. With more events than this, the run is in a
/// loop in which time passes.
const HAPPENINGS_MAX: u64 = 2_000_000;
const HAPPENINGS_PER_MEMBER: u64 = 200;

/// A start of a node. Messages to an earlier start never reach a later one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub index: usize,
    pub boot: u64,
}

/// The clocks of all hosts.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// The time of each clock at the start, in milliseconds.
    pub wall_ms: Vec<u64>,
    /// How much a clock may be set forward or back while its node is down, in milliseconds.
    pub steps_ms: u64,
}

impl Clocks {
    /// Clocks that all show the same time.
    pub fn even(nodes: usize) -> Self {
        Clocks { wall_ms: vec![WALL_MS; nodes], steps_ms: 0 }
    }
}

/// The resources of hosts and processes.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    /// Time of the control thread for each input. `message_time` is its time for each message that it sends.
    pub input_time: Duration,
    pub message_time: Duration,
    /// Messages that a control connection may hold before the other side has read them.
    pub outbox_max: usize,
    /// Most connections of a process.
    pub descriptors_max: usize,
    /// Percentage of bulk connections that cannot be made.
    pub failing_dials: u64,
}

impl Default for Means {
    /// No limits, and no processing time.
    fn default() -> Self {
        Means {
            input_time: Duration::ZERO,
            message_time: Duration::ZERO,
            outbox_max: usize::MAX,
            descriptors_max: usize::MAX,
            failing_dials: 0,
        }
    }
}

/// About the time at which worlds begin, in milliseconds since 1970.
pub const WALL_MS: u64 = 1_700_000_000_000;

/// The fixed properties of a world.
#[derive(Clone, Debug)]
pub struct Plan {
    pub nodes: usize,
    pub store_bytes: u64,
    pub net: NetPlan,
    /// Most bytes that a stream moves at once. A multiple of 8.
    pub grain_bytes: u64,
    /// Bytes a sender may have under way before the receiver has taken them.
    pub window_bytes: u64,
    /// Most bytes by which a stream of a fold may be ahead of the slowest. At most `window_bytes` if the data plane
    /// folds in step. Unbounded if it folds each stream as its bytes arrive.
    pub fold_ahead_bytes: u64,
    /// How long a stream may be silent before its node's core is told.
    pub stall_after: Duration,
    /// Smallest striped allreduce. `None`: the cost model decides.
    pub striped_bytes_min: Option<u64>,
    pub clocks: Clocks,
    pub means: Means,
    /// All nodes start within this time.
    pub start_spread: Duration,
    /// Whether owners know everything: no members join or leave after the start, and stores have space.
    pub calm: bool,
    /// Whether all objects fit into every store at once.
    pub has_space: bool,
    /// Lines of the log kept for the report of a failure.
    pub tail_lines: Option<usize>,
    /// Whether to keep the lines that scenarios show.
    pub keep_talk: bool,
}

pub(crate) struct Node {
    pub id: NodeId,
    pub boot: u64,
    pub alive: bool,
    pub core: Core,
    pub arena: Vec<u8>,
    pub data_plane: DataPlane,
    pub tick_at: Option<Duration>,
    /// The arrival time of the last report of each data thread.
    pub last_report: [Duration; outputs::DATA_THREADS],
    /// Ticks in a row at the same time.
    pub idle_ticks: u32,
    pub members: std::collections::BTreeSet<NodeId>,
    pub process: Process,
    pub leaving: Option<Leaving>,
}

/// Counted over a whole run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    pub events: u64,
    pub messages: u64,
    pub flows: u64,
    pub bulk_bytes: u64,
    /// Most streams out of one copy at a time.
    pub fanout_max: usize,
    pub evictions: u64,
    /// Targets of allreduces that were assembled from stripes, counted on each node.
    pub gathered: u64,
    pub broken_transfers: u64,
    /// Gets that clients answered from their own memory.
    pub from_memory: u64,
    /// How often a node believed another one dead that lived.
    pub false_deaths: u64,
}

pub struct World {
    pub(crate) plan: Plan,
    seed: u64,
    pub(crate) queue: Queue<SimEvent>,
    pub(crate) rng: SimRng,
    pub(crate) net: Net,
    pub(crate) control_links: ControlLinks,
    pub(crate) faults: Faults,
    pub(crate) rules: Rules,
    pub(crate) deletion_oracle: DeletionOracle,
    pub(crate) history: History,
    pub excuses: Excuses,
    pub(crate) coverage: Follower,
    pub(crate) nodes: Vec<Node>,
    pub(crate) flows: BTreeMap<FlowId, Flow>,
    pub(crate) sessions: BTreeMap<ClientId, Session>,
    pub(crate) tasks: BTreeMap<TaskId, Task>,
    /// The object and edition that each pull asked for, by receiver.
    pub(crate) pulls: BTreeMap<(Place, TransferId), (ObjectId, Edition)>,
    /// The state of tasks that put many objects.
    putting: BTreeMap<TaskId, Putting>,
    pub(crate) violation: Option<String>,
    /// Events in a row at the same time.
    at_one_moment: u64,
    pub names: Names,
    pub model: Model,
    pub log: Log,
    pub stats: Stats,
}

impl World {
    pub fn new(plan: Plan, seed: u64) -> Self {
        let mut rng = SimRng::new(seed);
        let mut world = World {
            queue: Queue::default(),
            net: Net::new(plan.net.clone(), &mut rng),
            control_links: ControlLinks::default(),
            faults: Faults::default(),
            rules: Rules::default(),
            deletion_oracle: DeletionOracle::default(),
            history: History::default(),
            excuses: Excuses::default(),
            coverage: Follower::default(),
            nodes: Vec::new(),
            flows: BTreeMap::new(),
            sessions: BTreeMap::new(),
            tasks: BTreeMap::new(),
            pulls: BTreeMap::new(),
            putting: BTreeMap::new(),
            violation: None,
            at_one_moment: 0,
            names: Names::default(),
            model: Model::default(),
            log: Log::new(plan.tail_lines, plan.keep_talk),
            stats: Stats::default(),
            rng: rng.split(),
            seed,
            plan,
        };
        for index in 0..world.plan.nodes {
            world.add_node(index);
        }
        world
    }

    pub fn now(&self) -> Duration {
        self.queue.now()
    }

    /// The first broken rule, if any.
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn next_at(&self) -> Option<Duration> {
        self.queue.next_at().map(|at| at.max(self.queue.now()))
    }

    /// Handles the next event. False if there is none, or if a rule was broken.
    pub fn step(&mut self) -> bool {
        if self.violation.is_some() {
            return false;
        }
        let before = self.queue.now();
        let Some(event) = self.queue.pop() else { return false };
        self.stats.events += 1;
        let happenings_max = HAPPENINGS_MAX + HAPPENINGS_PER_MEMBER * self.model.members();
        self.at_one_moment = if self.queue.now() > before { 0 } else { self.at_one_moment + 1 };
        if self.at_one_moment > MOMENT_MAX || self.stats.events > happenings_max {
            self.violate(format!("events without end, such as {event:?}"));
        }
        if let Some(event) = self.defer(event) {
            self.dispatch(event);
        }
        self.violation.is_none()
    }

    /// Handles all events until `at`, and sets the clock to it.
    pub fn run_until(&mut self, at: Duration) {
        while self.next_at().is_some_and(|next| next <= at) {
            if !self.step() {
                return;
            }
        }
        if self.violation.is_none() {
            self.queue.idle_until(at);
        }
    }

    /// All nodes sleep for `time`, and wake up.
    pub fn sleep(&mut self, time: Duration) {
        note!(self, "{time:?} pass");
        self.queue.jump(time);
    }

    /// Whether something other than gossip and timers is under way.
    pub fn is_busy(&self) -> bool {
        self.queue.iter().any(|event| match event {
            SimEvent::Tick { .. }
            | SimEvent::Datagram { .. }
            | SimEvent::StallCheck { .. }
            | SimEvent::Verdict(_) => false,
            SimEvent::Task { event, .. } => *event != crate::event::TaskEvent::Overdue,
            SimEvent::Control { message, .. } => !outputs::is_noise(message),
            _ => true,
        })
    }

    fn dispatch(&mut self, event: SimEvent) {
        match event {
            SimEvent::Boot { place } => self.boot(place),
            SimEvent::Report { place, input, frees } => self.on_report(place, input, &frees),
            SimEvent::Tick { place } => self.on_tick(place),
            SimEvent::Dial { link, waited } => self.on_dial(link, waited),
            SimEvent::Control { link, message, said, .. } => {
                self.on_control(link, QueuedMessage { message, said })
            }
            SimEvent::LinkFreed { link } => self.on_link_freed(link),
            SimEvent::LinkLost { link, gone } => self.on_link_lost(link, gone),
            SimEvent::LinkClosed { link, from, to } => self.on_link_closed(link, from, to),
            SimEvent::PeerLost { place, node } => self.feed(place, Input::PeerBroken { node }),
            SimEvent::Datagram { from, to, bytes } => self.on_datagram(from, to, bytes),
            SimEvent::Call { client, call, request } => self.on_call(client, call, request),
            SimEvent::ClientGone { client } => self.on_client_gone(client),
            SimEvent::Answer { client, call, reply } => self.on_answer(client, call, reply),
            SimEvent::SendStep { place, send } => self.on_send_step(place, send),
            SimEvent::DialFailed { place, send } => self.on_dial_failed(place, send),
            SimEvent::FoldStep { place, fold } => self.on_fold_step(place, fold),
            SimEvent::Flow { flow, event } => self.on_flow(flow, event),
            SimEvent::FlowFreed { flow } => self.on_flow_freed(flow),
            SimEvent::Verdict(suspects) => self.on_verdict_due(suspects),
            SimEvent::StallCheck { place, transfer } => self.on_stall_check(place, transfer),
            SimEvent::Task { task, event } => self.on_task(task, event),
            SimEvent::Fault(fault) => self.strike(fault),
            SimEvent::Exit { place } => self.exit(place),
            SimEvent::Relief(relief) => self.relieve(relief),
            SimEvent::Late(event) => match *event {
                SimEvent::Flow { flow, event } => self.on_arrival(flow, event),
                other => self.dispatch(other),
            },
        }
    }

    pub(crate) fn violate(&mut self, what: String) {
        self.log.write(self.queue.now(), Topic::Inside, format_args!("VIOLATION {what}"));
        self.violation.get_or_insert(what);
    }

    pub(crate) fn place(&self, index: usize) -> Place {
        Place { index, boot: self.nodes[index].boot }
    }

    /// The node at `place`, if this start of it is still alive.
    pub(crate) fn alive(&mut self, place: Place) -> Option<&mut Node> {
        self.nodes.get_mut(place.index).filter(|node| node.alive && node.boot == place.boot)
    }

    /// The place of a node, if this start of it is alive.
    pub(crate) fn place_of(&self, id: NodeId) -> Option<Place> {
        let index = crate::names::index_of(id.addr);
        let node = self.nodes.get(index)?;
        (node.alive && node.id == id).then_some(Place { index, boot: node.boot })
    }

    pub(crate) fn after(&self, delay: Duration) -> Duration {
        self.queue.now() + delay
    }
}

/// Writes a line on `Topic::Inside` about a step of a node.
macro_rules! note {
    ($world:expr, $($text:tt)*) => {
        if $world.log.is_wanted() {
            $world.log.write($world.queue.now(), crate::log::Topic::Inside, format_args!($($text)*));
        }
    };
}

/// Writes a line that scenarios show.
macro_rules! tell {
    ($world:expr, $($text:tt)*) => {
        if $world.log.is_wanted() {
            $world.log.write($world.queue.now(), crate::log::Topic::Talk, format_args!($($text)*));
        }
    };
}

pub(crate) use {note, tell};

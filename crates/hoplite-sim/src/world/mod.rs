//! A whole cluster of real cores in a simulated world.
//!
//! One queue of events drives everything. It is ordered by time, then by the order in which events were pushed; the
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

/// More events than this at one moment are a loop.
const MOMENT_MAX: u64 = 100_000;

/// Runs take some ten thousand, and some more for each of many objects; this many are a loop that lets time pass.
const HAPPENINGS_MAX: u64 = 2_000_000;
const HAPPENINGS_PER_MEMBER: u64 = 200;

/// Which start of which node: what was meant for an earlier start never reaches a later one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    pub index: usize,
    pub boot: u64,
}

/// The clocks of all hosts.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// What each shows at the start, in milliseconds.
    pub wall_ms: Vec<u64>,
    /// By how much one may be set forward or back while its node is down.
    pub steps_ms: u64,
}

impl Clocks {
    /// All alike.
    pub fn even(nodes: usize) -> Self {
        Clocks { wall_ms: vec![WALL_MS; nodes], steps_ms: 0 }
    }
}

/// What hosts and processes have, and have to do with.
#[derive(Clone, Copy, Debug)]
pub struct Means {
    /// What the control thread takes for each input, and for each message that it says.
    pub input_time: Duration,
    pub message_time: Duration,
    /// Messages that a control connection may hold before the other side has taken them in.
    pub outbox_max: usize,
    /// Connections that a process may have.
    pub descriptors_max: usize,
    /// Of a hundred bulk connections, how many cannot be made.
    pub failing_dials: u64,
}

impl Default for Means {
    /// Plenty of everything.
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

/// When worlds begin, about, in milliseconds since 1970.
pub const WALL_MS: u64 = 1_700_000_000_000;

/// Everything a world is, besides what happens in it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub nodes: usize,
    pub store_bytes: u64,
    pub net: NetPlan,
    /// Most bytes a stream moves at once. A multiple of 8.
    pub grain_bytes: u64,
    /// Bytes a sender may have under way before the receiver has taken them.
    pub window_bytes: u64,
    /// How far a stream of a fold may run ahead of the slowest; no further than `window_bytes`
    /// where the data plane folds in step, unbounded where it folds each stream as it comes.
    pub fold_ahead_bytes: u64,
    /// How long a stream may bring nothing before its node's core is told.
    pub stall_after: Duration,
    /// Allreduces from this size on are striped; or where the cost model says so.
    pub striped_bytes_min: Option<u64>,
    pub clocks: Clocks,
    pub means: Means,
    /// Nodes start within this time of each other.
    pub start_spread: Duration,
    /// Owners know everything: members neither come nor go after the start, and stores have space.
    pub calm: bool,
    /// Everything fits everywhere at once.
    pub has_space: bool,
    /// Lines of the log kept for the report of a failure.
    pub tail_lines: Option<usize>,
    /// Keep what scenarios show.
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
    /// When the last report of each data thread arrives.
    pub last_report: [Duration; outputs::DATA_THREADS],
    /// Ticks in a row that left the clock where it was.
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
    /// Targets of allreduces that were put together from stripes, one for each node.
    pub gathered: u64,
    pub broken_transfers: u64,
    /// Gets that clients answered themselves.
    pub from_memory: u64,
    /// How often a node took another one for dead that lived.
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
    /// What each pull asked for, by receiver.
    pub(crate) pulls: BTreeMap<(Place, TransferId), (ObjectId, Edition)>,
    /// Tasks that put many objects.
    putting: BTreeMap<TaskId, Putting>,
    pub(crate) violation: Option<String>,
    /// Happenings in a row that left the clock where it was.
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

    /// The first thing that went against the rules, if any.
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    pub fn next_at(&self) -> Option<Duration> {
        self.queue.next_at().map(|at| at.max(self.queue.now()))
    }

    /// Lets the next thing happen. False when nothing is left to happen, or a rule was broken.
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

    /// Steps until `at`, and moves the clock there.
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

    /// Everybody sleeps for that long, and wakes up.
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

    /// The node there, if it is still the same start of it and alive.
    pub(crate) fn alive(&mut self, place: Place) -> Option<&mut Node> {
        self.nodes.get_mut(place.index).filter(|node| node.alive && node.boot == place.boot)
    }

    /// The place of a node, if that very start of it is alive.
    pub(crate) fn place_of(&self, id: NodeId) -> Option<Place> {
        let index = crate::names::index_of(id.addr);
        let node = self.nodes.get(index)?;
        (node.alive && node.id == id).then_some(Place { index, boot: node.boot })
    }

    pub(crate) fn after(&self, delay: Duration) -> Duration {
        self.queue.now() + delay
    }
}

/// Writes a line on `Topic::Inside` about what a node does.
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

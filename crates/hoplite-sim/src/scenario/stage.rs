//! The small world in which a scenario runs.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_core::io::ClientId;
use hoplite_types::{ErrorKind, ObjectId};

use super::command::{size, time, Command, Options, Subject};
use super::state;
use crate::model::Origin;
use crate::net::NetPlan;
use crate::phases::join;
use crate::task::{Ending, Outcome, Spec, Task, TaskId};
use crate::world::{Clocks, Means, Plan, World};

/// Longest time until a block is quiet.
const QUIET_WITHIN: Duration = Duration::from_secs(60);

/// A scenario may show any error.
const FAILURES: [ErrorKind; 12] = [
    ErrorKind::TimedOut,
    ErrorKind::Deleted,
    ErrorKind::Lost,
    ErrorKind::StoreFull,
    ErrorKind::AlreadyExists,
    ErrorKind::Mismatch,
    ErrorKind::BadArgument,
    ErrorKind::NodeUnreachable,
    ErrorKind::Aborted,
    ErrorKind::VersionMismatch,
    ErrorKind::Internal,
    ErrorKind::LimitReached,
];

/// The first line of a block whose output is not recorded.
const QUIET: &str = "quiet";

pub struct Stage {
    world: World,
    /// The line that made the world, and the blocks that ran in it since.
    settings: String,
    played: Vec<Vec<String>>,
    /// One client per node. A client that died is replaced.
    clients: BTreeMap<usize, ClientId>,
    /// The last task on each object, and the last put of it.
    last: BTreeMap<String, TaskId>,
    puts: BTreeMap<String, TaskId>,
    ids: BTreeMap<String, ObjectId>,
}

impl Stage {
    /// Makes the world from the single line `world key=value ...`.
    pub fn new(commands: &[String]) -> Result<Self, String> {
        let [line] = commands else { return Err("the first block is one line: world ...".to_owned()) };
        let mut words = line.split_whitespace();
        if words.next() != Some("world") {
            return Err(format!("{line:?} is not a world"));
        }
        let (mut nodes, mut store, mut latency, mut rate) =
            (1, 4 << 20, Duration::from_millis(1), 100_000_000);
        let mut striped = u64::MAX;
        for word in words {
            match word.split_once('=') {
                Some(("nodes", value)) => nodes = size(value)? as usize,
                Some(("store", value)) => store = size(value)?,
                Some(("striped", value)) => striped = size(value)?,
                Some(("latency", value)) => latency = time(value)?,
                Some(("rate", value)) => rate = size(value.strip_suffix("MB").unwrap_or(value))? * 1_000_000,
                _ => return Err(format!("unknown setting {word:?}")),
            }
        }
        let plan = Plan {
            nodes,
            store_bytes: store,
            net: NetPlan::uniform(nodes, latency, rate),
            grain_bytes: 16 << 10,
            window_bytes: 128 << 10,
            fold_ahead_bytes: u64::MAX,
            stall_after: Duration::from_secs(1),
            striped_bytes_min: Some(striped),
            clocks: Clocks::even(nodes),
            means: Means::default(),
            start_spread: Duration::ZERO,
            calm: false,
            has_space: false,
            tail_lines: None,
            keep_talk: true,
        };
        let mut world = World::new(plan, 1);
        join(&mut world)?;
        world.log.take_talk();
        Ok(Stage {
            world,
            settings: line.clone(),
            played: Vec::new(),
            clients: BTreeMap::new(),
            last: BTreeMap::new(),
            puts: BTreeMap::new(),
            ids: BTreeMap::new(),
        })
    }

    /// Plays a block, and returns the lines to record.
    pub fn play(&mut self, block: &[String]) -> Result<Vec<String>, String> {
        let (is_quiet, lines) = match block.split_first() {
            Some((first, rest)) if first == QUIET => (true, rest),
            _ => (false, block),
        };
        let commands: Vec<Command> = lines.iter().map(|line| line.parse()).collect::<Result<_, String>>()?;
        if commands.iter().any(|command| matches!(command, Command::Show { .. })) {
            return self.show(commands);
        }
        let lines = self.run(commands)?;
        self.played.push(block.to_vec());
        if let Some(failed) = lines.iter().find(|line| is_quiet && line.contains(" < failed ")) {
            return Err(format!("a {QUIET} block hides an error: {failed}"));
        }
        match is_quiet {
            true => Ok(vec!["ok".to_owned()]),
            false if lines.is_empty() => Ok(vec!["nothing".to_owned()]),
            false => Ok(lines),
        }
    }

    /// Gives the commands, runs the world, and returns the lines of its log that scenarios show.
    fn run(&mut self, commands: Vec<Command>) -> Result<Vec<String>, String> {
        let mut for_a_time = false;
        for command in commands {
            if let Command::Run { time } = command {
                for_a_time = true;
                self.world.run_until(self.world.now() + time);
            } else {
                self.give(command)?;
            }
        }
        let until = self.world.now() + QUIET_WITHIN;
        while !for_a_time && self.world.is_busy() && self.world.violation().is_none() {
            if self.world.now() > until {
                return Err("the world does not become quiet".to_owned());
            }
            self.world.step();
        }
        let mut lines = self.world.log.take_talk();
        match self.world.violation() {
            Some(what) => {
                lines.push(format!("VIOLATION {what}"));
                Err(lines.join("\n"))
            }
            None => Ok(lines),
        }
    }

    /// The state after the blocks that were played. A core answers some of these questions only to a client, and its
    /// numbers grow with every call. So they are put to a second world with the same history, which is then dropped.
    fn show(&mut self, commands: Vec<Command>) -> Result<Vec<String>, String> {
        let mut second = Stage::new(std::slice::from_ref(&self.settings))?;
        for block in &self.played {
            second.play(block)?;
        }
        let mut lines = Vec::new();
        for command in commands {
            let Command::Show { subjects } = command else {
                return Err("status is the only command of its block".to_owned());
            };
            let living = (0..self.world.node_count()).filter(|node| self.world.is_alive(*node));
            let subjects = match subjects.is_empty() {
                true => living.map(Subject::Node).collect(),
                false => subjects,
            };
            for subject in subjects {
                lines.extend(match subject {
                    Subject::Node(node) => state::of_node(&mut self.world, &mut second.world, node)?,
                    Subject::Object(name) => {
                        let id = self.world.names.id(&name);
                        state::of_object(&mut self.world, &mut second.world, id)?
                    }
                });
            }
        }
        Ok(lines)
    }

    fn client(&mut self, node: usize) -> Result<ClientId, String> {
        if node >= self.world.node_count() {
            return Err(format!("there is no n{}", node + 1));
        }
        if let Some(client) = self.clients.get(&node).filter(|client| self.world.is_client_alive(**client)) {
            return Ok(*client);
        }
        let client = self.world.connect(node);
        self.clients.insert(node, client);
        Ok(client)
    }

    fn id(&mut self, name: &str) -> ObjectId {
        let id = self.world.names.id(name);
        self.ids.insert(name.to_owned(), id);
        id
    }

    fn ids(&mut self, names: &[String]) -> Vec<ObjectId> {
        names.iter().map(|name| self.id(name)).collect()
    }

    /// Starts a task of the node's client. `about` names it for later commands.
    fn start(
        &mut self,
        node: usize,
        about: &str,
        spec: Spec,
        within: Option<Duration>,
    ) -> Result<(), String> {
        let is_put = matches!(spec, Spec::Put { .. } | Spec::PutSmall { .. });
        let mut task = Task::new(self.client(node)?, spec).may_fail(&FAILURES);
        task.timeout = within;
        let id = self.world.plan_task(self.world.now(), task);
        self.last.insert(about.to_owned(), id);
        if is_put {
            self.puts.insert(about.to_owned(), id);
        }
        Ok(())
    }

    fn give(&mut self, command: Command) -> Result<(), String> {
        match command {
            Command::Resume { name } => {
                let put = self.puts.get(&name).ok_or_else(|| format!("{name} is not being put"))?;
                self.world.resume(*put);
            }
            Command::Cancel { name } => {
                let task = self.last.get(&name).ok_or_else(|| format!("no task about {name}"))?;
                self.world.plan_cancel(self.world.now(), *task);
            }
            Command::KillClient { node } => {
                let client = self.client(node)?;
                self.world.kill_client(client, false);
            }
            Command::Kill { node } => self.world.kill_node(node, false),
            Command::Restart { node } => self.world.restart_node(node),
            Command::Run { .. } | Command::Show { .. } => unreachable!("the caller does it"),
            call => return self.call(call),
        }
        Ok(())
    }

    /// A client calls its node.
    fn call(&mut self, command: Command) -> Result<(), String> {
        match command {
            Command::Put { node, name, size, dtype, small, options } => {
                let id = self.id(&name);
                if !self.world.model.knows(id) {
                    self.world.model.add(id, Origin::Put { dtype });
                }
                let spec = match small {
                    true => Spec::PutSmall { id, size, dtype, variant: 0 },
                    false => put_spec(id, size, dtype, &options),
                };
                self.start(node, &name, spec, options.within)
            }
            Command::Get { node, name, options } => {
                let Options { partial, unless_lost: fail_if_lost, held: hold, within, .. } = options;
                let spec = Spec::Get { id: self.id(&name), partial, fail_if_lost, hold };
                self.start(node, &name, spec, within)
            }
            Command::Delete { node, names, options } => {
                let ids = self.ids(&names);
                self.start(node, "delete", Spec::Delete { ids }, options.within)
            }
            Command::Reduce { node, target: name, op, num_objects, names, options } => {
                let (target, sources) = (self.id(&name), self.ids(&names));
                let Options { fixed, to_sources, .. } = options;
                let spec = Spec::Reduce { target, sources, num_objects, op, fixed, to_sources };
                self.expect_target(&spec, &options)?;
                self.start(node, &name, spec, options.within)
            }
            Command::Wait { node, count, names, options } => {
                let spec = Spec::Wait { ids: self.ids(&names), count, fail_if_lost: options.unless_lost };
                self.start(node, "wait", spec, options.within)
            }
            Command::Prefetch { node, names } => {
                let spec = Spec::Prefetch { ids: self.ids(&names), nodes: Vec::new() };
                self.start(node, "prefetch", spec, None)
            }
            Command::Locate { node, name } => {
                let id = self.id(&name);
                self.start(node, "locate", Spec::Locate { id }, None)
            }
            Command::Status { node } => self.start(node, "status", Spec::Status, None),
            other => unreachable!("{other:?} is no call"),
        }
    }

    /// Tells the model of a reduction's target, if it does not know it yet.
    fn expect_target(&mut self, reduction: &Spec, options: &Options) -> Result<(), String> {
        let Spec::Reduce { target, sources, num_objects, op, fixed, .. } = reduction else {
            unreachable!("only reductions have targets")
        };
        let known = sources.iter().find_map(|id| Some((self.world.model.dtype(*id)?, *id)));
        let (dtype, size) = match (known, options.dtype) {
            (Some((dtype, like)), _) => {
                (dtype, self.world.model.size(like).or_else(|| self.world.put_size(like)).unwrap_or(0))
            }
            (None, Some(dtype)) => (dtype, options.size),
            (None, None) => return Err("no source exists yet: dtype= and size= are missing".to_owned()),
        };
        if !self.world.model.knows(*target) {
            let origin = Origin::Reduction {
                sources: sources.clone(),
                num_objects: *num_objects as usize,
                op: *op,
                dtype,
                size,
                fixed: *fixed,
            };
            self.world.model.add(*target, origin);
        }
        Ok(())
    }

    /// Deletes everything. An error if anything is left.
    pub fn close(mut self) -> Result<(), String> {
        for client in self.clients.values().copied().collect::<Vec<_>>() {
            self.world.kill_client(client, false);
        }
        let Some(node) = (0..self.world.node_count()).find(|node| self.world.is_alive(*node)) else {
            return Ok(());
        };
        let client = self.world.connect(node);
        if !self.ids.is_empty() {
            let ids = self.ids.values().copied().collect();
            let task = self.world.plan_task(self.world.now(), Task::new(client, Spec::Delete { ids }));
            self.world.run_until(self.world.now() + QUIET_WITHIN);
            if !matches!(self.world.task(task).outcome, Some(Outcome::Done)) {
                return Err(format!("the last delete: {:?}", self.world.task(task).outcome));
            }
        }
        self.world.violation().map_or(Ok(()), |what| Err(what.to_owned()))?;
        self.world.model.judge_postponed()?;
        self.world.judge_emptiness()
    }
}

fn put_spec(id: ObjectId, size: u64, dtype: Option<hoplite_types::Dtype>, options: &Options) -> Spec {
    let ending = match (options.abort_at, options.hold_at) {
        (Some(at), _) => Ending::AbortAt(at),
        (_, Some(at)) => Ending::HoldAt(at),
        _ => Ending::Seal,
    };
    let piece = options.piece.unwrap_or(size.max(1));
    Spec::Put { id, size, dtype, piece, pause: options.pause, ending, variant: 0, keep: options.keep }
}

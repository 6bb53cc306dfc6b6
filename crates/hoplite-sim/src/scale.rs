//! Measures the time of one collective over many nodes without faults. It is not a test.
//!
//! All links have the same latency and rate, and processing takes no time beyond the latency. So the result depends on
//! the decisions of the real core.

use std::time::Duration;

use hoplite_types::{limits, Dtype, ObjectId, Op};

use crate::model::Origin;
use crate::net::NetPlan;
use crate::phases::join;
use crate::task::{Ending, Outcome, Spec, Task, TaskId};
use crate::world::{Clocks, Means, Plan, World};

/// About the size of the kernel's buffers between two nodes.
const WINDOW: u64 = 256 << 10;

/// Longest time of one collective.
const WITHIN: Duration = Duration::from_secs(600);

/// Rounds that are run; the last one counts. Nodes measure links by their traffic, so first rounds are not typical.
const ROUNDS: usize = 3;

const DTYPE: Dtype = Dtype::F32;

/// The collective to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collective {
    /// One node has the object. The collective ends when all others have it.
    Broadcast,
    /// Every node has a source. The collective ends when the first node has their sum.
    Reduce,
}

/// The cluster and the size of the object.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    pub nodes: usize,
    pub object_bytes: u64,
    pub latency: Duration,
    pub bytes_per_s: u64,
}

/// The time of one collective. An error if it fails, or the world breaks a rule.
pub fn measure(collective: Collective, cluster: Cluster) -> Result<Duration, String> {
    let mut world = World::new(plan(cluster), 1);
    join(&mut world)?;
    let mut took = Duration::ZERO;
    for round in 0..ROUNDS {
        took = match collective {
            Collective::Broadcast => broadcast(&mut world, cluster, round)?,
            Collective::Reduce => reduce(&mut world, cluster, round)?,
        };
    }
    Ok(took)
}

fn plan(cluster: Cluster) -> Plan {
    Plan {
        nodes: cluster.nodes,
        // Room for a source, a partial sum and a result, of this round and of the one before.
        store_bytes: 8 * cluster.object_bytes,
        net: NetPlan::uniform(cluster.nodes, cluster.latency, cluster.bytes_per_s),
        grain_bytes: limits::grain_bytes(cluster.object_bytes).next_multiple_of(8),
        window_bytes: WINDOW,
        fold_ahead_bytes: u64::MAX,
        striped_bytes_min: None,
        stall_after: Duration::from_secs(1),
        clocks: Clocks::even(cluster.nodes),
        means: Means::default(),
        start_spread: Duration::ZERO,
        calm: true,
        has_space: true,
        tail_lines: Some(20),
        keep_talk: false,
    }
}

fn broadcast(world: &mut World, cluster: Cluster, round: usize) -> Result<Duration, String> {
    let id = put(world, cluster, 0, &format!("object-{round}"))?;
    let began = world.now();
    let get = Spec::Get { id, partial: false, fail_if_lost: false, hold: Duration::ZERO };
    let gets = (1..cluster.nodes).map(|node| start(world, node, get.clone())).collect::<Vec<_>>();
    finish(world, &gets)?;
    let took = world.now() - began;
    delete(world, vec![id])?;
    Ok(took)
}

fn reduce(world: &mut World, cluster: Cluster, round: usize) -> Result<Duration, String> {
    let name = |node: usize| format!("source-{round}-{node}");
    let put = |node: usize| put(world, cluster, node, &name(node));
    let sources = (0..cluster.nodes).map(put).collect::<Result<Vec<_>, _>>()?;
    let target = world.names.id(&format!("sum-{round}"));
    let (op, num_objects) = (Op::Sum, cluster.nodes);
    let origin = Origin::Reduction {
        sources: sources.clone(),
        num_objects,
        op,
        dtype: DTYPE,
        size: cluster.object_bytes,
        fixed: false,
    };
    world.model.add(target, origin);
    let began = world.now();
    let num_objects = num_objects as u32;
    let reduction =
        Spec::Reduce { target, sources: sources.clone(), num_objects, op, fixed: false, to_sources: false };
    let get = Spec::Get { id: target, partial: false, fail_if_lost: false, hold: Duration::ZERO };
    let tasks = [start(world, 0, reduction), start(world, 0, get)];
    finish(world, &tasks)?;
    let took = world.now() - began;
    delete(world, [vec![target], sources].concat())?;
    Ok(took)
}

fn put(world: &mut World, cluster: Cluster, node: usize, name: &str) -> Result<ObjectId, String> {
    let (id, size) = (world.names.id(name), cluster.object_bytes);
    world.model.add(id, Origin::Put { dtype: Some(DTYPE) });
    let (pause, ending, keep) = (Duration::ZERO, Ending::Seal, None);
    let spec = Spec::Put { id, size, dtype: Some(DTYPE), piece: size, pause, ending, variant: 0, keep };
    let task = start(world, node, spec);
    finish(world, &[task])?;
    Ok(id)
}

fn delete(world: &mut World, ids: Vec<ObjectId>) -> Result<(), String> {
    let task = start(world, 0, Spec::Delete { ids });
    finish(world, &[task])
}

fn start(world: &mut World, node: usize, spec: Spec) -> TaskId {
    let client = world.connect(node);
    world.plan_task(world.now(), Task::new(client, spec))
}

/// Runs the world until all these tasks are over.
fn finish(world: &mut World, tasks: &[TaskId]) -> Result<(), String> {
    let until = world.now() + WITHIN;
    let is_over = |world: &World, task: &TaskId| world.task(*task).is_over();
    while !tasks.iter().all(|task| is_over(world, task)) {
        if !world.step() || world.now() > until {
            let why = world.violation().unwrap_or("it does not end");
            return Err(format!("at {:?}: {why}", world.now()));
        }
    }
    let failed = tasks.iter().find_map(|task| match &world.task(*task).outcome {
        Some(Outcome::Failed(error)) => Some(error.to_string()),
        _ => None,
    });
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn cluster(nodes: usize) -> Cluster {
        Cluster { nodes, object_bytes: 4 << 20, latency: Duration::from_micros(100), bytes_per_s: 4 << 20 }
    }

    #[test]
    fn more_nodes_take_hardly_longer_and_never_less_than_the_wire() {
        for collective in [Collective::Broadcast, Collective::Reduce] {
            for nodes in [2, 8] {
                let took = measure(collective, cluster(nodes)).unwrap();
                assert!(took >= SECOND, "{collective:?} over {nodes}: {took:?}");
                assert!(took < SECOND * 3 / 2, "{collective:?} over {nodes}: {took:?}");
            }
        }
    }
}

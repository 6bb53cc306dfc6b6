//! The state of nodes and of directory entries, as `status` commands show it.

use hoplite_core::io::{ClientId, Input, Output};
use hoplite_core::Core;
use hoplite_types::client::{Location, Reply, Request, Status};
use hoplite_types::{CopyId, ErrorKind, ObjectId};

use crate::data_plane::{Copy, Fold, Stage};
use crate::names::node as name;
use crate::show;
use crate::task::{plain_request, Phase, Spec, Task};
use crate::world::World;

/// A client that asks cores directly, without a connection.
const INSPECTOR: ClientId = ClientId(u64::MAX);

/// The copies, streams, folds and waiting clients of a node. `second` is a world with the same history, in which a
/// core may be asked.
pub fn of_node(world: &mut World, second: &mut World, index: usize) -> Result<Vec<String>, String> {
    if index >= world.node_count() || !world.is_alive(index) {
        return Err(format!("n{} does not run", index + 1));
    }
    let node = name(world.nodes[index].id);
    let status = status_of(second, index)?;
    let mut lines = vec![format!("{node}: {} of {} B used", status.used_bytes, status.store_bytes)];
    lines.extend(copies(world, index));
    let plane = &world.nodes[index].data_plane;
    lines.extend(plane.receives.iter().map(|(transfer, receive)| {
        let (from, at) = (name(receive.from), receive.at);
        format!("  receives t{} from {from} into c{}, {at} B so far", transfer.0, receive.copy.0)
    }));
    lines.extend(plane.sends.values().filter_map(|send| {
        let flow = world.flows.get(&send.flow)?;
        let (transfer, copy, to) = (flow.transfer.0, send.copy.0, name(flow.to));
        Some(format!("  sends t{transfer} from c{copy} to {to}, {} B so far", send.at))
    }));
    lines.extend(plane.folds.values().map(fold));
    if status.reductions > 0 {
        lines.push(format!("  open reductions and slots: {}", status.reductions));
    }
    let here = |task: &&Task| world.sessions[&task.client].place.index == index;
    lines.extend(world.tasks.values().filter(here).filter_map(|task| waiting(world, task)));
    Ok(lines)
}

/// One line for each copy on a node.
fn copies(world: &mut World, index: usize) -> Vec<String> {
    let node = &world.nodes[index];
    let shown = node.data_plane.copies.iter().map(|(id, copy)| {
        let identity = node.core.identity_of(*id).or(copy.identity);
        let what = identity.map(|(object, edition)| {
            format!("{} {}", world.names.object(object), world.names.edition(edition))
        });
        format!("  has c{}: {}{}", id.0, what.unwrap_or_default(), state_of(&node.core, *id, copy))
    });
    shown.collect()
}

/// How much of a copy there is, and whether it stays.
fn state_of(core: &Core, id: CopyId, copy: &Copy) -> String {
    let (watermark, size) = (copy.watermark, copy.extent.size);
    let amount = match copy.stage {
        Stage::Sealed(_) => format!(", {size} B complete"),
        Stage::Writing => format!(", {watermark} of {size} B"),
        Stage::Aborted => format!(", {watermark} of {size} B aborted"),
    };
    let is_deleted = core.identity_of(id).is_some_and(|(object, _)| core.remembers_deletion(object));
    let is_pinned = core.is_pinned(id) && copy.stage != Stage::Aborted;
    let stays = match (is_deleted, is_pinned) {
        (true, _) => " deleted",
        (false, true) => " pinned",
        (false, false) => "",
    };
    let views = match copy.views {
        0 => String::new(),
        1 => ", 1 view".to_owned(),
        views => format!(", {views} views"),
    };
    format!("{amount}{stays}{views}")
}

fn fold(fold: &Fold) -> String {
    let sources = fold.sources.iter().map(|source| format!("c{}", source.copy.0));
    let streams =
        fold.streams.iter().map(|stream| format!("t{} from {}", stream.transfer.0, name(stream.from)));
    let inputs: Vec<_> = sources.chain(streams).collect();
    let open = if fold.rule.open { ", more inputs to come" } else { "" };
    format!("  folds [{}] into c{}, {} B so far{open}", inputs.join(", "), fold.out.0, fold.published)
}

/// The call or work of a task's client, if the task is not over.
fn waiting(world: &World, task: &Task) -> Option<String> {
    let client = world.client_name(task.client);
    let doing = match (&task.phase, &task.spec) {
        (Phase::Waiting | Phase::Over, _) => return None,
        (Phase::Writing { .. }, Spec::Put { id, .. }) => format!("writes {}", world.names.object(*id)),
        (Phase::Holding { copy } | Phase::Following { copy, .. }, _) => format!("reads c{}", copy.0),
        (_, Spec::Put { id, .. } | Spec::PutSmall { id, .. }) => {
            format!("waits: put {}", world.names.object(*id))
        }
        (_, spec) => format!("waits: {}", show::request(&world.names, &plain_request(spec, None)?)),
    };
    Some(format!("  {client} {doing}"))
}

/// The entry of an object in the directory of its owner.
pub fn of_object(world: &mut World, second: &mut World, id: ObjectId) -> Result<Vec<String>, String> {
    let object = world.names.object(id);
    // Other nodes than the owner pass the question on, and answer later.
    let living: Vec<_> = (0..second.node_count()).filter(|index| second.is_alive(*index)).collect();
    let question = || Request::Locate { id, timeout_ms: None };
    let owner = living.into_iter().find_map(|index| Some((index, ask(second, index, question())?)));
    let Some((index, reply)) = owner else { return Err(format!("no node knows whether it owns {object}")) };
    let owner = name(world.nodes[index].id);
    Ok(match reply {
        Reply::Located { copies, .. } if copies.is_empty() => {
            vec![format!("{object} at its owner {owner}: no copies")]
        }
        Reply::Located { size, copies } => {
            let size = size.map_or("size unknown".to_owned(), |size| format!("{size} B"));
            let holders = copies.iter().map(|copy| format!("  at {}", holder(world, copy)));
            std::iter::once(format!("{object} at its owner {owner}: {size}")).chain(holders).collect()
        }
        Reply::Failed(error) if error.kind == ErrorKind::Deleted => {
            vec![format!("{object} at its owner {owner}: deleted")]
        }
        other => return Err(format!("{owner} answers {other:?}")),
    })
}

fn holder(world: &mut World, copy: &Location) -> String {
    let how = if copy.complete { "complete" } else { "partial" };
    let pinned = if copy.pinned { " pinned" } else { "" };
    format!("{}: {} {how}{pinned}", name(copy.node), world.names.edition(copy.edition))
}

fn status_of(second: &mut World, index: usize) -> Result<Status, String> {
    match ask(second, index, Request::Status) {
        Some(Reply::Status(status)) => Ok(status),
        other => Err(format!("n{} answers {other:?}", index + 1)),
    }
}

/// The answer that the core of a node gives at once, if any. The world does not see the call.
fn ask(second: &mut World, index: usize, request: Request) -> Option<Reply> {
    let now = second.now();
    let core = &mut second.nodes[index].core;
    core.handle(now, Input::Client { client: INSPECTOR, call: 1, request });
    let mut answer = None;
    while let Some(output) = core.poll_output() {
        if let Output::Reply { client: INSPECTOR, reply, .. } = output {
            answer = answer.or(Some(reply));
        }
    }
    if answer.is_none() {
        core.handle(now, Input::Client { client: INSPECTOR, call: 2, request: Request::Cancel { call: 1 } });
        while core.poll_output().is_some() {}
    }
    answer
}

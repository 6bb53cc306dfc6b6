//! Messages in a short readable form, without values that are random or grow.

mod peer;

pub use peer::message;

use hoplite_types::client::{Reply, Request};
use hoplite_types::ObjectId;

use crate::names::{self, Names};

fn within(timeout_ms: Option<u64>) -> String {
    timeout_ms.map(|ms| format!(" within {ms} ms")).unwrap_or_default()
}

fn flag(set: bool, word: &str) -> String {
    if set {
        format!(" {word}")
    } else {
        String::new()
    }
}

pub fn request(names: &Names, request: &Request) -> String {
    let of = |id: &ObjectId| names.object(*id);
    match request {
        Request::Hello { .. } => "hello".to_owned(),
        Request::Create { id, size, timeout_ms, keep, .. } => {
            format!("create {} {size} B{}{}", of(id), flag(*keep, "kept"), within(*timeout_ms))
        }
        Request::PutSmall { id, payload, timeout_ms, .. } => {
            format!("put small {} {} B{}", of(id), payload.0.len(), within(*timeout_ms))
        }
        Request::Progress { copy, watermark } => format!("progress c{} {watermark} B", copy.0),
        Request::Seal { copy, .. } => format!("seal c{}", copy.0),
        Request::Abort { copy } => format!("abort c{}", copy.0),
        Request::Get { id, timeout_ms, partial, fail_if_lost } => format!(
            "get {}{}{}{}",
            of(id),
            flag(*partial, "partial"),
            flag(*fail_if_lost, "unless lost"),
            within(*timeout_ms)
        ),
        Request::Release { copy } => format!("release c{}", copy.0),
        Request::Delete { ids, timeout_ms } => {
            format!("delete {}{}", names.objects(ids), within(*timeout_ms))
        }
        Request::Reduce { target, sources, num_objects, op, order, timeout_ms, to_sources } => format!(
            "reduce {} = {op} of {num_objects} of {} {order:?}{}{}",
            of(target),
            names.objects(sources),
            flag(*to_sources, "to sources"),
            within(*timeout_ms)
        ),
        Request::Wait { ids, count, timeout_ms, fail_if_lost, .. } => {
            let flag = flag(*fail_if_lost, "fail if lost");
            format!("wait {count} of {}{}{}", names.objects(ids), flag, within(*timeout_ms))
        }
        Request::Prefetch { ids, nodes } => {
            let nodes: Vec<_> = nodes.iter().map(|node| names::node(*node)).collect();
            format!("prefetch {} to [{}]", names.objects(ids), nodes.join(" "))
        }
        Request::Locate { id, .. } => format!("locate {}", of(id)),
        Request::Status => "status".to_owned(),
        Request::Cancel { call } => format!("cancel call {call}"),
    }
}

pub fn reply(names: &Names, reply: &Reply) -> String {
    match reply {
        Reply::Welcome { .. } => "welcome".to_owned(),
        Reply::Small { payload, .. } => format!("small {} B", payload.0.len()),
        Reply::Done => "done".to_owned(),
        Reply::Created { copy, .. } => format!("created c{}", copy.0),
        Reply::View { copy, size, sealed, .. } => {
            format!("view c{} {size} B{}", copy.0, flag(!sealed, "unsealed"))
        }
        Reply::Reduced { sources } => format!("reduced over {}", names.objects(sources)),
        Reply::Ready { ids } => format!("ready {}", names.objects(ids)),
        Reply::Located { size, copies } => {
            let copies: Vec<_> = copies
                .iter()
                .map(|at| {
                    let how = if at.complete { "" } else { " partial" };
                    format!("{}{how}{}", names::node(at.node), flag(at.pinned, "pinned"))
                })
                .collect();
            format!("located {size:?} [{}]", copies.join(", "))
        }
        Reply::Status(status) => format!(
            "status members {} used {} copies {} entries {} transfers {} reductions {}",
            status.members.len(),
            status.used_bytes,
            status.copies,
            status.entries,
            status.transfers,
            status.reductions
        ),
        Reply::Failed(error) => format!("failed {:?}: {}", error.kind, error.message),
    }
}

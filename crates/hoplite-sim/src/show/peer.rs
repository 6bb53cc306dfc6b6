//! Messages between nodes.

use hoplite_types::peer::{
    CopyReport, Cursor, DirectoryAnswer, DirectoryRequest, InventoryPage, PeerMessage, SlotAssignment,
    Verdict,
};

use hoplite_types::ReductionId;

use super::flag;
use crate::names::{node, Names};

pub fn message(names: &mut Names, message: &PeerMessage) -> String {
    match message {
        PeerMessage::Directory { origin, hops, id, request } => {
            let passed =
                if *hops > 0 { format!(" (hop {hops} from {})", node(*origin)) } else { String::new() };
            format!("{}{passed}", directory_request(names, &names.object(*id), request))
        }
        PeerMessage::Answer { id, answer } => directory_answer(names, &names.object(*id), answer),
        PeerMessage::Pull { transfer, id, edition, offset, patient } => format!(
            "pull t{} {} {} from {offset} B{}",
            transfer.0,
            names.object(*id),
            names.edition(*edition),
            flag(*patient, "patiently")
        ),
        PeerMessage::CancelPull { transfer } => format!("cancel pull t{}", transfer.0),
        PeerMessage::PullRefused { transfer } => format!("refuse t{}", transfer.0),
        PeerMessage::AssignSlot { reduction, assignment } => {
            format!("assign r{} {}", reduction.number, show_assignment(names, assignment))
        }
        PeerMessage::SlotFailed { reduction, slot, attempt, failure } => {
            format!("{} {failure:?}", show_slot("slot failed", reduction, *slot, *attempt))
        }
        PeerMessage::SlotHeld { reduction, slot, attempt } => {
            show_slot("slot held", reduction, *slot, *attempt)
        }
        PeerMessage::RootDone { reduction, slot, attempt } => {
            show_slot("root done", reduction, *slot, *attempt)
        }
        PeerMessage::Commit { reduction, attempt, sources, .. } => {
            format!("commit r{} attempt {attempt} {}", reduction.number, names.objects(sources))
        }
        PeerMessage::ReleaseSlots { reduction } => format!("release slots r{}", reduction.number),
        PeerMessage::Prefetch { id } => format!("prefetch {}", names.object(*id)),
        PeerMessage::Ping { .. } => "ping".to_owned(),
        PeerMessage::Pong { .. } => "pong".to_owned(),
        PeerMessage::Committed { reduction, sealed } => {
            format!("{} r{}", if *sealed { "committed" } else { "cannot commit" }, reduction.number)
        }
        PeerMessage::BackupIds { ids } => format!("back up {}", names.objects(ids)),
        PeerMessage::ResyncRequest { .. } => "resync".to_owned(),
        PeerMessage::MembersRequest => "members?".to_owned(),
        PeerMessage::Members { members, partial } => {
            let so_far = if *partial { " so far" } else { "" };
            format!("{} members{so_far}", members.len())
        }
        PeerMessage::InventoryRequest { scope, shards, .. } => {
            format!("inventory of {} shards? ({scope:?})", shards.len())
        }
        PeerMessage::Inventory { page, unchanged, next, .. } => inventory(names, page, unchanged.len(), next),
        PeerMessage::DeletionAck { id } => format!("deletion of {} acknowledged", names.object(*id)),
        PeerMessage::SlotNeedsSpace { reduction, slot, attempt } => {
            show_slot("slot needs space", reduction, *slot, *attempt)
        }
        PeerMessage::ReleaseSlot { reduction, slot, attempt } => {
            show_slot("release slot", reduction, *slot, *attempt)
        }
        PeerMessage::Preempt { reduction, slot, attempt } => show_slot("preempt", reduction, *slot, *attempt),
        PeerMessage::Goodbye => "goodbye".to_owned(),
        PeerMessage::Check { transfer } => format!("check t{}", transfer.0),
        PeerMessage::Checked { transfer, watermark } => format!("checked t{} {watermark} B", transfer.0),
    }
}

fn show_slot(what: &str, reduction: &ReductionId, slot: u32, attempt: u32) -> String {
    format!("{what} r{} slot {slot} attempt {attempt}", reduction.number)
}

fn inventory(names: &mut Names, page: &InventoryPage, unchanged: usize, next: &Option<Cursor>) -> String {
    let copies = page.copies.iter();
    let copies: Vec<_> =
        copies.map(|(id, copy)| format!("{} {}", names.object(*id), report(names, copy))).collect();
    format!(
        "inventory: copies [{}], {} claims, {} deleted, {} lost, {unchanged} shards unchanged{}",
        copies.join(", "),
        page.claims.len(),
        page.tombstones.len(),
        page.lost.len(),
        flag(next.is_some(), "(more)")
    )
}

fn report(names: &mut Names, report: &CopyReport) -> String {
    format!(
        "{} {} B{}{}{}{}",
        names.edition(report.edition),
        report.size,
        flag(report.complete, "complete"),
        flag(report.pinned, "pinned"),
        flag(report.leaving, "leaving"),
        report.upstream.map(|from| format!(" from {}", node(from))).unwrap_or_default()
    )
}

fn directory_request(names: &mut Names, id: &str, request: &DirectoryRequest) -> String {
    match request {
        DirectoryRequest::Announce { report: copy, payload, wants_verdict } => format!(
            "announce {id} {}{}{}",
            report(names, copy),
            flag(payload.is_some(), "with payload"),
            flag(*wants_verdict, "(verdict?)")
        ),
        DirectoryRequest::Withdraw { edition, .. } => format!("withdraw {id} {}", names.edition(*edition)),
        DirectoryRequest::Ask { ask, have, failed } => format!(
            "ask {ask} for {id}{}{}",
            have.map(|edition| format!(" having {}", names.edition(edition))).unwrap_or_default(),
            failed.map(|from| format!(" failed by {}", node(from))).unwrap_or_default()
        ),
        DirectoryRequest::CancelAsk { ask } => format!("cancel ask {ask} for {id}"),
        DirectoryRequest::Subscribe { bytes_max } => {
            let bytes = bytes_max.map(|most| format!(" with its bytes up to {most}"));
            format!("subscribe {id}{}", bytes.unwrap_or_default())
        }
        DirectoryRequest::Unsubscribe => format!("unsubscribe {id}"),
        DirectoryRequest::Delete { .. } => format!("delete {id}"),
        DirectoryRequest::Locate { .. } => format!("locate {id}"),
        DirectoryRequest::Claim { .. } => format!("claim {id}"),
        DirectoryRequest::ReleaseClaim { .. } => format!("release claim to {id}"),
        DirectoryRequest::MarkLost { .. } => format!("mark {id} lost"),
        DirectoryRequest::PinRefused => format!("no space to keep {id}"),
        DirectoryRequest::Bring { nodes } => {
            let nodes: Vec<_> = nodes.iter().map(|at| node(*at)).collect();
            format!("bring {id} to {}", nodes.join(" "))
        }
    }
}

fn directory_answer(names: &mut Names, id: &str, answer: &DirectoryAnswer) -> String {
    match answer {
        DirectoryAnswer::Verdict { edition, verdict } => {
            format!("verdict {id} {} {}", names.edition(*edition), show_verdict(*verdict))
        }
        DirectoryAnswer::ClaimVerdict { verdict, .. } => {
            format!("verdict on claim to {id} {}", show_verdict(*verdict))
        }
        DirectoryAnswer::Lend { ask, sender, edition, size, .. } => {
            format!("lend {} for ask {ask}: {id} {} {size} B", node(*sender), names.edition(*edition))
        }
        DirectoryAnswer::Inline { ask, edition, payload, .. } => {
            format!("inline {id} {} {} B for ask {ask}", names.edition(*edition), payload.0.len())
        }
        DirectoryAnswer::Deleted { .. } => format!("deleted {id}"),
        DirectoryAnswer::Lost => format!("lost {id}"),
        DirectoryAnswer::Copy { node: at, report: copy, payload } => {
            let flag = flag(payload.is_some(), "with payload");
            format!("copy {id} at {}: {}{flag}", node(*at), report(names, copy))
        }
        DirectoryAnswer::CopyGone { node: at } => format!("copy gone {id} at {}", node(*at)),
        DirectoryAnswer::DeleteDone { .. } => format!("delete done {id}"),
        DirectoryAnswer::NotYet { ask, copies } => {
            format!("not yet {id} for ask {ask}: {} copies", copies.len())
        }
        DirectoryAnswer::Holders { nodes } => {
            let nodes: Vec<_> = nodes.iter().map(|at| node(*at)).collect();
            format!("holders of {id}: {}", nodes.join(" "))
        }
        DirectoryAnswer::Pin => format!("pin {id}"),
        DirectoryAnswer::AskAgain { edition, sender } => {
            format!("ask again {id} {} not {}", names.edition(*edition), node(*sender))
        }
        DirectoryAnswer::Located { size, copies, deleted, .. } => {
            format!("located {id} {size:?} {} copies{}", copies.len(), flag(*deleted, "deleted"))
        }
    }
}

fn show_verdict(verdict: Verdict) -> String {
    match verdict {
        Verdict::Accepted(_) => "Accepted".to_owned(),
        Verdict::Exists(_) => "Exists".to_owned(),
        other => format!("{other:?}"),
    }
}

fn show_assignment(names: &mut Names, assignment: &SlotAssignment) -> String {
    let sources: Vec<_> = assignment.sources.iter().map(|source| names.object(source.id)).collect();
    let children: Vec<_> = assignment
        .children
        .iter()
        .map(|child| format!("slot {} at {}", child.slot, node(child.node)))
        .collect();
    format!(
        "slot {} attempt {}{}{}{} -> {} {}{}: sources [{}] {} [{}]",
        assignment.slot,
        assignment.attempt,
        flag(assignment.root, "root"),
        flag(assignment.open, "open"),
        flag(assignment.lacking, "lacking"),
        names.object(assignment.out),
        names.edition(assignment.edition),
        if assignment.offset > 0 { format!(" from {} B", assignment.offset) } else { String::new() },
        sources.join(" "),
        if assignment.part_bytes.is_some() { "parts" } else { "children" },
        children.join(", ")
    )
}

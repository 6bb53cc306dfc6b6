//! Validates messages by themselves. An invalid one comes from a node with a bug, or from no node at all. It is dropped
//! on arrival, so that the code behind it can rely on its contents.
//!
//! Only properties of the message alone are checked here. Each node checks whether it fits what that node knows.

use std::collections::BTreeSet;

use crate::error::ensure;
use crate::limits::{at_most, IDS_MAX, INLINE_BYTES_MAX, MEMBERS_MAX, OBJECT_BYTES_MAX, SHARDS, SOURCES_MAX};
use crate::{Blob, Header, NodeId, ObjectId, ReductionId, Result, Shard, Stamp};

use super::{
    Child, CopyReport, Cursor, DirectoryAnswer, DirectoryRequest, InventoryPage, PeerMessage, Seal,
    SlotAssignment, Verdict,
};

impl PeerMessage {
    /// Checks limits and consistency.
    ///
    /// # Errors
    /// `BadArgument`; the message names the violation.
    pub fn validate(&self) -> Result<()> {
        match self {
            PeerMessage::Directory { origin, request, .. } => request.validate(*origin),
            PeerMessage::Answer { answer, .. } => answer.validate(),
            PeerMessage::AssignSlot { reduction, assignment } => assignment.validate(*reduction),
            PeerMessage::Commit { sources, .. } => at_most("sources", sources.len(), SOURCES_MAX),
            PeerMessage::BackupIds { ids } => at_most("ids", ids.len(), IDS_MAX),
            PeerMessage::InventoryRequest { shards, from, clock, .. } => {
                at_most("shards", shards.len(), SHARDS)?;
                shards.iter().try_for_each(|query| query.shard.validate())?;
                from.iter().try_for_each(Cursor::validate)?;
                clock.validate()
            }
            PeerMessage::Inventory { page, unchanged, next, clock, .. } => {
                page.validate()?;
                at_most("shards", unchanged.len(), SHARDS)?;
                unchanged.iter().try_for_each(|shard| shard.validate())?;
                next.iter().try_for_each(Cursor::validate)?;
                clock.validate()
            }
            PeerMessage::Members { members, .. } => at_most("members", members.len(), MEMBERS_MAX),
            PeerMessage::Pull { .. }
            | PeerMessage::CancelPull { .. }
            | PeerMessage::PullRefused { .. }
            | PeerMessage::SlotFailed { .. }
            | PeerMessage::SlotHeld { .. }
            | PeerMessage::RootDone { .. }
            | PeerMessage::ReleaseSlots { .. }
            | PeerMessage::Prefetch { .. }
            | PeerMessage::Ping { .. }
            | PeerMessage::Pong { .. }
            | PeerMessage::Committed { .. }
            | PeerMessage::Check { .. }
            | PeerMessage::Checked { .. }
            | PeerMessage::ResyncRequest { .. }
            | PeerMessage::DeletionAck { .. }
            | PeerMessage::MembersRequest
            | PeerMessage::SlotNeedsSpace { .. }
            | PeerMessage::Preempt { .. }
            | PeerMessage::ReleaseSlot { .. }
            | PeerMessage::Goodbye => Ok(()),
        }
    }
}

impl DirectoryRequest {
    fn validate(&self, origin: NodeId) -> Result<()> {
        match self {
            DirectoryRequest::Announce { report, payload, .. } => report.validate_with(payload.as_ref()),
            DirectoryRequest::Bring { nodes } => at_most("nodes", nodes.len(), MEMBERS_MAX),
            DirectoryRequest::Claim { claim, .. }
            | DirectoryRequest::ReleaseClaim { claim, .. }
            | DirectoryRequest::MarkLost { claim } => {
                ensure(claim.by == origin, || format!("{claim:?} in the words of {origin}"))
            }
            DirectoryRequest::Withdraw { .. }
            | DirectoryRequest::Ask { .. }
            | DirectoryRequest::CancelAsk { .. }
            | DirectoryRequest::Subscribe { .. }
            | DirectoryRequest::Unsubscribe
            | DirectoryRequest::Delete { .. }
            | DirectoryRequest::Locate { .. }
            | DirectoryRequest::PinRefused => Ok(()),
        }
    }
}

impl DirectoryAnswer {
    fn validate(&self) -> Result<()> {
        match self {
            DirectoryAnswer::Verdict { verdict, .. } | DirectoryAnswer::ClaimVerdict { verdict, .. } => {
                verdict.validate()
            }
            DirectoryAnswer::Lend { size, header, stamp, .. } => {
                validate_kind(*size, header)?;
                stamp.iter().try_for_each(|stamp| stamp.validate())
            }
            DirectoryAnswer::Inline { header, payload, stamp, .. } => {
                at_most("bytes in a message", payload.0.len(), INLINE_BYTES_MAX as usize)?;
                validate_kind(payload.0.len() as u64, header)?;
                stamp.iter().try_for_each(|stamp| stamp.validate())
            }
            DirectoryAnswer::Deleted { deletion } => deletion.stamp.validate(),
            DirectoryAnswer::DeleteDone { deletion, .. } => {
                deletion.iter().try_for_each(|deletion| deletion.stamp.validate())
            }
            DirectoryAnswer::Copy { report, payload, .. } => report.validate_with(payload.as_ref()),
            DirectoryAnswer::Located { copies, .. } | DirectoryAnswer::NotYet { copies, .. } => {
                at_most("copies", copies.len(), MEMBERS_MAX)
            }
            DirectoryAnswer::Holders { nodes } => at_most("nodes", nodes.len(), MEMBERS_MAX),
            DirectoryAnswer::Lost
            | DirectoryAnswer::CopyGone { .. }
            | DirectoryAnswer::Pin
            | DirectoryAnswer::AskAgain { .. } => Ok(()),
        }
    }
}

impl CopyReport {
    fn validate(&self) -> Result<()> {
        validate_kind(self.size, &self.header)?;
        self.stamp.iter().try_for_each(|stamp| stamp.validate())
    }

    fn validate_with(&self, payload: Option<&Blob>) -> Result<()> {
        self.validate()?;
        let bytes = payload.map_or(0, |payload| payload.0.len());
        at_most("bytes in a message", bytes, INLINE_BYTES_MAX as usize)
    }
}

impl InventoryPage {
    fn validate(&self) -> Result<()> {
        let items = self.copies.len() + self.claims.len() + self.tombstones.len() + self.lost.len();
        at_most("items of an inventory", items, IDS_MAX)?;
        self.copies.iter().try_for_each(|(_, report)| report.validate())?;
        self.claims.iter().filter_map(|(_, _, stamp)| *stamp).try_for_each(|stamp| stamp.validate())?;
        self.tombstones.iter().try_for_each(|(_, deletion)| deletion.stamp.validate())
    }
}

impl Verdict {
    fn validate(self) -> Result<()> {
        match self {
            Verdict::Accepted(stamp) | Verdict::Exists(stamp) => stamp.validate(),
            Verdict::Deleted | Verdict::OtherKind(_) | Verdict::Abandoned => Ok(()),
        }
    }
}

impl Seal {
    /// Checks limits.
    ///
    /// # Errors
    /// `BadArgument`.
    pub fn validate(&self) -> Result<()> {
        at_most("sources", self.sources.len(), SOURCES_MAX)
    }
}

impl SlotAssignment {
    fn validate(&self, reduction: ReductionId) -> Result<()> {
        let (dtype, element) = (self.dtype, self.dtype.size() as u64);
        match self.root || self.part_bytes.is_some() {
            true => validate_kind(self.size, &self.header)?,
            // A partial sum is never shown to a client.
            false => validate_kind(self.size, &Header::default())?,
        }
        ensure(self.size.is_multiple_of(element) && self.offset.is_multiple_of(element), || {
            format!("{} bytes from {} on are no whole elements of {dtype}", self.size, self.offset)
        })?;
        ensure(self.offset <= OBJECT_BYTES_MAX, || format!("a part at {}", self.offset))?;
        ensure(self.divide_by.is_none_or(|by| by > 0 && dtype.is_float()), || {
            format!("{dtype} divided by {:?}", self.divide_by)
        })?;
        let inputs = self.sources.len() + self.children.len();
        ensure(inputs > 0, || format!("slot {} has no input", self.slot))?;
        at_most("sources", self.sources.len(), SOURCES_MAX)?;
        at_most("children", self.children.len(), SOURCES_MAX)?;
        let sources: BTreeSet<_> = self.sources.iter().map(|source| source.id).collect();
        let slots: BTreeSet<_> = self.children.iter().map(|child| child.slot).collect();
        let distinct = sources.len() == self.sources.len() && slots.len() == self.children.len();
        ensure(distinct, || "an input twice".to_owned())?;
        let reads_itself =
            sources.contains(&self.out) || self.children.iter().any(|child| child.id == self.out);
        ensure(!reads_itself, || format!("{} is summed up from itself", self.out))?;
        self.part_bytes.map_or(Ok(()), |part_bytes| self.validate_parts(reduction, part_bytes))?;
        self.stamp.validate()
    }

    /// The parts lie side by side and cover all of it.
    fn validate_parts(&self, reduction: ReductionId, part_bytes: u64) -> Result<()> {
        let parts = self.children.len() as u64;
        let fits = part_bytes > 0 && self.size > 0 && self.size.div_ceil(part_bytes) == parts;
        ensure(fits && self.sources.is_empty() && self.offset == 0, || {
            format!("{} bytes from {} on in {parts} parts of {part_bytes}", self.size, self.offset)
        })?;
        let is_out = |child: &Child| ObjectId::target_part(reduction, child.slot) == self.out;
        ensure(!self.children.iter().any(is_out), || format!("{} is a part of itself", self.out))
    }

    /// Whether a slot with the assignment `previous` can continue with this one: with more inputs if it was open,
    /// else without a change.
    pub fn continues(&self, previous: &SlotAssignment) -> bool {
        let kind = |assignment: &SlotAssignment| {
            (
                assignment.edition,
                assignment.size,
                assignment.dtype,
                assignment.op,
                assignment.offset,
                assignment.part_bytes,
            )
        };
        let same = (self.out, self.root, &self.sources, &self.children)
            == (previous.out, previous.root, &previous.sources, &previous.children);
        let more = previous.open
            && (self.root || !previous.root)
            && self.sources.starts_with(&previous.sources)
            && Child::has_all(&self.children, &previous.children);
        kind(self) == kind(previous) && self.header == previous.header && (same || more)
    }
}

impl Shard {
    fn validate(self) -> Result<()> {
        ensure(self.index() < SHARDS, || format!("shard {} of {SHARDS}", self.0))
    }
}

impl Cursor {
    fn validate(&self) -> Result<()> {
        self.shard.validate()
    }
}

impl Stamp {
    fn validate(self) -> Result<()> {
        ensure(self <= Stamp::LATEST, || format!("a time that is nobody's: {self:?}"))
    }
}

fn validate_kind(size: u64, header: &Header) -> Result<()> {
    ensure(size <= OBJECT_BYTES_MAX, || format!("an object of {size} bytes"))?;
    header.validate(size)
}

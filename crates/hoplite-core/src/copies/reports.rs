//! Reports of the copies here to the owners of their objects.

use hoplite_types::peer::{CopyReport, DirectoryRequest};
use hoplite_types::{limits, CopyId, Edition, NodeId, ObjectId};

use super::Copies;
use crate::ctx::Ctx;
use crate::notices::Notice;

impl Copies {
    /// Reports to the directory that the copy is gone from here.
    pub fn withdraw(&mut self, ctx: &mut Ctx, id: CopyId) {
        let copy = &self.table[&id];
        if copy.public && copy.told.is_some() {
            self.withdraw_edition(ctx, copy.object, copy.edition);
        }
    }

    pub fn withdraw_edition(&self, ctx: &mut Ctx, object: ObjectId, edition: Edition) {
        let seq = ctx.next_number();
        ctx.notices.push_back(Notice::Withdrawn { object, seq });
        ctx.ask_owner(object, DirectoryRequest::Withdraw { seq, edition }, None);
    }

    /// Reports a public copy to the shard owner of its object.
    pub fn announce(&mut self, ctx: &mut Ctx, id: CopyId, complete: bool, wants_verdict: bool) {
        let copy = &self.table[&id];
        let owner = ctx.shards.owner(copy.object);
        if copy.stamp.is_none() && !ctx.may_ask(owner) {
            // It is not sent yet, so it must not count as reported.
            return;
        }
        let knows = owner == ctx.me || (copy.told == Some(owner) && copy.told_complete);
        let (object, report) = self.report(ctx, id, owner, complete);
        // Not bytes that came from the directory, since each of many receivers would send them back; nor bytes that the
        // owner has had.
        let inline = !knows && complete && report.pinned && report.size <= limits::INLINE_BYTES_MAX;
        let attach = inline.then_some(id);
        let request = DirectoryRequest::Announce { report, payload: None, wants_verdict };
        ctx.ask_owner(object, request, attach);
    }

    /// Builds the report of a copy to `owner`, with a new number, and notes it as reported.
    pub fn report(
        &mut self,
        ctx: &mut Ctx,
        id: CopyId,
        owner: NodeId,
        complete: bool,
    ) -> (ObjectId, CopyReport) {
        let (seq, leaving) = (ctx.next_number(), ctx.is_leaving);
        self.with(id, |copy| {
            copy.told = Some(owner);
            copy.told_complete = complete;
            let report = CopyReport {
                seq,
                edition: copy.edition,
                size: copy.extent.size,
                header: copy.header.clone(),
                complete,
                pinned: copy.pinned,
                upstream: copy.upstream,
                leaving,
                stamp: copy.stamp,
                claim: copy.claim,
            };
            (copy.object, report)
        })
    }

    /// The owner counts the copy as complete without a report.
    pub fn note_told(&mut self, id: CopyId, owner: NodeId) {
        let copy = self.table.get_mut(&id).expect("a live copy id");
        (copy.told, copy.told_complete) = (Some(owner), true);
    }

    /// The owner may not count the copy as complete: its seal will be reported.
    pub fn not_told_complete(&mut self, id: CopyId) {
        self.table.get_mut(&id).expect("a live copy id").told_complete = false;
    }
}

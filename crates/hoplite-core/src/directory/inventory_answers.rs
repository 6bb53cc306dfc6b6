//! Applies the inventories of other nodes, and drops earlier reports that they do not repeat.

use std::time::Duration;

use hoplite_types::peer::{DirectoryRequest, InventoryPage, Scope, Verdict};
use hoplite_types::{Claim, Edition, NodeId, ObjectId, Shard, Stamp};

use super::entry::{Contender, Content};
use super::holders::Held;
use super::inventory_pulls::Answer;
use super::Directory;
use crate::copies::Copies;
use crate::ctx::Ctx;

impl Directory {
    /// Applies a page.
    pub fn on_inventory(&mut self, ctx: &mut Ctx, local: &Copies, from: NodeId, answer: Answer) {
        let Some((scope, since)) = self.pulls.take_note(ctx.now, from, &answer) else {
            // Its answer may have come too late.
            self.pulls.defer_no_more(ctx, from);
            return self.pull_more(ctx);
        };
        match scope {
            Scope::All => self.take_page(ctx, local, from, since, answer.page),
            Scope::Past => {
                for (id, deletion) in answer.page.tombstones {
                    self.on_heard_deleted(ctx, id, deletion);
                }
                self.on_backup_ids(ctx, from, answer.page.lost.into_iter().map(|(id, _)| id));
            }
        }
        match answer.next {
            Some(_) => self.ask_for_page(ctx, from),
            None => self.end_pull(ctx, from, since),
        }
    }

    fn take_page(&mut self, ctx: &mut Ctx, local: &Copies, from: NodeId, since: u64, page: InventoryPage) {
        // Deletions first: the page's other items about deleted objects are then skipped.
        for (id, deletion) in page.tombstones {
            self.on_heard_deleted(ctx, id, deletion);
        }
        for (id, report) in page.copies {
            if self.owned.contains(id.shard()) {
                let wants_verdict = report.claim.is_some();
                let request = DirectoryRequest::Announce { report, payload: None, wants_verdict };
                self.on_request(ctx, local, from, id, request);
            }
        }
        for (id, claim, stamp) in page.claims {
            if self.owned.contains(id.shard()) && claim.by == from {
                match stamp {
                    Some(stamp) => self.absorb_claim(ctx, local, id, claim, stamp, since),
                    None => {
                        let request = DirectoryRequest::Claim { seq: since, claim };
                        self.on_request(ctx, local, from, id, request);
                    }
                }
            }
        }
        for (id, age_ms) in page.lost {
            self.on_heard_lost(ctx, id, Duration::from_millis(age_ms));
        }
    }

    /// Applies a claim that a former owner accepted, or we ourselves.
    fn absorb_claim(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        id: ObjectId,
        claim: Claim,
        stamp: Stamp,
        seq: u64,
    ) {
        ctx.clock.observe(ctx.now, stamp);
        if self.deleted_at(id).is_some_and(|deleted| deleted > stamp) {
            return self.tell_claim_verdict(ctx, id, claim, Verdict::Deleted);
        }
        let entry = self.entry_mut(id);
        match &mut entry.content {
            Content::Claimed { claim: known, seq: last, stamp: then, released } if *known == claim => {
                (*last, *then) = (seq.max(*last), stamp.max(*then));
                // It was believed dead.
                *released = false;
            }
            Content::Complete { stamp: known, .. } if *known == stamp => {}
            Content::None => {
                self.set_content(id, Content::Claimed { claim, stamp, seq, released: false });
            }
            // Another owner accepted another claim: they knew nothing of each other.
            _ => self.on_claim(ctx, local, id, seq, claim),
        }
    }

    /// Drops reports that `node` made about the shard before `since` and did not repeat in its inventory: they are out
    /// of date. Copies here that must be dropped with them are added to `taken_back`.
    pub(super) fn drop_unrepeated(
        &mut self,
        ctx: &mut Ctx,
        local: &Copies,
        shard: Shard,
        node: NodeId,
        since: u64,
        taken_back: &mut Vec<(ObjectId, Edition)>,
    ) {
        let Some(owned) = self.owned.get(shard) else { return };
        for id in owned.of_node(node).collect::<Vec<_>>() {
            let Some(entry) = self.known_entry_mut(id) else { continue };
            let is_old = |contender: &Contender| match contender {
                Contender::Copy { node: by, report } => *by == node && report.seq < since,
                Contender::Claim { seq, claim } => claim.by == node && *seq < since,
            };
            entry.contenders.retain(|contender| !is_old(contender));
            if matches!(entry.content, Content::Claimed { claim, seq, .. } if claim.by == node && seq < since)
            {
                entry.release(|claim| claim.by == node);
            }
            let held = entry.holders.get(node);
            match held.map(|held| (held.presumed, held.seq < since, held.edition)) {
                Some((false, true, edition)) => {
                    let is_kept = |held: &Held| !held.pinned && held.edition == edition;
                    if node != ctx.me
                        && !entry.was_shown
                        && entry.is_pinned_only_at(node)
                        && entry.holders.get(ctx.me).is_some_and(is_kept)
                    {
                        // Removed first, so that it does not count as a complete copy of the object.
                        entry.remove_holder(ctx.me);
                        self.reindex(id, ctx.me);
                        taken_back.push((id, edition));
                    }
                    self.on_withdraw(ctx, local, node, id, since, edition);
                }
                Some((true, _, edition)) => {
                    let (ask, sender) = held.map(|held| (held.answered, held.upstream)).expect("seen");
                    match sender.filter(|&sender| entry.holders.contains(sender)) {
                        // The answer that lent it the sender may be lost.
                        Some(sender) => self.answer_lend(ctx, id, node, ask, sender),
                        // It would keep the sender from others when that one is back.
                        None => self.on_withdraw(ctx, local, node, id, since, edition),
                    }
                }
                _ => {}
            }
            self.end_released_claim(ctx, local, id);
            self.reindex(id, node);
            self.drop_if_empty(id);
        }
    }
}

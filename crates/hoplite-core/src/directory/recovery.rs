//! Recovery of shards: a new owner first collects all that members know of its shards. An owner that may have missed
//! reports asks for them again.
//!
//! ```text
//!  members changed ──▶ Recovering: every member is asked ──all have answered──▶ Active
//!                          │ requests wait, but not reports of copies          (held requests are answered)
//!  a connection broke, a member came back ──▶ that one is asked; the shard stays active
//! ```
//! - The owner pulls page by page, so that no queue overflows. Shards with waiting requests come first.
//! - About a shard that it has owned all along it sends a digest, and hears only the differences.
//! - A node that answers accepts only the asking owner's verdicts from then on. The new owner decides only when it
//!   knows all claims that the old one accepted. So two owners never accept two contents for one id, as long as no
//!   living node is declared dead.

use std::collections::BTreeSet;

use hoplite_types::peer::Scope;
use hoplite_types::{NodeId, Shard};

use super::shard::OwnedShard;
use super::Directory;
use crate::ctx::Ctx;
use crate::shards::ShardSet;

impl Directory {
    /// We own the shard from now on.
    pub(super) fn begin_recovery(&mut self, ctx: &mut Ctx, shard: Shard) {
        self.owned.insert(shard, OwnedShard::recovering());
        for member in ctx.shards.iter() {
            self.await_also(shard, member);
        }
    }

    /// We were believed dead, or may have been: others may have owned all of our shards meanwhile. Nothing is accepted
    /// before their inventories are here, because messages that wait in our sockets may be old.
    pub fn recover_everything(&mut self, ctx: &mut Ctx) {
        let members: BTreeSet<_> = ctx.shards.iter().filter(|&node| node != ctx.me).collect();
        self.pulls.awaits_company = members.is_empty();
        if members.is_empty() {
            return;
        }
        self.pulls.restart(ctx);
        let me = ctx.me;
        self.sweeps.forget_heard(|_, node| node != me);
        self.pulls.defer_nobody(ctx);
        let ours: Vec<_> = self.owned.keys().filter(|&shard| ctx.shards.is_mine(shard)).collect();
        for shard in ours {
            for &member in &members {
                self.await_also(shard, member);
            }
        }
        self.pull_more(ctx);
    }

    /// A shard that is still being recovered also waits for the inventory of `node`.
    pub(super) fn await_also(&mut self, shard: Shard, node: NodeId) {
        if self.owned.contains(shard) {
            self.await_word_of(node, shard);
            self.pulls.enqueue(node, Scope::All, shard);
        }
    }

    /// The shard is not active before the inventory of `node` has been applied.
    pub(super) fn await_word_of(&mut self, node: NodeId, shard: Shard) {
        let Some(owned) = self.owned.get_mut(shard) else { return };
        if self.pulls.begin_awaiting(node, shard) {
            owned.await_one_more();
        }
    }

    /// Others own these shards from now on.
    pub(super) fn give_shards_up(&mut self, ctx: &mut Ctx, shards: &ShardSet) {
        if shards.is_empty() {
            return;
        }
        self.pulls.forget_shards(shards);
        self.sweeps.forget_heard(|shard, _| shards.contains(shard));
        for ids in self.pinning.values_mut() {
            ids.retain(|id| !shards.contains(id.shard()));
        }
        self.pinning.retain(|_, ids| !ids.is_empty());
        self.give_deletions_up(|shard| !shards.contains(shard));
        for shard in shards.iter() {
            self.forget_released(shard);
            if let Some(owned) = self.owned.remove(shard) {
                self.note_released(owned.held_count());
                self.discard(ctx, shard, owned);
            }
        }
    }

    /// Whether some shard waits for inventories.
    pub fn is_recovering(&self) -> bool {
        self.owned.values().any(|owned| !owned.is_active())
    }

    /// Recent reports of `node` may have been lost, or dropped.
    pub fn pull_again(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.pulls.defer_no_more(ctx, node);
        for shard in self.owned.keys() {
            self.pulls.enqueue(node, Scope::All, shard);
        }
        let theirs = ctx.shards.owned_by(node);
        for shard in theirs.iter().filter(|&shard| ctx.shards.backup_of(shard) == Some(ctx.me)) {
            self.pulls.enqueue(node, Scope::Past, shard);
        }
        self.pull_more(ctx);
    }

    /// `node` takes another node for the owner of this shard: our pull corrects that.
    pub fn pull_shard(&mut self, ctx: &mut Ctx, node: NodeId, shard: Shard) {
        if ctx.shards.contains(node) && self.owned.contains(shard) {
            self.pulls.enqueue(node, Scope::All, shard);
            self.pull_more(ctx);
        }
    }

    /// We are the shard's backup from now on, and need the ids that only its owner could report.
    pub(super) fn pull_past(&mut self, ctx: &mut Ctx, shard: Shard) {
        let owner = ctx.shards.owner_of(shard);
        self.pulls.enqueue(owner, Scope::Past, shard);
    }

    /// A node reports that it has just started: it has no inventory.
    pub fn on_fresh(&mut self, node: NodeId) {
        self.pulls.forget_unawaited(node);
    }

    /// The inventory of `node` of the shard is complete, or the node is gone.
    pub(super) fn on_heard(&mut self, ctx: &mut Ctx, shard: Shard, node: NodeId) {
        let was_awaited = self.pulls.await_no_more(node, shard);
        let Some(recovering) = self.owned.get_mut(shard).and_then(OwnedShard::recovery_mut) else { return };
        recovering.awaited -= usize::from(was_awaited);
        if recovering.awaited == 0 {
            self.activate_soon(ctx, shard);
        }
    }

    /// The inventory of `node` will not come.
    pub(super) fn await_nothing_of(&mut self, ctx: &mut Ctx, node: NodeId) {
        for shard in self.pulls.awaited_of(node).iter() {
            self.on_heard(ctx, shard, node);
        }
    }

    pub(super) fn recovery_node_down(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.pulls.forget_node(ctx, node);
        self.sweeps.forget_heard(|_, other| other == node);
        self.release_of(node);
        self.await_nothing_of(ctx, node);
        self.pull_more(ctx);
    }
}

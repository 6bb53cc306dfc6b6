//! Copies that clients write, and the verdicts of their owners.
//!
//! ```text
//!   Pending ───Accepted──▶ Accepted ──client seals──▶ sealed
//!      │ └────Exists─────▶ Superseded ──client seals──▶ waits until the first content is here, and keeps that
//!      └──Deleted, OtherKind──▶ Refused ──client seals──▶ the error
//! ```

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::peer::Verdict;
use hoplite_types::{CopyId, Edition, NodeId, ObjectId, Stamp};

use crate::copies::Copies;
use crate::ctx::Ctx;
use crate::io::ClientId;

/// The directory's verdict on a writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acceptance {
    Pending,
    Accepted,
    /// Another content was accepted first, which is as good.
    Superseded,
    Refused(Verdict),
}

#[derive(Debug)]
pub(crate) struct Write {
    pub client: ClientId,
    pub acceptance: Acceptance,
    /// The owner whose verdict counts.
    asked: Option<NodeId>,
    /// The time at which a former owner accepted it, if its verdict came after another owner was asked.
    pub accepted_before: Option<Stamp>,
    /// The call that waits for the seal.
    pub sealing: Option<u64>,
    edition: Edition,
}

/// Copies that clients write, live or doomed.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    table: BTreeMap<CopyId, Write>,
    by_edition: BTreeMap<Edition, CopyId>,
    by_client: BTreeSet<(ClientId, CopyId)>,
    /// By the call that waits for the seal.
    by_call: BTreeMap<(ClientId, u64), CopyId>,
}

impl Writes {
    /// The first few copies that this client writes.
    pub fn of_client(&self, client: ClientId, most: usize) -> Vec<CopyId> {
        let of_client = self.by_client.range((client, CopyId(0))..=(client, CopyId(u64::MAX)));
        of_client.map(|&(_, copy)| copy).take(most).collect()
    }

    pub fn of_edition(&self, edition: Edition) -> Option<CopyId> {
        self.by_edition.get(&edition).copied()
    }

    /// The copy whose seal this call waits for.
    pub fn sealed_by(&self, client: ClientId, call: u64) -> Option<CopyId> {
        self.by_call.get(&(client, call)).copied()
    }

    /// Copies whose verdict is still missing.
    pub fn awaiting_verdict(&self) -> Vec<CopyId> {
        let awaiting_verdict = |(_, write): &(&CopyId, &Write)| write.acceptance == Acceptance::Pending;
        self.table.iter().filter(awaiting_verdict).map(|(&copy, _)| copy).collect()
    }

    pub fn awaits_verdict(&self) -> bool {
        self.table.values().any(|write| write.acceptance == Acceptance::Pending)
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether no owner has accepted it so far.
    pub fn may_give_way(&self, copy: CopyId) -> bool {
        let unaccepted =
            |write: &Write| write.acceptance == Acceptance::Pending && write.accepted_before.is_none();
        self.table.get(&copy).is_some_and(unaccepted)
    }

    /// Whether all bytes of the copy are written.
    pub fn is_written(&self, copy: CopyId) -> bool {
        self.table.get(&copy).is_some_and(|write| write.sealing.is_some())
    }

    /// A former owner has accepted it, and may have notified others of that.
    pub fn note_accepted_before(&mut self, copy: CopyId, stamp: Stamp) {
        if let Some(write) = self.table.get_mut(&copy).filter(|write| write.acceptance == Acceptance::Pending)
        {
            write.accepted_before = write.accepted_before.max(Some(stamp));
        }
    }

    pub fn asked(&self, copy: CopyId) -> Option<NodeId> {
        self.table.get(&copy)?.asked
    }

    pub fn expect_verdict_from(&mut self, copy: CopyId, owner: NodeId) {
        if let Some(write) = self.table.get_mut(&copy).filter(|write| write.acceptance == Acceptance::Pending)
        {
            write.asked = Some(owner);
        }
    }

    /// Verdicts on copies that were accepted and are not sealed yet are void.
    pub fn forget_verdicts(&mut self) -> Vec<CopyId> {
        let accepted = self.table.iter_mut().filter(|(_, write)| write.acceptance == Acceptance::Accepted);
        let forget = |(&copy, write): (&CopyId, &mut Write)| {
            write.acceptance = Acceptance::Pending;
            copy
        };
        accepted.map(forget).collect()
    }

    pub fn remove(&mut self, copy: CopyId) -> Option<Write> {
        let write = self.table.remove(&copy)?;
        self.by_edition.remove(&write.edition);
        self.by_client.remove(&(write.client, copy));
        if let Some(call) = write.sealing {
            self.by_call.remove(&(write.client, call));
        }
        Some(write)
    }

    pub fn get(&self, copy: CopyId) -> Option<&Write> {
        self.table.get(&copy)
    }

    pub fn get_mut(&mut self, copy: CopyId) -> Option<&mut Write> {
        self.table.get_mut(&copy)
    }

    /// A client begins to write a copy; the call seals it, if the bytes came with it.
    pub fn begin(&mut self, copy: CopyId, client: ClientId, edition: Edition, sealing: Option<u64>) {
        let acceptance = Acceptance::Pending;
        let write = Write { client, acceptance, asked: None, accepted_before: None, sealing, edition };
        self.table.insert(copy, write);
        self.by_edition.insert(edition, copy);
        self.by_client.insert((client, copy));
        self.by_call.extend(sealing.map(|call| ((client, call), copy)));
    }

    /// The client has written all bytes. Returns false if it does not write this copy, or has sealed it before.
    pub fn begin_seal(&mut self, client: ClientId, call: u64, copy: CopyId) -> bool {
        let own = self.table.get_mut(&copy).filter(|write| write.client == client && write.sealing.is_none());
        let Some(write) = own else { return false };
        write.sealing = Some(call);
        self.by_call.insert((client, call), copy);
        true
    }

    /// The live copy of `object`, if a client writes it.
    pub fn of_object(&self, copies: &Copies, object: ObjectId) -> Option<CopyId> {
        copies.live(object).filter(|copy| self.table.contains_key(copy))
    }

    /// Announces a copy whose content no owner has accepted yet, and asks for a verdict. Returns the owner.
    pub fn ask_for_verdict(&mut self, ctx: &mut Ctx, copies: &mut Copies, copy: CopyId) -> NodeId {
        // Our own directory answers with our sealed copy; another owner needs the bytes right away.
        let owner = ctx.shards.owner(copies[copy].object);
        let complete = self.is_written(copy) && owner != ctx.me;
        copies.announce(ctx, copy, complete, true);
        self.expect_verdict_from(copy, owner);
        ctx.arm_refresh();
        owner
    }
}

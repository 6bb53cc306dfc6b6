//! A node's inventory of some shards, sent to their owner page by page.
//!
//! Copies come first, then claims of reductions called here, then deletions and losses; each in the order of shards and
//! ids, so that a page can continue where the one before ended.

use hoplite_types::peer::{Cursor, InventoryPage, PeerMessage, Scope, ShardQuery};
use hoplite_types::{CopyId, NodeId, ObjectId, Shard, Stamp};

use crate::copies::Copy;
use crate::directory::{digest_of, Answer, DIGESTED_MAX, SHARDS_PER_PULL};
use crate::Core;

/// Items of one page: a millisecond's work or two, on either side.
const ITEMS_PER_PAGE: usize = 512;

/// Bytes of one page, about: headers may be long.
const BYTES_PER_PAGE: usize = 256 << 10;

/// Size of an item besides its header.
const ITEM_BYTES: usize = 100;

const COPIES: u8 = 0;
const CLAIMS: u8 = 1;
const TOMBSTONES: u8 = 2;
const LOSSES: u8 = 3;

/// The greatest id.
const LAST: ObjectId = ObjectId([u8::MAX; ObjectId::LEN]);

/// A page that is being filled.
struct Filling {
    page: InventoryPage,
    items: usize,
    bytes: usize,
    last: Option<Cursor>,
}

impl Filling {
    fn is_full(&self) -> bool {
        self.items >= ITEMS_PER_PAGE || self.bytes >= BYTES_PER_PAGE
    }

    fn note(&mut self, shard: Shard, section: u8, after: ObjectId, bytes: usize) {
        self.items += 1;
        self.bytes += ITEM_BYTES + bytes;
        self.last = Some(Cursor { shard, section, after });
    }
}

impl Core {
    /// Answers another node, which owns these shards or is their backup.
    #[expect(clippy::too_many_arguments, reason = "what the question consists of")]
    pub(crate) fn on_inventory_request(
        &mut self,
        from: NodeId,
        round: u64,
        scope: Scope,
        shards: Vec<ShardQuery>,
        cursor: Option<Cursor>,
        fresh: bool,
        clock: Stamp,
    ) {
        if shards.len() > SHARDS_PER_PULL {
            return;
        }
        self.ctx.clock.observe(self.ctx.now, clock);
        if fresh {
            self.resync.take_pull(from);
            self.directory.on_fresh(from);
        }
        if scope == Scope::All {
            self.note_owner(from, &shards);
            if cursor.is_none() {
                self.joining.tell_of_newcomers(&mut self.ctx, from);
            }
        }
        let since = self.ctx.next_number();
        self.ctx.last_inventory = since;
        let (page, unchanged, next) = self.inventory_page(from, scope, &shards, cursor);
        let clock = self.ctx.clock.read(self.ctx.now);
        self.ctx.send(from, PeerMessage::Inventory { round, since, page, unchanged, next, clock }, None);
    }

    /// Applies our own inventory of our own shards.
    pub(crate) fn take_own_inventory(&mut self) {
        let Some((round, shards, cursor)) = self.directory.own_pull(&self.ctx) else { return };
        let shards: Vec<_> = shards.into_iter().map(|shard| ShardQuery { shard, digest: None }).collect();
        let since = self.ctx.next_number();
        let me = self.ctx.me;
        let (page, unchanged, next) = self.inventory_page(me, Scope::All, &shards, cursor);
        let answer = Answer { round, since, page, unchanged, next };
        self.take_page(me, answer);
    }

    /// A page from `cursor` on, the shards that need none, and the start of the next page.
    fn inventory_page(
        &mut self,
        to: NodeId,
        scope: Scope,
        shards: &[ShardQuery],
        cursor: Option<Cursor>,
    ) -> (InventoryPage, Vec<Shard>, Option<Cursor>) {
        let mut filling = Filling { page: InventoryPage::default(), items: 0, bytes: 0, last: None };
        let mut unchanged = Vec::new();
        let mut digested = 0;
        for query in shards.iter().filter(|query| cursor.is_none_or(|at| query.shard >= at.shard)) {
            let at = cursor.filter(|at| at.shard == query.shard);
            if digested >= DIGESTED_MAX {
                return (filling.page, unchanged, filling.last);
            }
            digested += self.directory.entries_in(query.shard);
            let mut is_known = false;
            if let Some(known) = query.digest.filter(|_| at.is_none()) {
                let (digest, count) = self.digest(query.shard);
                digested += count;
                // A digest does not contain that we are leaving, and the owner may not know it otherwise.
                is_known = digest == known && !self.ctx.is_leaving;
            }
            let first = match (scope, is_known) {
                (Scope::Past, _) => TOMBSTONES,
                (Scope::All, true) => {
                    // Digests do not cover claims.
                    unchanged.push(query.shard);
                    CLAIMS
                }
                (Scope::All, false) => COPIES,
            };
            for section in first.max(at.map_or(0, |at| at.section))..=LOSSES {
                let after = at.filter(|at| at.section == section).map(|at| at.after);
                match section {
                    CLAIMS => self.fill_claims(&mut filling, to, query.shard, after),
                    _ => self.fill(&mut filling, to, scope, query.shard, section, after),
                }
                if filling.is_full() {
                    return (filling.page, unchanged, filling.last);
                }
            }
            filling.last = Some(Cursor { shard: query.shard, section: LOSSES, after: LAST });
        }
        (filling.page, unchanged, None)
    }

    fn fill(
        &mut self,
        filling: &mut Filling,
        to: NodeId,
        scope: Scope,
        shard: Shard,
        section: u8,
        after: Option<ObjectId>,
    ) {
        match section {
            COPIES if self.copies.count_in(shard) > 0 => self.fill_copies(filling, to, shard, after),
            COPIES => {}
            TOMBSTONES => {
                for (id, deletion) in self.directory.tombstones_of(self.ctx.now, shard, after) {
                    if filling.is_full() {
                        return;
                    }
                    filling.note(shard, section, id, 0);
                    filling.page.tombstones.push((id, deletion));
                }
            }
            _ => {
                for (id, age) in self.directory.losses_of(&self.ctx, scope, shard, after) {
                    if filling.is_full() {
                        return;
                    }
                    filling.note(shard, section, id, 0);
                    filling.page.lost.push((id, age.as_millis() as u64));
                }
            }
        }
    }

    fn fill_claims(&mut self, filling: &mut Filling, to: NodeId, shard: Shard, after: Option<ObjectId>) {
        let of_shard = self.reductions.claims_in(self.ctx.me, shard);
        let of_ids = of_shard.chunk_by(|(one, ..), (other, ..)| one == other);
        for of_id in of_ids.filter(|of_id| after.is_none_or(|after| of_id[0].0 > after)) {
            if filling.is_full() {
                return;
            }
            // Further claims are repeated by their reductions, like all that have no verdict.
            for &(id, claim, stamp) in of_id.iter().take(ITEMS_PER_PAGE) {
                filling.note(shard, CLAIMS, id, 0);
                filling.page.claims.push((id, claim, stamp));
            }
            self.reductions.expect_verdict_from(of_id[0].0, to);
        }
    }

    fn fill_copies(&mut self, filling: &mut Filling, to: NodeId, shard: Shard, after: Option<ObjectId>) {
        let left = ITEMS_PER_PAGE.saturating_sub(filling.items);
        let copies: Vec<_> = self.copies.public_in(shard, after).take(left).map(|(id, _)| id).collect();
        for id in copies {
            if filling.is_full() {
                return;
            }
            let complete = self.is_whole(id);
            let (object, report) = self.copies.report(&mut self.ctx, id, to, complete);
            if !self.copies[id].is_sealed() {
                // If one ask was sent and answered twice, the receiver uses only the first answer.
                self.copies.not_told_complete(id);
                // A new owner must know that we ask for the rest before it decides about this part: both together
                // may prove that the object is lost.
                self.fetcher().repeat_ask(object);
            }
            let header = report.header.descr.len() + report.header.shape.len() * 9;
            filling.note(shard, COPIES, object, header);
            filling.page.copies.push((object, report));
            self.expect_verdict_from(id, to);
        }
    }

    /// Whether all bytes of the copy are here, so that the directory may count it as complete.
    pub(crate) fn is_whole(&self, id: CopyId) -> bool {
        self.copies[id].is_sealed() || self.writes.is_written(id)
    }

    /// A digest of the copies in a shard, as its owner should know them; and their number.
    fn digest(&self, shard: Shard) -> (u64, usize) {
        if self.copies.count_in(shard) == 0 {
            return (0, 0);
        }
        let counts = |(_, copy): &(CopyId, &Copy)| copy.is_sealed() || copy.pinned;
        let copies = self.copies.public_in(shard, None).filter(counts);
        copies.fold((0, 0), |(digest, count), (id, copy)| {
            let of_copy = digest_of(copy.object, copy.edition, self.is_whole(id), copy.pinned);
            (digest ^ of_copy, count + 1)
        })
    }

    pub(crate) fn on_inventory(&mut self, from: NodeId, answer: Answer, clock: Stamp) {
        self.ctx.clock.observe(self.ctx.now, clock);
        self.take_page(from, answer);
    }

    fn take_page(&mut self, from: NodeId, answer: Answer) {
        self.directory.on_inventory(&mut self.ctx, &self.copies, from, answer);
    }

    /// One turn of the directory's long work.
    pub(crate) fn work_on_directory(&mut self) {
        for (id, edition) in self.directory.work(&mut self.ctx, &self.copies) {
            self.drop_kept(id, edition);
        }
    }
}

//! Slots and reductions borrow the components below them for one call.

use hoplite_types::{ObjectId, Stamp};

use crate::copies::Copies;
use crate::ctx::Ctx;
use crate::fetch::{Fetcher, Fetches};
use crate::notices::Notice;
use crate::subscriptions::Subscriptions;
use crate::writes::Writes;

pub(crate) struct Lent<'a> {
    pub ctx: &'a mut Ctx,
    pub copies: &'a mut Copies,
    pub fetches: &'a mut Fetches,
    pub subscriptions: &'a mut Subscriptions,
    pub writes: &'a Writes,
}

impl Lent<'_> {
    /// The fetches, and what is lent to them.
    pub fn fetcher(&mut self) -> Fetcher<'_> {
        Fetcher {
            fetches: self.fetches,
            ctx: self.ctx,
            copies: self.copies,
            subscriptions: self.subscriptions,
        }
    }

    /// Makes way for a sum of a reduction under this id; `right` is the time at which the reduction's claim to it was
    /// accepted. A put that no owner has accepted gives way. Returns false if a copy is in the way that no reduction may
    /// replace: a sealed one, or one that a client writes.
    pub fn make_way(&mut self, object: ObjectId, right: Option<Stamp>) -> bool {
        if self.copies.sealed(object).is_some() {
            return false;
        }
        let Some(copy) = self.writes.of_object(self.copies, object) else { return true };
        let Some(stamp) = right.filter(|_| self.writes.may_give_way(copy)) else { return false };
        let edition = self.copies[copy].edition;
        self.copies.withdraw_edition(self.ctx, object, edition);
        self.copies.doom(self.ctx, copy);
        self.ctx.notices.push_back(Notice::GaveWay { copy, stamp });
        true
    }
}

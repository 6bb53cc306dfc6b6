//! Views: copies that clients have mapped. A viewed copy is not evicted, and its space is kept even if it is doomed.

use std::collections::BTreeMap;

use hoplite_types::client::Reply;
use hoplite_types::CopyId;

use super::Copies;
use crate::ctx::Ctx;
use crate::io::ClientId;
use crate::notices::Notice;

/// How many views each client holds of each copy.
#[derive(Debug, Default)]
pub(super) struct Views(BTreeMap<ClientId, BTreeMap<CopyId, u32>>);

impl Views {
    /// The number of copies that are viewed, once for each client.
    pub fn count(&self) -> usize {
        self.0.values().map(BTreeMap::len).sum()
    }

    /// Takes `count` views, of those that the client holds; returns how many it held of these.
    fn take(&mut self, client: ClientId, copy: CopyId, count: u32) -> u32 {
        let Some(views) = self.0.get_mut(&client) else { return 0 };
        let Some(held) = views.get_mut(&copy) else { return 0 };
        let taken = count.min(*held);
        *held -= taken;
        if *held == 0 {
            views.remove(&copy);
        }
        if views.is_empty() {
            self.0.remove(&client);
        }
        taken
    }
}

impl Copies {
    /// Gives a client a view of a copy.
    pub fn view(&mut self, ctx: &mut Ctx, client: ClientId, id: CopyId) -> Reply {
        self.add_view(ctx, client, id);
        let copy = &self.table[&id];
        Reply::View {
            copy: id,
            offset: copy.extent.offset,
            size: copy.extent.size,
            header: copy.header.clone(),
            sealed: copy.is_sealed(),
        }
    }

    pub fn add_view(&mut self, ctx: &mut Ctx, client: ClientId, id: CopyId) {
        let number = ctx.next_number();
        self.note_shown(ctx, id);
        *self.views.0.entry(client).or_default().entry(id).or_default() += 1;
        self.with(id, |copy| {
            copy.views += 1;
            copy.last_used = number;
        });
    }

    /// Whether this client holds a view of the copy.
    pub fn is_viewed_by(&self, client: ClientId, id: CopyId) -> bool {
        self.views.0.get(&client).is_some_and(|views| views.contains_key(&id))
    }

    /// Releases a client's view. A release of a view that it does not hold is ignored.
    pub fn release_view(&mut self, ctx: &mut Ctx, client: ClientId, id: CopyId) {
        if self.views.take(client, id, 1) > 0 {
            self.end_views(ctx, id, 1);
        }
    }

    /// The client is gone: releases all of its views of the next copy. Returns whether there was one.
    pub fn release_next_views(&mut self, ctx: &mut Ctx, client: ClientId) -> bool {
        let next = self.views.0.get(&client).and_then(|views| views.first_key_value());
        let Some((&id, &count)) = next else { return false };
        self.views.take(client, id, count);
        self.end_views(ctx, id, count);
        true
    }

    fn end_views(&mut self, ctx: &mut Ctx, id: CopyId, count: u32) {
        let object = self.with(id, |copy| {
            copy.views -= count;
            copy.object
        });
        self.try_free(ctx, id);
        ctx.notices.push_back(Notice::Released(object));
    }
}

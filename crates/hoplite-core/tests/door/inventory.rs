//! What a node tells of the shards that it is asked about.

use hoplite_words::peer::{Cursor, InventoryPage, PeerMessage, Scope, ShardQuery};
use hoplite_words::{Shard, Stamp};

use crate::node::{node, Node};

/// One page, as it was told.
pub struct Told {
    pub since: u64,
    pub page: InventoryPage,
    pub unchanged: Vec<Shard>,
    pub next: Option<Cursor>,
    pub clock: Stamp,
}

/// The question of `from`, and the page that is the answer.
fn ask_for_page(
    at: &mut Node,
    from: u16,
    scope: Scope,
    shards: Vec<ShardQuery>,
    cursor: Option<Cursor>,
) -> Option<Told> {
    let clock = Stamp::from_ms(0);
    let fresh = false;
    at.take_mail();
    at.hear(from, PeerMessage::InventoryRequest { round: 9, scope, shards, from: cursor, fresh, clock });
    at.take_mail().into_iter().find_map(|(to, message)| match message {
        PeerMessage::Inventory { round: 9, since, page, unchanged, next, clock } if to == node(from) => {
            Some(Told { since, page, unchanged, next, clock })
        }
        _ => None,
    })
}

/// All that is here of these shards, told to `from` as their owner.
pub fn take_inventory(at: &mut Node, from: u16, shards: &[Shard]) -> Told {
    let queries = shards.iter().map(|&shard| ShardQuery { shard, digest: None }).collect();
    ask_for_page(at, from, Scope::All, queries, None).expect("it is answered at once")
}

//! Describes the state of a fetch, for the messages of time-outs.

use hoplite_types::client::Location;
use hoplite_types::ObjectId;

use super::{Fetches, State};
use crate::copies::Copies;
use crate::ctx::Ctx;

impl Fetches {
    /// Describes the state of the fetch of `object`, for error messages.
    pub fn diagnostics(&self, ctx: &Ctx, copies: &Copies, object: ObjectId) -> String {
        let mut text = match copies.live_copy(object) {
            Some(copy) if copy.upstream.is_some() || copy.watermark > 0 => {
                format!("at least {} of {} bytes are here", copy.watermark, copy.extent.size)
            }
            Some(copy) => format!("being written here ({} bytes)", copy.extent.size),
            None => "0 bytes are here".to_owned(),
        };
        let Some(fetch) = self.running.get(&object) else { return text };
        match fetch.state {
            State::NoSpace => text += "; it waits for room in the store",
            State::Resting => text += "; it asks for another sender in a moment",
            State::Receiving(transfer) => {
                if let Some(transfer) = self.transfers.get(&transfer) {
                    text += &format!("; being sent by {}", transfer.from);
                }
            }
            State::Asking => {
                let (owner, ago) = (ctx.shards.owner(object), (ctx.now - fetch.asked).as_secs_f64());
                text += &format!("; its directory owner {owner} was asked for a sender {ago:.1} s ago");
                text += &match fetch.known.as_deref() {
                    _ if fetch.lost => ": the object is lost".to_owned(),
                    None => String::new(),
                    Some([]) => ": it knows of no copy".to_owned(),
                    Some(copies) => {
                        let state = |copy: &Location| if copy.complete { "complete" } else { "partial" };
                        let held = copies.iter().map(|copy| format!("{} ({})", copy.node, state(copy)));
                        format!(": none free yet; held by {}", held.collect::<Vec<_>>().join(", "))
                    }
                };
            }
        }
        if !fetch.broken.is_empty() {
            let broken = fetch.broken.iter().map(|(node, bytes)| format!("{node} at {bytes} bytes"));
            text += &format!(
                "; {} sender(s) tried, of which broke off: {}",
                fetch.tried,
                broken.collect::<Vec<_>>().join(", ")
            );
        }
        text
    }
}

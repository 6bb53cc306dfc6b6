//! Streams that stall although their connection does not break. The receiver asks the sender how much it has, and gives
//! it up if that does not explain the stall.

use hoplite_types::peer::PeerMessage;
use hoplite_types::TransferId;

use super::{Feeds, Fetcher};

/// How often the patience with stalled senders is doubled: up to 32 s at the default of a second.
const PATIENCE_DOUBLINGS_MAX: u32 = 5;

#[derive(Debug)]
pub(super) struct Check {
    /// Bytes that had arrived at that time.
    watermark: u64,
    /// Bytes that the sender says it has.
    answer: Option<u64>,
    /// How often in a row its answer did not explain the stall.
    strikes: u32,
}

impl Fetcher<'_> {
    /// A stream stalls although its connection does not break. Its sender may itself wait for bytes. A sender that does
    /// not answer, or has more bytes than it sends, is given up in the end.
    pub fn on_receive_stalled(&mut self, transfer: TransferId, watermark: u64) {
        let Some(stalled) = self.fetches.transfers.get_mut(&transfer) else {
            // It has ended.
            return;
        };
        let (from, feeds) = (stalled.from, stalled.feeds);
        let asked = stalled.check.take().filter(|check| check.watermark == watermark);
        let strikes = match asked {
            Some(check) if check.answer.is_none_or(|there| there > watermark) => check.strikes + 1,
            _ => 0,
        };
        if strikes > 0 && strikes >= self.patience(transfer, feeds, watermark) {
            return self.give_up(transfer, feeds, watermark);
        }
        if let Some(stalled) = self.fetches.transfers.get_mut(&transfer) {
            stalled.check = Some(Check { watermark, answer: None, strikes });
        }
        self.ctx.send(from, PeerMessage::Check { transfer }, None);
    }

    /// The number of strikes after which a sender is given up. It doubles with each sender given up at the same byte:
    /// where all are slow, changing them over and over would make no progress.
    fn patience(&self, transfer: TransferId, feeds: Feeds, watermark: u64) -> u32 {
        let in_a_row = match feeds {
            Feeds::Copy(copy) => {
                let fetch = self.fetches.running.get(&self.copies[copy].object);
                fetch.map_or(0, |fetch| if fetch.given_up.1 == watermark { fetch.given_up.0 } else { 0 })
            }
            Feeds::Fold(_) => self.fetches.transfers[&transfer].attempt(),
        };
        1 << in_a_row.min(PATIENCE_DOUBLINGS_MAX)
    }

    fn give_up(&mut self, transfer: TransferId, feeds: Feeds, watermark: u64) {
        if let Feeds::Copy(copy) = feeds {
            let object = self.copies[copy].object;
            if let Some(fetch) = self.fetches.running.get_mut(&object) {
                let in_a_row = if fetch.given_up.1 == watermark { fetch.given_up.0 } else { 0 };
                fetch.given_up = (in_a_row + 1, watermark);
            }
        }
        self.on_pull_refused(transfer);
    }

    pub fn on_checked(&mut self, transfer: TransferId, watermark: u64) {
        let check = self.fetches.transfers.get_mut(&transfer).and_then(|transfer| transfer.check.as_mut());
        if let Some(check) = check {
            check.answer = Some(watermark);
        }
    }
}

//! Streams and folds. Only their ends are simulated: a stream ends when its links could have carried all bytes and its
//! source is sealed. So bytes pass through a chain without delay.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_core::io::{Broken, FoldId, FoldInputs, FoldRule, Input, SendId};
use hoplite_types::peer::Seal;
use hoplite_types::{CopyId, NodeId, TransferId};

use super::{Bare, BareEvent};
use crate::names::index_of;

#[derive(Default)]
struct Held {
    size: u64,
    seal: Option<Seal>,
}

struct Sending {
    to: usize,
    transfer: TransferId,
    copy: CopyId,
    /// The time by which the links of sender and receiver can have carried all bytes.
    carried: Duration,
    bytes: u64,
    over: Option<Result<(), Broken>>,
}

/// A stream that a core wants to begin.
pub(super) struct Outgoing {
    pub to: NodeId,
    pub transfer: TransferId,
    pub copy: CopyId,
    pub offset: u64,
}

/// The use of the bytes of a stream.
pub(super) enum Receiving {
    Copy { from: NodeId, copy: CopyId, offset: u64 },
    Fold { fold: FoldId, from: NodeId },
}

pub(super) struct Folding {
    out: CopyId,
    rule: FoldRule,
    sources: Vec<CopyId>,
    /// Streams that have not ended.
    streams: Vec<TransferId>,
}

impl Folding {
    /// A fold without inputs.
    pub fn new(out: CopyId, rule: FoldRule) -> Self {
        Folding { out, rule, sources: Vec::new(), streams: Vec::new() }
    }
}

/// The data plane of one node.
#[derive(Default)]
pub(super) struct DataPlane {
    copies: BTreeMap<CopyId, Held>,
    sends: BTreeMap<SendId, Sending>,
    receives: BTreeMap<TransferId, Receiving>,
    folds: BTreeMap<FoldId, Folding>,
}

impl DataPlane {
    pub fn size(&self, copy: CopyId) -> u64 {
        self.copies.get(&copy).map_or(0, |held| held.size)
    }

    fn is_sealed(&self, copy: CopyId) -> bool {
        self.copies.get(&copy).is_some_and(|held| held.seal.is_some())
    }
}

impl Bare {
    fn data_plane(&mut self, index: usize) -> &mut DataPlane {
        &mut self.hosts[index].data_plane
    }

    pub(super) fn open(&mut self, index: usize, copy: CopyId, size: u64) {
        self.data_plane(index).copies.insert(copy, Held { size, seal: None });
    }

    pub(super) fn close(&mut self, index: usize, copy: CopyId) {
        self.data_plane(index).copies.remove(&copy);
    }

    pub(super) fn seal(&mut self, index: usize, copy: CopyId, seal: Seal) {
        let plane = self.data_plane(index);
        if let Some(held) = plane.copies.get_mut(&copy) {
            held.seal = Some(seal);
        }
        let reading = |send: &&SendId| plane.sends[send].copy == copy;
        let sends: Vec<_> = plane.sends.keys().filter(reading).copied().collect();
        let folds: Vec<_> = plane.folds.keys().copied().collect();
        sends.into_iter().for_each(|send| self.end_send_of_sealed(index, send));
        folds.into_iter().for_each(|fold| self.end_fold_if_done(index, fold));
    }

    pub(super) fn abort(&mut self, index: usize, copy: CopyId) {
        let plane = self.data_plane(index);
        let reading = |send: &&SendId| plane.sends[send].copy == copy;
        let sends: Vec<_> = plane.sends.keys().filter(reading).copied().collect();
        sends.into_iter().for_each(|send| self.break_send(index, send));
    }

    pub(super) fn send(&mut self, index: usize, send: SendId, outgoing: Outgoing) {
        let Outgoing { to, transfer, copy, offset } = outgoing;
        let (now, there) = (self.now(), index_of(to.addr));
        let bytes = self.hosts[index].data_plane.size(copy) - offset;
        let takes = self.links.takes(bytes);
        let sent = self.hosts[index].egress_free.max(now) + takes;
        self.hosts[index].egress_free = sent;
        let taken = self.hosts[there].ingress_free.max(now) + takes;
        self.hosts[there].ingress_free = taken;
        let sending = Sending { to: there, transfer, copy, carried: sent.max(taken), bytes, over: None };
        self.data_plane(index).sends.insert(send, sending);
        match self.hosts[there].alive {
            true if self.hosts[index].data_plane.is_sealed(copy) => self.end_send_of_sealed(index, send),
            true => {}
            false => self.break_send(index, send),
        }
    }

    fn end_send_of_sealed(&mut self, index: usize, send: SendId) {
        let now = self.now();
        let plane = self.data_plane(index);
        let Some(sending) = plane.sends.get_mut(&send).filter(|sending| sending.over.is_none()) else {
            return;
        };
        sending.over = Some(Ok(()));
        let at = sending.carried.max(now);
        let (to, transfer) = (sending.to, sending.transfer);
        let outcome = plane.copies[&plane.sends[&send].copy].seal.clone();
        self.queue.push(at, BareEvent::SendOver(index, send));
        self.queue.push(at + self.links.latency, BareEvent::Arrived { to, transfer, outcome });
    }

    fn break_send(&mut self, index: usize, send: SendId) {
        let (now, latency) = (self.now(), self.links.latency);
        let Some(sending) = self.data_plane(index).sends.get_mut(&send) else { return };
        let broken = BareEvent::Arrived { to: sending.to, transfer: sending.transfer, outcome: None };
        let first = sending.over.replace(Err(Broken)).is_none();
        if first {
            self.queue.push(now, BareEvent::SendOver(index, send));
            self.queue.push(now + latency, broken);
        }
    }

    pub(super) fn stop_send(&mut self, index: usize, send: SendId) {
        self.break_send(index, send);
    }

    pub(super) fn on_send_over(&mut self, index: usize, send: SendId) {
        let bytes_per_s = self.links.bytes_per_s;
        let Some(sending) = self.data_plane(index).sends.remove(&send) else { return };
        let outcome = sending.over.unwrap_or(Err(Broken));
        if outcome.is_ok() && sending.bytes > 0 {
            self.feed(index, Input::SendMeasured { send, bytes: sending.bytes, bytes_per_s });
        }
        self.feed(index, Input::SendEnded { send, outcome });
    }

    pub(super) fn receive(&mut self, index: usize, transfer: TransferId, receiving: Receiving) {
        self.data_plane(index).receives.insert(transfer, receiving);
    }

    pub(super) fn stop_receive(&mut self, index: usize, transfer: TransferId) {
        if let Some(Receiving::Copy { offset, .. }) = self.data_plane(index).receives.remove(&transfer) {
            let outcome = Err(Broken);
            self.report(index, Input::ReceiveEnded { transfer, watermark: offset, outcome });
        }
    }

    pub(super) fn on_arrived(&mut self, index: usize, transfer: TransferId, outcome: Option<Seal>) {
        let bytes_per_s = self.links.bytes_per_s;
        let plane = self.data_plane(index);
        match (plane.receives.remove(&transfer), outcome) {
            (Some(Receiving::Copy { from, copy, .. }), Some(seal)) => {
                let watermark = plane.size(copy);
                self.feed(index, Input::Measured { peer: from, bytes_per_s });
                self.feed(index, Input::ReceiveEnded { transfer, watermark, outcome: Ok(seal) });
            }
            (Some(Receiving::Copy { offset, .. }), None) => {
                let outcome = Err(Broken);
                self.feed(index, Input::ReceiveEnded { transfer, watermark: offset, outcome });
            }
            (Some(Receiving::Fold { fold, from }), Some(_)) => {
                if let Some(folding) = plane.folds.get_mut(&fold) {
                    folding.streams.retain(|stream| *stream != transfer);
                }
                self.feed(index, Input::Measured { peer: from, bytes_per_s });
                self.end_fold_if_done(index, fold);
            }
            (Some(Receiving::Fold { fold, .. }), None) => {
                self.feed(index, Input::FoldStreamBroken { fold, transfer });
            }
            (None, _) => {}
        }
    }

    pub(super) fn fold(&mut self, index: usize, fold: FoldId, folding: Folding, inputs: FoldInputs) {
        let rule = folding.rule;
        self.data_plane(index).folds.insert(fold, folding);
        self.amend_fold(index, fold, rule, inputs);
    }

    pub(super) fn amend_fold(&mut self, index: usize, fold: FoldId, rule: FoldRule, added: FoldInputs) {
        let plane = self.data_plane(index);
        let Some(folding) = plane.folds.get_mut(&fold) else { return };
        folding.rule = rule;
        folding.sources.extend(&added.sources);
        for (transfer, from) in added.streams {
            folding.streams.push(transfer);
            plane.receives.insert(transfer, Receiving::Fold { fold, from });
        }
        self.end_fold_if_done(index, fold);
    }

    pub(super) fn stop_fold(&mut self, index: usize, fold: FoldId) {
        let plane = self.data_plane(index);
        if plane.folds.remove(&fold).is_some() {
            plane.receives.retain(|_, to| !matches!(to, Receiving::Fold { fold: of, .. } if *of == fold));
            self.report(index, Input::FoldEnded { fold, outcome: Err(Broken) });
        }
    }

    fn end_fold_if_done(&mut self, index: usize, fold: FoldId) {
        let plane = self.data_plane(index);
        let Some(folding) = plane.folds.get(&fold) else { return };
        let sealed = folding.sources.iter().all(|source| plane.is_sealed(*source));
        if sealed && folding.streams.is_empty() && !folding.rule.open {
            debug_assert!(plane.copies.contains_key(&folding.out), "a fold into nothing");
            plane.folds.remove(&fold);
            self.report(index, Input::FoldEnded { fold, outcome: Ok(()) });
        }
    }

    /// Breaks the streams from and to a node that died.
    pub(super) fn break_streams_of(&mut self, index: usize) {
        let own: Vec<_> = self.data_plane(index).sends.keys().copied().collect();
        own.into_iter().for_each(|send| self.break_send(index, send));
        for other in self.living() {
            let sends = &self.hosts[other].data_plane.sends;
            let to_it: Vec<_> =
                sends.iter().filter(|(_, send)| send.to == index).map(|(id, _)| *id).collect();
            to_it.into_iter().for_each(|send| self.break_send(other, send));
        }
    }
}

//! Sends copies to the nodes that pull them [design §5]. A pull names an edition, and no other edition is sent for it.
//! A pull that is merely early is parked until the copy opens.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hoplite_types::client::Gauge;
use hoplite_types::peer::PeerMessage;
use hoplite_types::{Connections, CopyId, Edition, NodeId, ObjectId, TransferId};

use crate::connections::LARGE_BYTES_MIN;
use crate::io::{Broken, Output, SendId};
use crate::timers::Timer;
use crate::Core;

/// Identifies a stream that was requested from us: the receiver's node, and its number for the transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PullKey {
    pub to: NodeId,
    pub transfer: TransferId,
}

/// How long an early pull waits for its copy: several round trips and a busy scheduler.
const PARK_TIME: Duration = Duration::from_secs(2);

/// Limit of early pulls that wait here. Further ones are refused, and their receivers ask their owners again.
const PARKED_MAX: usize = 1 << 16;

/// How often a pull that only this node can serve is retried when no connection can be made for it.
const DIALS_AGAIN_MAX: u32 = 3;

/// The pause before the first such retry; doubled with each further one.
const DIAL_AGAIN_AFTER: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy)]
struct Pull {
    id: ObjectId,
    edition: Edition,
    offset: u64,
    /// Whether only this node can serve it.
    patient: bool,
    /// How often no connection could be made for it.
    in_vain: u32,
}

#[derive(Debug, Clone, Copy)]
struct Sending {
    copy: CopyId,
    key: PullKey,
    pull: Pull,
    connections: Connections,
    /// It takes a good part of the link for a while.
    is_large: bool,
    /// The receiver has cancelled it.
    is_cancelled: bool,
}

/// Limit of ended sends that are remembered. For an older one, a receiver whose stream stalls asks another sender.
const SENT_MAX: usize = 1024;

/// The last sends whose bytes were handed to the network in full: the bytes may still be under way.
#[derive(Debug, Default)]
pub(crate) struct Sent(VecDeque<PullKey>);

impl Sent {
    fn note(&mut self, key: PullKey) {
        self.0.push_back(key);
        if self.0.len() > SENT_MAX {
            self.0.pop_front();
        }
    }
}

/// Running sends and parked pulls.
#[derive(Debug, Default)]
pub(crate) struct Sends {
    running: BTreeMap<SendId, Sending>,
    by_key: BTreeMap<PullKey, SendId>,
    by_copy: BTreeMap<CopyId, BTreeSet<SendId>>,
    /// The number of large sends that run to each receiver.
    large: BTreeMap<NodeId, usize>,
    parked: BTreeMap<PullKey, Pull>,
    parked_by_object: BTreeMap<ObjectId, BTreeSet<PullKey>>,
    /// Several large sends run, or did until a moment ago: the rate of each says little of the link.
    sharing: bool,
    /// Count of early pulls that were refused because too many were parked.
    refused: u64,
}

impl Sends {
    fn begin(&mut self, send: SendId, sending: Sending) {
        self.sharing |= sending.is_large && !self.large.is_empty();
        if sending.is_large {
            *self.large.entry(sending.key.to).or_default() += 1;
        }
        self.by_key.insert(sending.key, send);
        self.by_copy.entry(sending.copy).or_default().insert(send);
        self.running.insert(send, sending);
    }

    fn end(&mut self, send: SendId) -> Option<Sending> {
        let sending = self.running.remove(&send)?;
        self.by_key.remove(&sending.key);
        forget(&mut self.by_copy, sending.copy, send);
        if let Some(count) = self.large.get_mut(&sending.key.to).filter(|_| sending.is_large) {
            *count -= 1;
            if *count == 0 {
                self.large.remove(&sending.key.to);
            }
        }
        self.sharing &= !self.large.is_empty();
        Some(sending)
    }

    fn large_to(&self, node: NodeId) -> usize {
        self.large.get(&node).copied().unwrap_or(0)
    }

    fn of(&self, copy: CopyId) -> Vec<SendId> {
        self.by_copy.get(&copy).into_iter().flatten().copied().collect()
    }

    fn park(&mut self, key: PullKey, pull: Pull) {
        self.parked.insert(key, pull);
        self.parked_by_object.entry(pull.id).or_default().insert(key);
    }

    fn unpark(&mut self, key: PullKey) -> Option<Pull> {
        let pull = self.parked.remove(&key)?;
        forget(&mut self.parked_by_object, pull.id, key);
        Some(pull)
    }

    fn parked_for(&self, id: ObjectId) -> Vec<PullKey> {
        self.parked_by_object.get(&id).into_iter().flatten().copied().collect()
    }

    pub fn count(&self) -> usize {
        self.running.len()
    }

    pub fn parked_gauge(&self) -> Gauge {
        let (name, value) = ("pulls that wait for their copy".to_owned(), self.parked.len() as u64);
        Gauge { name, value, limit: PARKED_MAX as u64, met: self.refused }
    }
}

fn forget<K: Ord, V: Ord>(index: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: V) {
    if let Some(values) = index.get_mut(&key) {
        values.remove(&value);
        if values.is_empty() {
            index.remove(&key);
        }
    }
}

impl Core {
    pub(crate) fn on_pull(
        &mut self,
        key: PullKey,
        id: ObjectId,
        edition: Edition,
        offset: u64,
        patient: bool,
    ) {
        if self.sends.by_key.contains_key(&key) || self.sends.parked.contains_key(&key) {
            // A repetition: the receiver uses each number once.
            return;
        }
        let pull = Pull { id, edition, offset, patient, in_vain: 0 };
        match self.copy_for(pull) {
            Some(copy) => self.start_send(key, copy, pull),
            None if self.sends.parked.len() >= PARKED_MAX => {
                self.sends.refused += 1;
                self.refuse(key, pull);
            }
            None if patient || self.fetches.is_expected(id) => {
                self.sends.park(key, pull);
                self.ctx.timers.set(self.ctx.now + PARK_TIME, Timer::Parked(key));
            }
            None => self.refuse(key, pull),
        }
    }

    fn copy_for(&self, pull: Pull) -> Option<CopyId> {
        self.copies.live(pull.id).filter(|copy| self.copies[*copy].edition == pull.edition)
    }

    fn start_send(&mut self, key: PullKey, copy: CopyId, pull: Pull) {
        if pull.offset > self.copies[copy].extent.size {
            self.refuse(key, pull);
            return;
        }
        let send = SendId(self.ctx.next_number());
        let number = send.0;
        self.copies.add_user(&mut self.ctx, copy);
        self.copies.touch(copy, number);
        let PullKey { to, transfer } = key;
        let bytes = self.copies[copy].extent.size - pull.offset;
        let group = self.stripes_of(copy);
        let connections = match group {
            Some(_) => self.connections.for_group(to),
            None => self.connections.choose(self.ctx.now, to, bytes, 1 + self.sends.large_to(to)),
        };
        let is_large = bytes >= LARGE_BYTES_MIN;
        self.sends.begin(send, Sending { copy, key, pull, connections, is_large, is_cancelled: false });
        let offset = pull.offset;
        self.ctx.out.push_back(Output::Send { send, to, transfer, copy, offset, connections, group });
    }

    fn refuse(&mut self, key: PullKey, pull: Pull) {
        self.ctx.send(key.to, PeerMessage::PullRefused { transfer: key.transfer }, None);
        let here = self.copies.live_copy(pull.id).map(|copy| copy.edition);
        if here != Some(pull.edition) {
            // The node that lent us as a sender counts us as a holder: our withdrawal was lost.
            self.copies.withdraw_edition(&mut self.ctx, pull.id, pull.edition);
        }
    }

    pub(crate) fn on_cancel_pull(&mut self, key: PullKey) {
        self.ctx.timers.clear(Timer::Parked(key));
        self.sends.unpark(key);
        if let Some(&send) = self.sends.by_key.get(&key) {
            if let Some(sending) = self.sends.running.get_mut(&send) {
                sending.is_cancelled = true;
            }
            self.ctx.out.push_back(Output::StopSend { send });
        }
    }

    /// A receiver's stream stalls. A send whose bytes were handed over in full is not refused, because they may still
    /// be in the network. Otherwise a slow line would be filled again and again with bytes that are no longer awaited.
    pub(crate) fn on_check(&mut self, key: PullKey) {
        let sending = self.sends.by_key.get(&key).map(|send| self.sends.running[send].copy);
        let watermark = match sending.map(|copy| &self.copies[copy]) {
            Some(copy) if copy.is_sealed() => copy.extent.size + 1,
            Some(copy) => copy.watermark,
            None if self.sends.parked.contains_key(&key) => 0,
            None if self.sent.0.contains(&key) => u64::MAX,
            None => {
                let refused = PeerMessage::PullRefused { transfer: key.transfer };
                return self.ctx.send(key.to, refused, None);
            }
        };
        self.ctx.send(key.to, PeerMessage::Checked { transfer: key.transfer, watermark }, None);
    }

    pub(crate) fn on_parked_timer(&mut self, key: PullKey) {
        let Some(pull) = self.sends.unpark(key) else { return };
        match self.copy_for(pull) {
            // It was retried because no connection could be made.
            Some(copy) => self.start_send(key, copy, pull),
            None => self.refuse(key, pull),
        }
    }

    pub(crate) fn on_send_measured(&mut self, send: SendId, bytes: u64, bytes_per_s: u64) {
        if let Some(&Sending { key, connections, .. }) = self.sends.running.get(&send) {
            if !self.sends.sharing && !self.departed.contains(&key.to) {
                self.connections.on_measured(self.ctx.now, key.to, connections, bytes, bytes_per_s);
            }
        }
    }

    pub(crate) fn on_send_ended(&mut self, send: SendId, outcome: Result<(), Broken>) {
        if let Some(Sending { copy, key, is_cancelled, .. }) = self.sends.end(send) {
            if outcome.is_err() && !is_cancelled && self.ctx.shards.contains(key.to) {
                // Its connection may never have been made; then the receiver cannot know.
                self.ctx.send(key.to, PeerMessage::PullRefused { transfer: key.transfer }, None);
            }
            if outcome.is_ok() {
                self.sent.note(key);
            }
            let object = self.copies[copy].object;
            self.copies.remove_user(&mut self.ctx, copy);
            self.drop_unwanted_fetch(object);
        }
    }

    /// No connection could be made. A receiver that can ask for another sender is refused at once. For the others the
    /// send is retried: otherwise a slot with many streams would start over for each that fails.
    pub(crate) fn on_send_not_begun(&mut self, send: SendId) {
        let Some(&Sending { copy, key, pull, is_cancelled, .. }) = self.sends.running.get(&send) else {
            return;
        };
        let in_vain = pull.in_vain + 1;
        let again = pull.patient
            && in_vain <= DIALS_AGAIN_MAX
            && !is_cancelled
            && !self.copies[copy].doomed
            && self.ctx.shards.contains(key.to)
            && self.sends.parked.len() < PARKED_MAX;
        if !again {
            return self.on_send_ended(send, Err(Broken));
        }
        self.sends.end(send);
        self.sends.park(key, Pull { in_vain, ..pull });
        let rest = DIAL_AGAIN_AFTER * (1 << pull.in_vain);
        self.ctx.timers.set(self.ctx.now + rest, Timer::Parked(key));
        self.copies.remove_user(&mut self.ctx, copy);
    }

    /// All receivers that stream from this copy must ask for another sender.
    pub(crate) fn stop_sends(&mut self, copy: CopyId) {
        for send in self.sends.of(copy) {
            self.ctx.out.push_back(Output::StopSend { send });
        }
    }

    /// A copy of `id` was opened: early pulls for it are served now.
    pub(crate) fn serve_parked(&mut self, id: ObjectId) {
        let Some(copy) = self.copies.live(id) else { return };
        let edition = self.copies[copy].edition;
        for key in self.sends.parked_for(id) {
            if self.sends.parked[&key].edition == edition {
                let Some(pull) = self.sends.unpark(key) else { continue };
                self.ctx.timers.clear(Timer::Parked(key));
                self.start_send(key, copy, pull);
            }
        }
    }

    /// No copy of `id` will come here: early pulls for it are refused.
    pub(crate) fn refuse_parked(&mut self, id: ObjectId) {
        for key in self.sends.parked_for(id) {
            self.ctx.timers.clear(Timer::Parked(key));
            if let Some(pull) = self.sends.unpark(key) {
                self.refuse(key, pull);
            }
        }
    }

    /// A receiver died: nothing is sent to it any more.
    pub(crate) fn sends_member_down(&mut self, node: NodeId) {
        let to_node = self.sends.running.iter().filter(|(_, sending)| sending.key.to == node);
        let sends: Vec<_> = to_node.map(|(&send, _)| send).collect();
        for send in sends {
            self.ctx.out.push_back(Output::StopSend { send });
        }
        let parked: Vec<_> = self.sends.parked.keys().copied().filter(|key| key.to == node).collect();
        for key in parked {
            self.sends.unpark(key);
            self.ctx.timers.clear(Timer::Parked(key));
        }
    }
}

//! Sends copies to the nodes that pull them [design §5]. A pull names an edition, and no other edition is sent for it.
//! A pull that is merely early is parked until the copy opens.
//!
//! - here: pulls and their ends; `running`: the table of sends; `parked`: early pulls
//! - `connections`: how many connections a transfer uses

mod connections;
mod parked;
mod running;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_types::client::Gauge;
use hoplite_types::peer::PeerMessage;
use hoplite_types::{Connections, CopyId, Edition, NodeId, ObjectId};

use crate::copies::Copies;
use crate::ctx::Ctx;
use crate::io::{Broken, Output, SendId};
use crate::keys::PullKey;
use crate::notices::Notice;
use crate::timers::Timer;
use connections::{Choices, LARGE_BYTES_MIN};
use parked::Parked;
use running::{Running, Sending, Sent};

/// How long an early pull waits for its copy: several round trips and a busy scheduler.
const PARK_TIME: Duration = Duration::from_secs(2);

/// How often a pull that only this node can serve is retried when no connection can be made for it.
const DIALS_AGAIN_MAX: u32 = 3;

/// The pause before the first such retry; doubled with each further one.
const DIAL_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The bytes that a receiver asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pull {
    id: ObjectId,
    edition: Edition,
    offset: u64,
    /// Whether only this node can serve it.
    patient: bool,
    /// How often no connection could be made for it.
    in_vain: u32,
}

impl Pull {
    pub fn new(id: ObjectId, edition: Edition, offset: u64, patient: bool) -> Self {
        Pull { id, edition, offset, patient, in_vain: 0 }
    }
}

/// Running sends and parked pulls.
#[derive(Debug)]
pub(crate) struct Sends {
    running: Running,
    sent: Sent,
    parked: Parked,
    connections: Choices,
}

fn forget<K: Ord, V: Ord>(index: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: V) {
    if let Some(values) = index.get_mut(&key) {
        values.remove(&value);
        if values.is_empty() {
            index.remove(&key);
        }
    }
}

impl Sends {
    /// `connections` is the number of connections of each transfer, if it is set.
    pub fn new(connections: Option<Connections>) -> Self {
        let (running, sent, parked) = (Running::default(), Sent::default(), Parked::default());
        Sends { running, sent, parked, connections: Choices::new(connections) }
    }

    /// The number of running sends.
    pub fn count(&self) -> usize {
        self.running.count()
    }

    pub fn gauge(&self) -> Gauge {
        self.parked.gauge()
    }

    /// Describes the state that is left, in words.
    pub fn leftovers(&self) -> Option<String> {
        let is_left = self.running.count() > 0 || !self.parked.is_empty();
        is_left.then(|| format!("sends: {:?}, {:?}", self.running, self.parked))
    }

    /// A receiver asks for bytes. An early pull is parked if only this node can serve it, or a copy is expected here.
    pub fn on_pull(
        &mut self,
        ctx: &mut Ctx,
        copies: &mut Copies,
        key: PullKey,
        pull: Pull,
        is_expected: bool,
    ) {
        if self.running.of_key(key).is_some() || self.parked.has(key) {
            // A repetition: the receiver uses each number once.
            return;
        }
        match copy_for(copies, pull) {
            Some(copy) => self.start(ctx, copies, key, copy, pull),
            None if self.parked.is_full() => {
                self.parked.note_refused();
                refuse(ctx, copies, key, pull);
            }
            None if pull.patient || is_expected => {
                self.parked.park(key, pull);
                ctx.timers.set(ctx.now + PARK_TIME, Timer::Parked(key));
            }
            None => refuse(ctx, copies, key, pull),
        }
    }

    fn start(&mut self, ctx: &mut Ctx, copies: &mut Copies, key: PullKey, copy: CopyId, pull: Pull) {
        if pull.offset > copies[copy].extent.size {
            return refuse(ctx, copies, key, pull);
        }
        let send = SendId(ctx.next_number());
        copies.add_user(ctx, copy);
        copies.touch(copy, send.0);
        let PullKey { to, transfer } = key;
        let (bytes, group) = (copies[copy].extent.size - pull.offset, copies[copy].group);
        let connections = match group {
            Some(_) => self.connections.for_group(to),
            None => self.connections.choose(ctx.now, to, bytes, 1 + self.running.large_to(to)),
        };
        let is_large = bytes >= LARGE_BYTES_MIN;
        self.running.begin(send, Sending { copy, key, pull, connections, is_large, is_cancelled: false });
        let offset = pull.offset;
        ctx.out.push_back(Output::Send { send, to, transfer, copy, offset, connections, group });
    }

    pub fn on_cancel_pull(&mut self, ctx: &mut Ctx, key: PullKey) {
        ctx.timers.clear(Timer::Parked(key));
        self.parked.unpark(key);
        if let Some(send) = self.running.cancel(key) {
            ctx.out.push_back(Output::StopSend { send });
        }
    }

    /// A receiver's stream stalls. A send whose bytes were handed over in full is not refused, because they may still
    /// be in the network. Otherwise a slow line would be filled again and again with bytes that are no longer awaited.
    pub fn on_check(&self, ctx: &mut Ctx, copies: &Copies, key: PullKey) {
        let PullKey { to, transfer } = key;
        let watermark = match self.running.of_key(key).map(|sending| &copies[sending.copy]) {
            Some(copy) if copy.is_sealed() => copy.extent.size + 1,
            Some(copy) => copy.watermark,
            None if self.parked.has(key) => 0,
            None if self.sent.has(key) => u64::MAX,
            None => return ctx.send(to, PeerMessage::PullRefused { transfer }, None),
        };
        ctx.send(to, PeerMessage::Checked { transfer, watermark }, None);
    }

    /// A parked pull has waited long enough, or is tried again because no connection could be made.
    pub fn on_parked_timer(&mut self, ctx: &mut Ctx, copies: &mut Copies, key: PullKey) {
        let pull = self.parked.unpark(key).expect("the timer is cleared with the pull");
        match copy_for(copies, pull) {
            Some(copy) => self.start(ctx, copies, key, copy, pull),
            None => refuse(ctx, copies, key, pull),
        }
    }

    pub fn on_send_measured(&mut self, ctx: &Ctx, send: SendId, bytes: u64, bytes_per_s: u64) {
        if let Some(Sending { key, connections, .. }) = self.running.get(send) {
            if !self.running.is_sharing() && !ctx.departed.has(key.to) {
                self.connections.on_measured(ctx.now, key.to, connections, bytes, bytes_per_s);
            }
        }
    }

    pub fn on_send_ended(
        &mut self,
        ctx: &mut Ctx,
        copies: &mut Copies,
        send: SendId,
        outcome: Result<(), Broken>,
    ) {
        let Some(Sending { copy, key, is_cancelled, .. }) = self.running.end(send) else {
            // Each send ends once: a second end changes nothing.
            return;
        };
        if outcome.is_err() && !is_cancelled && ctx.shards.contains(key.to) {
            // Its connection may never have been made; then the receiver cannot know.
            ctx.send(key.to, PeerMessage::PullRefused { transfer: key.transfer }, None);
        }
        if outcome.is_ok() {
            self.sent.note(key);
        }
        release(ctx, copies, copy);
    }

    /// No connection could be made. A receiver that can ask for another sender is refused at once. For the others the
    /// send is retried: otherwise a slot with many streams would start over for each that fails.
    pub fn on_send_not_begun(&mut self, ctx: &mut Ctx, copies: &mut Copies, send: SendId) {
        let Some(Sending { copy, key, pull, is_cancelled, .. }) = self.running.get(send) else {
            // It has ended.
            return;
        };
        let in_vain = pull.in_vain + 1;
        let again = pull.patient
            && in_vain <= DIALS_AGAIN_MAX
            && !is_cancelled
            && !copies[copy].doomed
            && ctx.shards.contains(key.to)
            && !self.parked.is_full();
        if !again {
            return self.on_send_ended(ctx, copies, send, Err(Broken));
        }
        self.running.end(send);
        self.parked.park(key, Pull { in_vain, ..pull });
        let rest = DIAL_AGAIN_AFTER * (1 << pull.in_vain);
        ctx.timers.set(ctx.now + rest, Timer::Parked(key));
        copies.remove_user(ctx, copy);
    }

    /// All receivers that stream from this copy must ask for another sender.
    pub fn stop(&self, ctx: &mut Ctx, copy: CopyId) {
        ctx.out.extend(self.running.of_copy(copy).map(|send| Output::StopSend { send }));
    }

    /// A copy of `id` was opened: early pulls for it are served now.
    pub fn serve_parked(&mut self, ctx: &mut Ctx, copies: &mut Copies, id: ObjectId) {
        let Some(copy) = copies.live(id) else {
            // It is gone already.
            return;
        };
        let edition = copies[copy].edition;
        for (key, pull) in self.parked.of_object(id) {
            if pull.edition == edition {
                self.unpark(ctx, key);
                self.start(ctx, copies, key, copy, pull);
            }
        }
    }

    /// No copy of `id` will come here: early pulls for it are refused.
    pub fn refuse_parked(&mut self, ctx: &mut Ctx, copies: &Copies, id: ObjectId) {
        for (key, pull) in self.parked.of_object(id) {
            self.unpark(ctx, key);
            refuse(ctx, copies, key, pull);
        }
    }

    fn unpark(&mut self, ctx: &mut Ctx, key: PullKey) {
        self.parked.unpark(key);
        ctx.timers.clear(Timer::Parked(key));
    }

    /// A receiver died: nothing is sent to it any more.
    pub fn on_node_down(&mut self, ctx: &mut Ctx, node: NodeId) {
        self.connections.forget(node);
        ctx.out.extend(self.running.to_node(node).map(|send| Output::StopSend { send }));
        for key in self.parked.of_node(node) {
            self.unpark(ctx, key);
        }
    }
}

fn copy_for(copies: &Copies, pull: Pull) -> Option<CopyId> {
    copies.live(pull.id).filter(|copy| copies[*copy].edition == pull.edition)
}

fn refuse(ctx: &mut Ctx, copies: &Copies, key: PullKey, pull: Pull) {
    ctx.send(key.to, PeerMessage::PullRefused { transfer: key.transfer }, None);
    let here = copies.live_copy(pull.id).map(|copy| copy.edition);
    if here != Some(pull.edition) {
        // The node that lent us as a sender counts us as a holder: our withdrawal was lost.
        copies.withdraw_edition(ctx, pull.id, pull.edition);
    }
}

/// A send does not use its copy any more.
fn release(ctx: &mut Ctx, copies: &mut Copies, copy: CopyId) {
    let object = copies[copy].object;
    copies.remove_user(ctx, copy);
    ctx.notices.push_back(Notice::Released(object));
}

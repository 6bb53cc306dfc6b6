//! Control connections, one per direction. A node dials when it has something to send.
//! ```text
//! send ─▶ Dialling ──welcome──▶ Up ──broke, closed──▶ (gone; the next send dials again)
//!            └──refused, silent──▶ (gone)
//! ```
//! Messages arrive in order or are lost. Kernels hold them behind a cut until it heals or a time-out ends. A node reads
//! only the newest link of each caller, and no link of a node that it believes dead. Messages on other links are lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hoplite_core::io::Input;
use hoplite_types::limits::{DIAL_BACKOFF_MAX, DIAL_TIMEOUT, SHORTAGE_PATIENCE};
use hoplite_types::peer::{PeerMessage, Scope};
use hoplite_types::NodeId;

use super::outputs::is_noise;
use super::{note, tell, Place, World};
use crate::coverage::Reading;
use crate::event::SimEvent;
use crate::fault::Lane;
use crate::names::{index_of, node as name};
use crate::show;

/// Time after which the kernel repeats its SYN.
const SYN_RETRY: Duration = Duration::from_secs(1);

/// Pause before the next dial after a failure. It doubles with each further failure, up to a limit.
const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// Interval of tries to make a connection without a free descriptor.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(40);

/// Interval of tries to report the end of a connection across a cut.
const FIN_RETRY: Duration = Duration::from_millis(200);

/// Longest time until the kernels notice that a cut has healed.
pub(super) const RETRANSMIT_MAX: Duration = Duration::from_millis(500);

/// One control connection, from its dial to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ControlLinkId(u64);

/// A message and the time at which it was sent.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub message: PeerMessage,
    pub said: Duration,
}

#[derive(Debug)]
struct ControlLink {
    from: Place,
    from_id: NodeId,
    to: NodeId,
    up: bool,
    /// The connection is broken, and the caller does not know yet.
    broken: bool,
    /// Messages sent during the dial.
    waiting: VecDeque<QueuedMessage>,
    /// Messages that a cut holds up.
    stuck: VecDeque<QueuedMessage>,
    last_arrival: Duration,
    /// Number of messages that were sent and that the other process has not read.
    unread: usize,
    /// Time since which there has been no descriptor for this connection.
    short_since: Option<Duration>,
}

/// All control connections.
#[derive(Default, Debug)]
pub(crate) struct ControlLinks {
    table: BTreeMap<ControlLinkId, ControlLink>,
    /// The link on which a node sends to another one.
    current: BTreeMap<(Place, NodeId), ControlLinkId>,
    /// The link on which the second node reads messages of the first.
    heard: BTreeMap<(NodeId, NodeId), ControlLinkId>,
    failures: BTreeMap<(Place, NodeId), u32>,
    /// Caller and callee of each link that ever existed.
    ends: Vec<(NodeId, NodeId)>,
}

impl ControlLinks {
    fn forget(&mut self, id: ControlLinkId) -> Option<ControlLink> {
        let was_current = self.is_current(id);
        let link = self.table.remove(&id)?;
        if was_current {
            self.current.remove(&(link.from, link.to));
        }
        Some(link)
    }

    /// Whether the caller still sends on this link.
    fn is_current(&self, id: ControlLinkId) -> bool {
        self.table.get(&id).is_some_and(|link| self.current.get(&(link.from, link.to)) == Some(&id))
    }

    /// The callee stops reading this link. Returns whether it did read it.
    fn stop_reading(&mut self, from: NodeId, to: NodeId, id: ControlLinkId) -> bool {
        let listened = self.heard.get(&(from, to)) == Some(&id);
        if listened {
            self.heard.remove(&(from, to));
        }
        listened
    }

    fn backoff(&self, from: Place, to: NodeId) -> Duration {
        match self.failures.get(&(from, to)).copied().unwrap_or(0) {
            0 => Duration::ZERO,
            failures => (BACKOFF_MIN * (1 << (failures - 1).min(10))).min(DIAL_BACKOFF_MAX),
        }
    }

    /// The caller of a link. Its process must run to notice the end of the link.
    pub fn caller(&self, id: ControlLinkId) -> Option<Place> {
        self.table.get(&id).map(|link| link.from)
    }

    /// The links between nodes for which `separated` is true.
    fn across(&self, separated: impl Fn(usize, usize) -> bool) -> Vec<ControlLinkId> {
        let apart = |link: &ControlLink| link.up && separated(link.from.index, index_of(link.to.addr));
        self.table.iter().filter(|(_, link)| apart(link)).map(|(id, _)| *id).collect()
    }
}

impl World {
    pub(super) fn queue_control(&mut self, place: Place, to: NodeId, message: PeerMessage) {
        let id = match self.control_links.current.get(&(place, to)) {
            Some(id) => *id,
            None => self.dial(place, to),
        };
        let link = self.control_links.table.get_mut(&id).expect("current ones exist");
        self.coverage.on_sent(link.from_id, to, &message);
        link.unread += 1;
        if link.unread > self.plan.means.outbox_max || link.broken {
            self.coverage.on_missed(link.from_id, to, &message, false);
            if link.unread > self.plan.means.outbox_max {
                self.overflow(id);
            }
            return;
        }
        let queued = QueuedMessage { message, said: self.queue.now() };
        match link.up {
            true => self.transmit(id, queued),
            false => link.waiting.push_back(queued),
        }
    }

    /// Gives up a connection whose other side does not read its messages.
    fn overflow(&mut self, id: ControlLinkId) {
        let link = &self.control_links.table[&id];
        if link.broken {
            return;
        }
        tell!(self, "the link from {} to {} overflows", name(link.from_id), name(link.to));
        match link.up {
            true => self.break_link(id, true),
            false => {
                let lost = SimEvent::LinkLost { link: id, gone: false };
                self.queue.push(self.queue.now(), lost);
            }
        }
    }

    fn dial(&mut self, place: Place, to: NodeId) -> ControlLinkId {
        self.control_links.ends.push((self.nodes[place.index].id, to));
        let id = ControlLinkId(self.control_links.ends.len() as u64);
        let link = ControlLink {
            from: place,
            from_id: self.nodes[place.index].id,
            to,
            up: false,
            broken: false,
            waiting: VecDeque::new(),
            stuck: VecDeque::new(),
            last_arrival: Duration::ZERO,
            unread: 0,
            short_since: None,
        };
        self.control_links.table.insert(id, link);
        self.control_links.current.insert((place, to), id);
        let syn = self.net.latency(place.index, index_of(to.addr));
        let at = self.after(self.control_links.backoff(place, to) + syn);
        self.queue.push(at, SimEvent::Dial { link: id, waited: Duration::ZERO });
        id
    }

    /// A dial reaches the other host, or fails.
    pub(super) fn on_dial(&mut self, id: ControlLinkId, waited: Duration) {
        let Some(link) = self.control_links.table.get(&id) else { return };
        let (from, from_id, to) = (link.from, link.from_id, link.to);
        let there = index_of(to.addr);
        if self.alive(from).is_none() || !self.control_links.is_current(id) {
            self.forget_link(id);
            return;
        }
        if self.put_off_for_shortage(id) {
            return;
        }
        if self.net.is_apart(from.index, there) {
            let waited = waited + SYN_RETRY;
            let next = match waited >= DIAL_TIMEOUT {
                true => SimEvent::LinkLost { link: id, gone: false },
                false => SimEvent::Dial { link: id, waited },
            };
            self.queue.push(self.after(SYN_RETRY), next);
        } else if let Some(place) = self.place_of(to) {
            let link = self.control_links.table.get_mut(&id).expect("looked up above");
            link.up = true;
            for queued in std::mem::take(&mut link.waiting) {
                self.transmit(id, queued);
            }
            if self.control_links.heard.insert((from_id, to), id).is_some() {
                self.feed(place, Input::PeerBroken { node: from_id });
            }
        } else {
            let back = self.net.latency(there, from.index);
            self.queue.push(self.after(back), SimEvent::LinkLost { link: id, gone: true });
        }
    }

    /// Whether one side has no descriptor for this connection. If so, schedules another try, or gives up after a while.
    fn put_off_for_shortage(&mut self, id: ControlLinkId) -> bool {
        let (from, to) =
            (self.control_links.table[&id].from.index, index_of(self.control_links.table[&id].to.addr));
        if !self.is_short_of_descriptors(from) && !self.is_short_of_descriptors(to) {
            return false;
        }
        let now = self.queue.now();
        let link = self.control_links.table.get_mut(&id).expect("the caller's");
        let since = *link.short_since.get_or_insert(now);
        let next = match now >= since + SHORTAGE_PATIENCE {
            true => SimEvent::LinkLost { link: id, gone: false },
            false => SimEvent::Dial { link: id, waited: Duration::ZERO },
        };
        self.queue.push(self.after(SHORTAGE_PAUSE), next);
        true
    }

    /// Whether all descriptors of this node's process are in use.
    pub(super) fn is_short_of_descriptors(&self, index: usize) -> bool {
        let most = self.plan.means.descriptors_max;
        if most == usize::MAX {
            return false;
        }
        let place = self.place(index);
        let id = self.nodes[index].id;
        let links =
            self.control_links.table.values().filter(|link| link.up && (link.from == place || link.to == id));
        let flows = self.flows.values().filter(|flow| flow.from == place || flow.to == id);
        let clients = self.sessions.values().filter(|session| session.alive && session.place == place);
        links.count() + flows.count() + clients.count() >= most
    }

    fn transmit(&mut self, id: ControlLinkId, QueuedMessage { message, said: first_said }: QueuedMessage) {
        let link = &self.control_links.table[&id];
        let from = link.from.index;
        let under_way = self.net.under_way(from, index_of(link.to.addr), Lane::Control);
        let said = self.queue.now() + self.nodes[from].process.turn;
        let link = self.control_links.table.get_mut(&id).expect("looked up above");
        link.last_arrival = (link.last_arrival + Duration::from_nanos(1)).max(said + under_way);
        self.queue
            .push(link.last_arrival, SimEvent::Control { link: id, to: link.to, message, said: first_said });
    }

    pub(super) fn on_control(&mut self, id: ControlLinkId, queued: QueuedMessage) {
        let Some(link) = self.control_links.table.get_mut(&id).filter(|link| !link.broken) else {
            return self.lose(id, &queued.message);
        };
        if self.net.is_cut(link.from.index, index_of(link.to.addr)) || !link.stuck.is_empty() {
            return link.stuck.push_back(queued);
        }
        link.unread -= 1;
        let (from, to) = (link.from_id, link.to);
        match self.place_of(to).filter(|_| self.control_links.heard.get(&(from, to)) == Some(&id)) {
            Some(place) => {
                let reading = Reading { from, to, said: queued.said, now: self.queue.now(), line: id.0 };
                self.coverage.on_read(&queued.message, reading);
                self.deliver_control(place, from, to, queued.message);
            }
            None => self.lose(id, &queued.message),
        }
    }

    /// A message under way on a connection is lost.
    pub(super) fn lose(&mut self, id: ControlLinkId, message: &PeerMessage) {
        let (from, to) = self.control_links.ends[id.0 as usize - 1];
        self.coverage.on_missed(from, to, message, true);
    }

    /// Forgets a connection. The messages that it holds are lost.
    fn forget_link(&mut self, id: ControlLinkId) -> Option<ControlLink> {
        let link = self.control_links.forget(id)?;
        for (letters, sent) in [(&link.waiting, false), (&link.stuck, true)] {
            for queued in letters {
                self.coverage.on_missed(link.from_id, link.to, &queued.message, sent);
            }
        }
        Some(link)
    }

    fn deliver_control(&mut self, place: Place, from: NodeId, to: NodeId, message: PeerMessage) {
        if !is_noise(&message) {
            note!(self, "{} hears {} {}", name(to), name(from), show::message(&mut self.names, &message));
        }
        self.control_links.failures.remove(&(place, from));
        // Messages of a node believed dead are ignored.
        if self.nodes[place.index].members.contains(&from) {
            self.rules.loss_oracle.on_received(to, &message);
            if let PeerMessage::InventoryRequest { scope: Scope::All, shards, .. } = &message {
                self.note_handed_over(to, shards);
            }
        }
        self.feed_message(place, from, message);
    }

    /// A cut has healed. The messages that it held up get through when the kernels retransmit.
    pub(super) fn retransmit_links(&mut self) {
        let held_up = |(_, link): &(&ControlLinkId, &ControlLink)| !link.stuck.is_empty();
        let stuck: Vec<_> = self.control_links.table.iter().filter(held_up).map(|(id, _)| *id).collect();
        for id in stuck {
            let delay = self.rng.time(Duration::ZERO, RETRANSMIT_MAX);
            self.queue.push(self.after(delay), SimEvent::LinkFreed { link: id });
        }
    }

    pub(super) fn on_link_freed(&mut self, id: ControlLinkId) {
        let Some(link) = self.control_links.table.get_mut(&id).filter(|link| !link.broken) else { return };
        let (from, to) = (link.from_id, link.to);
        if self.net.is_cut(link.from.index, index_of(link.to.addr)) {
            return;
        }
        // They come before all later messages. Each is an event of its own, as the receiver may be paused.
        for QueuedMessage { message, said } in std::mem::take(&mut link.stuck) {
            self.queue.push(self.queue.now(), SimEvent::Control { link: id, to, message, said });
        }
        note!(self, "{} gets through to {} again", name(from), name(to));
    }

    /// At the caller: the connection is broken, or could not be made.
    pub(super) fn on_link_lost(&mut self, id: ControlLinkId, gone: bool) {
        let Some(link) = self.control_links.table.get(&id) else { return };
        let (from, to) = (link.from, link.to);
        if link.up && !link.broken && self.net.is_cut(index_of(to.addr), from.index) {
            // The reset of the other side does not get through either.
            self.queue.push(self.after(FIN_RETRY), SimEvent::LinkLost { link: id, gone });
            return;
        }
        let was_current = self.control_links.is_current(id);
        self.forget_link(id);
        let Some(node) = self.alive(from).filter(|_| was_current) else { return };
        let id = node.id;
        *self.control_links.failures.entry((from, to)).or_default() += 1;
        note!(self, "{} lost the link to {}{}", name(id), name(to), if gone { ", refused" } else { "" });
        let input = if gone { Input::PeerGone { node: to } } else { Input::PeerBroken { node: to } };
        self.feed(from, input);
    }

    /// At the callee: the caller closed the connection, or it broke.
    pub(super) fn on_link_closed(&mut self, id: ControlLinkId, from: NodeId, to: NodeId) {
        let Some(place) = self.place_of(to) else { return };
        if self.net.is_cut(index_of(from.addr), place.index) {
            self.queue.push(self.after(FIN_RETRY), SimEvent::LinkClosed { link: id, from, to });
            return;
        }
        if self.control_links.stop_reading(from, to, id) {
            note!(self, "{} no longer hears {}", name(to), name(from));
            self.feed(place, Input::PeerBroken { node: from });
        }
    }

    /// A node is believed dead. Its messages are no longer read, and its kernel sees the connection break.
    pub(super) fn stop_reading_link(&mut self, place: Place, from: NodeId) {
        let me = self.nodes[place.index].id;
        if let Some(id) = self.control_links.heard.remove(&(from, me)) {
            self.break_link(id, false);
        }
    }

    /// Breaks a connection that is up. Its messages under way are lost. The caller hears of it, and with `callee_hears`
    /// the callee too.
    pub(super) fn break_link(&mut self, id: ControlLinkId, callee_hears: bool) {
        let Some(link) = self.control_links.table.get_mut(&id).filter(|link| link.up && !link.broken) else {
            return;
        };
        link.broken = true;
        let (from, from_id, to) = (link.from, link.from_id, link.to);
        for queued in std::mem::take(&mut link.stuck) {
            self.coverage.on_missed(from_id, to, &queued.message, true);
        }
        let (here, there) = (from.index, index_of(to.addr));
        let noticed = self.net.under_way(there, here, Lane::Control);
        self.queue.push(self.after(noticed), SimEvent::LinkLost { link: id, gone: false });
        if callee_hears {
            let noticed = self.net.under_way(here, there, Lane::Control);
            self.queue.push(self.after(noticed), SimEvent::LinkClosed { link: id, from: from_id, to });
        }
    }

    /// The kernels' time-out for connections across a cut has passed. The connections break, and both ends know.
    pub(super) fn break_links_across(&mut self, separated: impl Fn(usize, usize) -> bool) {
        for id in self.control_links.across(separated) {
            let was_current = self.control_links.is_current(id);
            let Some(ControlLink { from, from_id, to, .. }) = self.forget_link(id) else { continue };
            note!(self, "the link from {} to {} times out", name(from_id), name(to));
            if was_current {
                *self.control_links.failures.entry((from, to)).or_default() += 1;
                self.queue.push(self.queue.now(), SimEvent::PeerLost { place: from, node: to });
            }
            let listened = self.control_links.stop_reading(from_id, to, id);
            if let Some(place) = self.place_of(to).filter(|_| listened) {
                self.queue.push(self.queue.now(), SimEvent::PeerLost { place, node: from_id });
            }
        }
    }

    /// The link on which one node sends to another, if there is one.
    pub(super) fn link_between(&self, from: Place, to: NodeId) -> Option<ControlLinkId> {
        self.control_links.current.get(&(from, to)).copied()
    }

    /// The caller closes its link. Earlier messages still arrive.
    pub(super) fn close_link(&mut self, place: Place, to: NodeId) {
        let Some(id) = self.control_links.current.remove(&(place, to)) else { return };
        self.control_links.failures.remove(&(place, to));
        let link = self.control_links.table.get_mut(&id).expect("current ones exist");
        for queued in std::mem::take(&mut link.waiting) {
            self.coverage.on_missed(link.from_id, to, &queued.message, false);
        }
        if link.up && !link.broken {
            let (from, at) = (link.from_id, link.last_arrival.max(self.queue.now()));
            let there = self.net.latency(place.index, index_of(to.addr));
            self.queue.push(at + there, SimEvent::LinkClosed { link: id, from, to });
        }
    }

    /// A process has died. Its kernel closes all its connections in both directions.
    pub(super) fn close_all_links(&mut self, place: Place) {
        let me = self.nodes[place.index].id;
        let ours: Vec<_> =
            self.control_links.current.keys().filter(|(from, _)| *from == place).map(|key| key.1).collect();
        for to in ours {
            self.close_link(place, to);
        }
        let callers = self.control_links.table.iter().filter(|(_, link)| link.up && link.to == me);
        for (id, from) in callers.map(|(id, link)| (*id, link.from.index)).collect::<Vec<_>>() {
            let under_way = self.net.under_way(place.index, from, Lane::Control);
            self.queue.push(self.after(under_way), SimEvent::LinkLost { link: id, gone: false });
        }
    }
}

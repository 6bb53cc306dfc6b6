//! Control connections, one per direction. A node dials when it has something to send.
//! ```text
//! send ─▶ Dialling ──welcome──▶ Up ──broke, closed──▶ (gone; the next send dials again)
//!            └──refused, silent──▶ (gone)
//! ```
//! Messages arrive in order or are lost. Kernels hold them behind a cut until it heals or a time-out ends. A node reads
//! only the newest line of each caller, and no line of a node that it takes for dead; the rest is lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hoplite_core::io::Input;
use hoplite_types::peer::{PeerMessage, Scope};
use hoplite_types::NodeId;

use super::outputs::is_noise;
use super::{note, tell, Place, World};
use crate::event::SimEvent;
use crate::fault::Lane;
use crate::names::{index_of, node as name};
use crate::show;

/// A dial is answered by then, or given up.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The kernel repeats its SYN after this long.
const SYN_RETRY: Duration = Duration::from_secs(1);

/// Pause before dialling again after the first failure; doubled with each further one, up to a limit.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(640);

/// How often a connection is tried again for which there is no descriptor, and for how long.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(40);
const SHORTAGE_PATIENCE: Duration = Duration::from_secs(5);

/// How often the end of a connection that is cut off is tried to be told.
const FIN_RETRY: Duration = Duration::from_millis(200);

/// How long after a cut has healed the kernels notice, at most.
pub(super) const RETRANSMIT_MAX: Duration = Duration::from_millis(500);

/// One control connection, from its dial to its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LineId(u64);

/// Something said, and when.
#[derive(Debug)]
pub(crate) struct Letter {
    pub message: PeerMessage,
    pub said: Duration,
}

#[derive(Debug)]
struct Line {
    from: Place,
    from_id: NodeId,
    to: NodeId,
    up: bool,
    /// Nothing gets through any more, and the caller does not know yet.
    broken: bool,
    /// Said while it is being dialled.
    waiting: VecDeque<Letter>,
    /// Held up by a cut.
    stuck: VecDeque<Letter>,
    last_arrival: Duration,
    /// Said, and not taken in by the other process.
    unread: usize,
    /// Since when there has been no descriptor to make it with.
    short_since: Option<Duration>,
}

/// All control connections.
#[derive(Default, Debug)]
pub(crate) struct Lines {
    table: BTreeMap<LineId, Line>,
    /// The one that messages from here to there go by.
    current: BTreeMap<(Place, NodeId), LineId>,
    /// The one that messages from here are listened to there.
    heard: BTreeMap<(NodeId, NodeId), LineId>,
    failures: BTreeMap<(Place, NodeId), u32>,
    /// Who dialled whom, of all that ever were.
    ends: Vec<(NodeId, NodeId)>,
}

impl Lines {
    fn forget(&mut self, id: LineId) -> Option<Line> {
        let was_current = self.is_current(id);
        let line = self.table.remove(&id)?;
        if was_current {
            self.current.remove(&(line.from, line.to));
        }
        Some(line)
    }

    /// Whether the caller still goes by it.
    fn is_current(&self, id: LineId) -> bool {
        self.table.get(&id).is_some_and(|line| self.current.get(&(line.from, line.to)) == Some(&id))
    }

    /// The one who was called listens to it no more. Whether it did.
    fn turn_from(&mut self, from: NodeId, to: NodeId, id: LineId) -> bool {
        let listened = self.heard.get(&(from, to)) == Some(&id);
        if listened {
            self.heard.remove(&(from, to));
        }
        listened
    }

    fn backoff(&self, from: Place, to: NodeId) -> Duration {
        match self.failures.get(&(from, to)).copied().unwrap_or(0) {
            0 => Duration::ZERO,
            failures => (BACKOFF_MIN * (1 << (failures - 1).min(10))).min(BACKOFF_MAX),
        }
    }

    /// Whose process must run for the end of a connection to be noticed there.
    pub fn caller(&self, id: LineId) -> Option<Place> {
        self.table.get(&id).map(|line| line.from)
    }

    /// Connections between nodes that `separated` says are apart.
    fn across(&self, separated: impl Fn(usize, usize) -> bool) -> Vec<LineId> {
        let apart = |line: &Line| line.up && separated(line.from.index, index_of(line.to.addr));
        self.table.iter().filter(|(_, line)| apart(line)).map(|(id, _)| *id).collect()
    }
}

impl World {
    pub(super) fn say(&mut self, place: Place, to: NodeId, message: PeerMessage) {
        let id = match self.lines.current.get(&(place, to)) {
            Some(id) => *id,
            None => self.dial(place, to),
        };
        let line = self.lines.table.get_mut(&id).expect("current ones exist");
        self.coverage.on_said(line.from_id, to, &message);
        line.unread += 1;
        if line.unread > self.plan.means.outbox_max || line.broken {
            self.coverage.on_missed(line.from_id, to, &message, false);
            if line.unread > self.plan.means.outbox_max {
                self.overflow(id);
            }
            return;
        }
        let letter = Letter { message, said: self.queue.now() };
        match line.up {
            true => self.transmit(id, letter),
            false => line.waiting.push_back(letter),
        }
    }

    /// The other side does not take in what is said: the connection is given up.
    fn overflow(&mut self, id: LineId) {
        let line = &self.lines.table[&id];
        if line.broken {
            return;
        }
        tell!(self, "the line from {} to {} overflows", name(line.from_id), name(line.to));
        match line.up {
            true => self.break_line(id, true),
            false => {
                let lost = SimEvent::LineLost { line: id, gone: false };
                self.queue.push(self.queue.now(), lost);
            }
        }
    }

    fn dial(&mut self, place: Place, to: NodeId) -> LineId {
        self.lines.ends.push((self.nodes[place.index].id, to));
        let id = LineId(self.lines.ends.len() as u64);
        let line = Line {
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
        self.lines.table.insert(id, line);
        self.lines.current.insert((place, to), id);
        let syn = self.net.latency(place.index, index_of(to.addr));
        let at = self.after(self.lines.backoff(place, to) + syn);
        self.queue.push(at, SimEvent::Dial { line: id, waited: Duration::ZERO });
        id
    }

    /// The dial reaches the other host, or not.
    pub(super) fn on_dial(&mut self, id: LineId, waited: Duration) {
        let Some(line) = self.lines.table.get(&id) else { return };
        let (from, from_id, to) = (line.from, line.from_id, line.to);
        let there = index_of(to.addr);
        if self.alive(from).is_none() || !self.lines.is_current(id) {
            self.forget_line(id);
            return;
        }
        if self.put_off_for_shortage(id) {
            return;
        }
        if self.net.is_apart(from.index, there) {
            let waited = waited + SYN_RETRY;
            let next = match waited >= DIAL_TIMEOUT {
                true => SimEvent::LineLost { line: id, gone: false },
                false => SimEvent::Dial { line: id, waited },
            };
            self.queue.push(self.after(SYN_RETRY), next);
        } else if let Some(place) = self.place_of(to) {
            let line = self.lines.table.get_mut(&id).expect("looked up above");
            line.up = true;
            for letter in std::mem::take(&mut line.waiting) {
                self.transmit(id, letter);
            }
            if self.lines.heard.insert((from_id, to), id).is_some() {
                self.feed(place, Input::PeerBroken { node: from_id });
            }
        } else {
            let back = self.net.latency(there, from.index);
            self.queue.push(self.after(back), SimEvent::LineLost { line: id, gone: true });
        }
    }

    /// There is no descriptor for this connection, here or there: it is tried again soon, for a while.
    fn put_off_for_shortage(&mut self, id: LineId) -> bool {
        let (from, to) = (self.lines.table[&id].from.index, index_of(self.lines.table[&id].to.addr));
        if !self.is_short_of_descriptors(from) && !self.is_short_of_descriptors(to) {
            return false;
        }
        let now = self.queue.now();
        let line = self.lines.table.get_mut(&id).expect("the caller's");
        let since = *line.short_since.get_or_insert(now);
        let next = match now >= since + SHORTAGE_PATIENCE {
            true => SimEvent::LineLost { line: id, gone: false },
            false => SimEvent::Dial { line: id, waited: Duration::ZERO },
        };
        self.queue.push(self.after(SHORTAGE_PAUSE), next);
        true
    }

    /// Whether all descriptors of the process there are in use.
    pub(super) fn is_short_of_descriptors(&self, index: usize) -> bool {
        let most = self.plan.means.descriptors_max;
        if most == usize::MAX {
            return false;
        }
        let place = self.place(index);
        let id = self.nodes[index].id;
        let lines = self.lines.table.values().filter(|line| line.up && (line.from == place || line.to == id));
        let flows = self.flows.values().filter(|flow| flow.from == place || flow.to == id);
        let clients = self.sessions.values().filter(|session| session.alive && session.place == place);
        lines.count() + flows.count() + clients.count() >= most
    }

    fn transmit(&mut self, id: LineId, Letter { message, said: first_said }: Letter) {
        let line = &self.lines.table[&id];
        let from = line.from.index;
        let under_way = self.net.under_way(from, index_of(line.to.addr), Lane::Control);
        let said = self.queue.now() + self.nodes[from].process.turn;
        let line = self.lines.table.get_mut(&id).expect("looked up above");
        line.last_arrival = (line.last_arrival + Duration::from_nanos(1)).max(said + under_way);
        self.queue
            .push(line.last_arrival, SimEvent::Control { line: id, to: line.to, message, said: first_said });
    }

    pub(super) fn on_control(&mut self, id: LineId, letter: Letter) {
        let Some(line) = self.lines.table.get_mut(&id).filter(|line| !line.broken) else {
            return self.lose(id, &letter.message);
        };
        if self.net.is_cut(line.from.index, index_of(line.to.addr)) || !line.stuck.is_empty() {
            return line.stuck.push_back(letter);
        }
        line.unread -= 1;
        let (from, to) = (line.from_id, line.to);
        match self.place_of(to).filter(|_| self.lines.heard.get(&(from, to)) == Some(&id)) {
            Some(place) => {
                let when = [letter.said, self.queue.now()];
                self.coverage.on_read(from, to, &letter.message, when, id.0);
                self.hear(place, from, to, letter.message);
            }
            None => self.lose(id, &letter.message),
        }
    }

    /// What was on its way on a connection does not arrive.
    pub(super) fn lose(&mut self, id: LineId, message: &PeerMessage) {
        let (from, to) = self.lines.ends[id.0 as usize - 1];
        self.coverage.on_missed(from, to, message, true);
    }

    /// The connection is no more, and what it holds is lost.
    fn forget_line(&mut self, id: LineId) -> Option<Line> {
        let line = self.lines.forget(id)?;
        for (letters, sent) in [(&line.waiting, false), (&line.stuck, true)] {
            for letter in letters {
                self.coverage.on_missed(line.from_id, line.to, &letter.message, sent);
            }
        }
        Some(line)
    }

    fn hear(&mut self, place: Place, from: NodeId, to: NodeId, message: PeerMessage) {
        if !is_noise(&message) {
            note!(self, "{} hears {} {}", name(to), name(from), show::message(&mut self.names, &message));
        }
        self.lines.failures.remove(&(place, from));
        // Of the dead nothing is believed any more.
        if self.nodes[place.index].members.contains(&from) {
            self.rules.told.on_heard(to, &message);
            if let PeerMessage::InventoryRequest { scope: Scope::All, shards, .. } = &message {
                self.note_handed_over(to, shards);
            }
        }
        self.feed_message(place, from, message);
    }

    /// A cut has healed: what it held up gets through, when the kernels try again.
    pub(super) fn retransmit_lines(&mut self) {
        let held_up = |(_, line): &(&LineId, &Line)| !line.stuck.is_empty();
        let stuck: Vec<_> = self.lines.table.iter().filter(held_up).map(|(id, _)| *id).collect();
        for id in stuck {
            let delay = self.rng.time(Duration::ZERO, RETRANSMIT_MAX);
            self.queue.push(self.after(delay), SimEvent::LineFreed { line: id });
        }
    }

    pub(super) fn on_line_freed(&mut self, id: LineId) {
        let Some(line) = self.lines.table.get_mut(&id).filter(|line| !line.broken) else { return };
        let (from, to) = (line.from_id, line.to);
        if self.net.is_cut(line.from.index, index_of(line.to.addr)) {
            return;
        }
        // Before all that was said later; each on its own, since their receiver may stand still.
        for Letter { message, said } in std::mem::take(&mut line.stuck) {
            self.queue.push(self.queue.now(), SimEvent::Control { line: id, to, message, said });
        }
        note!(self, "{} gets through to {} again", name(from), name(to));
    }

    /// At the caller: the connection is gone, or could not be made.
    pub(super) fn on_line_lost(&mut self, id: LineId, gone: bool) {
        let Some(line) = self.lines.table.get(&id) else { return };
        let (from, to) = (line.from, line.to);
        if line.up && !line.broken && self.net.is_cut(index_of(to.addr), from.index) {
            // The other's reset does not get through either.
            self.queue.push(self.after(FIN_RETRY), SimEvent::LineLost { line: id, gone });
            return;
        }
        let was_current = self.lines.is_current(id);
        self.forget_line(id);
        let Some(node) = self.alive(from).filter(|_| was_current) else { return };
        let id = node.id;
        *self.lines.failures.entry((from, to)).or_default() += 1;
        note!(self, "{} lost the line to {}{}", name(id), name(to), if gone { ", refused" } else { "" });
        let input = if gone { Input::PeerGone { node: to } } else { Input::PeerBroken { node: to } };
        self.feed(from, input);
    }

    /// At the one who was called: the caller closed it, or it broke.
    pub(super) fn on_line_closed(&mut self, id: LineId, from: NodeId, to: NodeId) {
        let Some(place) = self.place_of(to) else { return };
        if self.net.is_cut(index_of(from.addr), place.index) {
            self.queue.push(self.after(FIN_RETRY), SimEvent::LineClosed { line: id, from, to });
            return;
        }
        if self.lines.turn_from(from, to, id) {
            note!(self, "{} no longer hears {}", name(to), name(from));
            self.feed(place, Input::PeerBroken { node: from });
        }
    }

    /// A node is taken for dead: nothing that it says is listened to, whose kernel tells it so.
    pub(super) fn turn_from_line(&mut self, place: Place, from: NodeId) {
        let me = self.nodes[place.index].id;
        if let Some(id) = self.lines.heard.remove(&(from, me)) {
            self.break_line(id, false);
        }
    }

    /// Breaks a connection that is up: what is under way on it is lost, and both ends hear of it.
    pub(super) fn break_line(&mut self, id: LineId, callee_hears: bool) {
        let Some(line) = self.lines.table.get_mut(&id).filter(|line| line.up && !line.broken) else { return };
        line.broken = true;
        let (from, from_id, to) = (line.from, line.from_id, line.to);
        for letter in std::mem::take(&mut line.stuck) {
            self.coverage.on_missed(from_id, to, &letter.message, true);
        }
        let (here, there) = (from.index, index_of(to.addr));
        let noticed = self.net.under_way(there, here, Lane::Control);
        self.queue.push(self.after(noticed), SimEvent::LineLost { line: id, gone: false });
        if callee_hears {
            let noticed = self.net.under_way(here, there, Lane::Control);
            self.queue.push(self.after(noticed), SimEvent::LineClosed { line: id, from: from_id, to });
        }
    }

    /// The kernels lose patience with connections across a cut: they break, and both ends know.
    pub(super) fn break_lines_across(&mut self, separated: impl Fn(usize, usize) -> bool) {
        for id in self.lines.across(separated) {
            let was_current = self.lines.is_current(id);
            let Some(Line { from, from_id, to, .. }) = self.forget_line(id) else { continue };
            note!(self, "the line from {} to {} times out", name(from_id), name(to));
            if was_current {
                *self.lines.failures.entry((from, to)).or_default() += 1;
                self.queue.push(self.queue.now(), SimEvent::PeerLost { place: from, node: to });
            }
            let listened = self.lines.turn_from(from_id, to, id);
            if let Some(place) = self.place_of(to).filter(|_| listened) {
                self.queue.push(self.queue.now(), SimEvent::PeerLost { place, node: from_id });
            }
        }
    }

    /// The line between two nodes, if there is one.
    pub(super) fn line_between(&self, from: Place, to: NodeId) -> Option<LineId> {
        self.lines.current.get(&(from, to)).copied()
    }

    /// The caller closes its line: what it said before still arrives.
    pub(super) fn close_line(&mut self, place: Place, to: NodeId) {
        let Some(id) = self.lines.current.remove(&(place, to)) else { return };
        self.lines.failures.remove(&(place, to));
        let line = self.lines.table.get_mut(&id).expect("current ones exist");
        for letter in std::mem::take(&mut line.waiting) {
            self.coverage.on_missed(line.from_id, to, &letter.message, false);
        }
        if line.up && !line.broken {
            let (from, at) = (line.from_id, line.last_arrival.max(self.queue.now()));
            let there = self.net.latency(place.index, index_of(to.addr));
            self.queue.push(at + there, SimEvent::LineClosed { line: id, from, to });
        }
    }

    /// A process is gone: its kernel says so on every connection, both ways.
    pub(super) fn hang_up(&mut self, place: Place) {
        let me = self.nodes[place.index].id;
        let ours: Vec<_> =
            self.lines.current.keys().filter(|(from, _)| *from == place).map(|key| key.1).collect();
        for to in ours {
            self.close_line(place, to);
        }
        let callers = self.lines.table.iter().filter(|(_, line)| line.up && line.to == me);
        for (id, from) in callers.map(|(id, line)| (*id, line.from.index)).collect::<Vec<_>>() {
            let under_way = self.net.under_way(place.index, from, Lane::Control);
            self.queue.push(self.after(under_way), SimEvent::LineLost { line: id, gone: false });
        }
    }
}

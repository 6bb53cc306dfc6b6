//! The begin and end of faults.

use std::time::Duration;

use hoplite_core::io::{ClientId, Input};
use hoplite_types::peer::PeerMessage;
use hoplite_types::NodeId;

use super::{tell, Place, World};
use crate::event::{Relief, SimEvent};
use crate::fault::{Fault, Kind, When, Whom};
use crate::names::{index_of, node as name};
use crate::net::{Spike, TroubleId};

/// How long kernels keep a connection whose other side does not answer.
pub(super) const KERNEL_PATIENCE: Duration = Duration::from_secs(5);

/// A fault that waits for a message or a stream.
#[derive(Debug)]
struct Armed {
    when: When,
    seen: u32,
    fault: Fault,
}

/// The times of a node that leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    pub since: Duration,
    pub until: Duration,
    back_after: Option<Duration>,
}

#[derive(Default, Debug)]
pub(crate) struct Faults {
    armed: Vec<Armed>,
    troubles: u64,
    /// Whether faults no longer strike.
    over: bool,
    pub struck: u64,
}

impl World {
    /// Plans `fault`. Its times count from `from`.
    pub fn plan_fault(&mut self, from: Duration, when: When, fault: Fault) {
        let when = match when {
            When::At(at) => return self.queue.push(from + at, SimEvent::Fault(fault)),
            When::Said { after, kind, nth, lag } => When::Said { after: from + after, kind, nth, lag },
            When::Streamed { after, nth, percent } => When::Streamed { after: from + after, nth, percent },
        };
        self.faults.armed.push(Armed { when, seen: 0, fault });
    }

    /// Plans the end of faults. At `last_strike`, faults that still wait are dropped. At `quiet`, all troubles end.
    pub fn plan_end_of_faults(&mut self, last_strike: Duration, quiet: Duration) {
        self.queue.push(last_strike, SimEvent::Relief(Relief::Disarm));
        self.queue.push(quiet, SimEvent::Relief(Relief::All));
    }

    /// A message is sent. It may trigger a fault.
    pub(super) fn set_off_by_message(&mut self, place: Place, to: NodeId, message: &PeerMessage) {
        if self.faults.armed.is_empty() {
            return;
        }
        let (now, said) = (self.queue.now(), Kind::of(message));
        let (from, there) = (place.index, index_of(to.addr));
        let mut struck = Vec::new();
        self.faults.armed.retain_mut(|armed| {
            let When::Said { after, kind, nth, lag } = armed.when else { return true };
            if kind != said || now < after {
                return true;
            }
            armed.seen += 1;
            if armed.seen > nth {
                struck.push((lag, armed.fault.clone().between(from, there)));
            }
            armed.seen <= nth
        });
        for (lag, fault) in struck {
            self.queue.push(now + lag, SimEvent::Fault(fault));
        }
    }

    /// A stream begins (`at` is 0), or has delivered `at` of `size` bytes. It may trigger a fault.
    pub(super) fn set_off_by_stream(&mut self, from: usize, to: usize, at: u64, size: u64) {
        if self.faults.armed.is_empty() {
            return;
        }
        let now = self.queue.now();
        let mut struck = Vec::new();
        self.faults.armed.retain_mut(|armed| {
            let When::Streamed { after, nth, percent } = armed.when else { return true };
            if now < after {
                return true;
            }
            armed.seen += u32::from(at == 0);
            let due = armed.seen > nth && at * 100 >= size * percent;
            if due {
                struck.push(armed.fault.clone().between(from, to));
            }
            !due
        });
        for fault in struck {
            self.queue.push(now, SimEvent::Fault(fault));
        }
    }

    /// Whether at most one fault has struck so far.
    pub(super) fn only_one_struck(&self) -> bool {
        self.faults.struck <= 1
    }

    pub(super) fn faults_over(&self) -> bool {
        self.faults.over
    }

    fn new_trouble(&mut self) -> TroubleId {
        self.faults.troubles += 1;
        TroubleId(self.faults.troubles)
    }

    fn relieve_after(&mut self, time: Duration, relief: Relief) {
        self.queue.push(self.after(time), SimEvent::Relief(relief));
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        // Dead nodes come back even after the end of faults.
        if self.faults.over && !matches!(fault, Fault::RestartNode { .. }) {
            return;
        }
        self.faults.struck += 1;
        match fault {
            Fault::KillClient { client, forked } => {
                self.kill_client(self.latest(ClientId(client as u64 + 1)), forked);
            }
            Fault::KillNode { whom, host, back_after } => self.strike_node(index(whom), host, back_after),
            Fault::RestartNode { node } => self.restart_node(node),
            Fault::Leave { whom, within, back_after } => self.leave(index(whom), within, back_after),
            Fault::Pause { whom, time } => self.pause(index(whom), time),
            Fault::Partition { side, one_way, time } => self.cut(side, one_way, time),
            Fault::Isolate { whom, time } => {
                let alone = (0..self.nodes.len()).map(|node| node == index(whom)).collect();
                self.cut(alone, false, time);
            }
            Fault::BreakControl { from, to } => {
                let (from, to) = (self.place(index(from)), self.nodes[index(to)].id);
                if let Some(link) = self.link_between(from, to) {
                    tell!(self, "the control link from {} to {} breaks", self.name(from), name(to));
                    self.break_link(link, true);
                }
            }
            Fault::BreakBulk { pick } => {
                if let Some(flow) = self.pick_flow(pick) {
                    self.break_flow(flow);
                }
            }
            Fault::StallBulk { pick, time } => {
                if let Some(flow) = self.pick_flow(pick) {
                    self.stall_flow(flow, time);
                }
            }
            Fault::Delay { from, to, lane, extra, time } => {
                let id = self.new_trouble();
                tell!(self, "{lane:?} from n{} to n{} takes {extra:?} longer", from + 1, to + 1);
                self.net.delay(id, Spike { from, to, lane, extra });
                self.relieve_after(time, Relief::Net(id));
            }
            Fault::Slow { node, lag, factor, time } => {
                let (id, place) = (self.new_trouble(), self.place(node));
                tell!(self, "{} is slow", self.name(place));
                self.net.set_slowness(node, factor);
                self.nodes[node].process.slow = Some((id, lag));
                self.relieve_after(time, Relief::Slow(id, place));
            }
        }
    }

    fn strike_node(&mut self, index: usize, host: bool, back_after: Option<Duration>) {
        // At least one node must stay alive.
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != index);
        let staying = others.filter(|(_, node)| node.alive && node.leaving.is_none()).count();
        if !self.nodes[index].alive || staying == 0 {
            return;
        }
        self.kill_node(index, host);
        if let Some(time) = back_after {
            self.queue.push(self.after(time), SimEvent::Fault(Fault::RestartNode { node: index }));
        }
    }

    fn leave(&mut self, index: usize, within: Duration, back_after: Option<Duration>) {
        let staying = self.nodes.iter().filter(|node| node.alive && node.leaving.is_none()).count();
        let (now, place) = (self.queue.now(), self.place(index));
        let Some(node) = self.alive(place).filter(|_| staying > 1) else { return };
        if node.leaving.is_some() {
            return;
        }
        node.leaving = Some(Leaving { since: now, until: now + within, back_after });
        tell!(self, "{} is to leave within {within:?}", self.name(place));
        self.queue.push(now, SimEvent::Report { place, input: Input::Leave { within }, frees: Vec::new() });
    }

    /// A process ends in good order.
    pub(super) fn exit(&mut self, place: Place) {
        let Some(node) = self.alive(place) else { return };
        let back_after = node.leaving.and_then(|leaving| leaving.back_after);
        self.kill_node(place.index, false);
        if let Some(time) = back_after {
            let again = Fault::RestartNode { node: place.index };
            self.queue.push(self.after(time), SimEvent::Fault(again));
        }
    }

    fn pause(&mut self, index: usize, time: Duration) {
        let (id, place) = (self.new_trouble(), self.place(index));
        let Some(node) = self.alive(place) else { return };
        if node.process.paused.is_some() {
            return;
        }
        node.process.paused = Some(id);
        tell!(self, "{} stands still", self.name(place));
        self.relieve_after(time, Relief::Resume(id, place));
    }

    fn resume_process(&mut self, id: TroubleId, place: Place) {
        let now = self.queue.now();
        let Some(node) = self.alive(place).filter(|node| node.process.paused == Some(id)) else { return };
        node.process.paused = None;
        node.process.hampered_at = now;
        let held = std::mem::take(&mut node.process.held);
        let late = node.core.next_deadline().map(|deadline| now.saturating_sub(deadline));
        tell!(self, "{} goes on", self.name(place));
        if let Some(time) = late {
            self.feed(place, Input::StoodStill { time });
        }
        for event in held {
            // Bytes that the kernel has accepted are no longer held up, even if the network is cut.
            let event = match event {
                SimEvent::Flow { .. } => SimEvent::Late(Box::new(event)),
                other => other,
            };
            self.queue.push(now, event);
        }
    }

    fn cut(&mut self, side: Vec<bool>, one_way: bool, time: Duration) {
        let id = self.new_trouble();
        let names: Vec<_> =
            (0..side.len()).filter(|node| side[*node]).map(|node| format!("n{}", node + 1)).collect();
        match one_way {
            true => tell!(self, "{} do not hear the others", names.join(" ")),
            false => tell!(self, "{} are cut off from the others", names.join(" ")),
        }
        self.net.cut(id, side, one_way);
        self.note_cut();
        self.relieve_after(KERNEL_PATIENCE, Relief::Patience(id));
        self.relieve_after(time, Relief::Net(id));
    }

    pub(super) fn relieve(&mut self, relief: Relief) {
        match relief {
            Relief::Net(id) => {
                if self.net.end(id) {
                    tell!(self, "the network is better");
                    self.retransmit();
                }
            }
            Relief::Patience(id) => {
                let pairs = self.separated_pairs(|net, one, other| net.separates(id, one, other));
                self.break_across(&pairs);
            }
            Relief::HostPatience(place) => {
                if self.place(place.index) == place && !self.nodes[place.index].alive {
                    let pairs =
                        self.separated_pairs(|_, one, other| one == place.index || other == place.index);
                    self.break_across(&pairs);
                }
            }
            Relief::Resume(id, place) => self.resume_process(id, place),
            Relief::Slow(id, place) => {
                let Some(node) = self.alive(place) else { return };
                if node.process.slow.is_some_and(|(reason, _)| reason == id) {
                    node.process.slow = None;
                    self.net.set_slowness(place.index, 1);
                }
            }
            Relief::Disarm => self.faults.armed.clear(),
            Relief::All => self.heal(),
        }
    }

    fn heal(&mut self) {
        tell!(self, "nothing breaks any more");
        self.faults.over = true;
        self.faults.armed.clear();
        self.net.heal();
        self.plan.means.descriptors_max = usize::MAX;
        for index in 0..self.nodes.len() {
            let place = self.place(index);
            self.nodes[index].process.slow = None;
            if let Some(id) = self.nodes[index].process.paused {
                self.resume_process(id, place);
            }
        }
        self.free_flows();
        self.retransmit();
    }

    fn retransmit(&mut self) {
        self.retransmit_links();
        self.retransmit_flows();
    }

    fn separated_pairs(&self, separates: impl Fn(&crate::net::Net, usize, usize) -> bool) -> Vec<Vec<bool>> {
        let nodes = self.nodes.len();
        (0..nodes)
            .map(|one| (0..nodes).map(|other| one != other && separates(&self.net, one, other)).collect())
            .collect()
    }

    fn break_across(&mut self, pairs: &[Vec<bool>]) {
        self.break_links_across(|one, other| pairs[one][other]);
        self.break_flows_across(|one, other| pairs[one][other]);
    }
}

fn index(whom: Whom) -> usize {
    match whom {
        Whom::Node(index) => index,
        Whom::Sender | Whom::Receiver => unreachable!("resolved when it was set off"),
    }
}

impl Fault {
    /// The fault with its sender and receiver known.
    fn between(mut self, sender: usize, receiver: usize) -> Self {
        let resolve = |whom: &mut Whom| match whom {
            Whom::Node(_) => {}
            Whom::Sender => *whom = Whom::Node(sender),
            Whom::Receiver => *whom = Whom::Node(receiver),
        };
        match &mut self {
            Fault::KillNode { whom, .. }
            | Fault::Leave { whom, .. }
            | Fault::Pause { whom, .. }
            | Fault::Isolate { whom, .. } => {
                resolve(whom);
            }
            Fault::BreakControl { from, to } => {
                resolve(from);
                resolve(to);
            }
            _ => {}
        }
        self
    }
}

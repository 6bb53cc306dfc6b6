//! The other members: real cores whose gossip alone is delivered.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use hoplite_core::{Config, Core, Input, Output};
use hoplite_types::peer::{InventoryPage, PeerMessage};
use hoplite_types::{NodeId, Stamp};

use super::{node, Node, ME};

/// How often gossip has its turn while time passes.
const TICK: Duration = Duration::from_millis(10);

/// Longer than a newcomer and the others take to tell each other all they know.
const WELCOME: Duration = Duration::from_millis(200);

impl Node {
    /// A cluster in which the nodes `2..=last` are members besides us.
    pub fn among(last: u16, store_bytes: u64) -> Self {
        let mut among = Node::alone(store_bytes);
        for number in ME + 1..=last {
            among.join(number);
        }
        among.wait(WELCOME);
        among.mail.clear();
        among
    }

    /// A node that starts beside the members `2..=last`, of which it has heard nothing yet. Node 2 is its seed.
    pub fn starting_beside(last: u16, store_bytes: u64) -> Self {
        let mut config = Config::new(node(ME), store_bytes, 1);
        config.seeds = vec![node(2).addr];
        let mut starting = Node::new(config);
        starting.members_answer = false;
        for number in 2..=last {
            let mut config = Config::new(node(number), 0, u64::from(number));
            config.seeds = vec![node(2).addr];
            starting.gossips.insert(node(number), Core::new(config));
        }
        starting.pause(Duration::from_secs(1));
        starting
    }

    /// Another member comes up; returns once we know of it.
    pub fn join(&mut self, number: u16) {
        let mut config = Config::new(node(number), 0, u64::from(number));
        config.seeds = vec![node(ME).addr];
        self.gossips.insert(node(number), Core::new(config));
        while !self.status().members.contains(&node(number)) {
            self.wait(TICK);
        }
    }

    /// Lets time pass, gossip included.
    pub fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            let next = (self.now + TICK).min(until);
            // A deadline between two turns of gossip is not late.
            while let Some(due) = self.core.next_deadline().filter(|&due| self.now < due && due < next) {
                self.now = due;
                self.handle(Input::Tick);
            }
            self.now = next;
            self.handle(Input::Tick);
            self.let_others_gossip();
        }
    }

    /// This node does not run for this long, and no other node hears from it.
    pub fn pause(&mut self, time: Duration) {
        self.cut_off = true;
        let until = self.now + time;
        while self.now < until {
            self.now += TICK;
            self.let_others_gossip();
        }
        self.cut_off = false;
    }

    fn let_others_gossip(&mut self) {
        let members: Vec<_> = self.gossips.keys().copied().collect();
        members.into_iter().for_each(|member| self.gossip(member, Input::Tick));
    }

    fn gossip(&mut self, member: NodeId, input: Input) {
        let Some(core) = self.gossips.get_mut(&member) else { return };
        core.handle(self.now, input);
        let mut datagrams = Vec::new();
        while let Some(output) = core.poll_output() {
            if let Output::Datagram { to, bytes } = output {
                datagrams.push((to, bytes));
            }
        }
        for (to, bytes) in datagrams {
            self.deliver(to, bytes);
        }
    }

    pub(super) fn deliver(&mut self, to: SocketAddr, bytes: Vec<u8>) {
        if to == node(ME).addr {
            if !self.cut_off {
                self.handle(Input::Datagram { bytes });
            }
        } else if let Some(&member) = self.gossips.keys().find(|member| member.addr == to) {
            self.gossip(member, Input::Datagram { bytes });
        }
    }

    /// A member falls silent; returns once we have noticed, and if the others answer, when we know all that they
    /// know of the shards that are ours now.
    pub fn kill(&mut self, number: u16) {
        self.gossips.remove(&node(number)).expect("it lives");
        while self.status().members.contains(&node(number)) {
            self.wait(TICK);
        }
        self.recover();
    }

    /// The same for a process that is gone, of which we hear at once.
    pub fn crash(&mut self, number: u16) {
        self.gossips.remove(&node(number)).expect("it lives");
        self.handle(Input::PeerGone { node: node(number) });
        self.recover();
    }

    fn recover(&mut self) {
        self.wait(TICK);
        while self.members_answer && self.gauge("recovering shards") > 0 {
            self.wait(TICK);
        }
    }

    /// Whether a member has answered without a test's doing.
    pub(super) fn answer_by_itself(
        &self,
        to: NodeId,
        question: &PeerMessage,
        inputs: &mut VecDeque<Input>,
    ) -> bool {
        let message = match question {
            PeerMessage::InventoryRequest { round, shards, .. } => {
                let digested = shards.iter().filter(|query| query.digest.is_some());
                PeerMessage::Inventory {
                    round: *round,
                    since: 0,
                    page: InventoryPage::default(),
                    unchanged: digested.map(|query| query.shard).collect(),
                    next: None,
                    clock: Stamp::from_ms(0),
                }
            }
            PeerMessage::MembersRequest => {
                let members = self.gossips.keys().map(|&member| (member, 0));
                PeerMessage::Members { members: members.collect(), partial: false }
            }
            _ => return false,
        };
        let answers = self.members_answer && self.gossips.contains_key(&to);
        if answers {
            inputs.push_back(Input::Peer { from: to, message });
        }
        answers
    }
}

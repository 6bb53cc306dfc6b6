//! One core behind its public API. Its driver keeps books instead of moving bytes, and the test scripts its peers. By
//! themselves peers only gossip, and answer requests for an inventory with an empty one.

mod members;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hoplite_core::io::{Broken, ClientId, Event, Extent, FoldId, FoldInputs, FoldRule, SendId};
use hoplite_core::{Config, Core, Input, Output};
use hoplite_types::client::{Reply, Request, Status};
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, Seal};
use hoplite_types::{Connections, CopyId, Edition, NodeId, ObjectId, ReductionId, TransferId};

/// The core under test has this number among the nodes.
pub const ME: u16 = 1;

/// The client most tests speak for.
pub const CLIENT: ClientId = ClientId(1);

pub fn node(number: u16) -> NodeId {
    NodeId { addr: ([10, 0, 0, 1], number).into(), incarnation: 1 }
}

pub struct Opened {
    pub extent: Extent,
    pub sealed: Option<Seal>,
    pub aborted: bool,
}

#[derive(Clone, Debug)]
pub struct Receiving {
    pub from: NodeId,
    pub copy: CopyId,
    pub offset: u64,
}

#[derive(Clone, Debug)]
pub struct Sending {
    pub transfer: TransferId,
    pub copy: CopyId,
    pub connections: Connections,
    pub group: Option<ReductionId>,
}

#[derive(Clone, Debug)]
pub struct Folding {
    pub out: CopyId,
    pub rule: FoldRule,
    pub inputs: FoldInputs,
}

pub struct Node {
    core: Core,
    pub now: Duration,
    last_call: u64,
    pub replies: BTreeMap<(ClientId, u64), Reply>,
    /// The messages of the core to other nodes, without pings.
    pub mail: Vec<(NodeId, PeerMessage)>,
    pub events: Vec<Event>,
    pub copies: BTreeMap<CopyId, Opened>,
    pub receives: BTreeMap<TransferId, Receiving>,
    pub sends: BTreeMap<SendId, Sending>,
    pub folds: BTreeMap<FoldId, Folding>,
    /// Bytes that came for each receive: its watermark when it is stopped.
    pub arrived: BTreeMap<TransferId, u64>,
    /// Objects of which a complete copy has gone, in order.
    pub removed: Vec<ObjectId>,
    /// The core has said goodbye.
    pub left: bool,
    /// Members that are asked for their inventory, or for all members, answer at once: they know of nothing, and
    /// take nothing back. Otherwise the question is in the mail.
    pub members_answer: bool,
    /// No gossip comes through to us, or from us.
    pub cut_off: bool,
    /// Other members: real cores of which only the gossip is let through.
    gossips: BTreeMap<NodeId, Core>,
}

impl Node {
    fn new(config: Config) -> Self {
        Node {
            core: Core::new(config),
            now: Duration::from_secs(1),
            last_call: 0,
            replies: BTreeMap::new(),
            mail: Vec::new(),
            events: Vec::new(),
            copies: BTreeMap::new(),
            receives: BTreeMap::new(),
            sends: BTreeMap::new(),
            folds: BTreeMap::new(),
            arrived: BTreeMap::new(),
            removed: Vec::new(),
            left: false,
            members_answer: true,
            cut_off: false,
            gossips: BTreeMap::new(),
        }
    }

    /// A cluster of one: it owns every directory entry.
    pub fn alone(store_bytes: u64) -> Self {
        let mut alone = Node::new(Config::new(node(ME), store_bytes, 1));
        alone.handle(Input::Tick);
        alone
    }

    /// The core learns that its links have this latency and carry 1 GB/s.
    pub fn measure(&mut self, latency: Duration) {
        let sent_ns = (self.now - 2 * latency).as_nanos() as u64;
        self.hear(2, PeerMessage::Pong { sent_ns });
        self.handle(Input::Measured { peer: node(2), bytes_per_s: 1_000_000_000 });
    }

    pub fn gauge(&mut self, name: &str) -> u64 {
        let gauges = self.status().gauges;
        gauges.iter().find(|gauge| gauge.name == name).expect("there is such a gauge").value
    }

    /// One input, and everything that follows from it without a test's doing.
    pub fn handle(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.core.handle(self.now, input);
            let mut datagrams = Vec::new();
            while let Some(output) = self.core.poll_output() {
                match output {
                    Output::Datagram { to, bytes } => datagrams.push((to, bytes)),
                    other => self.carry_out(other, &mut inputs),
                }
            }
            for (to, bytes) in datagrams {
                if !self.cut_off {
                    self.deliver(to, bytes);
                }
            }
        }
    }

    fn carry_out(&mut self, output: Output, ended: &mut VecDeque<Input>) {
        match output {
            Output::Reply { client, call, reply } => {
                let before = self.replies.insert((client, call), reply);
                assert_eq!(before, None, "call {call} was answered twice");
            }
            Output::Peer { message: PeerMessage::Ping { .. } | PeerMessage::Pong { .. }, .. } => {}
            Output::Peer { to, message, .. } if self.answer_by_itself(to, &message, ended) => {}
            Output::Peer { to, mut message, attach } => {
                if let Some(copy) = attach {
                    let size = self.copies[&copy].extent.size;
                    hoplite_core::io::attach(&mut message, vec![0; size as usize]);
                }
                self.mail.push((to, message));
            }
            Output::Open { copy, extent } => self.open(copy, extent),
            Output::Seal { copy, seal } => self.seal(copy, seal),
            Output::Abort { copy } => {
                let opened = self.copies.get_mut(&copy).expect("it is open");
                assert!(opened.sealed.is_none(), "a sealed copy cannot be aborted");
                opened.aborted = true;
            }
            Output::Reopen { copy, extent } => {
                let opened = self.copies.get_mut(&copy).expect("it is open");
                assert!(std::mem::take(&mut opened.aborted), "only what was aborted is opened again");
                assert_eq!(opened.extent, extent);
            }
            Output::Removed { object } => self.removed.push(object),
            Output::Close { copy } => self.close(copy),
            Output::Receive { transfer, from, copy, offset } => {
                self.receives.insert(transfer, Receiving { from, copy, offset });
            }
            Output::StopReceive { transfer } => {
                if self.receives.remove(&transfer).is_some() {
                    let watermark = self.arrived.get(&transfer).copied().unwrap_or(0);
                    ended.push_back(Input::ReceiveEnded { transfer, watermark, outcome: Err(Broken) });
                }
            }
            Output::Send { send, transfer, copy, connections, group, .. } => {
                self.sends.insert(send, Sending { transfer, copy, connections, group });
            }
            Output::StopSend { send } => {
                if self.sends.remove(&send).is_some() {
                    ended.push_back(Input::SendEnded { send, outcome: Err(Broken) });
                }
            }
            Output::Fold { fold, out, rule, inputs } => {
                self.folds.insert(fold, Folding { out, rule, inputs });
            }
            Output::AmendFold { fold, rule, added } => {
                let folding = self.folds.get_mut(&fold).expect("it runs");
                assert!(folding.rule.open, "a closed fold may have been read from");
                folding.rule = rule;
                folding.inputs.sources.extend(added.sources);
                folding.inputs.streams.extend(added.streams);
            }
            Output::StopFold { fold } => {
                if self.folds.remove(&fold).is_some() {
                    ended.push_back(Input::FoldEnded { fold, outcome: Err(Broken) });
                }
            }
            Output::Left => self.left = true,
            Output::Event(event) => self.events.push(event),
            Output::Advance { copy, .. } | Output::Write { copy, .. } | Output::Filled { copy } => {
                assert!(self.copies.contains_key(&copy), "written to after its end");
            }
            Output::Datagram { .. } => unreachable!("taken out before"),
        }
    }

    fn open(&mut self, copy: CopyId, extent: Extent) {
        let apart = |other: &Opened| {
            let (a, b) = (extent, other.extent);
            a.is_window() || b.is_window() || a.offset + a.size <= b.block || b.offset + b.size <= a.block
        };
        assert!(self.copies.values().all(apart), "{extent:?} is in use");
        self.copies.insert(copy, Opened { extent, sealed: None, aborted: false });
    }

    fn seal(&mut self, copy: CopyId, seal: Seal) {
        let opened = self.copies.get_mut(&copy).expect("it is open");
        assert!(!opened.aborted, "an aborted copy cannot be sealed");
        assert_eq!(opened.sealed.replace(seal), None, "sealed twice");
    }

    fn close(&mut self, copy: CopyId) {
        self.copies.remove(&copy).expect("it is open");
        assert!(self.receives.values().all(|receive| receive.copy != copy), "closed under a receive");
        assert!(self.sends.values().all(|send| send.copy != copy), "closed under a send");
        let touches = |fold: &Folding| fold.out == copy || fold.inputs.sources.contains(&copy);
        assert!(!self.folds.values().any(touches), "closed under a fold");
    }

    /// A client's request; returns its call number.
    pub fn ask_as(&mut self, client: ClientId, request: Request) -> u64 {
        self.last_call += 1;
        let call = self.last_call;
        self.handle(Input::Client { client, call, request });
        call
    }

    pub fn ask(&mut self, request: Request) -> u64 {
        self.ask_as(CLIENT, request)
    }

    pub fn reply(&self, call: u64) -> Option<&Reply> {
        self.replies.iter().find(|((_, number), _)| *number == call).map(|(_, reply)| reply)
    }

    pub fn status(&mut self) -> Status {
        let call = self.ask_as(ClientId(0), Request::Status);
        match self.replies.remove(&(ClientId(0), call)) {
            Some(Reply::Status(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// A message from node `from`.
    pub fn hear(&mut self, from: u16, message: PeerMessage) {
        self.handle(Input::Peer { from: node(from), message });
    }

    /// A directory request of node `from`, to us as the owner.
    pub fn request(&mut self, from: u16, id: ObjectId, request: DirectoryRequest) {
        let message = PeerMessage::Directory { origin: node(from), hops: 0, id, request };
        self.hear(from, message);
    }

    /// A verdict of node `from`, an owner.
    pub fn answer(&mut self, from: u16, id: ObjectId, answer: DirectoryAnswer) {
        self.hear(from, PeerMessage::Answer { id, answer });
    }

    /// Takes what was said to others so far.
    pub fn take_mail(&mut self) -> Vec<(NodeId, PeerMessage)> {
        std::mem::take(&mut self.mail)
    }

    /// Takes the answers about `id` that were sent so far, each with its receiver.
    pub fn take_answers(&mut self, id: ObjectId) -> Vec<(u16, DirectoryAnswer)> {
        let mail = self.take_mail().into_iter();
        mail.filter_map(|(to, message)| match message {
            PeerMessage::Answer { id: about, answer } if about == id => Some((to.addr.port(), answer)),
            _ => None,
        })
        .collect()
    }

    /// Takes the directory requests about `id` that were sent so far.
    pub fn take_requests(&mut self, id: ObjectId) -> Vec<DirectoryRequest> {
        let mail = self.take_mail().into_iter();
        mail.filter_map(|(_, message)| match message {
            PeerMessage::Directory { id: about, request, .. } if about == id => Some(request),
            _ => None,
        })
        .collect()
    }

    /// An id whose directory entry lives at node `number`.
    pub fn id_owned_by(&mut self, number: u16) -> ObjectId {
        let mut ids = (0..).map(|attempt| ObjectId::from_name(&format!("object {attempt}")));
        ids.find(|&id| self.owner_of(id) == number).expect("hashing is even")
    }

    /// At which node the directory entry of `id` lives. Mail that was not taken yet is lost.
    pub fn owner_of(&mut self, id: ObjectId) -> u16 {
        let call = self.ask_as(ClientId(0), Request::Locate { id, timeout_ms: None });
        self.ask_as(ClientId(0), Request::Cancel { call });
        let asked = self.take_mail().into_iter().find(|(_, message)| is_locate(message));
        self.replies.remove(&(ClientId(0), call));
        // While we recover its shard we do not answer ourselves, either.
        asked.map_or(ME, |(owner, _)| owner.addr.port())
    }

    /// The object and edition of a copy.
    pub fn identity_of(&self, copy: CopyId) -> (ObjectId, Edition) {
        self.core.identity_of(copy).expect("it is open")
    }

    /// The state that the core still has, in words.
    pub fn leftovers(&self) -> Vec<String> {
        self.core.leftovers()
    }

    /// A receive breaks off when the copy has this many bytes.
    pub fn break_receive(&mut self, transfer: TransferId, watermark: u64) {
        self.receives.remove(&transfer).expect("it runs");
        self.handle(Input::ReceiveEnded { transfer, watermark, outcome: Err(Broken) });
    }

    /// A receive ends well.
    pub fn end_receive(&mut self, transfer: TransferId) {
        let receive = self.receives.remove(&transfer).expect("it runs");
        let watermark = self.copies[&receive.copy].extent.size;
        self.handle(Input::ReceiveEnded { transfer, watermark, outcome: Ok(Seal::default()) });
    }

    pub fn end_send(&mut self, send: SendId) {
        self.sends.remove(&send).expect("it runs");
        self.handle(Input::SendEnded { send, outcome: Ok(()) });
    }

    pub fn end_fold(&mut self, fold: FoldId) {
        self.folds.remove(&fold).expect("it runs");
        self.handle(Input::FoldEnded { fold, outcome: Ok(()) });
    }

    /// Nothing is held, known, moved or reduced here any more.
    pub fn assert_empty(&mut self) {
        let status = self.status();
        let counts = (status.copies, status.used_bytes, status.entries, status.transfers, status.reductions);
        assert_eq!(counts, (0, 0, 0, 0, 0), "copies, bytes, entries, transfers, reductions");
        assert!(self.copies.is_empty() && self.receives.is_empty() && self.sends.is_empty());
        assert!(self.folds.is_empty());
        self.assert_consistent();
    }

    /// Nothing contradicts itself here.
    pub fn assert_consistent(&self) {
        #[cfg(debug_assertions)]
        assert_eq!(self.core.contradictions(), None);
    }
}

fn is_locate(message: &PeerMessage) -> bool {
    matches!(message, PeerMessage::Directory { request: DirectoryRequest::Locate { .. }, .. })
}

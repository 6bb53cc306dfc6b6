//! One core behind its public API, with a distrustful driver: an output that the daemon would treat as a bug of the
//! core fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::io::{Broken, ClientId, Extent, FoldId, SendId};
use hoplite_core::{Config, Core, Input, Output};
use hoplite_types::client::{Reply, Request};
use hoplite_types::limits::IDS_MAX;
use hoplite_types::peer::{PeerMessage, Seal};
use hoplite_types::{CopyId, NodeId, ObjectId, TransferId};

use crate::draw::{node, Tape};

pub const STORE_BYTES: u64 = 4 << 20;

const GOOD_CLIENT: ClientId = ClientId(9);

/// The largest answer to one input: a call about the most ids, each of which is asked, watched and told.
const OUTPUTS_MAX: usize = 8 * IDS_MAX;

pub struct Node {
    pub core: Core,
    now: Duration,
    copies: BTreeMap<CopyId, Extent>,
    receives: BTreeMap<TransferId, CopyId>,
    sends: BTreeSet<SendId>,
    folds: BTreeMap<FoldId, CopyId>,
    /// The last answer to the well-behaved client.
    reply: Option<Reply>,
    calls: u64,
    /// The outputs of the last input, or of waiting.
    pub outputs: Vec<Output>,
}

impl Node {
    /// It believes that it has two other members.
    pub fn new() -> Node {
        let mut config = Config::new(node(1), STORE_BYTES, 1);
        // No probe is answered, so members are to live as long as messages are drawn.
        config.suspicion = Duration::from_secs(5);
        config.striped_bytes_min = Some(1);
        let mut fresh = Node {
            core: Core::new(config),
            now: Duration::from_secs(1),
            copies: BTreeMap::new(),
            receives: BTreeMap::new(),
            sends: BTreeSet::new(),
            folds: BTreeMap::new(),
            reply: None,
            calls: 0,
            outputs: Vec::new(),
        };
        fresh.handle(Input::Tick);
        fresh.meet();
        fresh
    }

    /// Hears of two members.
    pub fn meet(&mut self) {
        let members = vec![(node(2), 0), (node(3), 0)];
        self.hear(node(2), PeerMessage::Members { members, partial: false });
    }

    pub fn hear(&mut self, from: NodeId, message: PeerMessage) {
        self.handle(Input::Peer { from, message });
    }

    pub fn handle(&mut self, input: Input) {
        self.outputs.clear();
        self.drive(input);
    }

    fn drive(&mut self, input: Input) {
        self.now += Duration::from_micros(100);
        self.core.handle(self.now, input);
        let mut ended = Vec::new();
        while let Some(output) = self.core.poll_output() {
            assert!(self.outputs.len() < OUTPUTS_MAX, "one input has no end of outputs, such as {output:?}");
            ended.extend(self.carry_out(output));
        }
        ended.into_iter().for_each(|input| self.drive(input));
    }

    /// Lets time pass; the core must not ask to be woken without end.
    pub fn wait(&mut self, time: Duration) {
        self.outputs.clear();
        let until = self.now + time;
        let mut woken = 0;
        while let Some(next) = self.core.next_deadline().filter(|&next| next <= until) {
            self.now = self.now.max(next);
            self.drive(Input::Tick);
            woken += 1;
            assert!(woken <= 100 * (time.as_secs() as usize + 10), "it does not come to rest in {time:?}");
        }
        self.now = self.now.max(until);
        self.drive(Input::Tick);
    }

    /// One of the jobs that run comes to its end, or a stream among them stands still.
    pub fn end_a_job(&mut self, tape: &mut Tape) {
        let broken = tape.flag();
        let (receives, sends, folds) = (self.receives.len(), self.sends.len(), self.folds.len());
        if receives + sends + folds == 0 {
            return;
        }
        let which = tape.below(receives + sends + folds);
        if let Some((&transfer, copy)) = self.receives.iter().nth(which) {
            let watermark = if broken { 0 } else { self.copies[copy].size };
            if tape.flag() {
                return self.handle(Input::ReceiveStalled { transfer, watermark: 0 });
            }
            self.receives.remove(&transfer);
            let outcome = if broken { Err(Broken) } else { Ok(Seal::default()) };
            self.handle(Input::ReceiveEnded { transfer, watermark, outcome });
        } else if let Some(&send) = self.sends.iter().nth(which - receives) {
            self.sends.remove(&send);
            self.handle(Input::SendEnded { send, outcome: if broken { Err(Broken) } else { Ok(()) } });
        } else if let Some(&fold) = self.folds.keys().nth(which - receives - sends) {
            self.folds.remove(&fold);
            self.handle(Input::FoldEnded { fold, outcome: if broken { Err(Broken) } else { Ok(()) } });
        }
    }

    /// The answer that the well-behaved client gets at once.
    pub fn call(&mut self, request: Request) -> Option<Reply> {
        self.reply = None;
        self.calls += 1;
        self.handle(Input::Client { client: GOOD_CLIENT, call: self.calls, request });
        self.reply.take()
    }

    /// The objects that it has copies of.
    pub fn objects(&self) -> Vec<ObjectId> {
        let objects = self.copies.keys().filter_map(|&copy| self.core.identity_of(copy));
        objects.map(|(object, _)| object).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Carries out the core's outputs as the daemon does. A job that was stopped has ended.
    fn carry_out(&mut self, output: Output) -> Option<Input> {
        self.outputs.push(output.clone());
        match output {
            Output::Open { copy, extent } => {
                let end = extent.offset.checked_add(extent.size);
                assert!(end.is_some_and(|end| end <= STORE_BYTES), "{copy:?} lies outside: {extent:?}");
                assert!(self.copies.insert(copy, extent).is_none(), "{copy:?} was opened twice");
            }
            Output::Close { copy } => drop(self.copies.remove(&copy).expect("it is open")),
            Output::Write { copy, bytes } => assert_eq!(bytes.len() as u64, self.size(copy)),
            Output::Advance { copy, watermark } => assert!(watermark <= self.size(copy)),
            Output::Filled { copy } | Output::Abort { copy } => assert!(self.copies.contains_key(&copy)),
            Output::Reopen { copy, extent } => assert_eq!(self.copies[&copy], extent),
            Output::Seal { copy, .. } => assert!(self.copies.contains_key(&copy)),
            Output::Receive { transfer, copy, offset, .. } => {
                assert!(offset <= self.size(copy));
                self.receives.insert(transfer, copy);
            }
            Output::StopReceive { transfer } => {
                let copy = self.receives.remove(&transfer)?;
                assert!(self.copies.contains_key(&copy));
                return Some(Input::ReceiveEnded { transfer, watermark: 0, outcome: Err(Broken) });
            }
            Output::Send { send, copy, offset, .. } => {
                assert!(offset <= self.size(copy));
                self.sends.insert(send);
            }
            Output::StopSend { send } => {
                let ended = Input::SendEnded { send, outcome: Err(Broken) };
                return self.sends.remove(&send).then_some(ended);
            }
            Output::Fold { fold, out, rule, inputs } => {
                let element = rule.dtype.size() as u64;
                assert!(self.size(out).is_multiple_of(element), "{rule:?} of {} bytes", self.size(out));
                assert!(rule.divide_by.is_none_or(|by| by > 0 && rule.dtype.is_float()), "{rule:?}");
                inputs.sources.iter().for_each(|&source| assert!(self.copies.contains_key(&source)));
                self.folds.insert(fold, out);
            }
            Output::StopFold { fold } => {
                let ended = Input::FoldEnded { fold, outcome: Err(Broken) };
                return self.folds.remove(&fold).map(|_| ended);
            }
            Output::Peer { attach: Some(copy), message, .. } => {
                let bytes = vec![0; self.size(copy) as usize];
                hoplite_core::io::attach(&mut message.clone(), bytes);
            }
            Output::Reply { client, reply, .. } => {
                if let Reply::View { copy, size, .. } = reply {
                    assert_eq!(size, self.size(copy));
                }
                if client == GOOD_CLIENT {
                    self.reply = Some(reply);
                }
            }
            _ => {}
        }
        None
    }

    fn size(&self, copy: CopyId) -> u64 {
        self.copies.get(&copy).unwrap_or_else(|| panic!("the core names {copy:?}, which is not open")).size
    }
}

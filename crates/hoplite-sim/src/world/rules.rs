//! Rules about the paths of bytes, checked whenever a stream begins or a copy is sealed.

use std::collections::BTreeMap;
use std::time::Duration;

use hoplite_types::peer::Seal;
use hoplite_types::{CopyId, Edition, NodeId, ObjectId, TransferId};

use super::loss_oracle::LossOracle;
use super::{Place, World};
use crate::data_plane::{FlowId, Stage};
use crate::event::SimEvent;
use crate::names::node as name;
use crate::task::{Ending, Outcome, Spec, TaskId};

/// Right after a change of owners, the new owner may lend in a cycle. The progress limit of the streams then has so
/// many periods to break it, and `QUESTIONS` is the time to ask again.
const STALLS_MAX: u32 = 8;
const QUESTIONS: Duration = Duration::from_secs(10);

/// Otherwise a breach may last only as long as messages are under way (`HOPS`), and reports of data threads (`BUSY`).
const HOPS: u32 = 4;
const BUSY: Duration = Duration::from_millis(1);

const TWICE: usize = 2;

/// Most receivers that a sender is lent to at a time, even for small objects.
const FANOUT_MAX: usize = 8;

type Writing = (ObjectId, Edition);

/// Latency and rate that cores assume for links that they have not measured.
const LATENCY_ASSUMED: Duration = Duration::from_micros(100);
const RATE_ASSUMED: u64 = 125_000_000;

/// Round trips in a first measurement, which includes the dials of its two connections.
const DIALS: u32 = 3;

/// The state of the rules.
#[derive(Default, Debug)]
pub(crate) struct Rules {
    /// Bytes of an edition that a node has received into abandoned copies, and the gets that wanted them.
    given_up: BTreeMap<(Place, ObjectId, Edition), (u64, Vec<TaskId>)>,
    pub loss_oracle: LossOracle,
}

/// Streams that together break a rule as long as all of them run.
#[derive(Debug)]
pub(crate) struct Suspects {
    what: String,
    streams: Vec<(Place, TransferId)>,
}

impl Rules {
    /// The owner believes the object lost. If a node has it all the same, it may be fetched again from the start.
    pub fn note_abandoned(&mut self, place: Place, object: ObjectId, edition: Edition) {
        self.given_up.remove(&(place, object, edition));
    }
}

impl World {
    /// A node begins to receive. Checks that it does not repeat bytes, that transfers have no cycle, and the fan-out.
    pub(super) fn judge_edge(&mut self, place: Place, transfer: TransferId, copy: CopyId) {
        let Some((object, edition)) = self.nodes[place.index].data_plane.copies[&copy].identity else {
            return;
        };
        let receive = &self.nodes[place.index].data_plane.receives[&transfer];
        let (from, offset) = (receive.from, receive.at);
        if offset == 0 {
            let had = self.rules.given_up.remove(&(place, object, edition));
            // The calls that wanted the object may have ended since.
            let still = |wanted: &TaskId| !self.tasks[wanted].is_over();
            // The rule does not apply if a living writer may have been believed dead.
            let sure = self.stats.false_deaths == 0;
            if let Some((bytes, _)) = had.filter(|(_, wanted)| sure && wanted.iter().any(still)) {
                let id = self.names.object(object);
                let what = format!("{} fetches {id} again, of which it had {bytes} B", self.name(place));
                return self.violate(what);
            }
        }
        if let Some(streams) = self.cycle_through(place, transfer, (object, edition)) {
            let id = self.names.object(object);
            self.suspect(format!("transfers of {id} run in a circle"), streams);
        }
        let siblings = self.receivers_from(from, (object, edition));
        // A node that withdraws an ask and asks again may be counted twice for a while.
        if siblings.len() > TWICE * self.fanout_max(copy, place) + 1 {
            let (id, count) = (self.names.object(object), siblings.len());
            self.suspect(format!("{} sends {id} to {count} at a time", name(from)), siblings);
        }
    }

    /// The stream that fills the copy of this writing on this node, if there is one.
    fn feed_of(&self, place: Place, writing: Writing) -> Option<(TransferId, NodeId)> {
        let plane = &self.nodes[place.index].data_plane;
        let feeds = |copy: &CopyId| plane.copies[copy].identity == Some(writing);
        let feeding = plane.receives.iter().find(|(_, receive)| feeds(&receive.copy));
        feeding.map(|(transfer, receive)| (*transfer, receive.from))
    }

    fn cycle_through(
        &self,
        place: Place,
        transfer: TransferId,
        writing: Writing,
    ) -> Option<Vec<(Place, TransferId)>> {
        let mut streams = vec![(place, transfer)];
        let mut from = self.nodes[place.index].data_plane.receives[&transfer].from;
        loop {
            let upstream = self.place_of(from)?;
            if upstream == place {
                return Some(streams);
            }
            let (next, sender) = self.feed_of(upstream, writing)?;
            if streams.contains(&(upstream, next)) {
                // An older cycle, which this stream only leads to.
                return None;
            }
            streams.push((upstream, next));
            from = sender;
        }
    }

    fn receivers_from(&self, sender: NodeId, writing: Writing) -> Vec<(Place, TransferId)> {
        let places = (0..self.nodes.len()).map(|index| self.place(index));
        let living = places.filter(|place| self.nodes[place.index].alive);
        living
            .filter_map(|place| {
                let (transfer, from) = self.feed_of(place, writing)?;
                (from == sender).then_some((place, transfer))
            })
            .collect()
    }

    /// The largest fan-out that gains time on the best links of this world.
    fn fanout_max(&self, copy: CopyId, place: Place) -> usize {
        let bytes = self.nodes[place.index].data_plane.copies[&copy].extent.size;
        let (latency, rate) = self.net.best_case();
        let latency = latency.max(LATENCY_ASSUMED) * DIALS + self.busy_turn();
        let rate = rate.max(RATE_ASSUMED);
        hoplite_core::fanout(bytes, latency.as_secs_f64(), rate as f64).min(FANOUT_MAX)
    }

    /// The time of a turn in which a node handles and answers messages of all nodes. Cores measure it as latency.
    fn busy_turn(&self) -> Duration {
        let means = self.plan.means;
        (means.input_time + means.message_time) * self.nodes.len() as u32
    }

    /// Time until a stalled stream has been abandoned and another one has delivered its bytes.
    pub fn time_to_notice_stalls(&self) -> Duration {
        self.plan.stall_after * STALLS_MAX + QUESTIONS
    }

    /// Checks a breach again later. In a calm world it must end soon, in other worlds after `time_to_notice_stalls`.
    fn suspect(&mut self, what: String, streams: Vec<(Place, TransferId)>) {
        let grace = match self.plan.calm {
            true => (self.net.best_case().0 + self.busy_turn()) * HOPS + BUSY,
            false => self.time_to_notice_stalls(),
        };
        self.queue.push(self.after(grace), SimEvent::Verdict(Suspects { what, streams }));
    }

    pub(super) fn on_verdict_due(&mut self, suspects: Suspects) {
        let runs = |(place, transfer): &(Place, TransferId)| {
            let node = &self.nodes[place.index];
            node.alive && node.boot == place.boot && node.data_plane.receives.contains_key(transfer)
        };
        if !suspects.streams.iter().all(runs) {
            return;
        }
        if !self.faults_over() {
            // Nodes that are cut off or paused cannot end the breach.
            let at = self.after(self.time_to_notice_stalls());
            return self.queue.push(at, SimEvent::Verdict(suspects));
        }
        self.violate(format!("{}, and nobody mends it", suspects.what));
    }

    /// The head of a stream has arrived. Both ends must mean the same edition of the same object.
    pub(super) fn judge_head(&mut self, flow: FlowId, receiver: Place, transfer: TransferId) {
        let flow = &self.flows[&flow];
        let Some(sent) = flow.identity else { return };
        let Some(pulled) = self.pulls.get(&(receiver, transfer)) else { return };
        if *pulled != sent {
            let (from, to) = (name(flow.from_id), self.name(receiver));
            self.violate(format!(
                "{from} sends {sent:?} to {to} as t{}, which asked for {pulled:?}",
                transfer.0
            ));
        }
    }

    /// A copy is abandoned. If a call on its node wants the object, its bytes should have been kept.
    pub(super) fn judge_abort(&mut self, place: Place, copy: CopyId) {
        let held = &self.nodes[place.index].data_plane.copies[&copy];
        let Some((object, edition)) = held.identity.filter(|_| held.received) else { return };
        let bytes = held.watermark;
        // The bytes are useless while the writer is believed dead. A writer on this node has a copy of its own.
        let wanted = self.calls_at(place, |spec| spec.gets(object));
        let is_put = !self.calls_at(place, |spec| spec.puts(object)).is_empty();
        if bytes > 0 && self.stats.false_deaths == 0 && !is_put && self.can_be_finished((object, edition)) {
            self.rules.given_up.insert((place, object, edition), (bytes, wanted));
        }
    }

    /// Whether a living node writes this edition or has all of it. An aborted put leaves nothing to finish.
    fn can_be_finished(&self, writing: Writing) -> bool {
        let living = self.nodes.iter().filter(|node| node.alive);
        let mut copies = living.flat_map(|node| node.data_plane.copies.values());
        copies.any(|held| {
            held.identity == Some(writing) && (!held.received || matches!(held.stage, Stage::Sealed(_)))
        })
    }

    /// Tasks of this kind that wait for an answer at `place`.
    fn calls_at(&self, place: Place, kind: impl Fn(&Spec) -> bool) -> Vec<TaskId> {
        let calls = self.sessions.values().filter(|session| session.place == place && session.alive);
        let tasks = calls.flat_map(|session| session.calls.values().copied());
        tasks.filter(|task| kind(&self.tasks[task].spec)).collect()
    }

    /// A copy is sealed. Its bytes must be those of its object, on all nodes and at all times.
    pub(super) fn judge_seal(&mut self, place: Place, copy: CopyId, seal: &Seal) {
        let node = &self.nodes[place.index];
        let held = &node.data_plane.copies[&copy];
        let Some((object, edition)) = held.identity.filter(|(object, _)| self.model.knows(*object)) else {
            return;
        };
        let bytes = node.bytes(held.extent, 0, held.extent.size).to_vec();
        let mut verdict = self.model.judge(object, &seal.sources, &bytes);
        self.forget_withdrawn(object, &bytes);
        let same = self.model.on_sealed(object, Some(edition), &seal.sources);
        let same = same.and_then(|()| self.model.on_content(object, &bytes));
        if same.is_err() && !self.has_lost_content(object, &seal.sources, &bytes) && !self.is_split(object) {
            verdict = verdict.and(same);
        }
        self.pronounce(place, &format!("sealing {}", self.names.object(object)), verdict);
    }

    /// Forgets the content of a withdrawn small put. The owner keeps its bytes before the caller has an answer. If the
    /// put is abandoned, and no client has seen the bytes and no node has them any more, they do not count.
    fn forget_withdrawn(&mut self, object: ObjectId, bytes: &[u8]) {
        let Some(known) = self.model.unseen_put(object).filter(|known| **known != *bytes) else { return };
        let size = known.len() as u64;
        let written = self.model.variant_of(object, &known).unwrap_or(0);
        let stood = self.tasks.values().any(|task| {
            let is_it = match task.spec {
                Spec::Put { ending, .. } if ending != Ending::Seal => false,
                Spec::PutSmall { id, size: put, variant, .. } | Spec::Put { id, size: put, variant, .. } => {
                    (id, put, variant) == (object, size, written)
                }
                _ => false,
            };
            is_it && !matches!(task.outcome, Some(Outcome::Failed(_) | Outcome::Vanished))
        });
        let living = self.nodes.iter().filter(|node| node.alive);
        let held = living.flat_map(|node| node.data_plane.copies.values().map(move |held| (node, held))).any(
            |(node, held)| {
                let of_object = held.identity.is_some_and(|(id, _)| id == object);
                of_object
                    && matches!(held.stage, Stage::Sealed(_))
                    && *node.bytes(held.extent, 0, held.extent.size) == *known
            },
        );
        if !stood && !held {
            self.model.forget_content(object);
        }
    }
}

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

/// Right after a change of owners, the new one may lend what the old one would not have: the progress
/// limit of the streams then has this many periods to break the cycle, and some time for questions.
const STALLS_MAX: u32 = 8;
const QUESTIONS: Duration = Duration::from_secs(10);

/// Otherwise only what is under way excuses it: a few messages, and reports of data threads.
const HOPS: u32 = 4;
const BUSY: Duration = Duration::from_millis(1);

const TWICE: usize = 2;

/// Most receivers a sender is lent to at a time, however small the object.
const FANOUT_MAX: usize = 8;

type Writing = (ObjectId, Edition);

/// What cores assume of links that they have not measured.
const LATENCY_ASSUMED: Duration = Duration::from_micros(100);
const RATE_ASSUMED: u64 = 125_000_000;

/// A first round trip is measured together with the making of its two connections.
const DIALS: u32 = 3;

/// What the rules remember of a run.
#[derive(Default, Debug)]
pub(crate) struct Rules {
    /// Bytes of an edition that a node has received into copies given up, and the gets that wanted them.
    given_up: BTreeMap<(Place, ObjectId, Edition), (u64, Vec<TaskId>)>,
    pub loss_oracle: LossOracle,
}

/// Streams that together break a rule for as long as all of them run.
#[derive(Debug)]
pub(crate) struct Suspects {
    what: String,
    streams: Vec<(Place, TransferId)>,
}

impl Rules {
    /// The owner held the object for lost; if somebody has it after all, it is fetched from there as a whole.
    pub fn note_abandoned(&mut self, place: Place, object: ObjectId, edition: Edition) {
        self.given_up.remove(&(place, object, edition));
    }
}

impl World {
    /// A node begins to receive: from where may that be, and how many others do?
    pub(super) fn judge_edge(&mut self, place: Place, transfer: TransferId, copy: CopyId) {
        let Some((object, edition)) = self.nodes[place.index].data_plane.copies[&copy].identity else {
            return;
        };
        let receive = &self.nodes[place.index].data_plane.receives[&transfer];
        let (from, offset) = (receive.from, receive.at);
        if offset == 0 {
            let had = self.rules.given_up.remove(&(place, object, edition));
            // Who wanted it then may have given up since, in the same moment even.
            let still = |wanted: &TaskId| !self.tasks[wanted].is_over();
            // Nor is anything sure of a writer that was taken for dead since.
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
        // Who takes an ask back and asks again may be lent, and lend, twice for a while.
        if siblings.len() > TWICE * self.fanout_max(copy, place) + 1 {
            let (id, count) = (self.names.object(object), siblings.len());
            self.suspect(format!("{} sends {id} to {count} at a time", name(from)), siblings);
        }
    }

    /// The stream that feeds this writing's copy on this node, if it is being received.
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
                // A circle that was there before and that this stream only leads to.
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

    /// Sending to more at a time must be worth it, on the best links of this world.
    fn fanout_max(&self, copy: CopyId, place: Place) -> usize {
        let bytes = self.nodes[place.index].data_plane.copies[&copy].extent.size;
        let (latency, rate) = self.net.best_case();
        let latency = latency.max(LATENCY_ASSUMED) * DIALS + self.busy_turn();
        let rate = rate.max(RATE_ASSUMED);
        hoplite_core::fanout(bytes, latency.as_secs_f64(), rate as f64).min(FANOUT_MAX)
    }

    /// A turn in which a node hears and answers everybody; what waits for it is measured as latency.
    fn busy_turn(&self) -> Duration {
        let means = self.plan.means;
        (means.input_time + means.message_time) * self.nodes.len() as u32
    }

    /// By then a stream that stands still has been given up, and another one has brought what it was to bring.
    pub fn time_to_notice_stalls(&self) -> Duration {
        self.plan.stall_after * STALLS_MAX + QUESTIONS
    }

    /// It must end soon where owners know everything, and in time elsewhere.
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
            // Nobody can mend what is cut off or stands still.
            let at = self.after(self.time_to_notice_stalls());
            return self.queue.push(at, SimEvent::Verdict(suspects));
        }
        self.violate(format!("{}, and nobody mends it", suspects.what));
    }

    /// A stream's head has come: both ends must speak of the same writing of the same object.
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

    /// A copy is given up; if somebody there wants its object, its bytes were worth keeping.
    pub(super) fn judge_abort(&mut self, place: Place, copy: CopyId) {
        let held = &self.nodes[place.index].data_plane.copies[&copy];
        let Some((object, edition)) = held.identity.filter(|_| held.received) else { return };
        let bytes = held.watermark;
        // Whose writer was taken for dead for a while, that is no use meanwhile; and a writer here has its own.
        let wanted = self.calls_at(place, |spec| spec.gets(object));
        let is_put = !self.calls_at(place, |spec| spec.puts(object)).is_empty();
        if bytes > 0 && self.stats.false_deaths == 0 && !is_put && self.can_be_finished((object, edition)) {
            self.rules.given_up.insert((place, object, edition), (bytes, wanted));
        }
    }

    /// Somebody who lives writes this, or has all of it: a put that gave up leaves nothing to finish.
    fn can_be_finished(&self, writing: Writing) -> bool {
        let living = self.nodes.iter().filter(|node| node.alive);
        let mut copies = living.flat_map(|node| node.data_plane.copies.values());
        copies.any(|held| {
            held.identity == Some(writing) && (!held.received || matches!(held.stage, Stage::Sealed(_)))
        })
    }

    /// Tasks of this kind that wait for an answer there.
    fn calls_at(&self, place: Place, kind: impl Fn(&Spec) -> bool) -> Vec<TaskId> {
        let calls = self.sessions.values().filter(|session| session.place == place && session.alive);
        let tasks = calls.flat_map(|session| session.calls.values().copied());
        tasks.filter(|task| kind(&self.tasks[task].spec)).collect()
    }

    /// A copy becomes final: its bytes are those of its object, the same as everywhere and ever.
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

    /// The owner keeps the bytes of a small put before its caller knows: if the put is given up, and nobody
    /// has seen them and nobody has them any more, they never were.
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

//! The loss oracle: which nodes heard that an object was complete. If the object is lost, they must report the loss.

use std::collections::{BTreeMap, BTreeSet};

use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, ShardQuery, Verdict};
use hoplite_types::{Edition, ErrorKind, NodeId, ObjectId};

use super::World;
use crate::data_plane::{Copy, Stage};
use crate::excuse::Excuse;
use crate::masses::member;
use crate::task::{Outcome, Task};

/// The complete copies that nodes have heard of.
#[derive(Default, Debug)]
pub(crate) struct LossOracle {
    /// Nodes that heard that a complete copy of an object exists or existed, and have not handed the object over.
    existed: BTreeMap<ObjectId, BTreeSet<NodeId>>,
    /// Announced complete copies that become an object only if the owner accepts them.
    awaits_verdict: BTreeSet<(NodeId, ObjectId, Edition)>,
}

/// The object and the hops of a message which says that an object is or was complete on a node.
fn tells_complete(message: &PeerMessage) -> Option<(ObjectId, u8)> {
    let PeerMessage::Directory { id, hops, request, .. } = message else { return None };
    let complete = match request {
        DirectoryRequest::Announce { report, .. } => report.complete && report.stamp.is_some(),
        DirectoryRequest::MarkLost { .. } => true,
        _ => false,
    };
    // No call asks for the loss of a member of a mass.
    (complete && member(*id).is_none()).then_some((*id, *hops))
}

impl LossOracle {
    pub fn on_received(&mut self, by: NodeId, message: &PeerMessage) {
        if let Some((id, _)) = tells_complete(message) {
            self.existed.entry(id).or_default().insert(by);
        }
        let PeerMessage::Directory { id, request: DirectoryRequest::Announce { report, .. }, .. } = message
        else {
            return;
        };
        if report.complete && report.stamp.is_none() && member(*id).is_none() {
            self.awaits_verdict.insert((by, *id, report.edition));
        }
    }

    pub fn on_sent(&mut self, by: NodeId, message: &PeerMessage) {
        if let PeerMessage::Answer { id, answer: DirectoryAnswer::Verdict { edition, verdict } } = message {
            let heard = self.awaits_verdict.remove(&(by, *id, *edition));
            if heard && matches!(verdict, Verdict::Accepted(_)) {
                self.existed.entry(*id).or_default().insert(by);
            }
        }
        // A node that forwards the message need not remember it.
        let forwarded = tells_complete(message).filter(|(_, hops)| *hops > 0);
        if let Some(known) = forwarded.and_then(|(id, _)| self.existed.get_mut(&id)) {
            known.remove(&by);
        }
    }
}

impl World {
    /// `by` hears that another node owns these shards. The new owner hears of their complete copies from the holders.
    pub(super) fn note_handed_over(&mut self, by: NodeId, shards: &[ShardQuery]) {
        let asked = |id: &ObjectId| shards.binary_search_by_key(&id.shard(), |query| query.shard).is_ok();
        let knows = |(_, nodes): &(&ObjectId, &BTreeSet<NodeId>)| nodes.contains(&by);
        let known: Vec<_> = self.rules.loss_oracle.existed.iter().filter(knows).map(|(id, _)| *id).collect();
        for id in known.into_iter().filter(asked) {
            let living = self.nodes.iter().filter(|node| node.alive && node.id != by);
            let mut copies = living.flat_map(|node| node.data_plane.copies.values());
            let is_it = |held: &Copy| {
                matches!(held.stage, Stage::Sealed(_))
                    && held.identity.is_some_and(|(object, _)| object == id)
            };
            if copies.any(is_it) {
                self.rules.loss_oracle.existed.get_mut(&id).expect("just seen").remove(&by);
            }
        }
    }

    /// Lost objects whose loss must be reported: a living node knows that they were complete, and no living node has a
    /// copy.
    pub(super) fn known_lost(&self, sealed: &BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
        let known = |nodes: &BTreeSet<NodeId>| nodes.iter().any(|node| self.place_of(*node).is_some());
        let told = self.rules.loss_oracle.existed.iter().filter(|(_, nodes)| known(nodes)).map(|(id, _)| *id);
        let lost = told.filter(|id| !sealed.contains(id) && self.model.has_content(*id));
        lost.filter(|id| !self.was_taken_back(*id)).collect()
    }

    /// Whether all puts of the object timed out or died with their clients. The owner may have accepted the last of
    /// them, but no caller was told that the object exists. So its loss need not be reported.
    fn was_taken_back(&self, object: ObjectId) -> bool {
        let mut makers = self.tasks.values().filter(|task| task.spec.made() == Some(object)).peekable();
        let given_up = |task: &Task| match &task.outcome {
            Some(Outcome::Failed(error)) => error.kind == ErrorKind::TimedOut,
            Some(Outcome::Vanished) => true,
            _ => false,
        };
        let taken_back = makers.peek().is_some() && makers.all(given_up);
        if taken_back {
            self.excuses.count(Excuse::TakenBack);
        }
        taken_back
    }
}

//! The deletion oracle: which nodes know of a deletion. The deletion must hold as long as one of them lives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hoplite_core::io::Input;
use hoplite_types::peer::{DirectoryAnswer, DirectoryRequest, PeerMessage, Verdict};
use hoplite_types::{Edition, NodeId, ObjectId, Stamp};

use super::{Place, World};

/// Time until other nodes have heard of a deletion. The node that answers it tells them at once, but may die before
/// they hear. The time covers a few of the longest latencies and a reconnect.
const UNHEARD_FOR: Duration = Duration::from_secs(1);

/// Time until a dead host is noticed: a second, and more if datagrams get lost or nodes are slow.
const UNNOTICED_FOR: Duration = Duration::from_secs(2);

/// Which nodes have heard of which deletions.
#[derive(Default, Debug)]
pub(crate) struct DeletionOracle {
    heard: BTreeMap<ObjectId, BTreeSet<Place>>,
    /// The time of the answer to the caller.
    answered: BTreeMap<ObjectId, Duration>,
    died: BTreeMap<Place, Duration>,
    /// The stamp of the deletion in the message that is being handled.
    told: Option<Stamp>,
}

/// The object, if the message is about its deletion.
fn deletion_of(message: &PeerMessage) -> Option<ObjectId> {
    match message {
        PeerMessage::Answer { id, answer: DirectoryAnswer::Deleted { .. } } => Some(*id),
        PeerMessage::Directory { id, request: DirectoryRequest::Delete { .. }, .. } => Some(*id),
        _ => None,
    }
}

fn abandoned_by(message: &PeerMessage) -> Option<(ObjectId, Edition)> {
    match message {
        PeerMessage::Answer {
            id,
            answer: DirectoryAnswer::Verdict { edition, verdict: Verdict::Abandoned },
        } => Some((*id, *edition)),
        _ => None,
    }
}

impl World {
    /// Gives a message of another node to a core.
    pub(super) fn feed_message(&mut self, place: Place, from: NodeId, message: PeerMessage) {
        let deletion = deletion_of(&message);
        let abandoned = abandoned_by(&message);
        self.deletion_oracle.told = match &message {
            PeerMessage::Answer { answer: DirectoryAnswer::Deleted { deletion }, .. } => Some(deletion.stamp),
            _ => None,
        };
        self.feed(place, Input::Peer { from, message });
        self.deletion_oracle.told = None;
        if let Some((id, edition)) = abandoned {
            self.rules.note_abandoned(place, id, edition);
        }
        if let Some(id) = deletion {
            self.note_knows(place, id);
        }
    }

    /// A node that confirms a deletion must not show the object to clients any more. A content that was accepted later
    /// stays.
    pub(super) fn judge_confirmation(&mut self, place: Place, id: ObjectId) {
        let node = &self.nodes[place.index];
        let told = self.deletion_oracle.told;
        let stays = |copy| told.is_some() && node.core.accepted_at(copy) > told;
        if node.data_plane.ids_of(id).any(|copy| node.data_plane.copies[&copy].kept && !stays(copy)) {
            let what = format!("{} confirms a deletion, but clients may keep {id:?}", self.name(place));
            self.violate(what);
        }
    }

    /// A node has handled a message about a deletion. Records the node if it remembers the deletion now.
    fn note_knows(&mut self, place: Place, id: ObjectId) {
        if self.nodes[place.index].core.remembers_deletion(id) {
            self.deletion_oracle.heard.entry(id).or_default().insert(place);
        }
    }

    /// A caller got the answer that these objects are deleted.
    pub(super) fn note_deleted(&mut self, place: Place, ids: &[ObjectId]) {
        let now = self.queue.now();
        for id in ids {
            self.deletion_oracle.heard.entry(*id).or_default().insert(place);
            self.deletion_oracle.answered.insert(*id, now);
        }
    }

    pub(super) fn note_death(&mut self, place: Place) {
        self.deletion_oracle.died.insert(place, self.queue.now());
    }

    /// Whether the node lives, or died so recently that others may not have noticed.
    pub(super) fn may_seem_alive(&self, place: Place) -> bool {
        let now = self.queue.now();
        self.deletion_oracle.died.get(&place).is_none_or(|died| *died + UNNOTICED_FOR > now)
    }

    /// Whether all nodes that knew of the deletion died before they could tell others.
    pub fn is_unheard_of(&self, id: ObjectId) -> bool {
        let Some(answered) = self.deletion_oracle.answered.get(&id) else { return true };
        let heard = self.deletion_oracle.heard.get(&id).into_iter().flatten();
        let early =
            |place| self.deletion_oracle.died.get(place).is_some_and(|died| *died < *answered + UNHEARD_FOR);
        heard.into_iter().all(early)
    }
}

//! Checks contents and seals wherever the bytes of a known object become visible.

use hoplite_core::io::ClientId;
use hoplite_types::peer::{DirectoryRequest, PeerMessage, Seal};
use hoplite_types::{CopyId, Edition, ObjectId, TransferId};

use super::{Place, World};
use crate::data_plane::Stage;
use crate::names::node as name;
use crate::task::Spec;

impl World {
    /// The trailer of a transfer has arrived. The bytes must be those of the pulled object.
    pub(super) fn judge_received(&mut self, place: Place, transfer: TransferId, copy: CopyId, seal: &Seal) {
        let Some((id, edition)) = self.pulls.remove(&(place, transfer)) else {
            return self
                .violate(format!("{} received {transfer:?}, which it never pulled", self.name(place)));
        };
        let node = &self.nodes[place.index];
        let held = &node.data_plane.copies[&copy];
        if held.watermark != held.extent.size {
            let (watermark, size) = (held.watermark, held.extent.size);
            return self.violate(format!("{transfer:?} sealed after {watermark} of {size} B"));
        }
        let bytes = node.bytes(held.extent, 0, held.extent.size).to_vec();
        let verdict = self.judge_bytes(id, Some(edition), &seal.sources, &bytes);
        self.pronounce(place, &format!("receiving {}", self.names.object(id)), verdict);
    }

    /// A message carries a copy's bytes. They must be those of the object that it names.
    pub(super) fn judge_attachment(
        &mut self,
        place: Place,
        copy: CopyId,
        message: &PeerMessage,
        bytes: &[u8],
    ) {
        let (PeerMessage::Directory { id, .. } | PeerMessage::Answer { id, .. }) = message else { return };
        let edition = match message {
            PeerMessage::Directory { request: DirectoryRequest::Announce { report, .. }, .. } => {
                Some(report.edition)
            }
            _ => None,
        };
        let sources = self.seal_of(place, copy).unwrap_or_default();
        let verdict = self.judge_bytes(*id, edition, &sources, bytes);
        self.pronounce(place, &format!("sending {}", self.names.object(*id)), verdict);
    }

    /// A client reads a sealed copy of `id`.
    pub(super) fn judge_view(&mut self, place: Place, client: ClientId, id: ObjectId, copy: CopyId) {
        let node = &self.nodes[place.index];
        let Some(held) = node.data_plane.copies.get(&copy) else {
            return self.violate(format!("{client:?} holds a view of {copy:?}, which is closed"));
        };
        let bytes = node.bytes(held.extent, 0, held.extent.size).to_vec();
        let Some(sources) = self.seal_of(place, copy) else {
            return self.violate(format!("{client:?} was given {copy:?}, which is not sealed"));
        };
        self.model.on_seen(id);
        if let Some(variant) = self.model.variant_of(id, &bytes) {
            self.judge_first(place, id, variant);
        }
        let verdict = self.judge_bytes(id, None, &sources, &bytes);
        self.pronounce(place, &format!("viewing {}", self.names.object(id)), verdict);
    }

    /// Sealed bytes of an object over these sources have become visible.
    pub(super) fn judge_bytes(
        &mut self,
        id: ObjectId,
        edition: Option<Edition>,
        sources: &[ObjectId],
        bytes: &[u8],
    ) -> Result<(), String> {
        let same = self.model.on_sealed(id, edition, sources);
        if same.is_err() && !self.is_split(id) {
            return same;
        }
        self.model.judge(id, sources, bytes)
    }

    fn seal_of(&self, place: Place, copy: CopyId) -> Option<Vec<ObjectId>> {
        match &self.nodes[place.index].data_plane.copies.get(&copy)?.stage {
            Stage::Sealed(seal) => Some(seal.sources.clone()),
            _ => None,
        }
    }

    pub(super) fn pronounce(&mut self, place: Place, doing: &str, verdict: Result<(), String>) {
        if let Err(what) = verdict {
            self.violate(format!("{} {doing}: {what}", self.name(place)));
        }
    }
}

/// Checks at the end of a run.
impl World {
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_alive(&self, index: usize) -> bool {
        self.nodes[index].alive
    }

    /// Whether every node still runs since its first start.
    pub fn has_lost_nobody(&self) -> bool {
        self.nodes.iter().all(|node| node.alive && node.boot == 1)
    }

    pub fn is_client_alive(&self, client: ClientId) -> bool {
        self.sessions[&client].alive
    }

    /// The size with which a client has put, or tried to put, this object.
    pub fn put_size(&self, object: ObjectId) -> Option<u64> {
        self.tasks.values().find_map(|task| match task.spec {
            Spec::Put { id, size, .. } | Spec::PutSmall { id, size, .. } if id == object => Some(size),
            _ => None,
        })
    }

    /// Whether the members of every living node are exactly the living nodes.
    pub fn all_joined(&self) -> bool {
        let living: Vec<_> = self.nodes.iter().filter(|node| node.alive).collect();
        living
            .iter()
            .all(|node| living.iter().all(|other| other.id == node.id || node.members.contains(&other.id)))
            && living
                .iter()
                .all(|node| node.members.iter().all(|id| living.iter().any(|other| other.id == *id)))
    }

    /// The members of each node, as text.
    pub fn membership(&self) -> String {
        let of = |node: &super::Node| {
            let members: Vec<_> = node.members.iter().map(|id| name(*id)).collect();
            format!("{}: {}", name(node.id), members.join(" "))
        };
        self.nodes.iter().filter(|node| node.alive).map(of).collect::<Vec<_>>().join("; ")
    }

    /// No core has any records left.
    pub fn judge_leftovers(&self) -> Result<(), String> {
        for node in self.nodes.iter().filter(|node| node.alive) {
            if let Some(left) = node.core.leftovers().first() {
                return Err(format!("{} keeps what is past its time: {left}", name(node.id)));
            }
        }
        Ok(())
    }

    /// No node has a copy, job or stream left.
    pub fn judge_emptiness(&self) -> Result<(), String> {
        for node in self.nodes.iter().filter(|node| node.alive) {
            let plane = &node.data_plane;
            if !(plane.copies.is_empty()
                && plane.receives.is_empty()
                && plane.sends.is_empty()
                && plane.folds.is_empty())
            {
                return Err(format!("{} still holds {plane:?}", name(node.id)));
            }
        }
        Ok(())
    }
}

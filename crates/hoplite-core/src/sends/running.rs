//! The sends that run, and those that ended a moment ago.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hoplite_types::{Connections, CopyId, NodeId};

use super::{forget, Pull};
use crate::io::SendId;
use crate::keys::PullKey;

/// Limit of ended sends that are remembered. For an older one, a receiver whose stream stalls asks another sender.
const SENT_MAX: usize = 1024;

#[derive(Debug, Clone, Copy)]
pub(super) struct Sending {
    pub copy: CopyId,
    pub key: PullKey,
    pub pull: Pull,
    pub connections: Connections,
    /// It takes a good part of the link for a while.
    pub is_large: bool,
    /// The receiver has cancelled it.
    pub is_cancelled: bool,
}

#[derive(Debug, Default)]
pub(super) struct Running {
    table: BTreeMap<SendId, Sending>,
    by_key: BTreeMap<PullKey, SendId>,
    by_copy: BTreeMap<CopyId, BTreeSet<SendId>>,
    /// The number of large sends that run to each receiver.
    large: BTreeMap<NodeId, usize>,
    /// Several large sends run, or did until a moment ago: the rate of each says little of the link.
    sharing: bool,
}

impl Running {
    pub fn begin(&mut self, send: SendId, sending: Sending) {
        self.sharing |= sending.is_large && !self.large.is_empty();
        if sending.is_large {
            *self.large.entry(sending.key.to).or_default() += 1;
        }
        self.by_key.insert(sending.key, send);
        self.by_copy.entry(sending.copy).or_default().insert(send);
        self.table.insert(send, sending);
    }

    pub fn end(&mut self, send: SendId) -> Option<Sending> {
        let sending = self.table.remove(&send)?;
        self.by_key.remove(&sending.key);
        forget(&mut self.by_copy, sending.copy, send);
        if let Some(count) = self.large.get_mut(&sending.key.to).filter(|_| sending.is_large) {
            *count -= 1;
            if *count == 0 {
                self.large.remove(&sending.key.to);
            }
        }
        self.sharing &= !self.large.is_empty();
        Some(sending)
    }

    /// The receiver has cancelled its stream. Returns its send, if it runs.
    pub fn cancel(&mut self, key: PullKey) -> Option<SendId> {
        let send = *self.by_key.get(&key)?;
        self.table.get_mut(&send).expect("it is listed").is_cancelled = true;
        Some(send)
    }

    pub fn get(&self, send: SendId) -> Option<Sending> {
        self.table.get(&send).copied()
    }

    pub fn of_key(&self, key: PullKey) -> Option<Sending> {
        self.by_key.get(&key).map(|send| self.table[send])
    }

    pub fn of_copy(&self, copy: CopyId) -> impl Iterator<Item = SendId> + '_ {
        self.by_copy.get(&copy).into_iter().flatten().copied()
    }

    pub fn to_node(&self, node: NodeId) -> impl Iterator<Item = SendId> + '_ {
        let to_node = self.table.iter().filter(move |(_, sending)| sending.key.to == node);
        to_node.map(|(&send, _)| send)
    }

    pub fn large_to(&self, node: NodeId) -> usize {
        self.large.get(&node).copied().unwrap_or(0)
    }

    pub fn is_sharing(&self) -> bool {
        self.sharing
    }

    pub fn count(&self) -> usize {
        self.table.len()
    }
}

/// The last sends whose bytes were handed to the network in full: the bytes may still be under way.
#[derive(Debug, Default)]
pub(super) struct Sent(VecDeque<PullKey>);

impl Sent {
    pub fn note(&mut self, key: PullKey) {
        self.0.push_back(key);
        if self.0.len() > SENT_MAX {
            self.0.pop_front();
        }
    }

    pub fn has(&self, key: PullKey) -> bool {
        self.0.contains(&key)
    }
}

//! Short names for logs and scenarios: objects by the user's names, nodes as n1, n2, ...

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hoplite_types::{Edition, NodeId, ObjectId};

use crate::masses::member;

/// The names of objects and editions.
#[derive(Default)]
pub struct Names {
    objects: BTreeMap<ObjectId, String>,
    /// Editions, numbered in the order in which they appear. Their true numbers are random.
    writings: BTreeMap<u64, usize>,
}

/// The address of the node with this index.
pub fn address(index: usize) -> SocketAddr {
    let [high, low] = (index as u16 + 1).to_be_bytes();
    SocketAddr::from(([10, 0, high, low], hoplite_types::limits::DEFAULT_PORT))
}

/// The index of the node at this address.
pub fn index_of(addr: SocketAddr) -> usize {
    match addr {
        SocketAddr::V4(v4) => {
            let [_, _, high, low] = v4.ip().octets();
            usize::from(u16::from_be_bytes([high, low])) - 1
        }
        SocketAddr::V6(_) => unreachable!("the simulated world speaks IPv4"),
    }
}

/// Starts of one node that can be told apart. The first start is 1.
const BOOTS: u64 = 64;

/// The incarnation of the `boot`th start of a node, from its clock and the incarnation of its last start. As in the
/// daemon, it is always later than the last one, whatever the clock shows.
pub fn incarnation(boot: u64, wall_ms: u64, last: u64) -> u64 {
    wall_ms.max(last).next_multiple_of(BOOTS) + boot % BOOTS
}

/// The name of a node: `n2`, and `n2'` and so on after restarts.
pub fn node(node: NodeId) -> String {
    let restarts = (node.incarnation % BOOTS).saturating_sub(1);
    format!("n{}{}", index_of(node.addr) + 1, "'".repeat(restarts as usize))
}

impl Names {
    /// The id of this name. The name is remembered for printing.
    pub fn id(&mut self, name: &str) -> ObjectId {
        let id = ObjectId::from_name(name);
        self.objects.insert(id, name.to_owned());
        id
    }

    pub fn object(&self, id: ObjectId) -> String {
        match self.objects.get(&id) {
            Some(name) => name.clone(),
            None => match member(id) {
                Some((mass, number)) => format!("m{mass}.{number}"),
                None => "(partial)".to_owned(),
            },
        }
    }

    /// `text` with the short hexadecimal forms of ids replaced by their names.
    pub fn readable(&self, text: &str) -> String {
        self.objects.iter().fold(text.to_owned(), |text, (id, name)| text.replace(&format!("{id:?}"), name))
    }

    pub fn objects(&self, ids: &[ObjectId]) -> String {
        let names: Vec<_> = ids.iter().map(|id| self.object(*id)).collect();
        format!("[{}]", names.join(" "))
    }

    /// The name of an edition: `e1` for the first one seen, `e1.2` for its second restart.
    pub fn edition(&mut self, edition: Edition) -> String {
        let next = self.writings.len() + 1;
        let writing = *self.writings.entry(edition.writing).or_insert(next);
        match edition.attempt {
            0 => format!("e{writing}"),
            attempt => format!("e{writing}.{attempt}"),
        }
    }
}

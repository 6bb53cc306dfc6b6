//! Draws calls that change nothing.

use hoplite_types::NodeId;

use super::Generator;
use crate::names::{address, incarnation};
use crate::task::Spec;

impl Generator<'_> {
    /// Draws calls that change nothing: waits, prefetches, locations, status.
    pub(super) fn draw_read_only(&mut self) {
        for _ in 0..self.rng.between(0, 2 + self.shape.nodes as u64) {
            if self.script.lasting.is_empty() {
                return;
            }
            let at = self.moment();
            let mut ids = self.script.lasting.clone();
            self.rng.shuffle(&mut ids);
            ids.truncate(self.rng.between(1, 4) as usize);
            let spec = match self.rng.between(0, 3) {
                0 => {
                    let count = self.rng.between(1, ids.len() as u64) as u32;
                    Spec::Wait { count, ids, fail_if_lost: self.rng.percent(30) }
                }
                1 => {
                    let nodes = (0..self.rng.between(0, 2)).map(|_| self.rng.index(self.shape.nodes));
                    let nodes: Vec<_> = nodes.collect();
                    Spec::Prefetch {
                        ids,
                        nodes: nodes.into_iter().map(|index| self.first_node(index)).collect(),
                    }
                }
                2 => Spec::Locate { id: ids[0] },
                _ => Spec::Status,
            };
            self.add(at, spec, &[]);
        }
    }

    /// The id of the node with this index at its first start.
    fn first_node(&self, index: usize) -> NodeId {
        NodeId { addr: address(index), incarnation: incarnation(1, self.shape.clocks.wall_ms[index], 0) }
    }
}

//! Chooses the sources that take part, the copy that each is read from, and its slot.

use std::collections::BTreeMap;

use hoplite_types::peer::CopyReport;
use hoplite_types::{Dtype, Error, ErrorKind, FoldOrder, Header, NodeId, ObjectId};

use super::coordinator::{Chosen, Facts, Reduction, Slot};
use crate::cost::Degree;
use crate::Core;

impl Core {
    /// Takes the slots from sources whose copy at their slot's node is gone, or is another edition now.
    pub(super) fn drop_vanished_sources(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let fixed = reduction.request.order == FoldOrder::Fixed;
        for (_, slot) in &mut reduction.slots {
            let Some(node) = slot.node else { continue };
            let before = slot.sources.len();
            let (sources, bad, deleted) = (&reduction.request.sources, &reduction.bad, &reduction.deleted);
            slot.sources.retain(|chosen| {
                let mut copies = self.subscriptions.copies(sources[chosen.index]);
                !deleted.contains(&chosen.index)
                    && !bad.contains(&(chosen.index, node, chosen.edition))
                    && copies.any(|(at, report)| at == node && report.edition == chosen.edition)
            });
            if fixed && slot.sources.len() < before {
                // A run with a hole is not a run: its sources are assigned anew.
                slot.sources.clear();
            }
            if slot.sources.is_empty() {
                slot.node = None;
            }
        }
    }

    /// Sources that exist, fit and are not assigned yet, each with the best node to take it from.
    pub(super) fn ready_sources(&self, number: u64) -> Result<Vec<(NodeId, Chosen)>, Error> {
        let reduction = &self.reductions[&number];
        let facts = reduction.facts.as_ref().expect("learnt before");
        let (chosen, mut ready) = (reduction.chosen(), Vec::new());
        for (index, &source) in reduction.request.sources.iter().enumerate() {
            if chosen.contains(&index) || reduction.deleted.contains(&index) {
                continue;
            }
            let usable = |(node, report): &(NodeId, &CopyReport)| {
                let whole = report.complete || report.pinned;
                whole && !reduction.bad.contains(&(index, *node, report.edition))
            };
            let rank = |&(node, report): &(NodeId, &CopyReport)| {
                (!report.complete, node != self.ctx.me, !report.pinned, node)
            };
            let Some((node, report)) = self.subscriptions.copies(source).filter(usable).min_by_key(rank)
            else {
                continue;
            };
            check_fits(source, report, facts, self.ctx.me)?;
            ready.push((node, Chosen { index, edition: report.edition }));
        }
        Ok(ready)
    }

    /// Gives each newly chosen source a slot: those on one node together, where the order allows.
    pub(super) fn assign_sources(&mut self, number: u64, ready: Vec<(NodeId, Chosen)>) {
        let me = self.ctx.me;
        let reduction = self.reductions.get_mut(&number).expect("the caller's");
        match reduction.request.order {
            FoldOrder::Arrival => {
                let mut groups: BTreeMap<(bool, usize, NodeId), Vec<Chosen>> = BTreeMap::new();
                let mut first: BTreeMap<NodeId, usize> = BTreeMap::new();
                for (node, chosen) in ready {
                    // Our own node comes last, so that the result is made on the caller's node.
                    let at = *first.entry(node).or_insert(chosen.index);
                    groups.entry((node == me, at, node)).or_default().push(chosen);
                }
                let vacant = reduction.slots.iter().enumerate().filter(|(_, (_, slot))| slot.node.is_none());
                let mut vacant = vacant.map(|(position, _)| position).collect::<Vec<_>>().into_iter();
                for ((_, _, node), sources) in groups {
                    reduction.take_slot(node, sources, &mut vacant);
                }
            }
            FoldOrder::Fixed => {
                let mut runs: Vec<(NodeId, Vec<Chosen>)> = Vec::new();
                for (node, chosen) in ready {
                    match runs.last_mut() {
                        Some((at, run))
                            if *at == node
                                && run.last().expect("runs hold one").index + 1 == chosen.index =>
                        {
                            run.push(chosen);
                        }
                        _ => runs.push((node, vec![chosen])),
                    }
                }
                for (node, sources) in runs {
                    reduction.add_slot(node, sources);
                }
                reduction.slots.retain(|(_, slot)| slot.node.is_some());
                reduction.slots.sort_by_key(|(_, slot)| slot.sources[0].index);
            }
        }
        if reduction.chosen_count() == reduction.k() {
            // Vacant places are not needed any more.
            reduction.slots.retain(|(_, slot)| slot.node.is_some());
        }
    }
}

impl Reduction {
    /// In arrival order. The sources go into the top slot, if that is on their node and has no readers yet; otherwise
    /// into the next vacant place, or a new slot on top.
    fn take_slot(&mut self, node: NodeId, sources: Vec<Chosen>, vacant: &mut impl Iterator<Item = usize>) {
        if let Some((_, top)) = self.slots.last_mut().filter(|_| self.degree == Degree::Chain) {
            if top.node == Some(node) {
                top.sources.extend(sources);
                return;
            }
        }
        match vacant.next() {
            Some(position) => {
                let (_, slot) = &mut self.slots[position];
                (slot.node, slot.sources) = (Some(node), sources);
            }
            None => self.add_slot(node, sources),
        }
    }

    fn add_slot(&mut self, node: NodeId, sources: Vec<Chosen>) {
        let slot = Slot { node: Some(node), sources, ..Slot::default() };
        self.slots.push((self.next_slot, slot));
        self.next_slot += 1;
    }
}

/// Whether a source fits the others.
pub(super) fn check_fits(
    source: ObjectId,
    report: &CopyReport,
    facts: &Facts,
    me: NodeId,
) -> Result<(), Error> {
    let known = (facts.header.dtype, &facts.header.shape, facts.size);
    if (report.header.dtype, &report.header.shape, report.size) == known {
        return Ok(());
    }
    let dtype = |header: &Header| header.dtype.map_or("no reducible dtype", Dtype::name);
    Err(Error::new(
        ErrorKind::Mismatch,
        format!(
            "{me}: source {source} is {} {:?} ({} bytes), others are {} {:?} ({} bytes)",
            dtype(&report.header),
            report.header.shape,
            report.size,
            facts.dtype,
            facts.header.shape,
            facts.size
        ),
    ))
}

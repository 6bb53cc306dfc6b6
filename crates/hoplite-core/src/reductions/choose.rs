//! Chooses the sources that take part, the copy that each is read from, and its slot.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use hoplite_types::peer::CopyReport;
use hoplite_types::{Dtype, ErrorKind, FoldOrder, Header, NodeId, ObjectId};

use super::reduction::{Chosen, Facts, Reduction, Slot};
use super::{fail, Lent, Step};
use crate::cost::Degree;

impl Reduction {
    /// Takes the slots from sources whose copy at their slot's node is gone, or is another edition now.
    pub(super) fn drop_vanished_sources(&mut self, lent: &Lent<'_>) {
        let fixed = self.request.order == FoldOrder::Fixed;
        for (_, slot) in &mut self.slots {
            // A vacant slot has no sources.
            let Some(node) = slot.node else { continue };
            let before = slot.sources.len();
            let (sources, bad, deleted) = (&self.request.sources, &self.bad, &self.deleted);
            slot.sources.retain(|chosen| {
                let mut copies = lent.subscriptions.copies(sources[chosen.index]);
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
    pub(super) fn ready_sources(&self, lent: &Lent<'_>) -> Step<Vec<(NodeId, Chosen)>> {
        let me = self.id.coordinator;
        let (chosen, mut ready) = (self.chosen(), Vec::new());
        for (index, &source) in self.request.sources.iter().enumerate() {
            if chosen.contains(&index) || self.deleted.contains(&index) {
                continue;
            }
            let usable = |(node, report): &(NodeId, &CopyReport)| {
                let whole = report.complete || report.pinned;
                whole && !self.bad.contains(&(index, *node, report.edition))
            };
            let rank = |&(node, report): &(NodeId, &CopyReport)| {
                (!report.complete, node != me, !report.pinned, node)
            };
            let best = lent.subscriptions.copies(source).filter(usable).min_by_key(rank);
            if let Some((node, report)) = best {
                self.facts().check_fits(source, (&report.header, report.size), me)?;
                ready.push((node, Chosen { index, edition: report.edition }));
            }
        }
        ControlFlow::Continue(ready)
    }

    /// Gives each newly chosen source a slot: those on one node together, where the order allows.
    pub(super) fn assign_sources(&mut self, ready: Vec<(NodeId, Chosen)>) {
        match self.request.order {
            FoldOrder::Arrival => self.assign_by_node(ready),
            FoldOrder::Fixed => self.assign_runs(ready),
        }
        if self.chosen_count() == self.k() {
            // Vacant places are not needed any more.
            self.slots.retain(|(_, slot)| slot.node.is_some());
        }
    }

    fn assign_by_node(&mut self, ready: Vec<(NodeId, Chosen)>) {
        let me = self.id.coordinator;
        let mut groups: BTreeMap<(bool, usize, NodeId), Vec<Chosen>> = BTreeMap::new();
        let mut first: BTreeMap<NodeId, usize> = BTreeMap::new();
        for (node, chosen) in ready {
            // Our own node comes last, so that the result is made on the caller's node.
            let at = *first.entry(node).or_insert(chosen.index);
            groups.entry((node == me, at, node)).or_default().push(chosen);
        }
        let vacant = self.slots.iter().enumerate().filter(|(_, (_, slot))| slot.node.is_none());
        let mut vacant = vacant.map(|(position, _)| position).collect::<Vec<_>>().into_iter();
        for ((_, _, node), sources) in groups {
            self.take_slot(node, sources, &mut vacant);
        }
    }

    /// In fixed order, a slot holds a run of the list.
    fn assign_runs(&mut self, ready: Vec<(NodeId, Chosen)>) {
        let mut runs: Vec<(NodeId, Vec<Chosen>)> = Vec::new();
        for (node, chosen) in ready {
            match runs.last_mut() {
                Some((at, run))
                    if *at == node && run.last().expect("runs hold one").index + 1 == chosen.index =>
                {
                    run.push(chosen);
                }
                _ => runs.push((node, vec![chosen])),
            }
        }
        for (node, sources) in runs {
            self.add_slot(node, sources);
        }
        self.slots.retain(|(_, slot)| slot.node.is_some());
        self.slots.sort_by_key(|(_, slot)| slot.sources[0].index);
    }

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

impl Facts {
    /// Fails if a source with this header and size does not fit the others.
    pub(super) fn check_fits(
        &self,
        source: ObjectId,
        (header, size): (&Header, u64),
        me: NodeId,
    ) -> Step<()> {
        if (header.dtype, &header.shape, size) == (self.header.dtype, &self.header.shape, self.size) {
            return ControlFlow::Continue(());
        }
        let message = format!(
            "{me}: source {source} is {} {:?} ({size} bytes), others are {} {:?} ({} bytes)",
            header.dtype.map_or("no reducible dtype", Dtype::name),
            header.shape,
            self.dtype,
            self.header.shape,
            self.size
        );
        fail(ErrorKind::Mismatch, &message)
    }
}

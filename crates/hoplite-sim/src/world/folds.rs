//! Folds of the data plane, grain by grain on the real bytes.

use hoplite_core::io::{Broken, Extent, FoldId, FoldInputs, FoldRule, Input};
use hoplite_types::CopyId;

use super::{note, Node, Place, World};
use crate::data_plane::{Fold, FoldSource, FoldStream, Stage};
use crate::event::FlowEvent;

impl Node {
    pub(crate) fn bytes(&self, extent: Extent, from: u64, to: u64) -> &[u8] {
        assert!(from <= to && to <= extent.size);
        &self.arena[(extent.offset + from) as usize..(extent.offset + to) as usize]
    }

    pub(crate) fn bytes_mut(&mut self, extent: Extent, from: u64, to: u64) -> &mut [u8] {
        assert!(from <= to && to <= extent.size);
        &mut self.arena[(extent.offset + from) as usize..(extent.offset + to) as usize]
    }

    fn extent(&self, copy: CopyId) -> Extent {
        self.data_plane.copies[&copy].extent
    }
}

impl World {
    pub(super) fn start_fold(&mut self, place: Place, fold: FoldId, job: Fold, inputs: FoldInputs) {
        let (out, rule) = (job.out, job.rule);
        note!(self, "{} folds {inputs:?} into c{} as {}, {rule:?}", self.name(place), out.0, fold.0);
        if let Err(why) = self.claim(place, out) {
            return self.violate(why);
        }
        if self.nodes[place.index].data_plane.copies[&out].watermark != 0 {
            let what = format!("{} folds into c{}, which has bytes already", self.name(place), out.0);
            return self.violate(what);
        }
        self.nodes[place.index].data_plane.folds.insert(fold, job);
        self.add_inputs(place, fold, inputs);
    }

    pub(super) fn amend_fold(&mut self, place: Place, fold: FoldId, rule: FoldRule, added: FoldInputs) {
        note!(self, "{} amends fold {} by {added:?}, {rule:?}", self.name(place), fold.0);
        let plane = &mut self.nodes[place.index].data_plane;
        let Some(job) = plane.folds.get_mut(&fold) else {
            if plane.broken_folds.contains(&fold) {
                // The report to the core is under way.
                return;
            }
            let what = format!("{} amends fold {}, which is over or never was", self.name(place), fold.0);
            return self.violate(what);
        };
        if !job.rule.open && added != FoldInputs::default() {
            return self.violate(format!("fold {} is closed, yet gets more inputs", fold.0));
        }
        job.rule = rule;
        self.add_inputs(place, fold, added);
    }

    /// Records that a job uses an open copy.
    fn claim(&mut self, place: Place, copy: CopyId) -> Result<(), String> {
        let name = self.name(place);
        let plane = &mut self.nodes[place.index].data_plane;
        let held =
            plane.copies.get_mut(&copy).ok_or(format!("{name} folds c{}, which is not open", copy.0))?;
        held.jobs += 1;
        Ok(())
    }

    fn add_inputs(&mut self, place: Place, fold: FoldId, inputs: FoldInputs) {
        for copy in &inputs.sources {
            if let Err(why) = self.claim(place, *copy) {
                return self.violate(why);
            }
        }
        let job = self.nodes[place.index].data_plane.folds.get_mut(&fold).expect("the caller has it");
        job.sources.extend(inputs.sources.iter().map(|copy| FoldSource { copy: *copy, at: 0 }));
        let now = self.queue.now();
        job.streams.extend(inputs.streams.iter().map(|(transfer, from)| FoldStream {
            transfer: *transfer,
            from: *from,
            flow: None,
            at: 0,
            pending: Vec::new(),
            sealed: false,
            last_byte: now,
        }));
        for (transfer, _) in &inputs.streams {
            self.watch_stream(place, *transfer);
        }
        self.on_fold_step(place, fold);
    }

    /// Folds all bytes that can be folded now, publishes them, and ends the fold if it is complete.
    pub(super) fn on_fold_step(&mut self, place: Place, fold_id: FoldId) {
        let Some(node) = self.alive(place) else { return };
        let Some(mut fold) = node.data_plane.folds.remove(&fold_id) else { return };
        let credits = if fold.broken { Vec::new() } else { self.fold_streams(place, &mut fold) };
        credits.into_iter().for_each(|(flow, bytes)| self.credit(flow, bytes));
        let node = &mut self.nodes[place.index];
        let is_aborted = |source: &FoldSource| node.data_plane.copies[&source.copy].stage == Stage::Aborted;
        if fold.sources.iter().any(is_aborted) {
            node.data_plane.broken_folds.insert(fold_id);
            return self.end_fold(place, fold_id, fold, Err(Broken));
        }
        let before = fold.published;
        if !fold.rule.open && !fold.broken {
            fold_sources(node, &mut fold);
        }
        let size = node.extent(fold.out).size;
        let is_sealed =
            |source: &FoldSource| matches!(node.data_plane.copies[&source.copy].stage, Stage::Sealed(_));
        let all_sealed =
            fold.streams.iter().all(|stream| stream.sealed) && fold.sources.iter().all(is_sealed);
        let over = !fold.rule.open && !fold.broken && fold.published == size && all_sealed;
        let (out, published) = (fold.out, fold.published);
        if over {
            self.end_fold(place, fold_id, fold, Ok(()));
        } else {
            node.data_plane.folds.insert(fold_id, fold);
        }
        if published > before {
            self.wake(place, out);
        }
    }

    /// Folds the streams as their bytes arrive. Returns the credit for each sender.
    fn fold_streams(&mut self, place: Place, fold: &mut Fold) -> Vec<(crate::data_plane::FlowId, u64)> {
        let ahead = self.plan.fold_ahead_bytes;
        let element = fold.rule.dtype.size();
        let mut credits = Vec::new();
        loop {
            let slowest = fold.streams.iter().map(|stream| stream.at).min().unwrap_or(0);
            let mut moved = false;
            for i in 0..fold.streams.len() {
                let stream = &mut fold.streams[i];
                let allowed = slowest.saturating_add(ahead).saturating_sub(stream.at);
                let len = (stream.pending.len() as u64).min(allowed) as usize / element * element;
                if len == 0 {
                    continue;
                }
                let bytes: Vec<u8> = stream.pending.drain(..len).collect();
                let at = stream.at;
                stream.at += len as u64;
                credits.extend(stream.flow.map(|flow| (flow, len as u64)));
                combine(&mut self.nodes[place.index], fold, at, &bytes);
                moved = true;
            }
            if !moved {
                return credits;
            }
        }
    }

    fn end_fold(&mut self, place: Place, id: FoldId, fold: Fold, outcome: Result<(), Broken>) {
        for stream in &fold.streams {
            if let Some(flow) = stream.flow {
                self.push_flow_end(flow, FlowEvent::Reset);
            }
        }
        let mut frees: Vec<_> = fold.sources.iter().map(|source| source.copy).collect();
        frees.push(fold.out);
        self.report(place, Input::FoldEnded { fold: id, outcome }, frees);
    }

    pub(super) fn stop_fold(&mut self, place: Place, id: FoldId) {
        note!(self, "{} stops fold {}", self.name(place), id.0);
        if let Some(fold) = self.nodes[place.index].data_plane.folds.remove(&id) {
            self.end_fold(place, id, fold, Err(Broken));
        }
    }
}

/// Folds the sources in order, up to the slowest stream, and publishes the complete bytes.
fn fold_sources(node: &mut Node, fold: &mut Fold) {
    let out = node.extent(fold.out);
    let element = fold.rule.dtype.size() as u64;
    let mut floor = fold.streams.iter().map(|stream| stream.at).min().unwrap_or(out.size);
    for i in 0..fold.sources.len() {
        let FoldSource { copy, at } = fold.sources[i];
        let held = node.data_plane.copies.get_mut(&copy).expect("a copy outlives its jobs");
        let there = held.watermark.saturating_sub(fold.rule.offset);
        let ready = floor.min(there / element * element);
        held.wanted |= held.watermark < held.extent.size && held.writer.is_some();
        let extent = held.extent;
        if ready > at {
            let offset = fold.rule.offset;
            let bytes = node.bytes(extent, offset + at, offset + ready).to_vec();
            combine(node, fold, at, &bytes);
            fold.sources[i].at = ready;
        }
        floor = fold.sources[i].at;
    }
    if floor > fold.published {
        if let Some(by) = fold.rule.divide_by {
            hoplite_fold::divide(fold.rule.dtype, node.bytes_mut(out, fold.published, floor), by);
        }
        fold.published = floor;
        node.data_plane.copies.get_mut(&fold.out).expect("a copy outlives its jobs").watermark = floor;
    }
}

/// Folds `bytes` into the output from `at`. The first input there is copied.
fn combine(node: &mut Node, fold: &mut Fold, at: u64, bytes: &[u8]) {
    let out = node.extent(fold.out);
    let to = at + bytes.len() as u64;
    let shared = fold.begun.clamp(at, to);
    let (old, new) = bytes.split_at((shared - at) as usize);
    hoplite_fold::fold(fold.rule.op, fold.rule.dtype, node.bytes_mut(out, at, shared), old);
    node.bytes_mut(out, shared, to).copy_from_slice(new);
    fold.begun = fold.begun.max(to);
}

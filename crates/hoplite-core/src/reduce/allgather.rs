//! The all-gather of a striped allreduce, at each node: it assembles the target from its parts. Each part comes
//! from a neighbour (or, one of them, from the partial sum here) into a window of the target's copy, and is passed on
//! from there.
//!
//! ```text
//!  Slot ─▶ Waiting ──space──▶ Gathering ───every part sealed──▶ Folded ──Commit──▶ sealed target
//!                                │  └──Commit──▶ goes on alone ──────────────────────▲
//!                                └─ a part breaks off: SlotFailed; after the commit: fetched like anything
//! ```

use hoplite_types::peer::{Child, Seal, SlotAssignment, SlotFailure};
use hoplite_types::{CopyId, Edition, ObjectId, ReductionId};

use super::folds::FoldFor;
use super::slot_table::{MaySeal, Running, SlotKey, Slots, State};
use crate::copies::{NewCopy, Phase};
use crate::io::{Broken, FoldRule};
use crate::Core;

impl Slots {
    /// The slot that assembles this edition of a target.
    pub(super) fn allgather_of(&self, reduction: ReductionId, edition: Edition) -> Option<SlotKey> {
        let is_it =
            |assignment: &SlotAssignment| assignment.part_bytes.is_some() && assignment.edition == edition;
        self.keys_of(reduction).into_iter().find(|key| is_it(&self.running[key].assignment))
    }
}

impl Core {
    /// Opens the target and its windows; nothing if there is not space for all of them.
    pub(super) fn open_target(&mut self, key: SlotKey, assignment: &SlotAssignment) -> Option<CopyId> {
        let target = self.copies.open(
            &mut self.ctx,
            NewCopy {
                object: assignment.out,
                edition: assignment.edition,
                size: assignment.size,
                header: assignment.header.clone(),
                phase: Phase::Gathered,
                // No node may stream from it while its parts arrive; whether it is pinned is known when it is sealed.
                pinned: false,
                public: true,
                stamp: Some(assignment.stamp),
                claim: Some(assignment.claim),
            },
        )?;
        let (reduction, _) = key;
        let window = |part: &Child| (ObjectId::target_part(reduction, part.slot), part.edition);
        let windows = assignment.children.iter().map(window).collect();
        let part_bytes = assignment.part_bytes.expect("it is put together from parts");
        if self.copies.open_windows(&mut self.ctx, target, part_bytes, windows) {
            return Some(target);
        }
        self.copies.doom(&mut self.ctx, target);
        None
    }

    /// The target is open: every part is pulled from the node that the coordinator named.
    pub(super) fn start_allgather(&mut self, key: SlotKey, target: CopyId) {
        self.slots.set_state(key, State::Gathering { copy: target });
        let assignment = &self.slots.running[&key].assignment;
        let (out, parts) = (assignment.out, assignment.children.clone());
        self.fetcher().drop_fetch(out);
        // Its owner must know every node that may seal it, so that a deletion reaches all of them.
        self.ask_for_verdict(target);
        let windows = self.copies[target].windows.clone();
        if windows.len() > 1 {
            let (reduction, _) = key;
            windows.iter().for_each(|&window| self.copies.set_group(window, reduction));
        }
        let me = self.ctx.me;
        for (&window, part) in windows.iter().zip(&parts).filter(|(_, part)| part.node != me) {
            self.fetcher().pull_into(window, part.node, part.id, true);
        }
        self.begin_local_parts(key);
    }

    /// Starts the parts whose sums are made on this node, as soon as those are there.
    pub(super) fn begin_local_parts(&mut self, key: SlotKey) {
        let Some(Running { assignment, state: State::Gathering { copy: target }, .. }) =
            self.slots.running.get(&key)
        else {
            return;
        };
        let (op, dtype, target) = (assignment.op, assignment.dtype, *target);
        let parts = self.copies[target].windows.iter().zip(&assignment.children);
        let idle = parts.filter(|(window, part)| part.node == self.ctx.me && self.is_idle(**window));
        let here = idle.filter_map(|(&window, part)| {
            let sum = self.copies.live(part.id)?;
            (self.copies[sum].edition == part.edition).then_some((window, sum))
        });
        for (window, sum) in here.collect::<Vec<_>>() {
            self.copies.add_user(&mut self.ctx, sum);
            let rule = FoldRule { op, dtype, offset: 0, divide_by: None, open: false };
            self.start_fold(FoldFor::Part, window, rule, vec![sum], &[]);
        }
    }

    /// Neither complete nor arriving.
    fn is_idle(&self, window: CopyId) -> bool {
        matches!(self.copies[window].phase, Phase::Received(None) | Phase::Folded(None))
    }

    pub(super) fn on_part_folded(&mut self, window: CopyId, outcome: Result<(), Broken>) {
        if outcome.is_ok() {
            self.copies.seal(&mut self.ctx, window, Seal::default());
        }
        let whole = self.copies[window].within.expect("parts are folded into windows");
        self.on_part_ended(whole);
    }

    /// A part of `target` has arrived, or broke off.
    pub(crate) fn on_part_ended(&mut self, target: CopyId) {
        let Some(key) = self.slots.key_of(target) else { return };
        let running = &self.slots.running[&key];
        if running.state != (State::Gathering { copy: target }) {
            return;
        }
        let windows = &self.copies[target].windows;
        let mut parts = windows.iter().zip(&running.assignment.children);
        if windows.iter().all(|window| self.copies[*window].is_sealed()) {
            self.slots.set_state(key, State::Folded { copy: target });
            return self.on_gathered(key);
        }
        // A local part that has not begun yet has not failed.
        let broken = |(window, part): &(&CopyId, &Child)| {
            self.is_idle(**window) && (part.node != self.ctx.me || self.copies.live(part.id).is_some())
        };
        if let Some((_, part)) = parts.find(broken) {
            let slot = part.slot;
            match running.committed {
                Some(_) => self.drop_slot(key),
                None => self.fail_slot(key, SlotFailure::Child(slot)),
            }
        }
    }

    fn on_gathered(&mut self, key: SlotKey) {
        let running = &self.slots.running[&key];
        match running.committed {
            Some(_) => self.seal_allgather(key),
            None if running.assignment.root => self.say_root_done(key),
            None => {}
        }
    }

    /// The coordinator reports that the target is final; everything else of the reduction is over.
    pub(super) fn commit_allgather(&mut self, key: SlotKey, sources: Vec<ObjectId>) {
        let running = self.slots.running.get_mut(&key).expect("just found");
        running.committed = Some(sources);
        let state = running.state;
        let is_coming =
            |target: CopyId| !self.copies[target].windows.iter().any(|&window| self.is_idle(window));
        match state {
            State::Folded { .. } => self.seal_allgather(key),
            State::Gathering { copy } if is_coming(copy) => {}
            _ => self.drop_slot(key),
        }
        let (reduction, _) = key;
        for other in self.slots.keys_of(reduction) {
            if other != key {
                self.let_sum_go(other);
            }
        }
    }

    /// Seals the target, unless its owner does not know yet that it is made here.
    pub(super) fn seal_allgather(&mut self, key: SlotKey) {
        if self.slots.running.get(&key).is_none_or(|running| running.may_seal == MaySeal::NotYet) {
            return;
        }
        let Some(running) = self.slots.remove(key) else { return };
        let (Some(target), Some(sources)) = (running.copy(), running.committed) else { return };
        self.copies.seal_whole(&mut self.ctx, target, running.assignment.root, Seal { sources });
    }

    /// The partial sum of a committed reduction is no longer needed here, but neighbours may not have all of it yet.
    fn let_sum_go(&mut self, key: SlotKey) {
        match self.slots.running[&key].state {
            State::Folded { copy } if self.copies.get(copy).is_some_and(|sum| sum.is_sealed()) => {
                self.slots.remove(key);
                if !self.copies[copy].doomed {
                    self.copies.retire(&mut self.ctx, copy);
                }
            }
            _ => self.drop_slot(key),
        }
    }
}

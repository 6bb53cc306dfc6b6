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

use super::assign::here;
use super::folds::{FoldFor, Inputs};
use super::table::{Makes, SlotKey, State};
use super::Slots;
use crate::copies::{Copies, NewCopy, Phase};
use crate::io::{Broken, FoldRule};
use crate::lent::Lent;

/// Opens the target and its windows; nothing if there is not space for all of them.
pub(super) fn open_target(
    lent: &mut Lent<'_>,
    (reduction, _): SlotKey,
    assignment: &SlotAssignment,
    part_bytes: u64,
) -> Option<CopyId> {
    let new = NewCopy {
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
    };
    let target = lent.copies.open(lent.ctx, new)?;
    let window = |part: &Child| (ObjectId::target_part(reduction, part.slot), part.edition);
    let windows = assignment.children.iter().map(window).collect();
    if lent.copies.open_windows(lent.ctx, target, part_bytes, windows) {
        return Some(target);
    }
    lent.copies.doom(lent.ctx, target);
    None
}

/// Neither complete nor arriving.
fn is_idle(copies: &Copies, window: CopyId) -> bool {
    matches!(copies[window].phase, Phase::Received(None) | Phase::Folded(None))
}

impl Slots {
    /// The slot that assembles this edition of a target.
    pub(super) fn allgather_of(&self, reduction: ReductionId, edition: Edition) -> Option<SlotKey> {
        let is_it = |key: &SlotKey| {
            let assignment = &self.table.get(*key).expect("just listed").assignment;
            assignment.part_bytes.is_some() && assignment.edition == edition
        };
        self.table.keys_of(reduction).into_iter().find(is_it)
    }

    /// The target is open: every part is pulled from the node that the coordinator named.
    pub(super) fn start_allgather(&mut self, lent: &mut Lent<'_>, key: SlotKey, target: CopyId) {
        self.table.set_state(key, State::Gathering { copy: target });
        let assignment = &self.table.get(key).expect("just set").assignment;
        let (out, parts) = (assignment.out, assignment.children.clone());
        lent.fetcher().drop_fetch(out);
        // Its owner must know every node that may seal it, so that a deletion reaches all of them.
        self.ask_for_verdict(lent, key, target);
        let windows = lent.copies[target].windows.clone();
        if windows.len() > 1 {
            let (reduction, _) = key;
            windows.iter().for_each(|&window| lent.copies.set_group(window, reduction));
        }
        let me = lent.ctx.me;
        for (&window, part) in windows.iter().zip(&parts).filter(|(_, part)| part.node != me) {
            lent.fetcher().pull_into(window, part.node, part.id, true);
        }
        self.begin_local_parts(lent, key);
    }

    /// Starts the parts whose sums are made on this node, as soon as those are there.
    pub(super) fn begin_local_parts(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        let running = self.table.get(key).expect("the caller's");
        // Otherwise it has not started yet, or no part is missing any more.
        let State::Gathering { copy: target } = running.state else { return };
        let SlotAssignment { op, dtype, ref children, .. } = running.assignment;
        let parts = lent.copies[target].windows.iter().zip(children);
        let idle = parts.filter(|(window, part)| part.node == lent.ctx.me && is_idle(lent.copies, **window));
        let ready = idle
            .filter_map(|(&window, part)| Some((window, here(lent.copies, part.id, part.edition)?)))
            .collect::<Vec<_>>();
        for (window, sum) in ready {
            lent.copies.add_user(lent.ctx, sum);
            let rule = FoldRule { op, dtype, offset: 0, divide_by: None, open: false };
            let inputs = Inputs { attempt: 0, sources: vec![sum], children: &[] };
            self.folds.start(lent, FoldFor::Part, window, rule, inputs);
        }
    }

    pub(super) fn on_part_folded(
        &mut self,
        lent: &mut Lent<'_>,
        window: CopyId,
        outcome: Result<(), Broken>,
    ) {
        if outcome.is_ok() {
            lent.copies.seal(lent.ctx, window, Seal::default());
        }
        let whole = lent.copies[window].within.expect("parts are folded into windows");
        self.on_part_ended(lent, whole);
    }

    /// A part of `target` has arrived, or broke off.
    pub fn on_part_ended(&mut self, lent: &mut Lent<'_>, target: CopyId) {
        // A window outlives its slot while it is passed on.
        let Some(key) = self.table.key_of(target) else { return };
        let running = self.table.get(key).expect("it is listed");
        if running.state != (State::Gathering { copy: target }) {
            return;
        }
        let windows = &lent.copies[target].windows;
        let mut parts = windows.iter().zip(&running.assignment.children);
        if windows.iter().all(|window| lent.copies[*window].is_sealed()) {
            self.table.set_state(key, State::Folded { copy: target });
            return self.on_gathered(lent, key);
        }
        // A local part that has not begun yet has not failed.
        let broken = |(window, part): &(&CopyId, &Child)| {
            let has_begun = part.node != lent.ctx.me || lent.copies.live(part.id).is_some();
            is_idle(lent.copies, **window) && has_begun
        };
        if let Some((_, part)) = parts.find(broken) {
            match running.needs_coordinator() {
                true => self.fail(lent.ctx, key, SlotFailure::Child(part.slot)),
                false => self.drop_slot(lent, key),
            }
        }
    }

    /// Every part is here.
    fn on_gathered(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        match self.table.get(key).expect("the caller's").needs_coordinator() {
            // Of all that gather the target, the root reports that it has it.
            true => self.say_root_done(lent.ctx, key),
            false => self.seal_allgather(lent, key),
        }
    }

    /// The coordinator reports that the target is final; everything else of the reduction is over.
    pub(super) fn commit_allgather(&mut self, lent: &mut Lent<'_>, key: SlotKey, sources: Vec<ObjectId>) {
        self.table.set_committed(key, sources);
        let is_coming =
            |target: CopyId| !lent.copies[target].windows.iter().any(|&window| is_idle(lent.copies, window));
        match self.table.get(key).expect("just set").state {
            State::Folded { .. } => self.seal_allgather(lent, key),
            State::Gathering { copy } if is_coming(copy) => {}
            _ => self.drop_slot(lent, key),
        }
        let (reduction, _) = key;
        for other in self.table.keys_of(reduction) {
            if other != key {
                self.let_sum_go(lent, other);
            }
        }
    }

    /// Every part is here, and the target is final: seals it, unless its owner does not know yet that it is made here.
    pub(super) fn seal_allgather(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        let running = self.table.get(key).expect("the caller's");
        if !running.acceptance().is_some_and(|acceptance| acceptance.is_accepted()) {
            return;
        }
        let running = self.table.remove(key).expect("just seen");
        let (State::Folded { copy: target }, Makes::Whole(_, Some(sources))) = (running.state, running.makes)
        else {
            unreachable!("the callers seal what is complete and final");
        };
        lent.copies.seal_whole(lent.ctx, target, running.assignment.root, Seal { sources });
    }

    /// The partial sum of a committed reduction is no longer needed here, but neighbours may not have all of it yet.
    fn let_sum_go(&mut self, lent: &mut Lent<'_>, key: SlotKey) {
        match self.table.get(key).expect("just listed").state {
            State::Folded { copy } if lent.copies.get(copy).is_some_and(|sum| sum.is_sealed()) => {
                self.table.remove(key);
                if !lent.copies[copy].doomed {
                    lent.copies.retire(lent.ctx, copy);
                }
            }
            _ => self.drop_slot(lent, key),
        }
    }
}

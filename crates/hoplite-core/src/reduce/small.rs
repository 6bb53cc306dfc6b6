//! Targets that fit into a message need no tree: the coordinator gets the sources like anyone else
//! (they come inside directory messages) and folds them itself [design §6].

use std::collections::BTreeSet;

use hoplite_words::peer::{PeerMessage, Seal};
use hoplite_words::{CopyId, Edition, ErrorKind, FoldOrder, ObjectId, Op};

use super::choose::check_fits;
use super::folds::FoldFor;
use crate::copies::{NewCopy, Phase};
use crate::fetch::Want;
use crate::io::{Broken, FoldRule};
use crate::room::RoomFor;
use crate::Core;

/// The sources that are here, by index, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Small {
    here: Vec<(usize, CopyId)>,
    target: Option<CopyId>,
}

impl Small {
    pub fn count(&self) -> usize {
        self.here.len()
    }
}

impl Core {
    /// The sources turned out to be small: get them all, the first k do.
    pub(super) fn start_small(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        reduction.small = Some(Small::default());
        for source in reduction.request.sources.clone() {
            if self.reductions.contains_key(&number) {
                self.want(source, Want::Reduction(number));
            }
        }
    }

    pub(crate) fn on_reduction_object_here(&mut self, number: u64, object: ObjectId) {
        let copy = self.copies.sealed(object).expect("told because it is sealed");
        let me = self.me;
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let Some(index) = reduction.request.sources.iter().position(|&source| source == object) else {
            return;
        };
        let (k, facts) = (reduction.k(), reduction.facts.as_ref().expect("known before small"));
        let known = &self.copies.table[&copy];
        let report = hoplite_words::peer::CopyReport {
            seq: 0,
            edition: known.edition,
            size: known.extent.size,
            header: known.header.clone(),
            complete: true,
            pinned: known.pinned,
            upstream: None,
            leaving: false,
        };
        if let Err(error) = check_fits(object, &report, facts, me) {
            return self.fail_reduction(number, error.kind, &error.message);
        }
        let Some(small) = &mut reduction.small else { return };
        if small.here.len() == k {
            return;
        }
        small.here.push((index, copy));
        let complete = small.here.len() == k;
        // Not to be evicted before it is folded.
        self.add_user(copy);
        if complete {
            self.fold_small(number);
        }
    }

    pub(crate) fn fold_small(&mut self, number: u64) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let (request, facts) = (&reduction.request, reduction.facts.as_ref().expect("known before small"));
        let Some(small) = &mut reduction.small else { return };
        if request.order == FoldOrder::Fixed {
            small.here.sort_unstable();
        }
        let rule = FoldRule {
            op: request.op,
            dtype: facts.dtype,
            offset: 0,
            divide_by: (request.op == Op::Mean).then_some(request.k),
            open: false,
        };
        let (target, size, header) = (request.target, facts.size, facts.header.clone());
        let sources: Vec<_> = small.here.iter().map(|&(_, copy)| copy).collect();
        if self.is_taken(target) {
            let message = format!("{}: the target {target} exists already", self.me);
            return self.fail_reduction(number, ErrorKind::AlreadyExists, &message);
        }
        if let Some(stale) = self.copies.live(target) {
            self.doom(stale);
        }
        let edition = Edition { writing: self.unique(), attempt: 0 };
        let phase = Phase::Folded(None);
        let new = NewCopy { object: target, edition, size, header, phase, pinned: true, public: true };
        let Some(copy) = self.open_copy(new) else {
            return self.wait_for_room(RoomFor::SmallTarget { number });
        };
        if let Some(small) = self.reductions.get_mut(&number).and_then(|reduction| reduction.small.as_mut()) {
            small.target = Some(copy);
        }
        sources.iter().for_each(|&source| self.add_user(source));
        self.start_fold(FoldFor::Small(number), copy, rule, sources, &[]);
        // A sender for somebody's wish to have the target must not push out what we fold.
        self.drop_fetch(target);
        self.on_opened(target);
    }

    pub(crate) fn on_small_folded(&mut self, number: u64, copy: CopyId, outcome: Result<(), Broken>) {
        let Some(reduction) = self.reductions.get_mut(&number) else { return };
        let Some(small) = &mut reduction.small else { return };
        small.target = None;
        let sources: Vec<_> = small.here.iter().map(|&(index, _)| reduction.request.sources[index]).collect();
        let (id, to_sources) = (reduction.request.target, reduction.request.to_sources);
        if outcome.is_err() {
            self.doom(copy);
            return self.fail_reduction(number, ErrorKind::Internal, "a fold of local objects broke off");
        }
        let nodes: BTreeSet<_> = sources
            .iter()
            .filter(|_| to_sources)
            .flat_map(|&source| self.subscriptions.copies(source).filter(|(_, report)| report.pinned))
            .map(|(node, _)| node)
            .collect();
        self.seal_copy(copy, Seal { sources: sources.clone() });
        for node in nodes {
            self.send(node, PeerMessage::Prefetch { id }, None);
        }
        self.finish_reduction(number, Ok(sources));
    }

    /// A source cannot be brought here.
    pub(crate) fn on_reduction_object_failed(
        &mut self,
        number: u64,
        object: ObjectId,
        kind: ErrorKind,
        message: &str,
    ) {
        if kind == ErrorKind::Deleted {
            return self.on_reduction_deleted(number, object);
        }
        self.fail_reduction(number, kind, message);
    }

    /// Lets go of what a small reduction held.
    pub(super) fn drop_small(&mut self, number: u64, small: Small, sources: &[ObjectId]) {
        self.room.retain(|what| *what != RoomFor::SmallTarget { number });
        for &source in sources {
            self.unwant(source, Want::Reduction(number));
        }
        for (_, copy) in small.here {
            self.remove_user(copy);
        }
        if let Some(target) = small.target {
            self.doom(target);
        }
    }
}

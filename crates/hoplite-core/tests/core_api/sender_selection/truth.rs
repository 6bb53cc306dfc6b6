//! The true state of the nodes, as opposed to the owner's view of it.

use hoplite_types::{limits, Edition};

use super::{Doing, World, NODES};

impl World {
    pub(super) fn is_lost(&self) -> bool {
        let source = |doing: &Doing| matches!(doing, Doing::Writing(_) | Doing::Holding { .. });
        self.was_complete && !self.doing.values().any(source)
    }

    pub(super) fn edition_at(&self, number: u16) -> Option<Edition> {
        match self.doing[&number] {
            Doing::Nothing | Doing::Contending(_) => None,
            Doing::Asking { have, .. } => have,
            Doing::Writing(edition) | Doing::Receiving { edition, .. } | Doing::Holding { edition, .. } => {
                Some(edition)
            }
        }
    }

    /// Whether bytes of one edition come out of `number`, and none of them by way of `asker`.
    pub(super) fn leads_to_a_source(&self, number: u16, asker: u16) -> bool {
        let edition = self.edition_at(number);
        let mut at = number;
        loop {
            match self.doing[&at] {
                _ if at == asker || self.edition_at(at) != edition => return false,
                Doing::Writing(_) | Doing::Holding { .. } => return true,
                Doing::Receiving { from, .. } => at = from,
                Doing::Asking { .. } | Doing::Nothing | Doing::Contending(_) => return false,
            }
        }
    }

    pub(super) fn receivers_of(&self, number: u16) -> Vec<u16> {
        let of = |doing: &Doing| matches!(doing, Doing::Receiving { from, .. } if *from == number);
        self.doing.iter().filter(|(_, doing)| of(doing)).map(|(&receiver, _)| receiver).collect()
    }

    /// The number of nodes that receive the edition that `number` has now. All others will notice that they do not.
    pub(super) fn served_by(&self, number: u16) -> usize {
        let same = |receiver: &u16| self.edition_at(*receiver) == self.edition_at(number);
        self.receivers_of(number).into_iter().filter(same).count()
    }

    /// Whether `sender` may be lent to `asker` now.
    pub(super) fn may_lend(&self, sender: u16, asker: u16) -> bool {
        let Doing::Asking { have, distrust, .. } = self.doing[&asker] else { return false };
        let continues =
            |number: u16| self.edition_at(number) == have && self.leads_to_a_source(number, asker);
        let whole =
            self.size > limits::INLINE_BYTES_MAX || matches!(self.doing[&sender], Doing::Holding { .. });
        sender != asker
            && whole
            && self.leads_to_a_source(sender, asker)
            && self.served_by(sender) < self.fanout
            && !distrust.is_some_and(|(who, until)| who == sender && until > self.owner.now)
            && (have.is_none() || continues(sender) || !NODES.into_iter().any(continues))
    }

    /// A put waits only while another one is being written.
    pub(super) fn check_contenders(&self) {
        let waits = |doing: &Doing| matches!(doing, Doing::Contending(_));
        let stands = |doing: &Doing| matches!(doing, Doing::Writing(_));
        let doing = || self.doing.values();
        assert!(!doing().any(waits) || doing().any(stands), "nobody writes in {:?}", self.doing);
    }

    pub(super) fn check(&mut self) {
        self.check_contenders();
        for (&asker, doing) in &self.doing {
            if let Doing::Asking { .. } = doing {
                let free = NODES.into_iter().find(|&sender| self.may_lend(sender, asker));
                assert_eq!(free, None, "{asker} is left waiting in {:?} at {:?}", self.doing, self.owner.now);
            }
        }
        assert_eq!(self.watched, self.reported, "what the watcher knows, and what is true");
    }
}

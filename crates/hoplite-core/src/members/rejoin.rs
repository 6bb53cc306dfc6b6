//! Rejoins after other members declared this node dead, or this node declared them dead.

use foca::{AccumulatingRuntime, Foca, Header, Identity, Member, Message, PostcardCodec, State};
use rand::{rngs::SmallRng, Rng, SeedableRng};

use super::{Change, Gossiper, Members};

impl Members {
    /// Detects the end of a partition: the sender is a member that we believe dead, or it reports that we were
    /// declared dead. Returns whether our side lost the larger part of the cluster, so that its opinions from that
    /// time are void.
    pub(super) fn must_rejoin(&self, header: &Header<Gossiper>) -> bool {
        let known = || self.foca.iter_membership_state();
        let back = known().any(|member| *member.id() == header.src && member.state() == State::Down);
        let held_dead = header.message == Message::TurnUndead && header.dst == *self.foca.identity();
        if !back && !held_dead {
            return false;
        }
        let me = self.foca.identity().addr;
        let heard =
            |heard: bool| known().filter(move |m| (m.state() == State::Alive) == heard).map(|m| m.id().addr);
        let ours = (heard(true).count() + 1, heard(true).chain([me]).min());
        let theirs = (heard(false).count(), heard(false).min());
        // Of two equal halves, the one without the smallest address must rejoin.
        ours.0 < theirs.0 || (ours.0 == theirs.0 && theirs.1 < ours.1)
    }

    /// Rejoins through `member` under a new identity, which knows only the members that we do not suspect. If we
    /// spread our suspicions, each of the suspects would have to prove that it is alive.
    pub(super) fn rejoin(&mut self, member: Gossiper) -> Vec<Change> {
        let Some(renewed) = self.foca.identity().renew() else { return Vec::new() };
        let (heard, doubtful): (Vec<_>, Vec<_>) = self
            .foca
            .iter_members()
            .map(|member| (*member.id(), member.state()))
            .partition(|(_, s)| *s == State::Alive);
        let heard = heard.into_iter().map(|(id, _)| Member::alive(id));
        let heard: Vec<_> = heard.collect();
        let rng = SmallRng::seed_from_u64(self.rng.next_u64());
        self.foca = Foca::new(renewed, self.settings.clone(), rng, PostcardCodec);
        self.runtime = AccumulatingRuntime::new();
        self.timers.clear();
        let _ = self.foca.apply_many(heard.into_iter(), false, &mut self.runtime);
        let _ = self.foca.announce(member, &mut self.runtime);
        // They are no longer watched; those that are alive come up again.
        let doubtful = doubtful.into_iter().map(|(id, _)| Change::Down(id.node()));
        doubtful.chain([Change::Rejoined]).collect()
    }
}
